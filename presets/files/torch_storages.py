"""Interprets the pickle of tensors, and finds the storages, in the two formats of torch.save.

Since version 1.6 of PyTorch a file is a zip archive with the pickle `<root>/data.pkl` and one entry
`<root>/data/<key>` for each storage. Before, it is a stream of five pickles (a magic number, the
version of the protocol, sizes of the system's integers, the object, the keys of the storages),
followed by the number of elements in 8 bytes and the elements of each storage.

Source: `torch/serialization.py` of PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

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
from encoder_zoo.presets.files.zip_directory import ZipDirectory

_MAGIC_NUMBER, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_COUNT_BYTES = 8


def open_storages(source: FileBytes) -> ZipStorages | StreamedStorages:
    """Find the storages of a file, whose format is told by its first bytes.

    Raises:
        ValueError: If the file is cut off, or is not one of `torch.save`.
    """
    beginning = source.read(0, min(source.size, 512))
    if beginning.startswith(b"PK\3\4"):
        return ZipStorages(source)
    if beginning[257:262] == b"ustar":
        raise source.error(
            "it is a tar archive, as PyTorch wrote it before version 0.1.10",
            "Load it with PyTorch and save it again",
        )
    if beginning.startswith(b"\x80"):
        return StreamedStorages(source)
    source.check_size(4)
    raise source.error(f"it begins with {shown(beginning[:8])}, as no file of torch.save does")


class ZipStorages:
    """Finds the storages in a zip archive.

    Args:
        source: the file.

    Attributes:
        value: object that was saved.
    """

    def __init__(self, source: FileBytes):
        self._source = source
        self._directory = ZipDirectory(source)
        self._root = self._find_root(self._directory.entries)
        start, size = self._find("data.pkl")
        pickle = TensorPickle(source)
        stream = PickleStream(source, start, start + size, "data.pkl")
        self.value = pickle.load(stream)
        if stream.position != start + size:
            raise stream.error("goes on after its end")
        self._check_byte_order()
        for storage in pickle.storages.values():
            self._check_size(storage)

    def content_start(self, key: str) -> int:
        """Return the offset of the numbers of a storage.

        Raises:
            ValueError: If the entry of the zip archive differs from its directory.
        """
        return self._directory.content_start(f"{self._root}/data/{key}")

    def _find_root(self, names: Iterable[str]) -> str:
        roots = {name.split("/")[0] for name in names}
        (root, *others) = sorted(roots)
        if others:
            raise self._source.error(f"its zip archive has {len(roots)} folders, expected one")
        for name in names:
            if name == f"{root}/constants.pkl" or name.startswith(f"{root}/code/"):
                raise self._source.error(
                    f"it is a TorchScript program, with {shown(name)}. {NOTHING_RUNS}",
                    "Expected what torch.save(model.state_dict(), path) writes",
                )
        if f"{root}/data.pkl" not in names:
            raise self._source.error("its zip archive has no data.pkl")
        for name in names:
            # PyTorch finds BYTEORDER, too, where it looks for byteorder.
            part = name.split("/")[1]
            if part != part.lower() and part.lower() in ("data", "byteorder", "version"):
                raise self._source.error(f"{shown(name)} is in capitals. Expected {part.lower()!r}")
            if name.lower().endswith(".pkl") and name != f"{root}/data.pkl":
                raise self._source.error(f"its zip archive has another pickle, {shown(name)}")
        return root

    def _find(self, name: str) -> tuple[int, int]:
        name = f"{self._root}/{name}"
        return self._directory.content_start(name), self._directory.entries[name].size

    def _check_byte_order(self) -> None:
        """Raise an error for big-endian files; those before PyTorch 2.1 do not tell."""
        if f"{self._root}/byteorder" in self._directory.entries:
            start, size = self._find("byteorder")
            if (order := self._source.read(start, min(size, 8))) != b"little":
                raise self._source.error(
                    f"its byte order is {shown(order)}. Expected b'little'", "Save it again there"
                )

    def _check_size(self, storage: Storage) -> None:
        entry = self._directory.entries.get(f"{self._root}/data/{storage.key}")
        if entry is None:
            raise self._source.error(f"storage {shown(storage.key)} is not in it")
        expected = storage.size * storage.dtype.itemsize
        if entry.size != expected:
            raise self._source.error(
                f"storage {shown(storage.key)} has {entry.size} bytes, expected {expected}"
            )


class StreamedStorages:
    """Finds the storages in a stream of pickles.

    Args:
        source: the file.

    Attributes:
        value: object that was saved.
    """

    def __init__(self, source: FileBytes):
        self._source = source
        stream = PickleStream(source, 0, source.size, "its pickle")
        plain = PickleInterpreter(stream)
        if plain.load() != _MAGIC_NUMBER or plain.load() != _PROTOCOL:
            raise source.error("it does not begin with PyTorch's magic number and version 1001")
        system = plain.load()
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise source.error("it was written on a big-endian machine", "Save it again elsewhere")
        pickle = TensorPickle(source)
        self.value = pickle.load(stream)
        self._storages = pickle.storages
        self._starts = self._find_starts(plain.load(), stream.position)

    def content_start(self, key: str) -> int:
        """Check the count before a storage, and return the offset of its numbers.

        Raises:
            ValueError: If the storage has another length than its tensors say.
        """
        start = self._starts[key]
        count = int.from_bytes(self._source.read(start - _COUNT_BYTES, _COUNT_BYTES), "little")
        if count != self._storages[key].size:
            raise self._source.error(
                f"storage {shown(key)} has {count} numbers, expected {self._storages[key].size}"
            )
        return start

    def _find_starts(self, keys: object, start: int) -> dict[str, int]:
        """Return {key: offset of its numbers} of storages that fill the rest of the file."""
        if type(keys) is not list or not all(type(key) is str for key in keys):
            raise self._source.error("its list of storages is malformed")
        if len(keys) != len(self._storages) or set(keys) != set(self._storages):
            raise self._source.error("its list of storages is not that of its tensors")
        starts = {}
        for key in keys:
            starts[key] = start + _COUNT_BYTES
            storage = self._storages[key]
            start = starts[key] + storage.size * storage.dtype.itemsize
        self._source.check_size(start, exact=True)
        return starts


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
        """Return whether its numbers are in the order of a C-contiguous array, without gaps."""
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
