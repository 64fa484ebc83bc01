"""Vectors of texts in memory, in their order.

Comment letters: N texts, W windows, D width.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.wording import with_type
from encoder_zoo.tasks.embedding.columns import as_columns
from encoder_zoo.tasks.embedding.pooling import to_unit_length
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.columns import plain
from encoder_zoo.tasks.training.inference import example_outputs

if TYPE_CHECKING:
    from encoder_zoo.tasks.embedding.task import TextEmbedder


def only_column(texts) -> tf.Tensor:
    """Return the texts (N,), checked; raise an error for pairs.

    Raises:
        ValueError: "embed takes texts, and got 2 columns of them ..."
    """
    columns = as_columns(texts)
    if len(columns) > 1:
        raise ValueError(
            f"embed takes texts, and got {len(columns)} columns of them: "
            f"{with_type(plain(texts)):.60}. Embed each column by itself."
        )
    return columns[0]


def embed(embedder: TextEmbedder, texts: tf.Tensor, prompt: str | None, batch_size: int):
    """Return the vectors (N, D) of texts (N,), each truncated to what the model reads."""
    encode, count = functools.partial(embedder.preprocessor.encode, prompt=prompt), texts.shape[0]
    if not count:
        return np.zeros((0, embedder.embedding_dim), "float32")
    if count <= batch_size:
        return embedder.graphs.predict_few((texts,), encode)
    return _in_order(embedder, encode(texts), batch_size)


def mean_of_windows(
    embedder: TextEmbedder, texts: tf.Tensor, prompt: str | None, batch_size: int
) -> np.ndarray:
    """Return the vectors (N, D) of texts (N,): the mean of their windows, weighted by tokens."""
    examples = embedder.preprocessor.encode_windows(texts, prompt)
    weights = examples["token_ids"].row_lengths().numpy()[:, None] - 2.0  # (W, 1)
    index = examples.pop("text_index").numpy()
    parts = _in_order(embedder, examples, batch_size)  # (W, D)
    total, vectors = np.zeros((len(texts), 1)), np.zeros((len(texts), parts.shape[1]))
    np.add.at(total, index, weights)
    np.add.at(vectors, index, parts * weights)
    return embedder.scaled((vectors / np.maximum(total, 1)).astype("float32"))


def _in_order(embedder: TextEmbedder, examples: dict, batch_size: int) -> np.ndarray:
    """Return the vectors of encoded examples, (N, D)."""
    count = int(examples["token_ids"].nrows())
    vectors = np.zeros((count, embedder.embedding_dim), "float32")
    for indices, values in example_outputs(embedder, examples, batch_size):
        vectors[indices] = values
    return vectors


def signatures(embedder: TextEmbedder, dim: int) -> dict[str, Callable]:
    """Return the functions of an export; see `TextEmbedder.signatures`."""
    preprocessor = embedder.preprocessor

    def vectors_of(examples):
        return embedder(preprocessor.pad(examples), training=False)

    def answer(text, prompt=None):
        examples = preprocessor.encode(text, prompt=prompt)
        ones = tf.ones_like(examples["token_ids"].row_lengths())
        vectors = in_graph_batches(vectors_of, examples, ones, embedder.embedding_dim)
        vectors = vectors.flat_values[:, :dim]
        shortens = embedder.normalize and dim < embedder.embedding_dim
        return {"embedding": to_unit_length(vectors) if shortens else vectors}

    return {
        "serving_default": lambda text: answer(text),
        "query": lambda text: answer(text, "query"),
        "document": lambda text: answer(text, "document"),
    }
