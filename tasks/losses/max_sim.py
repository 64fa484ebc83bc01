"""Losses for late interaction, which compare token vectors of queries and documents.

Comments use these letters for shapes: B (batch size), N (rows on all replicas), K (documents in a
row), M (documents in all rows), L (tokens in a text), Q (tokens in a query), D (embedding
dimension), P (parts of the queries), S (queries in a part).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common import validation
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.losses import info_nce
from encoder_zoo.tasks.losses.replicas import gather_replicas, ignores_padding_rows, pad_to_longest
from encoder_zoo.tasks.losses.score_distillation import compute_divergence
from encoder_zoo.tasks.losses.vectors import are_different

PRODUCTS = 2**24  # maximum number of token products in memory (64 MB)


def compute_max_sim(queries: keras.KerasTensor, documents: keras.KerasTensor) -> keras.KerasTensor:
    """Compute the MaxSim score of each query and each document, shape (B, M).

    For each query token, the maximum dot product with a document token is computed. The MaxSim
    score is the sum of these maxima. Zero vectors are ignored.

    Args:
        queries: Tensor of shape (B, Q, D).
        documents: Tensor of shape (M, L, D).

    Source: Khattab and Zaharia 2020, ColBERT, equation 3.

    Example:
        >>> queries = ops.convert_to_tensor([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]])
        >>> documents = ops.convert_to_tensor([[[3.0, -1.0], [0.0, 0.0]], [[4.0, 5.0], [9.0, 0.0]]])
        >>> compute_max_sim(queries, documents).numpy().tolist()
        [[1.0, 19.0]]
    """
    queries, documents = ops.convert_to_tensor(queries), ops.convert_to_tensor(documents)
    batch, tokens, width = ops.shape(queries)
    count, length = ops.shape(documents)[:2]
    size = _limit_to_one(PRODUCTS // (count * length) // tokens)
    number = _limit_to_one(-(-batch // size))
    size = _limit_to_one(-(-batch // number))
    flat = ops.reshape(documents, (-1, width))  # (M L, D)
    absent = _penalize_absent(flat)

    def compute_scores(part, flat):
        """Compute the scores (S, M) of a part of the queries (S, Q, D)."""
        products = ops.matmul(ops.reshape(part, (-1, width)), ops.transpose(flat))  # (S Q, M L)
        return _sum_best(ops.reshape(products + absent, (size, tokens, count, length)), part)

    # Each part contains every P-th query, so that `keras.distribution` can split each part across
    # devices.
    parts = ops.pad(queries, [[0, number * size - batch], [0, 0], [0, 0]])
    parts = ops.swapaxes(ops.reshape(parts, (size, number, tokens, width)), 0, 1)
    again = keras.remat(compute_scores)

    def score(part):
        return again(part, flat)

    if keras.config.backend() == "tensorflow":  # `ops.map` would compute several parts at a time
        form = tf.TensorSpec((parts.shape[1], documents.shape[0]), parts.dtype)
        found = tf.map_fn(score, parts, parallel_iterations=1, fn_output_signature=form)
    else:
        found = ops.map(score, parts)  # (P, S, M)
    return ops.reshape(ops.swapaxes(found, 0, 1), (size * number, count))[:batch]


def compute_row_max_sim(
    queries: keras.KerasTensor, documents: keras.KerasTensor
) -> keras.KerasTensor:
    """Compute the MaxSim score of each query and the documents in its row, shape (B, K).

    Args:
        queries: Tensor of shape (B, Q, D).
        documents: Tensor of shape (B, K, L, D).

    Example:
        >>> queries = ops.convert_to_tensor([[[1.0, 0.0], [0.0, 2.0]]])
        >>> documents = ops.convert_to_tensor([[[[3.0, -1.0]], [[4.0, 5.0]]]])
        >>> compute_row_max_sim(queries, documents).numpy().tolist()
        [[1.0, 14.0]]
    """
    batch, count, length, width = ops.shape(documents)
    flat = ops.reshape(documents, (batch, count * length, width))  # (B, K L, D)
    products = ops.matmul(queries, ops.swapaxes(flat, 1, 2))  # (B, Q, K L)
    products = products + ops.expand_dims(_penalize_absent(flat), 1)
    products = ops.reshape(products, (batch, ops.shape(queries)[1], count, length))
    return _sum_best(products, queries)


def _limit_to_one(number):
    return max(number, 1) if isinstance(number, int) else ops.maximum(number, 1)


def _penalize_absent(vectors):
    """Return values to add to the products: very low for zero vectors, and 0 for other vectors.

    Args:
        vectors: Tensor of shape (..., D).

    Returns:
        Tensor of shape (...).
    """
    present = ops.any(vectors != 0, axis=-1)
    return ops.where(present, 0.0, MASKED_LOGIT)


def _sum_best(products, queries):
    """Sum the maximum products over the query tokens, except for zero vectors.

    Args:
        products: Tensor of shape (B, Q, M, L).
        queries: Tensor of shape (B, Q, D).

    Returns:
        Tensor of shape (B, M).
    """
    best = ops.max(products, axis=-1)  # (B, Q, M)
    present = ops.cast(ops.any(queries != 0, axis=-1, keepdims=True), best.dtype)
    return ops.sum(best * present, axis=1)


class _MaxSimLoss(ConfigFromSignature, keras.losses.Loss):
    """Base class for losses with token vectors.

    Args:
        query_length: Optional positive integer. Maximum number of query tokens. A limit saves
            memory if documents are longer than queries. If None, there is no limit.
        mean: Boolean. Whether to divide a score by the number of query tokens. Defaults to False.
        **kwargs: Keyword arguments for `keras.losses.Loss`.
    """

    @validation.validate_arguments
    def __init__(
        self, query_length: validation.PositiveInt | None = None, mean: bool = False, **kwargs
    ):
        super().__init__(**kwargs)
        self.query_length = query_length
        self.mean = mean

    def _check_arguments(self, y_true, y_pred, least: int, unlabelled: int, labels: str) -> tuple:
        """Check the arguments, and return the queries (B, Q, D) and the documents (B, K, L, D).

        Args:
            y_true: Tensor. Labels.
            y_pred: Tensor. Token vectors of the texts.
            least: Integer. Minimum number of texts in a row.
            unlabelled: Integer. Number of texts in a row without a label.
            labels: String. Description of the labels for the error message.

        Raises:
            ValueError: If the shape of `y_true` or `y_pred` is not the expected shape.
        """
        texts = y_pred.shape[1]
        count = texts and texts - unlabelled
        if len(y_pred.shape) != 4 or (texts or least) < least:
            raise ValueError(
                f"{type(self).__name__}: y_pred has the shape {tuple(y_pred.shape)}. Expected "
                f"(B, 1 + K, L, D), with the token vectors of at least {least} texts per row."
            )
        if len(y_true.shape) != 2 or are_different(y_true.shape[1], count):
            raise ValueError(
                f"{type(self).__name__}: y_true has the shape {tuple(y_true.shape)}. Expected "
                f"(B, {count}), {labels}."
            )
        queries = y_pred[:, 0, : self.query_length]
        if self.mean:
            present = ops.cast(ops.any(queries != 0, axis=-1), queries.dtype)
            count = ops.maximum(ops.sum(present, axis=1), 1)  # (B,)
            queries = queries / ops.reshape(count, (-1, 1, 1))
        return queries, y_pred[:, 1:]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaxSimInfoNCE(_MaxSimLoss):
    """Cross-entropy of choosing each query's positive from all documents, with token vectors.

    This loss is `InfoNCE` with the MaxSim score. The documents are the positives and hard negatives
    of all rows, except for documents that are known to be relevant. With `tf.distribute`, the
    documents include all replicas.

    Args:
        scale: Positive float. Scores are multiplied by this value (1 / temperature). Defaults to
            1.0.
        query_length: Optional positive integer. Maximum number of query tokens. A limit saves
            memory if documents are longer than queries. If None, there is no limit.
        mean: Boolean. Whether to divide a score by the number of query tokens, as in BGE-M3.
            Defaults to False.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Integer tensor of shape (B, 1 + K) with text ids. Equal texts have equal ids.
        y_pred: Tensor of shape (B, 1 + K, L, D) with the token vectors of each text. Zero vectors
            are ignored.

    Returns:
        Tensor of shape (B,).

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Santhanam et al. 2022, ColBERTv2, section 3.2.

    Example:
        >>> import math
        >>> import numpy as np
        >>> y_pred = np.array([[[[1.0, 0.0]], [[1.0, 0.0]]], [[[0.0, 1.0]], [[0.0, 1.0]]]])
        >>> loss = MaxSimInfoNCE()(np.arange(4).reshape(2, 2), y_pred)
        >>> float(loss), math.log(1 + 1 / math.e)
        (0.313261..., 0.313261...)
    """

    @validation.validate_arguments
    def __init__(
        self,
        scale: validation.PositiveFloat = 1.0,
        query_length: validation.PositiveInt | None = None,
        mean: bool = False,
        **kwargs,
    ):
        super().__init__(query_length, mean, **{"name": "max_sim_info_nce", **kwargs})
        self.scale = scale

    @ignores_padding_rows
    def call(self, y_true, y_pred, rows=None):
        queries, documents = self._check_arguments(y_true, y_pred, 2, 0, info_nce.TEXT_IDS)
        all_documents, all_texts, first = gather_replicas(pad_to_longest(documents, 2), y_true)
        # The columns of documents are concatenated in the order of `mark_positives`, (M, L, D).
        columns = ops.swapaxes(all_documents, 0, 1)
        columns = ops.reshape(columns, (-1, *ops.shape(columns)[2:]))
        scores = self.scale * compute_max_sim(queries, columns)  # (B, M)
        own = info_nce.mark_own_columns(scores, first)
        positives = info_nce.mark_positives(y_true, all_texts)
        return info_nce.compute_negative_log_likelihood(scores, own, positives, rows)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaxSimDistillation(_MaxSimLoss):
    """KL divergence between the scores of a student and a teacher, with token vectors.

    Args:
        temperature: Float. Both scores are divided by this value, and the divergence is multiplied
            by its square. Defaults to 1.0.
        min_max: Boolean. Whether to scale the scores in each row to the range from 0 to 1, for the
            student and for the teacher. This is used in JaColBERTv2.5, because MaxSim is a sum over
            query tokens and does not have the same range as cross-encoder scores. By default,
            `ScoreDistillation` does not scale scores. Defaults to True.
        query_length: Optional positive integer. Maximum number of query tokens. A limit saves
            memory if documents are longer than queries. If None, there is no limit.
        mean: Boolean. Whether to divide a score by the number of query tokens, as in BGE-M3.
            Defaults to False.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B, K) with the teacher scores.
        y_pred: Tensor of shape (B, 1 + K, L, D) with the token vectors of a query and two or more
            documents. Zero vectors are ignored.

    Returns:
        Tensor of shape (B,).

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Clavié 2024, JaColBERTv2.5, section 3.2.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[[1.0, 0.0]], [[0.9, 0.0]], [[0.1, 0.0]]]])
        >>> float(MaxSimDistillation()(np.array([[7.0, 2.0]]), y_pred))
        0.0
    """

    @validation.validate_arguments
    def __init__(
        self,
        temperature: validation.Temperature = 1.0,
        min_max: bool = True,
        query_length: validation.PositiveInt | None = None,
        mean: bool = False,
        **kwargs,
    ):
        super().__init__(query_length, mean, **{"name": "max_sim_distillation", **kwargs})
        self.temperature = temperature
        self.min_max = min_max

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        queries, documents = self._check_arguments(y_true, y_pred, 3, 1, "the teacher's scores")
        scores = compute_row_max_sim(queries, documents)
        return compute_divergence(scores, y_true, self.temperature, self.min_max)
