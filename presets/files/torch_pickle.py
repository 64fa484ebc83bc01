"""Interprets a pickle of torch.save as descriptions of storages and tensors."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import shown
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
    """A contiguous range of numbers in the file.

    Attributes:
        key: its name in the file.
        dtype: of the numbers.
        size: count of the numbers.
        start: index of the first one in the stored range, for a part of it.
    """

    key: str
    dtype: np.dtype
    size: int
    start: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor in a storage.

    Attributes:
        storage: holds its numbers.
        start: index of its first number in the storage.
        shape: of the tensor.
        strides: in numbers; 0 for dimensions of size 1 or less.
    """

    storage: Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Count of the storage's numbers from its first to its last one."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether its numbers are in the order of a C-contiguous array, without gaps."""
        expected = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != expected:
                return False
            expected *= n
        return True


class TensorPickle:
    """Interprets a pickle to storages and tensors.

    Args:
        source: the file, for error messages.

    Attributes:
        storages: {key: storage} of the storages in the pickle.
    """

    def __init__(self, source: FileBytes):
        self._source = source
        self.storages: dict[str, Storage] = {}

    def load(self, stream: PickleStream) -> object:
        """Return the value of a pickle with tensors."""
        globals = {
            **dict.fromkeys(_DTYPES),
            "collections.OrderedDict": self._ordered,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": self._parameter,
        }
        return PickleInterpreter(stream, globals, self._storage).load()

    def _storage(self, key: object) -> Storage:
        """Return the storage of ('storage', class, key, device, size[, part in old files])."""
        match key:
            case ("storage", Global(kind), str(name), str(), size, *part):
                pass
            case _:
                raise self._source.error("a storage is malformed")
        if kind not in _DTYPES or not _are_sizes(size):
            raise self._source.error(f"storage {shown(name)} is malformed")
        storage = Storage(name, _DTYPES[kind], size)
        if self.storages.setdefault(name, storage) != storage:
            raise self._source.error(f"storage {shown(name)} has two types or sizes")
        match part:
            case [] | [None]:
                return storage
            case [(_, start, size)] if _are_sizes(start, size) and start + size <= storage.size:
                return dataclasses.replace(storage, size=size, start=start)
        raise self._source.error(f"a part of storage {shown(name)} reaches beyond it")

    def _ordered(self, arguments: tuple) -> OrderedMapping:
        if arguments:
            raise self._source.error("an OrderedDict is made with arguments", NOTHING_RUNS)
        return OrderedMapping()

    def _tensor(self, arguments: tuple) -> TensorView:
        """Return the tensor of (storage, offset, shape, strides, requires_grad, hooks)."""
        match arguments:
            case (Storage() as storage, offset, tuple(shape), tuple(strides), bool(), hooks, *more):
                pass
            case _:
                raise self._source.error("a tensor is malformed")
        if type(hooks) is not OrderedMapping or hooks or any(more):
            raise self._source.error("a tensor has hooks or attributes")
        if len(shape) != len(strides) or len(shape) > _RANK:
            raise self._source.error(
                f"a tensor has {len(shape)} dimensions and {len(strides)} strides. Expected as "
                f"many of both, at most {_RANK}"
            )
        if not _are_sizes(offset, *shape, *strides):
            raise self._source.error("a tensor has an impossible shape, offset or stride")
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
        """Return the tensor of a parameter, (tensor, requires_grad, hooks)."""
        match arguments:
            case (TensorView() as view, bool(), OrderedMapping() as hooks) if not hooks:
                return view
        raise self._source.error("a parameter is malformed, or has hooks")


def _are_sizes(*values: object) -> bool:
    return all(type(n) is int and 0 <= n < 2**63 for n in values)
