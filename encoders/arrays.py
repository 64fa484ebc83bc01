"""Convert weights and tensors to NumPy arrays."""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import keras, ops


def gather_array(values: keras.Variable | keras.KerasTensor) -> np.ndarray:
    """Convert a variable or tensor to an array, including values in other processes.

    If values are split across JAX processes, this function must be called in all processes.

    Example:
        >>> gather_array(keras.Variable([1.0, 2.0])).tolist()
        [1.0, 2.0]
    """
    tensor = getattr(values, "value", values)
    if getattr(tensor, "is_fully_addressable", True) or tensor.is_fully_replicated:
        return ops.convert_to_numpy(values)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tensor, tiled=True)
