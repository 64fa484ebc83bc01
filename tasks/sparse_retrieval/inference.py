"""Sparse vectors of texts in memory, and inside graphs.

Comment letters: N texts, K terms of a text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import require, tf
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.sparse_retrieval.sparse_matrices import as_rows, sparse
from encoder_zoo.tasks.training.inference import example_outputs

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from encoder_zoo.tasks.sparse_retrieval.task import SparseEncoder


def embed(
    encoder: SparseEncoder,
    texts: tf.Tensor,
    prompt: str | None,
    max_terms: int | None,
    batch_size: int | None,
) -> csr_array:
    """Return the vectors (N, V) of texts (N,), each truncated to what the model reads."""
    require(sparse)
    if not texts.shape[0]:
        return sparse.csr_array((0, encoder.embedding_dim), dtype="float32")
    examples = encoder.preprocessor.encode(texts, prompt=prompt)
    parts, order = [], []
    for indices, weights in example_outputs(encoder, examples, batch_size):
        parts.append(as_rows(np.asarray(weights), max_terms))
        order.append(indices)
    return sparse.vstack(parts, format="csr")[np.argsort(np.concatenate(order))]


def terms_in_graph(
    encoder: SparseEncoder, texts: tf.Tensor, prompt: str | None, max_terms: int | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the terms of texts (N,) inside `tf.function`, those with the largest weights first.

    Returns:
        The number of terms of each text (N,) int32, their indices in the vocabulary (N, K) int32
        and their weights (N, K) float32; beyond the number both are 0.
    """
    preprocessor = encoder.preprocessor

    def weights_of(examples):
        return encoder(preprocessor.pad(examples), training=False)

    examples = preprocessor.encode(texts, prompt=prompt)
    ones = tf.ones_like(examples["token_ids"].row_lengths())
    weights = in_graph_batches(weights_of, examples, ones, encoder.embedding_dim).flat_values
    count = tf.math.count_nonzero(weights, axis=1, dtype=tf.int32)
    if max_terms is not None:
        count = tf.minimum(count, max_terms)
    weights, indices = tf.math.top_k(weights, tf.reduce_max(tf.concat([[0], count], axis=0)))
    real = tf.sequence_mask(count, tf.shape(weights)[1])
    return count, tf.where(real, indices, 0), tf.where(real, weights, 0.0)


def signatures(encoder: SparseEncoder, max_terms: int | None) -> dict[str, Callable]:
    """Return the functions of an export; see `SparseEncoder.signatures`."""

    def answer(text, prompt=None):
        count, indices, weights = terms_in_graph(encoder, text, prompt, max_terms)
        real = tf.sequence_mask(count, tf.shape(weights)[1])
        terms = tf.where(real, tf.gather(tf.constant(encoder.terms), indices), "")
        return {"count": count, "index": indices, "term": terms, "weight": weights}

    return {
        "serving_default": lambda text: answer(text),
        "query": lambda text: answer(text, "query"),
        "document": lambda text: answer(text, "document"),
    }
