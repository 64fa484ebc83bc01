"""Read and write torch.save files with tensors, without executing pickle code."""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import BinaryIO

import numpy as np

from encoder_zoo.common.wording import quote
from encoder_zoo.presets.files.file_bytes import FileBytes
from encoder_zoo.presets.files.torch_storages import TensorView, open_storages

# Three tensors can be columns of one fused matrix, so each tensor spans almost the whole matrix.
_MAX_SPANS = 4
_STATE_DICT = "Expected a file that was saved with torch.save(model.state_dict(), path)"


class PyTorchFile:
    """Read tensors from a torch.save file.

    The constructor only reads the pickles, which contain the shapes and offsets of all tensors.
    Strings, numbers and plain containers in the file are ignored. Other objects are rejected.

    Args:
        file: A seekable binary file. Its `name` is used in error messages.

    Attributes:
        shapes: Dictionary that maps tensor names to shapes.

    Raises:
        ValueError: If the file is truncated or damaged, or contains unsupported objects.

    Example:
        >>> import io, pickle
        >>> file = io.BytesIO(pickle.dumps(print, protocol=2))
        >>> file.name = "pytorch_model.bin"
        >>> PyTorchFile(file)
        Traceback (most recent call last):
        ValueError: pytorch_model.bin: the pickle uses the name '__builtin__.print'. Only ...
    """

    def __init__(self, file: BinaryIO):
        self.path = file.name
        self._source = FileBytes(file)
        self._storages = open_storages(self._source)
        self._views = self._map_tensors(self._storages.value)
        self.shapes = {name: view.shape for name, view in self._views.items()}

    def get_dtype(self, name: str) -> np.dtype:
        """Return the tensor dtype."""
        return self._views[name].storage.dtype

    def read(self, name: str) -> np.ndarray:
        """Read a tensor by name.

        Raises:
            ValueError: If the storage of the tensor is damaged.
        """
        view = self._views[name]
        dtype = view.storage.dtype
        start = self._storages.find_content_start(view.storage.key) + view.start * dtype.itemsize
        numbers = self._source.read_array(start, view.span * dtype.itemsize).view(dtype)
        if view.is_contiguous:
            return numbers.reshape(view.shape)
        strides = [stride * dtype.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(numbers, view.shape, strides).copy()

    def _map_tensors(self, value: object) -> dict[str, TensorView]:
        """Map the names in a state dict to tensors."""
        if not isinstance(value, dict):
            raise self._source.make_error(
                "the file does not contain a dictionary of tensors", _STATE_DICT
            )
        if not all(type(name) is str for name in value):
            raise self._source.make_error(
                "the dictionary of tensors has keys that are not strings", _STATE_DICT
            )
        views = {name: view for name, view in value.items() if type(view) is TensorView}
        seen: set[int] = set()
        for name in value:
            if name not in views and not _is_plain_data(value[name], seen):
                keys = ", ".join(quote(key) for key in [*value][:8])
                raise self._source.make_error(
                    f"{quote(name)} contains objects that are neither tensors nor plain data. The "
                    f"file contains {keys}, so it could be a training checkpoint",
                    _STATE_DICT,
                )
        if value and not views:
            raise self._source.make_error("the file contains no tensors", _STATE_DICT)
        self._check_sizes(views.values())
        return views

    def _check_sizes(self, views: Iterable[TensorView]) -> None:
        """Check that the tensors are not much larger than the file."""
        total = sum(
            max(view.span, math.prod(view.shape)) * view.storage.dtype.itemsize
            for view in set(views)
        )
        if total > _MAX_SPANS * self._source.size:
            raise self._source.make_error(
                f"the tensors need {total} bytes, but the file has {self._source.size} bytes"
            )


def _is_plain_data(value: object, seen: set[int]) -> bool:
    """Return whether a value is plain data. Containers whose id is in `seen` are skipped."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple | list | dict):
            if id(value) not in seen:  # a container can occur several times, also inside itself
                seen.add(id(value))
                stack += value.values() if isinstance(value, dict) else value
        elif not isinstance(value, str | int | float | None):
            return False
    return True


# Maps dtypes to the storage classes of PyTorch.
_STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage"}


def encode_pytorch_file(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Encode a dictionary of tensors in the format of torch.save.

    Args:
        tensors: Dictionary that maps names to float32, float16 or bfloat16 arrays.

    Example:
        >>> file = io.BytesIO(encode_pytorch_file({"bias": np.ones(2, "float32")}))
        >>> file.name = "linear.pt"
        >>> PyTorchFile(file).read("bias").tolist()
        [1.0, 1.0]
    """
    pickled = b"".join(
        _pickle_text(name) + _pickle_tensor(str(i), value)
        for i, (name, value) in enumerate(tensors.items())
    )
    # Protocol 2, an empty dictionary, the dictionary items, and the end marker.
    entries = {"data.pkl": b"\x80\x02}(" + pickled + b"u.", "byteorder": b"little"}
    entries |= {
        f"data/{i}": np.ascontiguousarray(value).tobytes()
        for i, value in enumerate(tensors.values())
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # not compressed
        for name, value in {**entries, "version": b"3\n"}.items():
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), value)
    return content.getvalue()


def _pickle_tensor(key: str, value: np.ndarray) -> bytes:
    """Encode a tensor as a pickled call of `_rebuild_tensor_v2`."""
    strides = [stride // value.itemsize for stride in np.ascontiguousarray(value).strides]
    storage = [_pickle_text("storage"), _pickle_global("torch", _STORAGES[str(value.dtype)])]
    storage += [_pickle_text(key), _pickle_text("cpu"), _pickle_integer(value.size)]
    hooks = _pickle_global("collections", "OrderedDict") + b")R"  # a call without arguments
    arguments = [_pickle_tuple(storage) + b"Q", _pickle_integer(0)]
    arguments += [_pickle_tuple(map(_pickle_integer, sizes)) for sizes in (value.shape, strides)]
    arguments += [b"\x89", hooks]  # no gradient
    return _pickle_global("torch._utils", "_rebuild_tensor_v2") + _pickle_tuple(arguments) + b"R"


def _pickle_text(text: str) -> bytes:
    content = text.encode("utf-8")
    return b"X" + struct.pack("<I", len(content)) + content


def _pickle_integer(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def _pickle_global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _pickle_tuple(items: Iterable[bytes]) -> bytes:
    return b"(" + b"".join(items) + b"t"
