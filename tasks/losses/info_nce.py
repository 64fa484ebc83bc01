"""Contrastive loss with the other texts of the batch as negatives."""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature


@keras.saving.register_keras_serializable(package="encoder_zoo")
class InfoNCE(ConfigFromSignature, keras.losses.Loss):
    """Draft; the owner of tasks/losses writes it."""

    def __init__(self, scale: float = 20.0, **kwargs):
        super().__init__(**{"name": "info_nce", **kwargs})
        self.scale = scale

    def call(self, y_true, y_pred):
        x = ops.normalize(y_pred, axis=-1)
        anchors = x[:, 0]
        candidates = ops.reshape(ops.transpose(x[:, 1:], (1, 0, 2)), (-1, x.shape[-1]))
        scores = self.scale * ops.matmul(anchors, ops.transpose(candidates))
        return ops.sparse_categorical_crossentropy(
            ops.arange(ops.shape(x)[0]), scores, from_logits=True
        )
