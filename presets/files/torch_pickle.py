"""Interpreting a pickle of torch.save: what storages and tensors there are, none of them read."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np

from encoder_zoo.encoders.wording import shown
from encoder_zoo.presets.files.file_bytes import FileBytes
from encoder_zoo.presets.files.pickle_data import (
    NOTHING_RUNS,
    Global,
    OrderedMapping,
    PickleInterpreter,
    PickleStream,
)

_RANK = 8
_DTYPES = {
    "torch.DoubleStorage": np.dtype("float64"),
    "torch.FloatStorage": np.dtype("float32"),
    "torch.HalfStorage": np.dtype("float16"),
    "torch.BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch.LongStorage": np.dtype("int64"),
    "torch.IntStorage": np.dtype("int32"),
    "torch.ShortStorage": np.dtype("int16"),
    "torch.CharStorage": np.dtype("int8"),
    "torch.ByteStorage": np.dtype("uint8"),
    "torch.BoolStorage": np.dtype("bool"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Storage:
    """Numbers in a row in the file, or a part of them.

    Attributes:
        key: its name in the file.
        dtype: of the numbers.
        size: how many they are.
        start: the first of them.
    """

    key: str
    dtype: np.dtype
    size: int
    start: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor: some numbers of a storage.

    Attributes:
        storage: that of its numbers.
        start: its first number, in the file's storage.
        shape: of the tensor.
        strides: from a number to its neighbour in each dimension; 0 where there is no neighbour.
    """

    storage: Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """How many numbers there are from its first to its last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether its numbers lie in the file as they lie in an array."""
        expected = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != expected:
                return False
            expected *= n
        return True


class TensorPickle:
    """Makes storages and tensors of what a pickle says of them.

    Attributes:
        storages: {key: storage}, those that were named.
    """

    def __init__(self, source: FileBytes):
        self._source = source
        self.storages: dict[str, Storage] = {}

    def load(self, stream: PickleStream) -> object:
        """Interpret a pickle with tensors."""
        globals = {
            **dict.fromkeys(_DTYPES),
            "collections.OrderedDict": self._ordered,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": self._parameter,
        }
        return PickleInterpreter(stream, globals, self._storage).load()

    def _storage(self, key: object) -> Storage:
        """A storage, of ('storage', class, key, device, size) and in old files part of another."""
        kind, called, name, device, size, *parts = key if _is_tuple(key, 5, 6) else (None,) * 5
        if (kind, type(called), type(name), type(device)) != ("storage", Global, str, str):
            raise self._source.error("a storage is malformed")
        if called.name not in _DTYPES or not _are_sizes(size):
            raise self._source.error(f"storage {shown(name)} is malformed")
        storage = Storage(name, _DTYPES[called.name], size)
        if self.storages.setdefault(name, storage) != storage:
            raise self._source.error(f"storage {shown(name)} has two types or sizes")
        if parts in ([], [None]):
            return storage
        _, start, size = parts[0] if _is_tuple(parts[0], 3) else (None,) * 3
        if not _are_sizes(start, size) or start + size > storage.size:
            raise self._source.error(f"a part of storage {shown(name)} reaches beyond it")
        return dataclasses.replace(storage, size=size, start=start)

    def _ordered(self, arguments: tuple) -> OrderedMapping:
        if arguments:
            raise self._source.error("an OrderedDict is made with arguments", NOTHING_RUNS)
        return OrderedMapping()

    def _tensor(self, arguments: tuple) -> TensorView:
        """A tensor, of storage, offset, sizes, strides, requires_grad and hooks."""
        storage, offset, shape, strides, grad, hooks, *more = (
            arguments if _is_tuple(arguments, 6, 7) else (None,) * 6
        )
        if type(storage) is not Storage or type(grad) is not bool or hooks != {} or any(more):
            raise self._source.error("a tensor is malformed, or has hooks or attributes")
        if type(shape) is not tuple or type(strides) is not tuple or len(shape) != len(strides):
            raise self._source.error("a tensor's shape or strides are malformed")
        if len(shape) > _RANK or not _are_sizes(offset, *shape, *strides):
            raise self._source.error("a tensor has an impossible shape, offset or strides")
        if math.prod(max(n, 1) for n in shape) * storage.dtype.itemsize >= 2**63:
            raise self._source.error(f"a tensor has the impossible shape {shown(shape)}")
        used = tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))
        view = TensorView(storage, storage.start + offset, shape, used)
        if view.span and offset + view.span > storage.size:
            raise self._source.error(
                f"a tensor of shape {shown(shape)}, strides {shown(strides)} and offset {offset} "
                f"reaches beyond storage {shown(storage.key)}, which has {storage.size} numbers"
            )
        return view

    def _parameter(self, arguments: tuple) -> TensorView:
        """The tensor of a parameter, of the tensor, requires_grad and hooks."""
        view, grad, hooks = arguments if len(arguments) == 3 else (None,) * 3
        if type(view) is not TensorView or type(grad) is not bool or hooks != {}:
            raise self._source.error("a parameter is malformed, or has hooks")
        return view


def _is_tuple(value: object, *lengths: int) -> bool:
    return type(value) is tuple and len(value) in lengths


def _are_sizes(*values: object) -> bool:
    return all(type(n) is int and 0 <= n < 2**63 for n in values)
