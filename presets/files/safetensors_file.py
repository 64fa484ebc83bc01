"""Reading a `.safetensors` file, which is checked whole before any of it is used.

The format: 8 bytes with the length of a JSON header, the header, the tensors' bytes one after
the other. https://github.com/huggingface/safetensors describes it.
"""

from __future__ import annotations

import math
from typing import BinaryIO

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.folder_files import size_of
from encoder_zoo.presets.files.json_data import SETTINGS, parse_object

_HEADER_BYTES = SETTINGS.content  # of 10,000 tensors: 1 MB
_RANK = 8
_DTYPES = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("int64"),
    "I32": np.dtype("int32"),
    "I16": np.dtype("int16"),
    "I8": np.dtype("int8"),
    "U64": np.dtype("uint64"),
    "U32": np.dtype("uint32"),
    "U16": np.dtype("uint16"),
    "U8": np.dtype("uint8"),
    "BOOL": np.dtype("bool"),
}


class SafetensorsFile:
    """The tensors of one file.

    Args:
        file: open for reading, whose `name` is its path; it must stay open while tensors are read.

    Attributes:
        shapes: {tensor name: shape}.

    Raises:
        ValueError: "... is cut off: it has 1000 bytes, expected 2000 ...", "...: the header ..."

    Example:
        >>> import tempfile
        >>> from safetensors.numpy import save_file
        >>> path = tempfile.mkdtemp() + "/model.safetensors"
        >>> save_file({"bias": np.array([1.0, 2.0])}, path)
        >>> with open(path, "rb") as file:
        ...     SafetensorsFile(file).read("bias").tolist()
        [1.0, 2.0]
    """

    def __init__(self, file: BinaryIO):
        self.file, self.path = file, file.name
        header, self._data_start = self._read_header()
        self._entries = {name: self._entry(name, entry) for name, entry in header.items()}
        self.shapes = {name: shape for name, (_, shape, _) in self._entries.items()}
        self._check_layout()

    def dtype(self, name: str) -> np.dtype:
        """Return the type of a tensor's numbers."""
        return self._entries[name][0]

    def read(self, name: str) -> np.ndarray:
        """Return one tensor."""
        dtype, shape, start = self._entries[name]
        values = np.empty(shape, dtype)
        self.file.seek(self._data_start + start)
        if self.file.readinto(values.reshape(-1).view(np.uint8)) < values.nbytes:
            raise self._error("it was changed while it was read")
        return values

    def mapped(self, name: str) -> np.ndarray:
        """Return one tensor, read from the disk only where it is looked at."""
        dtype, shape, start = self._entries[name]
        return np.memmap(self.file, dtype, "r", self._data_start + start, shape)

    def _read_header(self) -> tuple[dict, int]:
        size = size_of(self.file)
        self.file.seek(0)
        length = int.from_bytes(self.file.read(8), "little")
        if size < 8:
            raise self._cut_off(size, "at least 8")
        if length > _HEADER_BYTES:
            raise self._error(f"the header claims {length} bytes, the limit is {_HEADER_BYTES}")
        if size < 8 + length:
            raise self._cut_off(size, f"at least {8 + length}")
        text = self.file.read(length)
        header = parse_object(text, f"{self.path}: the header", unique_names=True)
        header.pop("__metadata__", None)
        return header, 8 + length

    def _entry(self, name: str, entry: object) -> tuple[np.dtype, tuple[int, ...], int]:
        """Return (type, shape, where its bytes begin) of a tensor, checked against each other."""
        try:
            dtype, shape, (start, end) = (entry[k] for k in ("dtype", "shape", "data_offsets"))
            numbers = [*shape, start, end]
        except (TypeError, KeyError, ValueError):
            raise self._error(f"the header's entry for {shown(name)} is malformed") from None
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise self._error(f"{shown(name)} has the type {shown(dtype)}. Expected one of {known}")
        if len(shape) > _RANK or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
            raise self._error(
                f"{shown(name)} has the impossible shape {shown(shape)} or place "
                f"{shown([start, end])}"
            )
        expected = math.prod(shape) * _DTYPES[dtype].itemsize
        if end - start != expected:
            raise self._error(
                f"{shown(name)} takes {end - start} bytes, but its shape takes {expected}"
            )
        return _DTYPES[dtype], tuple(shape), start

    def _check_layout(self) -> None:
        """One tensor after the other, from the header to the end of the file."""
        end = 0
        for name, (dtype, shape, start) in sorted(
            self._entries.items(), key=lambda item: (item[1][2], math.prod(item[1][1]))
        ):
            if start != end:
                raise self._error(f"{shown(name)} begins at byte {start}, expected {end}")
            end += math.prod(shape) * dtype.itemsize
        size = size_of(self.file)
        if size < self._data_start + end:
            raise self._cut_off(size, self._data_start + end)
        if size > self._data_start + end:
            raise self._error(f"it has {size} bytes, expected {self._data_start + end}")

    def _cut_off(self, size: int, expected: int | str) -> ValueError:
        return ValueError(
            f"{self.path} is cut off: it has {size} bytes, expected {expected}. Download it again."
        )

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self.path}: {what}. The file is damaged or not safetensors.")
