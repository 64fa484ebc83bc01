# %% [markdown]
"""
Title: How BERT works
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: One sentence through tokenizer, embeddings, attention and blocks, in plain formulas.
Accelerator: None

Each step is a formula of a few lines, computed with the weights of a bundled BERT and compared with
the numbers of the layer that does the same. The layers themselves are hardly longer: the classes
`Embeddings`, `SelfAttention`, `EncoderBlock` and `Encoder` stand in this order in one file,
`encoders/core.py`, each with its arguments, its weights and its formula.
"""

# %%
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import numpy as np
from keras import ops

import encoder_zoo as ez

task = ez.MaskedLM.from_preset("bert_nano_en_uncased")
tokenizer, bert = task.preprocessor.tokenizer, task.backbone
print(f"{bert.num_layers} blocks, {bert.num_heads} heads, width {bert.hidden_dim}")


def compare(name, formula, layer):
    """Raise an error if our numbers are not the layer's."""
    np.testing.assert_allclose(formula, layer, rtol=1e-4, atol=1e-4)
    print(f"{name}: {tuple(formula.shape)}, as the layer")


# %% [markdown]
"""
## Tokens

A text becomes words and parts of words, and each of these a number, its index in the vocabulary.
`[CLS]` and `[SEP]` mark the beginning and the end; `[MASK]` is the word that BERT is to find.

The comments below give shapes: B texts (here one), L tokens, D numbers of each token, H heads.
"""

# %%
text = "the capital of france is [MASK]."
before, after = text.split("[MASK]")
pieces = [tokenizer.tokenize([part])[0].numpy().tolist() for part in (before, after)]
special = {name: tokenizer.token_to_id(name) for name in ("[CLS]", "[MASK]", "[SEP]")}
ids = [special["[CLS]"], *pieces[0], special["[MASK]"], *pieces[1], special["[SEP]"]]
print([tokenizer.id_to_token(i) for i in ids], ids, sep="\n")
token_ids = np.array([ids])  # (B, L)
outputs = bert({"token_ids": token_ids}, return_hidden_states=True)
states = outputs["hidden_states"]  # of each block its input, and the last one's output

# %% [markdown]
"""
## Embeddings

Each token is looked up in a table of vectors. Attention knows no order, so that a vector for the
token's position is added, and one for its segment, the first or the second text. LayerNorm gives
each vector the mean 0 and the variance 1, and then a scale and a shift that are learned (Devlin et
al. 2019, figure 2; Ba et al. 2016). It is `Embeddings.call`.
"""


# %%
def layer_norm(x, layer):
    mean = ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / ops.sqrt(variance + layer.epsilon) * layer.gamma + layer.beta


tables = bert.embeddings
length = token_ids.shape[1]
x = ops.take(tables.token_embedding.embeddings, token_ids, axis=0)  # (B, L, D)
x = x + tables.position_embedding.embeddings[:length]  # (L, D), the same for all texts
x = x + tables.segment_embedding.embeddings[0]  # (D,), all tokens are in the first segment
x = layer_norm(x, tables.norm)
compare("embeddings", x, states[0])

# %% [markdown]
"""
## Attention

From every token's vector, three are made: a query, a key and a value. The product of one token's
query with another's key says how much the first attends to the second:

softmax(QKᵀ / √d) V

is for each token a mean of all values, weighted by these products (Vaswani et al. 2017, equation
1). That is done in several heads, each on its own d = D / H numbers: `SelfAttention.project` makes
them, `scores` and `attend` are the equation.
"""


# %%
def dense(x, layer):
    return ops.matmul(x, layer.kernel) + layer.bias


def heads(x, count):
    """(B, L, D) to (B, H, L, d)."""
    return ops.transpose(ops.reshape(x, (*x.shape[:2], count, -1)), (0, 2, 1, 3))


def self_attention(x, layer):
    query = heads(dense(x, layer.query_dense), layer.num_heads)  # (B, H, L, d)
    key = heads(dense(x, layer.key_dense), layer.num_heads)
    value = heads(dense(x, layer.value_dense), layer.num_heads)
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) / query.shape[-1] ** 0.5
    probabilities = ops.softmax(scores, axis=-1)  # (B, H, L, L), each row sums to 1
    mixed = ops.matmul(probabilities, value)  # (B, H, L, d)
    mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), x.shape)  # (B, L, D)
    return dense(mixed, layer.output_dense), probabilities


block = bert.blocks[0]
attended, probabilities = self_attention(x, block.attention)
compare("attention", attended, block.attention(x))
compare(
    "probabilities", probabilities, bert.attention_probabilities({"token_ids": token_ids})[:, 0]
)

# %% [markdown]
"""
In a batch, short texts are filled up with padding. A mask then adds a large negative number to the
scores of padded tokens, so that their probability is 0: `attention_masks.py`.

## A block

The attention's output is added to its input, and normalised. Then a net of two layers with a GELU
between them changes each token on its own, and is added and normalised likewise (Vaswani et al.
2017, sections 3.1 and 3.3; Hendrycks and Gimpel 2016). It is `EncoderBlock.call`.
"""


# %%
def gelu(x):
    return 0.5 * x * (1 + ops.erf(x / 2**0.5))


def encoder_block(x, block):
    attended, _ = self_attention(x, block.attention)
    x = layer_norm(x + attended, block.attention_norm)
    inner = gelu(dense(x, block.intermediate_dense))  # (B, L, 4 D)
    return layer_norm(x + dense(inner, block.output_dense), block.output_norm)  # (B, L, D)


compare("block", encoder_block(x, block), block(x))

# %% [markdown]
"""
## The encoder

is all blocks, one after the other: `Encoder._run`. The last one's output is a vector for each token
that depends on the whole text.
"""

# %%
for block, state in zip(bert.blocks, states[1:], strict=True):
    x = encoder_block(x, block)
    compare("after a block", x, state)
compare("encoder", x, outputs["sequence_output"])

# %% [markdown]
"""
## An answer

A head on top makes use of the vectors. That of pretraining multiplies the masked token's with every
token's embedding: the largest product is the token that fits best.
"""

# %%
[best, *_] = task.fill_mask([text])[0]
print(best)
head, position = task.head, ids.index(special["[MASK]"])
hidden = layer_norm(gelu(dense(x[:, position], head.hidden.dense)), head.hidden.norm)  # (B, D)
logits = ops.matmul(hidden, ops.transpose(tables.token_embedding.embeddings)) + head.bias  # (B, V)
found = int(ops.argmax(logits[0]))
score = float(ops.softmax(logits)[0, found])
assert tokenizer.id_to_token(found) == best["token"]
np.testing.assert_allclose(score, best["score"], rtol=1e-3)
print(f"{text} -> {best['token']} ({score:.2f})")

# %% [markdown]
"""
## Where to read on

- Training adds dropout: of the embeddings, of the probabilities, of both sums in a block.
- Other families change single formulas: `families/modernbert.py` normalises first, turns queries
  and keys by their positions, and gates the inner net; `families/deberta_v2.py` adds distances to
  the scores.
- `kernels/` computes the same numbers faster: `FastAttention` is a subclass of `SelfAttention`, and
  `Backbone`, an `Encoder`, chooses it. Tests compare both.
"""
