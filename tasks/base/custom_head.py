"""Heads that users make: any layer from the backbone's features to logits.

Comment letters: B batch, L sequence, D hidden, C outputs.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CustomHead(ConfigFromSignature, keras.layers.Layer):
    """A layer as the head of a task, with float32 logits.

    Args:
        layer: from (B, D) or (B, L, D) to (B, C) or (B, L, C).

    Attributes:
        units: C.

    Raises:
        ValueError: "head makes (None, 8, 2) of features (None, 8). Expected (None, classes)."

    Example:
        >>> import numpy as np
        >>> layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(3)]
        >>> head = CustomHead(keras.Sequential(layers))
        >>> keras.ops.shape(head(np.zeros((1, 8), "float32"))), head.units
        ((1, 3), 3)
    """

    def __init__(self, layer: keras.layers.Layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer

    def build(self, input_shape):
        outputs = self.layer(keras.KerasTensor(input_shape, self.compute_dtype))
        if outputs.shape[:-1] != tuple(input_shape[:-1]) or outputs.shape[-1] is None:
            expected = str((*input_shape[:-1], "classes")).replace("'", "")
            raise ValueError(
                f"head makes {outputs.shape} of features {tuple(input_shape)}. Expected {expected}."
            )
        self.units = outputs.shape[-1]

    def call(self, x, training=None):
        return ops.cast(self.layer(x, training=training), "float32")
