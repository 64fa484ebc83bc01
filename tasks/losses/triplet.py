"""Loss of triplets. Comment letters: B batch, K further texts, D width."""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import PositiveFloat, validate_arguments
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.losses.vectors import Distance, check_rows, distances


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Triplet(ConfigFromSignature, keras.losses.Loss):
    """Computes the triplet loss: the positive should be nearer to the anchor than the negatives.

    Args:
        margin: by which the negatives should be farther from the anchor than the positive.
        distance: "euclidean" or "cosine", which is 0 to 2: take a smaller margin.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: not read.
        y_pred: (B, 1 + K, D), vectors of anchor, positive and negatives.

    Returns:
        (B,), of `call`, the means over the negatives of a row.

    Raises:
        ValueError: If `y_pred` has another shape.

    Source: Reimers and Gurevych 2019, Sentence-BERT, section 3, triplet objective.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[0.0, 0.0], [0.0, 3.0], [4.0, 0.0]]])
        >>> float(Triplet(margin=5.0)(np.zeros((1, 3)), y_pred))  # 3 - 4 + 5
        4.0
    """

    @validate_arguments
    def __init__(self, margin: PositiveFloat = 5.0, distance: Distance = "euclidean", **kwargs):
        super().__init__(**{"name": "triplet", **kwargs})
        self.margin = margin
        self.distance = distance

    @leaves_out_rows
    def call(self, y_true, y_pred):
        check_rows(self, y_pred, 3, "an anchor, its positive, and one or more negatives")
        away = distances(y_pred, self.distance)
        return ops.mean(ops.relu(away[:, :1] - away[:, 1:] + self.margin), axis=-1)
