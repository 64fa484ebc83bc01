"""Losses of positive and negative pairs. Comment letters: B batch, K further texts, D width."""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import PositiveFloat, validate_arguments
from encoder_zoo.tasks.losses.replicas import leaves_out_rows, of_all_replicas, rows_that_count
from encoder_zoo.tasks.losses.vectors import Distance, distances, scores_like


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Contrastive(ConfigFromSignature, keras.losses.Loss):
    """Computes squared distances of positive pairs, and of negative pairs those below the margin.

    The loss of a pair is half the square of its distance, if it is positive; else of the margin
    less its distance, or 0 where it is farther apart than the margin.

    Args:
        margin: distance from which negative pairs have no loss.
        distance: "cosine" or "euclidean".
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: (B,) or (B, K), 1 for positive pairs, 0 for negative ones.
        y_pred: (B, 1 + K, D), the first text of each row makes a pair with each of its others.

    Returns:
        (B,), of `call`, half the squares, the means over the pairs of a row.

    Raises:
        ValueError: If `y_true` or `y_pred` has another shape.

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

    @leaves_out_rows
    def call(self, y_true, y_pred):
        return ops.mean(self._squares(y_true, y_pred)[0], axis=-1) / 2

    def _squares(self, y_true, y_pred) -> tuple:
        """Return twice the losses, the distances and the scores of the pairs, each (B, K)."""
        y_true = scores_like(self, y_true, y_pred)
        away = distances(y_pred, self.distance)
        near = ops.square(ops.relu(self.margin - away))
        return y_true * ops.square(away) + (1 - y_true) * near, away, y_true


@keras.saving.register_keras_serializable(package="encoder_zoo")
class OnlineContrastive(Contrastive):
    """Computes twice `Contrastive` of the hard pairs of a batch, summed over them.

    Hard are positive pairs that are farther apart than the nearest negative pair, and negative
    pairs that are nearer than the farthest positive pair. Where the batch has one pair of a kind or
    none, the mean of the other kind takes the place of its distance. Under `tf.distribute` the
    pairs of all replicas are compared. Arguments as for `Contrastive`.

    Returns:
        (B,), of `call`, the same number for each row.

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

    @leaves_out_rows
    def call(self, y_true, y_pred):
        squares, away, scores, _ = of_all_replicas(*self._squares(y_true, y_pred))
        positive, negative = scores > 0.5, scores <= 0.5
        if (real := rows_that_count()) is not None:
            positive, negative = (ops.logical_and(real[:, None], p) for p in (positive, negative))
        nearest = _bound(-1, away, negative, positive)
        farthest = _bound(1, away, positive, negative)
        hard = ops.logical_or(
            ops.logical_and(positive, away > nearest), ops.logical_and(negative, away < farthest)
        )
        total = ops.sum(ops.where(hard, squares, 0.0))
        return total * ops.ones_like(y_pred[:, 0, 0])


def _bound(sign: int, away, chosen, others):
    """Return the largest, or with a sign of -1 smallest, distance of the chosen pairs, if several.

    Else the mean distance of the others.
    """
    extreme = sign * ops.max(ops.where(chosen, sign * away, -1e9))
    count = ops.maximum(ops.sum(ops.cast(others, away.dtype)), 1)
    mean = ops.sum(ops.where(others, away, 0.0)) / count
    return ops.where(ops.sum(ops.cast(chosen, "int32")) > 1, extreme, mean)
