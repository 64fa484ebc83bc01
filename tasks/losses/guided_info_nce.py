"""Contrastive loss that uses a guide model to exclude false negatives.

Comments use these letters for shapes: B (batch size), N (rows on all replicas), K (other texts in a
row), D (embedding dimension), G (embedding dimension of the guide).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import NonNegativeFloat, PositiveFloat, validate_arguments
from encoder_zoo.tasks.losses import info_nce
from encoder_zoo.tasks.losses.replicas import gather_replicas, ignores_padding_rows
from encoder_zoo.tasks.losses.vectors import check_rows, normalize_vectors


@keras.saving.register_keras_serializable(package="encoder_zoo")
class GuidedInfoNCE(ConfigFromSignature, keras.losses.Loss):
    """InfoNCE loss that excludes negatives that a guide model considers relevant.

    A negative is excluded if the guide's similarity is higher for the negative than for the
    positive. The candidates are the positives and negatives of all rows. In addition, queries are
    compared with the queries of all rows, and positives with the positives of all rows. A single
    softmax over all candidates is used, with the cosine similarity.

    Args:
        scale: Positive float. Similarities are multiplied by this value (1 / temperature). Defaults
            to 100.0.
        margin: Non-negative float. A candidate is used if its guide similarity is at most the guide
            similarity of the positive minus this margin. Defaults to 0.0.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B, 1 + K, G). Vectors of the guide model for the same texts.
        y_pred: Tensor of shape (B, 1 + K, D).

    Returns:
        Tensor of shape (B,).

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Solatorio 2024, GISTEmbed, section 3.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> round(float(GuidedInfoNCE(scale=1.0)(y_pred, y_pred)), 3)  # log(1 + 3 / e)
        0.744
    """

    @validate_arguments
    def __init__(self, scale: PositiveFloat = 100.0, margin: NonNegativeFloat = 0.0, **kwargs):
        super().__init__(**{"name": "guided_info_nce", **kwargs})
        self.scale = scale
        self.margin = margin

    @ignores_padding_rows
    def call(self, y_true, y_pred, rows=None):
        check_rows(self, y_pred, 2, "a query, its positive, and optional hard negatives")
        if len(y_true.shape) != 3:
            raise ValueError(
                f"GuidedInfoNCE: y_true has the shape {tuple(y_true.shape)}. Expected the "
                "guide's vectors (B, 1 + K, G), one for each text in y_pred (B, 1 + K, D)."
            )
        x, guide = normalize_vectors(y_pred), normalize_vectors(y_true)
        all_x, all_guide, first = gather_replicas(x, guide)
        scores, same = _compute_scores(x, all_x, first)
        guided, _ = _compute_scores(guide, all_guide, first)
        own = info_nce.mark_own_columns(scores, first)
        own_score = ops.sum(guide[:, 0] * guide[:, 1], axis=-1, keepdims=True)
        excluded = ops.logical_or(same, guided > own_score - self.margin)
        return info_nce.compute_negative_log_likelihood(self.scale * scores, own, excluded, rows)


def _compute_scores(x, all_x, first):
    """Compute the scores of all candidates, and mark the query and the positive of the same row.

    Args:
        x: Tensor of shape (B, 1 + K, D).
        all_x: Tensor of shape (N, 1 + K, D).
        first: Integer. Index of the first row on this replica among all N rows.

    Returns:
        Tuple of the scores, shape (B, K * N + 2 * N), and a boolean mask of the same shape. In the
        scores, the positive of a row is at index `first + row`. The mask is True if a query or
        positive would be compared with itself.
    """
    candidates = (info_nce.concatenate_columns(all_x[:, 1:]), all_x[:, 0], all_x[:, 1])
    texts = (x[:, 0], x[:, 0], x[:, 1])
    scores = [ops.matmul(a, ops.transpose(b)) for a, b in zip(texts, candidates, strict=True)]
    own = info_nce.mark_own_columns(scores[1], first)
    same = [ops.zeros_like(scores[0], "bool"), own, own]
    return ops.concatenate(scores, axis=1), ops.concatenate(same, axis=1)
