"""Loss for triplets.

Comments use these letters for shapes: B (batch size), K (other texts in a row), D (embedding
dimension).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import PositiveFloat, validate_arguments
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.losses.vectors import Distance, check_rows, compute_distances


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Triplet(ConfigFromSignature, keras.losses.Loss):
    """Triplet loss: the positive should be closer to the anchor than the negatives.

    Args:
        margin: Positive float. Minimum difference between the distance of a negative and the
            distance of the positive. Defaults to 5.0.
        distance: String, "euclidean" or "cosine". The cosine distance is between 0 and 2 and
            requires a smaller margin. Defaults to "euclidean".
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Ignored.
        y_pred: Tensor of shape (B, 1 + K, D) with the vectors of an anchor, its positive and its
            negatives.

    Returns:
        Tensor of shape (B,) with the mean loss over the negatives in each row.

    Raises:
        ValueError: If `y_pred` does not have the expected shape.

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

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        check_rows(self, y_pred, 3, "an anchor, its positive, and one or more negatives")
        away = compute_distances(y_pred, self.distance)
        return ops.mean(ops.relu(away[:, :1] - away[:, 1:] + self.margin), axis=-1)
