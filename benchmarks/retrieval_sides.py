"""Train MiniLM for retrieval with encoder_zoo and sentence-transformers.

`SYSTEMS[system][side](pairs, seed)` returns a trained model and training speed in pairs per second,
without the first step. Both sides train for one epoch with InfoNCE on in-batch negatives, batches
of 32 pairs with similar token counts, AdamW with learning rate 5e-5, 10 % warmup and linear decay,
weight decay 0.01 except for biases and LayerNorm, and gradient clipping at norm 1. Models from
sentence-transformers are saved and then opened with this package, to evaluate all models in the
same way.

- vectors: mean pooling over up to 256 tokens, cosine similarity, scale 20.
- late interaction: a new projection to 128 dimensions, markers, queries expanded to 32 tokens,
  documents with 180 tokens, MaxSim, scale 1.
- SPLADE without a query model: query weights are an IDF table, which can be frozen or trained.
  Document weights come from `bert_nano_en_uncased`, which already has a head, with 256 tokens and
  learning rate 1e-3. This is only trained with encoder_zoo.
- SPLADE: 128 tokens, with a new masked language model head that uses MiniLM's token embeddings,
  because MiniLM has no such head. FLOPS weights increase quadratically during the first third of
  all steps.
"""

import argparse
import functools
import logging
import pathlib
import string
import tempfile
import time
from collections.abc import Callable, Iterable

import keras
from sources import MINILM

import encoder_zoo as ez

RECIPE = argparse.Namespace(epochs=1, batch_size=32)
QUERY_LENGTH, DOCUMENT_LENGTH, WIDTH = 32, 180, 128
SPARSE_LENGTH = 128
NANO, NANO_LENGTH = "bert_nano_en_uncased", 256
FLOPS = {"query_weight": 5e-5, "document_weight": 1e-3}


class Rate:
    """Measure pairs per second from the end of the first step to the end of the last step."""

    def __init__(self, pairs: tuple):
        self.count, self.marks = len(pairs[0]), []

    def mark(self) -> None:
        """Store when a step ends."""
        self.marks.append(time.perf_counter())

    def __float__(self) -> float:
        if len(self.marks) < 2:
            return float("nan")
        seconds = self.marks[-1] - self.marks[0]
        return (self.count * RECIPE.epochs - RECIPE.batch_size) / seconds


def fitted(model: keras.Model, pairs: tuple) -> tuple[keras.Model, float]:
    """Train a compiled model with the recipe and return its speed."""
    rate = Rate(pairs)
    timer = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: rate.mark())
    size = RECIPE.batch_size
    model.fit(pairs, epochs=RECIPE.epochs, batch_size=size, callbacks=[timer], verbose=0)
    return model, float(rate)


def opened(model, task: type) -> keras.Model:
    """Convert a model from sentence-transformers to a task in this package."""
    with tempfile.TemporaryDirectory() as folder:
        model.eval().save(folder)
        return task.from_preset(pathlib.Path(folder))


def their_steps(model, pairs: tuple, seed: int, length: int | None = None) -> Iterable:
    """Yield tuples (text columns in a batch, function to run a step). See `torch_steps`."""
    from torch_training import torch_steps

    counts = [[len(ids) for ids in model.tokenizer(list(c))["input_ids"]] for c in pairs]
    limit = length or max(map(max, counts))
    lengths = [sum(min(n, limit) for n in both) for both in zip(*counts, strict=True)]
    for numbers, step in torch_steps(model, lengths, seed, RECIPE):
        yield [[column[i] for i in numbers] for column in pairs], step


# -- vectors ---------------------------------------------------------------------------------------


def our_vectors(pairs: tuple, seed: int) -> tuple[keras.Model, float]:
    keras.utils.set_random_seed(seed)
    model = ez.TextEmbedder.from_preset(MINILM)
    model.compile(learning_rate=5e-5)
    return fitted(model, pairs)


def their_vectors(pairs: tuple, seed: int) -> tuple[keras.Model, float]:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    torch.manual_seed(seed)
    model, rate = SentenceTransformer(str(MINILM), device="cpu"), Rate(pairs)
    loss = losses.MultipleNegativesRankingLoss(model)
    for columns, step in their_steps(model, pairs, seed):
        step(loss([model.preprocess(texts) for texts in columns], None))
        rate.mark()
    return opened(model, ez.TextEmbedder), float(rate)


# -- late interaction ------------------------------------------------------------------------------


def our_late_interaction(pairs: tuple, seed: int) -> tuple[keras.Model, float]:
    keras.utils.set_random_seed(seed)
    model = ez.LateInteraction.from_preset(
        MINILM, dim=WIDTH, query_length=QUERY_LENGTH, document_length=DOCUMENT_LENGTH
    )
    model.compile(learning_rate=5e-5)
    return fitted(model, pairs)


def their_late_interaction(pairs: tuple, seed: int) -> tuple[keras.Model, float]:
    import torch
    from sentence_transformers.multi_vector_encoder import losses

    torch.manual_seed(seed)
    model, rate = their_new_model(), Rate(pairs)
    loss = losses.MultiVectorMultipleNegativesRankingLoss(model)
    tasks = ("query", "document")
    for columns, step in their_steps(model, pairs, seed):
        inputs = [
            {**model.preprocess(texts, prompt=model.prompts[task], task=task), "task": task}
            for texts, task in zip(columns, tasks, strict=True)
        ]
        step(loss(inputs))
        rate.mark()
    return opened(model, ez.LateInteraction), float(rate)


def their_new_model():
    """Create a new MultiVectorEncoder in which each marker is a token."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    expansion = {"strategy": "fixed", "attend": False, "length": QUERY_LENGTH}
    encoder = Transformer(str(MINILM), document_length=DOCUMENT_LENGTH, query_expansion=expansion)
    tokens = {"additional_special_tokens": ["[Q] ", "[D] "]}
    encoder.tokenizer.add_special_tokens(tokens)
    encoder.model.resize_token_embeddings(len(encoder.tokenizer))
    options = {"activation_function": torch.nn.Identity(), "module_input_name": "token_embeddings"}
    dense = Dense(encoder.get_embedding_dimension(), WIDTH, bias=False, **options)
    torch.nn.init.trunc_normal_(dense.linear.weight, std=0.02)  # same as in this package
    mask = MultiVectorMask(list(string.punctuation))
    modules = [encoder, dense, mask, Normalize(module_input_name="token_embeddings")]
    prompts = {"query": "[Q] ", "document": "[D] "}
    return MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu")


# -- SPLADE ----------------------------------------------------------------------------------------


def new_sparse_encoder(seed: int) -> ez.SparseEncoder:
    """Create an encoder with a new head, which both sides start from."""
    keras.utils.set_random_seed(seed)
    logging.getLogger("encoder_zoo").setLevel("ERROR")  # hides the warning about a new head
    return ez.SparseEncoder.from_preset(MINILM, max_length=SPARSE_LENGTH)


def our_splade(pairs: tuple, seed: int) -> tuple[keras.Model, float]:
    encoder = new_sparse_encoder(seed)
    encoder.compile(loss=ez.losses.SPLADE(**FLOPS), learning_rate=5e-5)
    return fitted(encoder, pairs)


def their_splade(pairs: tuple, seed: int) -> tuple[keras.Model, float]:
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder import losses

    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        new_sparse_encoder(seed).save_to_preset(folder)
        model = SparseEncoder(folder, device="cpu")
    loss = losses.SpladeLoss(
        model,
        losses.SparseMultipleNegativesRankingLoss(model),
        document_regularizer_weight=0.0,
        query_regularizer_weight=0.0,
    )
    rate = Rate(pairs)
    rising = RECIPE.epochs * -(-len(pairs[0]) // RECIPE.batch_size) // 3
    for i, (columns, step) in enumerate(their_steps(model, pairs, seed, SPARSE_LENGTH)):
        share = min(1.0, i / max(rising, 1)) ** 2
        loss.query_regularizer_weight = share * FLOPS["query_weight"]
        loss.document_regularizer_weight = share * FLOPS["document_weight"]
        step(sum(loss([model.preprocess(texts) for texts in columns], None).values()))
        rate.mark()
    return opened(model, ez.SparseEncoder), float(rate)


def our_table(pairs: tuple, seed: int, learned: bool = False) -> tuple[keras.Model, float]:
    keras.utils.set_random_seed(seed)
    paragraphs = list(dict.fromkeys(pairs[1]))
    table = ez.TermTable.from_documents(ez.Tokenizer.from_preset(NANO), paragraphs)
    table.trainable = learned
    encoder = ez.SparseEncoder.from_preset(NANO, query_encoder=table, max_length=NANO_LENGTH)
    flops = FLOPS if learned else {**FLOPS, "query_weight": 0.0}
    rate = {"query_learning_rate": 1e-2} if learned else {}
    encoder.compile(loss=ez.losses.SPLADE(**flops), learning_rate=1e-3, **rate)
    return fitted(encoder, pairs)


SYSTEMS: dict[str, dict[str, Callable]] = {
    "vectors": {"encoder_zoo": our_vectors, "sentence-transformers": their_vectors},
    "late interaction": {
        "encoder_zoo": our_late_interaction,
        "sentence-transformers": their_late_interaction,
    },
    "SPLADE": {"encoder_zoo": our_splade, "sentence-transformers": their_splade},
    "SPLADE, queries by IDF": {"encoder_zoo": our_table},
    "SPLADE, a learned table": {"encoder_zoo": functools.partial(our_table, learned=True)},
}
