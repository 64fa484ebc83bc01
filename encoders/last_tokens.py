"""The last tokens of texts, which the classifiers of some families read.

Comment letters: B batch, L sequence, D hidden.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.encoders.positions import take_positions


def last_tokens(
    x: keras.KerasTensor, padding_mask: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Return the vectors of the last real tokens, wherever the padding is.

    Args:
        x: (B, L, D).
        padding_mask: (B, L), true or 1 at real tokens; None: all are.

    Returns:
        (B, D).

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0).reshape(2, 3, 1)
        >>> last_tokens(x, np.array([[1, 1, 0], [0, 1, 1]])).numpy().ravel().tolist()
        [1.0, 5.0]
    """
    if padding_mask is None:
        return x[:, -1]
    return take_positions(x, last_positions(padding_mask))[:, 0]


def last_positions(padding_mask: keras.KerasTensor) -> keras.KerasTensor:
    """Return the positions of the last real tokens, wherever the padding is.

    Args:
        padding_mask: (B, L), true or 1 at real tokens.

    Returns:
        (B, 1) int32.

    Example:
        >>> import numpy as np
        >>> last_positions(np.array([[1, 1, 0], [0, 1, 1]])).numpy().ravel().tolist()
        [1, 2]
    """
    real = ops.cast(padding_mask, "int32")
    numbers = ops.arange(ops.shape(real)[1], dtype="int32") * real
    return ops.max(numbers, axis=1, keepdims=True)
