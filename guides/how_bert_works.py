# %% [markdown]
"""
Title: How BERT works
Author: the authors of encoder_zoo
Date created: 2026/11/24
Last modified: 2026/11/24
Description: Compute tokens, embeddings, attention and blocks of BERT with simple formulas.
Accelerator: None

Each step is written as a formula with a few lines. The formula is computed with the weights of a
bundled BERT, and compared with the output of the corresponding layer. The layers themselves are not
much longer. In `encoders/core.py`, the classes `Embeddings`, `SelfAttention`, `EncoderBlock` and
`Encoder` are defined in this order, with arguments, weights and formulas.
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
    """Raise an error if the results of a formula and a layer differ."""
    np.testing.assert_allclose(formula, layer, rtol=1e-4, atol=1e-4)
    print(f"{name}: {tuple(formula.shape)}, equal to the layer")


# %% [markdown]
"""
## Tokens

A text is split into words and parts of words. Each token is represented by its index in the
vocabulary. `[CLS]` and `[SEP]` mark the start and the end. BERT predicts the word for `[MASK]`.

The comments in the code show shapes: B is the number of texts (one in this guide), L is the number
of tokens, D is the number of dimensions, and H is the number of heads.
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
states = outputs["hidden_states"]  # inputs of all blocks and the output of the last block

# %% [markdown]
"""
## Embeddings

For every token, a vector is looked up in the embedding table. Attention does not depend on the
token order, so a position vector is added. A segment vector is also added to distinguish the first
text from the second text. LayerNorm then normalizes each vector to mean 0 and variance 1, and
applies a learned scale and shift (Devlin et al. 2019, figure 2; Ba et al. 2016). See
`Embeddings.call`.
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

Each token vector is projected to a query, a key and a value. The product of a query and a key
determines how much the first token attends to the second token:

softmax(QKᵀ / √d) V

For each token, this computes a weighted mean of all values. The softmax converts the products to
weights that sum to 1 (Vaswani et al. 2017, equation 1). There are several heads with d = D / H
dimensions. `SelfAttention.project` computes the projections. `scores` and `attend` implement the
equation.
"""


# %%
def dense(x, layer):
    return ops.matmul(x, layer.kernel) + layer.bias


def heads(x, count):
    """Reshape (B, L, D) to (B, H, L, d)."""
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
Short texts in a batch are padded. To set the probabilities for padding tokens to 0, a mask adds a
large negative number to their scores. See `attention_masks.py`.

## A block

The attention output is added to its input and normalized. A feedforward network with two layers and
a GELU between them is then applied to each token. Its output is also added and normalized (Vaswani
et al. 2017, sections 3.1 and 3.3; Hendrycks and Gimpel 2016). See `EncoderBlock.call`.
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

The encoder applies all blocks one after another. The last block returns a vector for each token,
which depends on the whole text. See `Encoder._run`.
"""

# %%
for block, state in zip(bert.blocks, states[1:], strict=True):
    x = encoder_block(x, block)
    compare("after a block", x, state)
compare("encoder", x, outputs["sequence_output"])

# %% [markdown]
"""
## A prediction

A head computes predictions from these vectors. To predict a masked token, the pretraining head
multiplies its vector with the embeddings of all tokens. The token with the largest product is
predicted.
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
## Further reading

- During training, dropout is applied to the embeddings, to the probabilities, and to both sums in a
  block.
- Some formulas are different for other families. `families/modernbert.py` normalizes before each
  layer, rotates queries and keys by position, and uses a gated feedforward network.
  `families/deberta_v2.py` adds relative positions to the scores.
- `kernels/` contains faster implementations. For example, `FastAttention` is a subclass of
  `SelfAttention`. It is used in `Backbone`, which is a subclass of `Encoder`. Tests compare both
  implementations.
"""
