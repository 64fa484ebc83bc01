"""Export the forward pass of a task on PyTorch to one function that does not call Keras layers.

For a single sentence, calling the layers takes about as long as running the kernels. With
`compile(jit_compile=True)`, `predict` and all methods that return answers use an `ExportedForward`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras

from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.common.keras_private import get_accessors
from encoder_zoo.common.layers import list_layers
from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.encoders.kernels import long_attention

if TYPE_CHECKING:
    import torch

torch = LazyModule("torch")
logger = logging.getLogger(__name__)


class ExportedForward:
    """Forward pass of a task, exported once for batches of any size and length.

    The exported function runs the kernels in order and reads the task's parameters, so it
    always uses the current weights. Inputs with different names or dtypes need another export, and
    so do long texts, which use different kernels. The layers are called instead in these cases:

    - PyTorch cannot export the forward pass, for example because a layer depends on values of its
      inputs. This is logged with level DEBUG.
    - PyTorch could only export the function for other sizes.
    - A layer has PyTorch hooks.
    - A layer, a parameter, a setting or a precision has changed since the first export.
    - Another thread is exporting the function.

    Args:
        task: Task whose forward pass is exported.

    Source: https://docs.pytorch.org/docs/stable/export.html
    """

    def __init__(self, task: keras.Model):
        self._task = task
        self._functions: dict[tuple, Callable | None] = {}
        self._exporting = threading.Lock()
        self._read, _ = get_accessors()
        self._state: list = []

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """Compute the outputs for a batch of inputs, without gradients."""
        inputs = {
            name: keras.ops.convert_to_tensor(values)
            for name, values in inputs.items()
            if values is not None
        }
        with torch.no_grad():
            function = self._get_function(inputs) if self._can_use_export() else None
            if function is not None:
                with contextlib.suppress(AssertionError, RuntimeError):  # sizes not supported
                    return function(inputs)
            return self._call_layers(inputs)

    def _call_layers(self, inputs: dict[str, torch.Tensor]) -> Any:
        return self._task(inputs, training=False)

    def _can_use_export(self) -> bool:
        """Return whether the layers have no hooks and are unchanged since the first export."""
        layers = list_layers(self._task)
        if any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
            return False
        if not self._functions:
            return True
        state = self._read_state()
        return len(state) == len(self._state) and all(map(_is_same, state, self._state))

    def _read_state(self) -> list:
        """Return the layers, their settings, precisions and parameters."""
        task, [_, *inner] = self._task, list_layers(self._task)
        # The outputs do not depend on other settings, such as thresholds.
        answers = {*task.record.answer_settings} - {"window_pooling"}
        settings = [name for name in get_argument_names(type(task)) if name not in answers]
        state = [vars(task).get(name) for name in settings]
        for layer in inner:
            state += [value for name, value in vars(layer).items() if name[0] != "_"]
        layers = [task, *inner]
        precisions = [layer.dtype_policy for layer in layers]
        return state + layers + precisions + [self._read(weight) for weight in task.variables]

    def _get_function(self, inputs: dict[str, torch.Tensor]) -> Callable | None:
        """Return the exported function for these inputs, or None if the layers must be called."""
        is_long = inputs["token_ids"].shape[-1] > long_attention.SHORT_LENGTH
        key = is_long, *((name, x.dtype, x.ndim) for name, x in inputs.items())
        if key not in self._functions:
            if not self._exporting.acquire(blocking=False):
                return None
            try:
                self._functions[key] = self._export(inputs)
            except Exception as error:  # of any kind, from the layers or from PyTorch
                logger.debug(
                    "PyTorch cannot export the forward pass of this %s. Its layers are called "
                    "instead: %s",
                    type(self._task).__name__,
                    error,
                )
                self._functions[key] = None
            finally:
                self._exporting.release()
        return self._functions[key]

    def _export(self, inputs: dict[str, torch.Tensor]) -> Callable:
        """Export the forward pass, and check that its outputs equal the layer outputs."""
        expected = self._call_layers(inputs)  # builds layers
        if not self._functions:
            self._state = self._read_state()
        example = _repeat_first_row(inputs)
        axes = {
            name: dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for name, x in example.items()
        }
        forward = _make_forward_module(self._task)
        exported = torch.export.export(forward, (example,), dynamic_shapes=(axes,), strict=False)
        module = _drop_checks(exported.module())
        torch.testing.assert_close(module(inputs), expected)
        is_on_gpu = inputs["token_ids"].device.type == "cuda"
        return torch.compile(module, dynamic=True) if is_on_gpu else module


def _is_same(value: object, other: object) -> bool:
    """Return whether two values are the same object or equal lists. PyTorch can copy lists."""
    return value is other or (isinstance(value, list | tuple) and value == other)


def _make_forward_module(task: keras.Model) -> torch.nn.Module:
    """Return a PyTorch module that computes a task's outputs for a dict of inputs."""

    class Forward(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.task = task

        def forward(self, inputs):
            for x in inputs.values():  # so that PyTorch learns which of these sizes are equal
                bool(x.shape == inputs["token_ids"].shape)
            return self.task(inputs, training=False)

    module = Forward()
    module.training = False  # `eval` would also change all layers
    return module


def _repeat_first_row(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Repeat the first row, so that the number of rows differs from all other sizes.

    PyTorch treats the sizes 0 and 1 as constants, and may treat equal sizes as the same size.
    """
    sizes = {size for x in inputs.values() for size in x.shape[1:]}
    rows = next(count for count in (3, 5, 7, 11, 13) if count not in sizes)
    return {name: x[:1].repeat(rows, *[1] * (x.ndim - 1)) for name, x in inputs.items()}


def _drop_checks(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Remove operations that only check the dtype of a tensor or convert it to its own dtype."""
    aten = torch.ops.aten
    for node in list(module.graph.nodes):
        if node.target is aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
        elif node.target in (aten.to.dtype_layout, aten.to.dtype):
            given = node.args[0]
            if given.meta["val"].dtype == node.meta["val"].dtype:
                node.replace_all_uses_with(given)
                module.graph.erase_node(node)
    module.recompile()
    return module
