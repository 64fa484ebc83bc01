"""Contrastive loss with in-batch negatives.

Comments use these letters for shapes: B (batch size), N (rows on all replicas), K (other texts in a
row), M (candidates), D (embedding dimension).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import NonNegativeFloat, PositiveFloat, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.losses import vectors
from encoder_zoo.tasks.losses.replicas import gather_replicas, ignores_padding_rows

TEXT_IDS = (
    "with equal integers for equal texts. `fit` creates these integers for data without scores"
)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class InfoNCE(ConfigFromSignature, keras.losses.Loss):
    """Cross-entropy of choosing each query's positive from all documents in the batch.

    The documents are the positives and hard negatives of all rows. Relevant documents are not used
    as negatives. A document is relevant if it is equal to the query or its positive, or if it is
    the positive of a row with the same query. With `tf.distribute`, the documents include all
    replicas. The loss of a batch with a single pair is 0, because there are no negatives.

    Args:
        scale: Positive float. Similarities are multiplied by this value (1 / temperature). Defaults
            to 20.0.
        similarity: String, "cosine" or "dot". Defaults to "cosine".
        symmetric: Boolean. If True, the loss is the mean of this loss and the reverse loss, which
            chooses each positive's query from all queries. Defaults to False.
        margin: Optional non-negative float. Negatives are excluded if their similarity is higher
            than the positive's similarity minus this margin, because they could be relevant. If
            None, this filter is disabled.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Integer tensor of shape (B, 1 + K) with text ids. Equal texts have equal ids.
        y_pred: Tensor of shape (B, 1 + K, D) with the vectors for a query, its positive and
            optional negatives.

    Returns:
        Tensor of shape (B,).

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: van den Oord et al. 2018, Representation Learning with Contrastive Predictive Coding,
    equation 4. For both directions: Radford et al. 2021, CLIP, figure 3.

    Example:
        >>> import math
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> float(InfoNCE(scale=1.0)(np.arange(4).reshape(2, 2), y_pred)), math.log(1 + 1 / math.e)
        (0.313261..., 0.313261...)
    """

    @validate_arguments
    def __init__(
        self,
        scale: PositiveFloat = 20.0,
        similarity: vectors.LossSimilarity = "cosine",
        symmetric: bool = False,
        margin: NonNegativeFloat | None = None,
        **kwargs,
    ):
        super().__init__(**{"name": "info_nce", **kwargs})
        self.scale = scale
        self.similarity = similarity
        self.symmetric = symmetric
        self.margin = margin

    @ignores_padding_rows
    def call(self, y_true, y_pred, rows=None):
        vectors.check_rows(self, y_pred, 2, "a query, its positive, and optional hard negatives")
        _check_text_ids(self, y_true, y_pred)
        x = vectors.normalize_for_similarity(y_pred, self.similarity)
        all_x, all_texts, first = gather_replicas(x, y_true)
        candidates, positives = concatenate_columns(all_x[:, 1:]), mark_positives(y_true, all_texts)
        forward = self._compute_values(x[:, 0], candidates, positives, first, rows)
        if not self.symmetric:
            return forward
        y_true, all_texts = (ops.flip(texts[:, :2], axis=1) for texts in (y_true, all_texts))
        positives = mark_positives(y_true, all_texts)
        backward = self._compute_values(x[:, 1], all_x[:, 0], positives, first, rows)
        return (forward + backward) / 2

    def _compute_values(self, x, candidates, excluded, first, rows):
        """Compute the loss (B,) of vectors (B, D) with candidates (M, D)."""
        scores = ops.matmul(x, ops.transpose(candidates))  # (B, M)
        own = mark_own_columns(scores, first)
        if self.margin is not None:
            excluded = ops.logical_or(
                excluded, scores > _select_positive_score(scores, own) - self.margin
            )
        return compute_negative_log_likelihood(self.scale * scores, own, excluded, rows)


def concatenate_columns(x: keras.KerasTensor) -> keras.KerasTensor:
    """Concatenate the columns of vectors: from (N, K, D) to (K * N, D)."""
    return ops.reshape(ops.swapaxes(x, 0, 1), (-1, x.shape[-1]))


def mark_own_columns(scores, first) -> keras.KerasTensor:
    """Create a boolean mask (B, M) that is True at column `first + row` of each row."""
    rows, columns = ops.shape(scores)
    own = ops.cast(first, "int32") + ops.arange(rows, dtype="int32")
    return own[:, None] == ops.arange(columns, dtype="int32")[None]


def mark_positives(texts: keras.KerasTensor, all_texts: keras.KerasTensor) -> keras.KerasTensor:
    """Create a boolean mask (B, K * N) of the candidates that are relevant for each row.

    A candidate is relevant if it is equal to the query of the row, or to the positive of a row with
    the same query.

    Args:
        texts: Integer tensor of shape (B, 1 + K) with text ids.
        all_texts: Integer tensor of shape (N, 1 + K) with the text ids on all replicas.

    Example:
        >>> texts = ops.convert_to_tensor([[0, 1, 2], [0, 3, 1], [4, 5, 6]])
        >>> mark_positives(texts, texts).numpy().astype(int).tolist()
        [[1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]]
    """
    candidates = ops.reshape(ops.transpose(all_texts[:, 1:]), (1, -1))  # (1, K * N)
    same_first = ops.cast(texts[:, :1] == ops.transpose(all_texts[:, :1]), "float32")  # (B, N)
    same_second = ops.cast(all_texts[:, 1:2] == candidates, "float32")  # (N, K * N)
    positives = ops.matmul(same_first, same_second) > 0
    return ops.logical_or(positives, texts[:, :1] == candidates)


def compute_negative_log_likelihood(logits, own, excluded, rows=None) -> keras.KerasTensor:
    """Compute the negative log-likelihood of each row's positive, shape (B,).

    Args:
        logits: Tensor of shape (B, M). M is a multiple of N, the number of rows on all replicas.
            Candidate `i` is a text from row `i % N`.
        own: Boolean tensor of shape (B, M). True for each row's positive.
        excluded: Boolean tensor of shape (B, M). Candidates to ignore. The positive is always used.
        rows: Boolean tensor of shape (B,). False for padding rows, whose candidates are ignored. If
            None, all rows are used.

    Example:
        >>> logits, own = ops.zeros((1, 4)), ops.convert_to_tensor([[True, False, False, False]])
        >>> excluded = ops.convert_to_tensor([[True, False, False, True]])
        >>> float(ops.exp(compute_negative_log_likelihood(logits, own, excluded))[0])
        3.0
    """
    if rows is not None:
        count, columns = ops.shape(logits)
        filling = ops.logical_not(ops.take(rows, ops.arange(columns) % count))
        excluded = ops.logical_or(excluded, filling)
    others = ops.logical_and(excluded, ops.logical_not(own))
    compared = ops.where(others, MASKED_LOGIT, logits)
    return ops.logsumexp(compared, axis=-1) - _select_positive_score(logits, own)[:, 0]


def _select_positive_score(scores, own):
    return ops.sum(ops.where(own, scores, 0.0), axis=-1, keepdims=True)


def _check_text_ids(loss: keras.losses.Loss, y_true, y_pred) -> None:
    if len(y_true.shape) != 2 or vectors.are_different(y_true.shape[1], y_pred.shape[1]):
        raise ValueError(
            f"{type(loss).__name__}: y_true has the shape {tuple(y_true.shape)}. Expected "
            f"(B, 1 + K) for y_pred with shape {tuple(y_pred.shape)}, {TEXT_IDS}."
        )
