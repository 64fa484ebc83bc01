"""CoSENT."""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CoSENT(ConfigFromSignature, keras.losses.Loss):
    """Draft; the owner of tasks/losses writes it."""

    def __init__(self, scale: float = 20.0, **kwargs):
        super().__init__(**{"name": "cosent", **kwargs})
        self.scale = scale

    def call(self, y_true, y_pred):
        x = ops.normalize(y_pred, axis=-1)
        cosines = self.scale * ops.sum(x[:, 0] * x[:, 1], axis=-1)
        apart = cosines[:, None] - cosines[None]
        kept = ops.cast(y_true[:, None] < y_true[None], apart.dtype)
        value = ops.log(1 + ops.sum(kept * ops.exp(apart)))
        return ops.ones_like(cosines) * value
