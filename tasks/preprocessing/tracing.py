"""Trace TensorFlow functions once for arguments of any size."""

from __future__ import annotations

from collections.abc import Callable

from encoder_zoo.common.lazy import tf, uses_tensorflow, xp


class ShapePolymorphicFunction:
    """Function of nested tensors that is traced once for each structure of its arguments.

    By default, `tf.function` is traced again for the first few sizes. Every trace has to be
    optimized, which takes seconds for a model. This class allows any size in the leading axes from
    the start. On JAX and PyTorch, the function is called directly with NumPy arrays. On TensorFlow,
    it is also called directly after `tf.config.run_functions_eagerly(True)`.

    Args:
        function: Function of tensors and ragged tensors, in any structure.
        open_axes: Integer. Number of leading axes of dense tensors that can have any size. Defaults
            to 1.

    Example:
        >>> import tensorflow as tf
        >>> tf.config.run_functions_eagerly(False)  # the default
        >>> traces = []
        >>> double = ShapePolymorphicFunction(lambda b: [traces.append(b), b["x"] * 2][1])
        >>> [double({"x": tf.ones((n, 2))}).shape[0] for n in (1, 2, 3)], len(traces)
        ([1, 2, 3], 1)
    """

    def __init__(self, function: Callable, open_axes: int = 1):
        self._function = function
        self._open_axes = open_axes
        self._graphs = {}

    def __call__(self, *arguments):
        if not uses_tensorflow():
            return self._function(*arguments)
        arguments = xp.nest.map_structure(_convert_to_tensor, arguments)
        if tf.config.functions_run_eagerly():
            return self._function(*arguments)
        signature = xp.nest.map_structure(self._make_spec, arguments)
        key = str(signature)
        if key not in self._graphs:
            graph = tf.function(self._function, input_signature=signature, autograph=False)
            self._graphs[key] = graph.get_concrete_function()
        return self._graphs[key](*arguments)

    def _make_spec(self, value) -> tf.TypeSpec:
        if isinstance(value, xp.RaggedTensor):
            inner = value.flat_values.shape[1:]
            shape = [None] * (value.ragged_rank + 1) + inner.as_list()
            return tf.RaggedTensorSpec(shape, value.dtype, value.ragged_rank)
        sizes = value.shape.as_list()
        open_axes = min(self._open_axes, len(sizes))
        return tf.TensorSpec([None] * open_axes + sizes[open_axes:], value.dtype)


def _convert_to_tensor(value):
    return value if isinstance(value, xp.RaggedTensor) else xp.convert_to_tensor(value)
