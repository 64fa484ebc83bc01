"""RMSNorm, and the mixin of layers and models that have it where others have LayerNorm.

Comment letters: D hidden.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders.kernels.layers import CalledDirectly
from encoder_zoo.encoders.layer_maker import MakesLayers


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RMSNorm(CalledDirectly, ConfigFromSignature, keras.layers.Layer):
    """Return x / sqrt(mean(x²) + ε) ⊙ γ over the last axis, the mean in float32.

    Args:
        epsilon: added to the mean.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, section 4.

    Example:
        >>> import numpy as np
        >>> RMSNorm(epsilon=0.0)(np.array([[3.0, 4.0]], "float32")).numpy().round(2).tolist()
        [[0.8500000238418579, 1.1299999952316284]]
    """

    def __init__(self, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        self.gamma = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="gamma")
        self.output_shape = tuple(input_shape)  # for `summary()`

    def call(self, inputs, training=None):
        x = ops.cast(inputs, "float32")
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(x, inputs.dtype) * ops.cast(self.gamma, inputs.dtype)


class MakesRMSNorms(MakesLayers):
    """Mixin that makes `RMSNorm`; it reads the attributes of `MakesLayers`."""

    def make_norm(self, name: str) -> RMSNorm:
        """Return a built RMSNorm over `hidden_dim` numbers."""
        layer = RMSNorm(epsilon=self.layer_norm_epsilon, name=name, dtype=self.dtype_policy)
        layer.build((None, self.hidden_dim))
        return layer
