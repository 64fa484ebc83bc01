"""Losses of late interaction: queries and documents are vectors of tokens, compared by MaxSim.

Comment letters: B batch, N rows of all replicas, K further texts of a row, M documents of all rows,
L tokens of a text, Q tokens of a query, D width.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.lazy import array_ops, tf
from encoder_zoo.common.validation import (
    PositiveFloat,
    PositiveInt,
    Temperature,
    validate_arguments,
)
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.losses.info_nce import negative_log_likelihood, own_columns, positives_mask
from encoder_zoo.tasks.losses.replicas import leaves_out_rows, of_all_replicas, padded_alike
from encoder_zoo.tasks.losses.score_distillation import divergence
from encoder_zoo.tasks.losses.vectors import differ

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
    flat = ops.reshape(documents, (batch, count * length, width))  # (B, K L, D)
    products = ops.matmul(queries, ops.swapaxes(flat, 1, 2))  # (B, Q, K L)
    products = products + ops.expand_dims(_absent(flat), 1)
    products = ops.reshape(products, (batch, ops.shape(queries)[1], count, length))
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
    number = array_ops.shape(parts)[0]

    def step(i, dparts, dflat):
        factors = (parts[i], flat)
        with tf.GradientTape() as tape:
            tape.watch(factors)
            found = scores(*factors)
        dpart, of_part = tape.gradient(found, factors, upstream[i])
        return i + 1, dparts.write(i, dpart), dflat + of_part

    dparts = array_ops.TensorArray(parts.dtype, number, element_shape=parts.shape[1:])
    start = (0, dparts, array_ops.zeros_like(flat))
    _, dparts, dflat = array_ops.while_loop(
        lambda i, *_: i < number, step, start, parallel_iterations=1
    )
    return dparts.stack(), dflat


class _MaxSimLoss(ConfigFromSignature, keras.losses.Loss):
    """Base of the losses of tokens' vectors.

    Args:
        query_length: so many tokens of the query are looked at, which saves memory where documents
            are longer; None is all.
        mean: whether a score is divided by the number of the query's tokens.
        **kwargs: of `keras.losses.Loss`.
    """

    @validate_arguments
    def __init__(self, query_length: PositiveInt | None = None, mean: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.query_length = query_length
        self.mean = mean

    def _parts(self, y_true, y_pred, least: int) -> tuple:
        """Return queries (B, Q, D) and documents (B, K, L, D), checked."""
        texts, labels = y_pred.shape[1], self._labels_of(y_pred)
        if len(y_pred.shape) != 4 or (texts or least) < least:
            raise invalid(
                f"{type(self).__name__}: y_pred's shape",
                tuple(y_pred.shape),
                f"(B, 1 + K, L, D), the vectors of the tokens of {least} texts or more in each row",
            )
        if len(y_true.shape) != 2 or differ(y_true.shape[1], labels):
            raise invalid(
                f"{type(self).__name__}: y_true's shape",
                tuple(y_true.shape),
                f"(B, {labels}), {self._labels}",
            )
        queries = y_pred[:, 0, : self.query_length]
        if self.mean:
            present = ops.cast(ops.any(queries != 0, axis=-1), queries.dtype)
            count = ops.maximum(ops.sum(present, axis=1), 1)  # (B,)
            queries = queries / ops.reshape(count, (-1, 1, 1))
        return queries, y_pred[:, 1:]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaxSimInfoNCE(_MaxSimLoss):
    """Computes the cross-entropy of each query's positive among all documents of the batch.

    As `InfoNCE`, of texts that are many vectors each: the documents are the positives and hard
    negatives of all rows, without those that are known to be relevant. Under `tf.distribute` the
    rows of all replicas count.

    Args:
        scale: factor of the scores, 1 / temperature.
        query_length: so many tokens of the query are looked at, which saves memory where documents
            are longer; None is all.
        mean: whether a score is divided by the number of the query's tokens, as in BGE-M3.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, 1 + K), numbers that are equal where texts are equal.
        y_pred: (B, 1 + K, L, D), vectors of the tokens of each text; zeros are no token.

    Returns:
        (B,), of `call`.

    Raises:
        ValueError: If `y_true` or `y_pred` has another shape.

    Source: Santhanam et al. 2022, ColBERTv2, section 3.2.

    Example:
        >>> import math
        >>> import numpy as np
        >>> y_pred = np.array([[[[1.0, 0.0]], [[1.0, 0.0]]], [[[0.0, 1.0]], [[0.0, 1.0]]]])
        >>> loss = MaxSimInfoNCE()(np.arange(4).reshape(2, 2), y_pred)
        >>> float(loss), math.log(1 + 1 / math.e)
        (0.313261..., 0.313261...)
    """

    _labels = "numbers that are equal where texts are equal, which fit makes without scores"

    @validate_arguments
    def __init__(
        self,
        scale: PositiveFloat = 1.0,
        query_length: PositiveInt | None = None,
        mean: bool = False,
        **kwargs,
    ):
        super().__init__(query_length, mean, **{"name": "max_sim_info_nce", **kwargs})
        self.scale = scale

    def _labels_of(self, y_pred) -> int | None:
        return y_pred.shape[1]

    @leaves_out_rows
    def call(self, y_true, y_pred):
        queries, documents = self._parts(y_true, y_pred, 2)
        all_documents, all_texts, first = of_all_replicas(padded_alike(documents, 2), y_true)
        # One column of documents after the other, as in `positives_mask`: (M, L, D).
        columns = ops.swapaxes(all_documents, 0, 1)
        columns = ops.reshape(columns, (-1, *ops.shape(columns)[2:]))
        scores = self.scale * max_sim(queries, columns)  # (B, M)
        own, positives = own_columns(scores, first), positives_mask(y_true, all_texts)
        return negative_log_likelihood(scores, own, positives)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaxSimDistillation(_MaxSimLoss):
    """Computes the KL divergence of the student's from the teacher's scores of a query's documents.

    Args:
        temperature: by which both scores are divided; the divergence is multiplied by its square.
        min_max: scale the scores of each row, the student's and the teacher's, to 0 to 1 first. By
            default, as in JaColBERTv2.5: MaxSim is a sum over the query's tokens, of another range
            than the scores of a cross-encoder. `ScoreDistillation` compares them as they are.
        query_length: so many tokens of the query are looked at, which saves memory where documents
            are longer; None is all.
        mean: whether a score is divided by the number of the query's tokens, as in BGE-M3.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, K), the teacher's scores.
        y_pred: (B, 1 + K, L, D), vectors of the tokens of a query and of two or more documents;
            zeros are no token.

    Returns:
        (B,), of `call`.

    Raises:
        ValueError: If `y_true` or `y_pred` has another shape.

    Source: Clavié 2024, JaColBERTv2.5, section 3.2.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[[1.0, 0.0]], [[0.9, 0.0]], [[0.1, 0.0]]]])
        >>> float(MaxSimDistillation()(np.array([[7.0, 2.0]]), y_pred))
        0.0
    """

    _labels = "the teacher's scores"

    @validate_arguments
    def __init__(
        self,
        temperature: Temperature = 1.0,
        min_max: bool = True,
        query_length: PositiveInt | None = None,
        mean: bool = False,
        **kwargs,
    ):
        super().__init__(query_length, mean, **{"name": "max_sim_distillation", **kwargs})
        self.temperature = temperature
        self.min_max = min_max

    def _labels_of(self, y_pred) -> int | None:
        return y_pred.shape[1] and y_pred.shape[1] - 1

    @leaves_out_rows
    def call(self, y_true, y_pred):
        queries, documents = self._parts(y_true, y_pred, 3)
        scores = max_sim_of_rows(queries, documents)
        return divergence(scores, y_true, self.temperature, self.min_max)
