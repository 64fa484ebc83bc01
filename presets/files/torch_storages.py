"""Find tensors and storages in files written by torch.save, in the zip format and the older format.

Since PyTorch 1.6, a file is a zip archive with the pickle `<root>/data.pkl` and one entry
`<root>/data/<key>` for each storage. A file in the older format starts with five pickles: a magic
number, the protocol version, the integer sizes of the system, the saved object, and the storage
keys. The storages follow. Each storage starts with the number of elements in 8 bytes.

Source: `torch/serialization.py` in PyTorch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import quote
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
    """Find all storages in a torch.save file. The first bytes determine the file format.

    Raises:
        ValueError: If the file is truncated, or if it was not written by `torch.save`.
    """
    beginning = source.read(0, min(source.size, 512))
    if beginning.startswith(b"PK\3\4"):
        return ZipStorages(source)
    if beginning[257:262] == b"ustar":
        raise source.make_error(
            "the file is a tar archive from a PyTorch version before 0.1.10",
            "Load it with PyTorch and save it again",
        )
    if beginning.startswith(b"\x80"):
        return StreamedStorages(source)
    source.check_size(4)
    raise source.make_error(
        f"the file starts with {quote(beginning[:8])}. Expected a zip archive or a pickle"
    )


class ZipStorages:
    """Find all storages in a torch.save file in the zip format.

    Args:
        source: The `FileBytes` to read from.

    Attributes:
        value: The saved object.
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
            raise stream.make_error("has extra bytes after the pickled object")
        self._check_byte_order()
        for storage in pickle.storages.values():
            self._check_size(storage)

    def find_content_start(self, key: str) -> int:
        """Return the offset of the first element in a storage.

        Raises:
            ValueError: If a zip entry does not match the zip directory.
        """
        return self._directory.find_content_start(f"{self._root}/data/{key}")

    def _find_root(self, names: Iterable[str]) -> str:
        roots = {name.split("/")[0] for name in names}
        (root, *others) = sorted(roots)
        if others:
            raise self._source.make_error(
                f"the zip archive has {len(roots)} folders. Expected one folder"
            )
        for name in names:
            if name == f"{root}/constants.pkl" or name.startswith(f"{root}/code/"):
                raise self._source.make_error(
                    f"the file is a TorchScript program, because it contains {quote(name)}. "
                    f"{NOTHING_RUNS}",
                    "Expected a file that was saved with torch.save(model.state_dict(), path)",
                )
        if f"{root}/data.pkl" not in names:
            raise self._source.make_error("the zip archive has no data.pkl")
        for name in names:
            # PyTorch ignores case in names such as BYTEORDER.
            part = name.split("/")[1]
            if part != part.lower() and part.lower() in ("data", "byteorder", "version"):
                raise self._source.make_error(
                    f"{quote(name)} contains capital letters. Expected {part.lower()!r}"
                )
            if name.lower().endswith(".pkl") and name != f"{root}/data.pkl":
                raise self._source.make_error(f"the zip archive has a second pickle, {quote(name)}")
        return root

    def _find(self, name: str) -> tuple[int, int]:
        name = f"{self._root}/{name}"
        return self._directory.find_content_start(name), self._directory.entries[name].size

    def _check_byte_order(self) -> None:
        """Reject big-endian files. Files from PyTorch before 2.1 do not contain the byte order."""
        if f"{self._root}/byteorder" in self._directory.entries:
            start, size = self._find("byteorder")
            if (order := self._source.read(start, min(size, 8))) != b"little":
                raise self._source.make_error(
                    f"the byte order is {quote(order)}, but only b'little' is supported",
                    "Save the file again on a little-endian machine",
                )

    def _check_size(self, storage: Storage) -> None:
        entry = self._directory.entries.get(f"{self._root}/data/{storage.key}")
        if entry is None:
            raise self._source.make_error(f"storage {quote(storage.key)} is missing")
        expected = storage.size * storage.dtype.itemsize
        if entry.size != expected:
            raise self._source.make_error(
                f"storage {quote(storage.key)} has {entry.size} bytes. Expected {expected} bytes"
            )


class StreamedStorages:
    """Find all storages in a torch.save file in the older format.

    Args:
        source: The `FileBytes` to read from.

    Attributes:
        value: The saved object.
    """

    def __init__(self, source: FileBytes):
        self._source = source
        stream = PickleStream(source, 0, source.size, "the pickle")
        plain = PickleInterpreter(stream)
        if plain.load() != _MAGIC_NUMBER or plain.load() != _PROTOCOL:
            raise source.make_error(
                "the file does not start with PyTorch's magic number and version 1001"
            )
        system = plain.load()
        if not isinstance(system, dict):
            raise source.make_error("the system information is malformed")
        if system.get("little_endian") is not True:
            raise source.make_error(
                "the file was written on a big-endian machine",
                "Save the file again on a little-endian machine",
            )
        pickle = TensorPickle(source)
        self.value = pickle.load(stream)
        self._storages = pickle.storages
        self._starts = self._find_starts(plain.load(), stream.position)

    def find_content_start(self, key: str) -> int:
        """Check the storage size, and return the offset of the first element.

        Raises:
            ValueError: If the storage and the pickle contain different numbers of elements.
        """
        start = self._starts[key]
        count = int.from_bytes(self._source.read(start - _COUNT_BYTES, _COUNT_BYTES), "little")
        if count != self._storages[key].size:
            raise self._source.make_error(
                f"storage {quote(key)} has {count} elements. Expected {self._storages[key].size}"
            )
        return start

    def _find_starts(self, keys: object, start: int) -> dict[str, int]:
        """Map storage keys to offsets, and check that the storages fill the rest of the file."""
        if type(keys) is not list or not all(type(key) is str for key in keys):
            raise self._source.make_error("the list of storages is malformed")
        if len(keys) != len(self._storages) or set(keys) != set(self._storages):
            raise self._source.make_error("the list of storages does not match the tensors")
        starts = {}
        for key in keys:
            starts[key] = start + _COUNT_BYTES
            storage = self._storages[key]
            start = starts[key] + storage.size * storage.dtype.itemsize
        self._source.check_size(start, exact=True)
        return starts


_MAX_RANK = 8


_STORAGE_DTYPES = {
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
    """A contiguous range of elements in the file.

    Attributes:
        key: String. Storage name in the file.
        dtype: NumPy dtype of the elements.
        size: Integer. The number of elements.
        start: Integer. Index of the first element. The storage in the file can be larger than this
            range. Defaults to 0.
    """

    key: str
    dtype: np.dtype
    size: int
    start: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor whose elements are in a storage.

    Attributes:
        storage: The `Storage` that contains the elements.
        start: Integer. Index of the first element in the storage.
        shape: Tuple of integers.
        strides: Tuple of integers. Strides in elements. Dimensions of size 0 or 1 have the stride
            0.
    """

    storage: Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Number of elements in the storage from the first to the last element of the tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements are stored in C order without gaps."""
        expected = 1
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != expected:
                return False
            expected *= n
        return True


class TensorPickle:
    """Interpret a pickle with tensors, and collect the storages of the tensors.

    Args:
        source: The `FileBytes` for error messages.

    Attributes:
        storages: Dictionary that maps keys to `Storage` objects.
    """

    def __init__(self, source: FileBytes):
        self._source = source
        self.storages: dict[str, Storage] = {}

    def load(self, stream: PickleStream) -> object:
        """Interpret a pickle and return the saved object."""
        globals = {
            **dict.fromkeys(_STORAGE_DTYPES),
            "collections.OrderedDict": self._make_ordered,
            "torch._utils._rebuild_tensor_v2": self._make_tensor,
            "torch._utils._rebuild_parameter": self._make_parameter,
        }
        return PickleInterpreter(stream, globals, self._make_storage).load()

    def _make_storage(self, key: Any) -> Storage:
        """Create a storage from a persistent id, ('storage', class, key, device, size[, part])."""
        match key:
            case ("storage", Global(kind), str(name), str(), size, *part):
                pass
            case _:
                raise self._source.make_error("a storage is malformed")
        if kind not in _STORAGE_DTYPES or not _is_size_list(size):
            raise self._source.make_error(f"storage {quote(name)} is malformed")
        storage = Storage(name, _STORAGE_DTYPES[kind], size)
        if self.storages.setdefault(name, storage) != storage:
            raise self._source.make_error(f"storage {quote(name)} has two types or sizes")
        match part:
            case [] | [None]:
                return storage
            case [(_, start, size)] if _is_size_list(start, size) and start + size <= storage.size:
                return dataclasses.replace(storage, size=size, start=start)
        raise self._source.make_error(f"a part of storage {quote(name)} is outside of the storage")

    def _make_ordered(self, arguments: tuple) -> OrderedMapping:
        if arguments:
            raise self._source.make_error("an OrderedDict is created with arguments", NOTHING_RUNS)
        return OrderedMapping()

    def _make_tensor(self, arguments: tuple) -> TensorView:
        """Create a tensor from (storage, offset, shape, strides, requires_grad, hooks)."""
        match arguments:
            case (Storage() as storage, offset, tuple(shape), tuple(strides), bool(), hooks, *more):
                pass
            case _:
                raise self._source.make_error("a tensor is malformed")
        if type(hooks) is not OrderedMapping or hooks or any(more):
            raise self._source.make_error("a tensor has hooks or attributes")
        if len(shape) != len(strides) or len(shape) > _MAX_RANK:
            raise self._source.make_error(
                f"a tensor has {len(shape)} dimensions and {len(strides)} strides. Expected the "
                f"same number, at most {_MAX_RANK}"
            )
        if not _is_size_list(offset, *shape, *strides):
            raise self._source.make_error("a tensor has an invalid shape, offset or stride")
        if math.prod(max(n, 1) for n in shape) * storage.dtype.itemsize >= 2**63:
            raise self._source.make_error(f"a tensor has the invalid shape {quote(shape)}")
        used = tuple(s if n > 1 else 0 for n, s in zip(shape, strides, strict=True))
        view = TensorView(storage, storage.start + offset, shape, used)
        if view.span and offset + view.span > storage.size:
            raise self._source.make_error(
                f"a tensor of shape {quote(shape)}, strides {quote(strides)} and offset {offset} "
                f"exceeds storage {quote(storage.key)}, which has {storage.size} elements"
            )
        return view

    def _make_parameter(self, arguments: tuple) -> TensorView:
        """Return the tensor of a parameter, which is pickled as (tensor, requires_grad, hooks)."""
        match arguments:
            case (TensorView() as view, bool(), OrderedMapping() as hooks) if not hooks:
                return view
        raise self._source.make_error("a parameter is malformed, or has hooks")


def _is_size_list(*values: object) -> bool:
    return all(type(n) is int and 0 <= n < 2**63 for n in values)
