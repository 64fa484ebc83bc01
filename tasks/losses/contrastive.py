"""Losses for positive and negative pairs.

Comments use these letters for shapes: B (batch size), K (other texts in a row), D (embedding
dimension).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import PositiveFloat, validate_arguments
from encoder_zoo.tasks.losses.replicas import gather_replicas, ignores_padding_rows
from encoder_zoo.tasks.losses.vectors import Distance, compute_distances, reshape_scores


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Contrastive(ConfigFromSignature, keras.losses.Loss):
    """Contrastive loss for positive and negative pairs.

    The loss of a positive pair is half of its squared distance. The loss of a negative pair is half
    of the square of `margin - distance`, or 0 if the distance is larger than the margin.

    Args:
        margin: Positive float. Negative pairs with a larger distance have the loss 0. Defaults to
            0.5.
        distance: String, "cosine" or "euclidean". Defaults to "cosine".
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B,) or (B, K), with 1 for positive pairs and 0 for negative pairs.
        y_pred: Tensor of shape (B, 1 + K, D). The first text in a row is paired with each other
            text.

    Returns:
        Tensor of shape (B,) with the mean loss over the pairs in each row.

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Hadsell, Chopra and LeCun 2006, Dimensionality Reduction by Learning an Invariant
    Mapping, equation 4.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
        >>> [float(Contrastive()(np.array(y), y_pred)) for y in ([1, 0], [0, 1])]
        [0.0, 0.3125]
    """

    @validate_arguments
    def __init__(self, margin: PositiveFloat = 0.5, distance: Distance = "cosine", **kwargs):
        super().__init__(**{"name": "contrastive", **kwargs})
        self.margin = margin
        self.distance = distance

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        return ops.mean(self._compute_squares(y_true, y_pred)[0], axis=-1) / 2

    def _compute_squares(self, y_true, y_pred) -> tuple:
        """Return twice the loss, the distance and the label of each pair, all of shape (B, K)."""
        y_true = reshape_scores(self, y_true, y_pred)
        away = compute_distances(y_pred, self.distance)
        near = ops.square(ops.relu(self.margin - away))
        return y_true * ops.square(away) + (1 - y_true) * near, away, y_true


@keras.saving.register_keras_serializable(package="encoder_zoo")
class OnlineContrastive(Contrastive):
    """Contrastive loss that only uses the hard pairs in a batch.

    The `Contrastive` losses of all hard pairs are multiplied by 2 and summed. A positive pair is
    hard if its distance is larger than the smallest distance of a negative pair. A negative pair is
    hard if its distance is smaller than the largest distance of a positive pair. If a batch has
    fewer than two negative pairs, the mean distance of the positive pairs replaces the smallest
    negative distance, and vice versa. With `tf.distribute`, the pairs on all replicas are compared.
    The arguments are the same as for `Contrastive`.

    Returns:
        Tensor of shape (B,) with the same value for each row.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.6, 0.8]]])
        >>> y_pred = np.concatenate([y_pred, y_pred])
        >>> round(float(OnlineContrastive()(np.array([1, 0, 1, 0]), y_pred)), 2)  # 1 + 1 + 2 * 0.01
        2.02
    """

    @validate_arguments
    def __init__(self, margin: PositiveFloat = 0.5, distance: Distance = "cosine", **kwargs):
        super().__init__(margin, distance, **{"name": "online_contrastive", **kwargs})

    @ignores_padding_rows
    def call(self, y_true, y_pred, rows=None):
        squares, away, scores, _ = gather_replicas(*self._compute_squares(y_true, y_pred))
        positive, negative = scores > 0.5, scores <= 0.5
        if rows is not None:
            positive, negative = (ops.logical_and(rows[:, None], p) for p in (positive, negative))
        nearest = _find_bound(-1, away, negative, positive)
        farthest = _find_bound(1, away, positive, negative)
        hard = ops.logical_or(
            ops.logical_and(positive, away > nearest), ops.logical_and(negative, away < farthest)
        )
        total = ops.sum(ops.where(hard, squares, 0.0))
        return total * ops.ones_like(y_pred[:, 0, 0])


def _find_bound(sign: int, away, chosen, others):
    """Return the largest distance of the chosen pairs, or the smallest if `sign` is -1.

    If fewer than two pairs are chosen, return the mean distance of the other pairs.
    """
    extreme = sign * ops.max(ops.where(chosen, sign * away, -1e9))
    count = ops.maximum(ops.sum(ops.cast(others, away.dtype)), 1)
    mean = ops.sum(ops.where(others, away, 0.0)) / count
    return ops.where(ops.sum(ops.cast(chosen, "int32")) > 1, extreme, mean)
