"""The layers between a backbone and the projection onto its token embedding.

Comment letters: B batch, D hidden, E embedding, M masked positions, V vocabulary.
"""

from __future__ import annotations

import keras

from encoder_zoo.encoders.configured import Configured
from encoder_zoo.tasks.head import HiddenLayer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MaskedLMHead(Configured, keras.layers.Layer):
    """The layers between the backbone and the projection onto the token embedding.

    Args:
        vocabulary_size: V.
        hidden: the layer that makes the token embedding's width of the backbone's.

    Call arguments:
        x: (B, M, D).

    Returns:
        (B, M, E), to be multiplied by the token embedding's transpose; `bias` (V,) comes on top.

    Source: Devlin et al. 2019, released code, `get_masked_lm_output`.

    Example:
        >>> import numpy as np
        >>> head = MaskedLMHead(11, HiddenLayer(4, "gelu", layer_norm_epsilon=1e-12))
        >>> keras.ops.shape(head(np.zeros((1, 2, 6), "float32"))), tuple(head.bias.shape)
        ((1, 2, 4), (11,))
    """

    def __init__(self, vocabulary_size: int, hidden: HiddenLayer, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden = hidden

    def build(self, input_shape):
        self.hidden.build(input_shape)
        self.bias = self.add_weight(shape=(self.vocabulary_size,), initializer="zeros", name="bias")
        self.output_shape = (*input_shape[:-1], self.hidden.units)  # for `summary()`

    def call(self, x):
        return self.hidden(x)
