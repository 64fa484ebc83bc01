"""The layers between a backbone and the projection onto its token embedding.

Comment letters: B batch, D hidden, M masked positions, V vocabulary.
"""

import keras

from encoder_zoo.encoders.configured import Configured
from encoder_zoo.encoders.layers import activation_function, initializer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLMHead(Configured, keras.layers.Layer):
    """The layers between the backbone and the projection onto the token embedding.

    Args:
        vocabulary_size: V.
        hidden_dim: D.
        activation: of the dense layer, see `layers.ACTIVATIONS`.
        layer_norm_epsilon: added to the variance.

    Call arguments:
        x: (B, M, D).

    Returns:
        (B, M, D), to be multiplied by the token embedding's transpose; `bias` (V,) comes on top.

    Source: Devlin et al. 2019, released code, `get_masked_lm_output`.

    Example:
        >>> import numpy as np
        >>> keras.ops.shape(MaskedLMHead(11, 4)(np.zeros((1, 2, 4), "float32")))
        (1, 2, 4)
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dense = keras.layers.Dense(
            hidden_dim, kernel_initializer=initializer(), name="dense", dtype=self.dtype_policy
        )
        self.norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, name="norm", dtype=self.dtype_policy
        )
        self.activation_function = activation_function(activation)

    def build(self, input_shape=None):
        self.dense.build((None, None, self.hidden_dim))
        self.norm.build((None, None, self.hidden_dim))
        self.bias = self.add_weight(shape=(self.vocabulary_size,), initializer="zeros", name="bias")

    def call(self, x):
        return self.norm(self.activation_function(self.dense(x)))
