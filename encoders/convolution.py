"""A convolution over the tokens of a text.

Comment letters: B batch, L sequence, D hidden, K width.
"""

from typing import Annotated

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import Rule
from encoder_zoo.encoders.layers import initializer

ConvolutionWidth = Annotated[
    int,
    Rule(
        lambda v: type(v) is int and (v == 0 or (0 < v < 100 and v % 2 == 1)),
        "0 or an odd integer below 100",
    ),
]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TextConvolution(ConfigFromSignature, keras.layers.Layer):
    """Convolve the tokens of each text, with zeros beyond its ends.

    Args:
        hidden_dim: D.
        width: K, number of tokens of the kernel; odd.

    Call arguments:
        x: (B, L, D).
        numbers: (B, L) int, of the texts: tokens of other numbers count as zeros.

    Returns:
        (B, L, D).

    Raises:
        ValueError: "The width of a convolution must be odd. Received: width=2."

    Example:
        >>> import numpy as np
        >>> layer = TextConvolution(hidden_dim=4, width=3)
        >>> numbers = np.array([[1, 1, 2]])
        >>> keras.ops.shape(layer(np.ones((1, 3, 4), "float32"), numbers))
        (1, 3, 4)
    """

    def __init__(self, hidden_dim: int, width: int, **kwargs):
        super().__init__(**kwargs)
        if width % 2 == 0:
            raise ValueError(f"The width of a convolution must be odd. Received: width={width}.")
        self.hidden_dim = hidden_dim
        self.width = width

    def build(self, *shapes):
        shape = (self.width, self.hidden_dim, self.hidden_dim)
        self.kernel = self.add_weight(shape, initializer(), name="kernel")
        self.bias = self.add_weight((self.hidden_dim,), "zeros", name="bias")

    def call(self, x, numbers):
        length, before = ops.shape(x)[1], self.width // 2
        padded = ops.pad(x, ((0, 0), (before, before), (0, 0)))
        others = ops.pad(numbers, ((0, 0), (before, before)), constant_values=-1)
        y = self.bias
        for k in range(self.width):
            seen = ops.cast(others[:, k : k + length] == numbers, x.dtype)
            seen = ops.expand_dims(seen, axis=-1)  # LiteRT has no [:, :, None] of unknown sizes
            y = y + ops.matmul(padded[:, k : k + length] * seen, self.kernel[k])
        return y
