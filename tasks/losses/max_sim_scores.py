"""MaxSim of the texts of a batch, of some queries at a time.

The products of all tokens of 512 queries with those of 512 documents are 6 GB. Those of a part are
in memory at a time, and they are made again for the gradients.

Comment letters: B batch, M documents, K documents of a row, L tokens of a document, Q tokens of a
query, D width, P parts, S queries of a part.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT

PRODUCTS = 2**24  # of tokens in memory at a time: 64 MB


def max_sim(queries: keras.KerasTensor, documents: keras.KerasTensor) -> keras.KerasTensor:
    """Return the score of each query with each document, (B, M).

    It is the sum over the query's tokens of the largest product with a token of the document. A
    vector of zeros is none.

    Args:
        queries: (B, Q, D).
        documents: (M, L, D).

    Source: Khattab and Zaharia 2020, ColBERT, equation 3.

    Example:
        >>> queries = ops.convert_to_tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
        >>> documents = ops.convert_to_tensor([[[3.0, -1.0], [0.0, 0.0]], [[4.0, 5.0], [9.0, 0.0]]])
        >>> max_sim(queries, documents).numpy().tolist()
        [[1.0, 19.0]]
    """
    queries, documents = ops.convert_to_tensor(queries), ops.convert_to_tensor(documents)
    batch, tokens, width = ops.shape(queries)
    count, length = ops.shape(documents)[:2]
    size = _at_least_one(PRODUCTS // (count * length) // tokens)
    number = _at_least_one(-(-batch // size))
    size = _at_least_one(-(-batch // number))
    flat = ops.reshape(documents, (-1, width))  # (M L, D)
    absent = _absent(flat)

    def scores(part, flat):
        """Return the scores (S, M) of some queries (S, Q, D)."""
        products = ops.matmul(ops.reshape(part, (-1, width)), ops.transpose(flat))  # (S Q, M L)
        return _summed(ops.reshape(products + absent, (size, tokens, count, length)), part)

    # Every P-th query: so each device has its share of each part where `keras.distribution`
    # divides the batch.
    parts = ops.pad(queries, [[0, number * size - batch], [0, 0], [0, 0]])
    parts = ops.swapaxes(ops.reshape(parts, (size, number, tokens, width)), 0, 1)
    if keras.config.backend() == "tensorflow":
        found = _in_tensorflow_loops(scores, parts, flat, documents.shape[0])  # (P, S, M)
    else:
        again = keras.remat(scores)
        found = ops.map(lambda part: again(part, flat), parts)
    return ops.reshape(ops.swapaxes(found, 0, 1), (size * number, count))[:batch]


def max_sim_of_rows(queries: keras.KerasTensor, documents: keras.KerasTensor) -> keras.KerasTensor:
    """Return the score of each query with the documents of its own row, (B, K).

    Args:
        queries: (B, Q, D).
        documents: (B, K, L, D).

    Example:
        >>> queries = ops.convert_to_tensor([[[1.0, 0.0], [0.0, 2.0]]])
        >>> documents = ops.convert_to_tensor([[[[3.0, -1.0]], [[4.0, 5.0]]]])
        >>> max_sim_of_rows(queries, documents).numpy().tolist()
        [[1.0, 14.0]]
    """
    batch, count, length, width = ops.shape(documents)
    flat = ops.reshape(documents, (batch, -1, width))  # (B, K L, D)
    products = ops.matmul(queries, ops.swapaxes(flat, 1, 2))  # (B, Q, K L)
    products = products + ops.expand_dims(_absent(flat), 1)
    products = ops.reshape(products, (batch, -1, count, length))
    return _summed(products, queries)


def _at_least_one(number):
    return max(number, 1) if isinstance(number, int) else ops.maximum(number, 1)


def _absent(vectors):
    """Return what is added to the products with tokens (..., D): very low where there is none."""
    present = ops.any(vectors != 0, axis=-1)
    return ops.where(present, 0.0, MASKED_LOGIT)


def _summed(products, queries):
    """Return the sums (B, M) of the best products of (B, Q, M, L), without absent query tokens."""
    best = ops.max(products, axis=-1)  # (B, Q, M)
    present = ops.cast(ops.any(queries != 0, axis=-1, keepdims=True), best.dtype)
    return ops.sum(best * present, axis=1)


def _in_tensorflow_loops(scores: Callable, parts, flat, count: int | None):
    """Return `scores` of every part of (P, S, Q, D) with (M L, D), (P, S, M).

    TensorFlow's own gradient of a loop would keep the products of each round.

    Args:
        scores: function of a part (S, Q, D) and `flat`.
        parts: (P, S, Q, D).
        flat: (M L, D).
        count: M, if it is known.
    """

    @tf.custom_gradient
    def every_part(parts, flat):
        found = tf.map_fn(
            lambda part: scores(part, flat),
            parts,
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec((parts.shape[1], count), parts.dtype),
        )
        return found, lambda upstream: _gradients(scores, parts, flat, upstream)

    return every_part(parts, flat)


def _gradients(scores: Callable, parts, flat, upstream) -> tuple:
    """Return the gradients of the parts (P, S, Q, D) and of the documents' tokens (M L, D).

    Args:
        scores, parts, flat: as of `_in_tensorflow_loops`.
        upstream: (P, S, M), the gradient of the scores.
    """
    number = tf.shape(parts)[0]

    def step(i, dparts, dflat):
        factors = (parts[i], flat)
        with tf.GradientTape() as tape:
            tape.watch(factors)
            found = scores(*factors)
        dpart, of_part = tape.gradient(found, factors, upstream[i])
        return i + 1, dparts.write(i, dpart), dflat + of_part

    dparts = tf.TensorArray(parts.dtype, number, element_shape=parts.shape[1:])
    start = (0, dparts, tf.zeros_like(flat))
    _, dparts, dflat = tf.while_loop(lambda i, *_: i < number, step, start, parallel_iterations=1)
    return dparts.stack(), dflat
