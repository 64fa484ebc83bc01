"""Values of weights and tensors as arrays of NumPy."""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import keras, ops


def whole_array(values: keras.Variable | keras.KerasTensor) -> np.ndarray:
    """Return all values of a variable or tensor, also of one whose parts are in other processes.

    Of such a one all processes of JAX must ask together.

    Example:
        >>> whole_array(keras.Variable([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    tensor = getattr(values, "value", values)
    if getattr(tensor, "is_fully_addressable", True) or tensor.is_fully_replicated:
        return ops.convert_to_numpy(values)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tensor, tiled=True)
