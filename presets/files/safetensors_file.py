"""Read `.safetensors` files after checking the complete header.

A file contains the header length in 8 bytes, a JSON header, and the bytes of all tensors
without gaps.

Source: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import math
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import quote
from encoder_zoo.presets.files.file_bytes import FileBytes
from encoder_zoo.presets.files.json_data import SETTINGS, parse_object

_HEADER_BYTES = SETTINGS.content  # a header for 10,000 tensors has 1 MB
_MAX_AXES = 8
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
    """Read tensors from a `.safetensors` file.

    Args:
        file: A binary file object, which must stay open until all tensors are read. Error messages
            contain the `name` attribute.

    Attributes:
        shapes: Dictionary that maps tensor names to shapes.

    Raises:
        ValueError: If the file is truncated or the header is malformed.

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
        self._file, self.path = file, file.name
        self._source = FileBytes(file, "The file is damaged or not safetensors")
        header, self._data_start = self._read_header()
        self._entries = {name: self._check_entry(name, entry) for name, entry in header.items()}
        self.shapes = {name: shape for name, (_, shape, _) in self._entries.items()}
        self._check_layout()

    def get_dtype(self, name: str) -> np.dtype:
        """Return the tensor dtype."""
        return self._entries[name][0]

    def read(self, name: str) -> np.ndarray:
        """Read a tensor by name."""
        dtype, shape, start = self._entries[name]
        content = self._source.read_array(
            self._data_start + start, math.prod(shape) * dtype.itemsize
        )
        return content.view(dtype).reshape(shape)

    def map_tensor(self, name: str) -> np.ndarray:
        """Return a tensor as a memory map."""
        dtype, shape, start = self._entries[name]
        if 0 in shape:  # an empty array cannot be mapped
            return np.zeros(shape, dtype)
        return np.memmap(self._file, dtype, "r", self._data_start + start, shape)

    def _read_header(self) -> tuple[dict, int]:
        length = int.from_bytes(self._source.read(0, 8), "little")
        if length > _HEADER_BYTES:
            raise self._source.make_error(
                f"the header has {length} bytes, but the limit is {_HEADER_BYTES}"
            )
        text = self._source.read(8, length)
        header = parse_object(text, f"{self.path}: the header", unique_names=True)
        header.pop("__metadata__", None)
        return header, 8 + length

    def _check_entry(self, name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int]:
        """Validate the header entry of a tensor, and return (dtype, shape, start offset)."""
        try:
            dtype, shape, (start, end) = (entry[k] for k in ("dtype", "shape", "data_offsets"))
            numbers = [*shape, start, end]
        except (TypeError, KeyError, ValueError):
            raise self._source.make_error(
                f"the header entry of {quote(name)} is malformed"
            ) from None
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            known = ", ".join(_DTYPES)
            raise self._source.make_error(
                f"{quote(name)} has the dtype {quote(dtype)}. Expected one of {known}"
            )
        if len(shape) > _MAX_AXES or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
            raise self._source.make_error(
                f"{quote(name)} has an invalid shape {quote(shape)} or invalid offsets "
                f"{quote([start, end])}"
            )
        expected = math.prod(shape) * _DTYPES[dtype].itemsize
        if end - start != expected:
            raise self._source.make_error(
                f"{quote(name)} has {end - start} bytes, but the shape requires {expected}"
            )
        return _DTYPES[dtype], tuple(shape), start

    def _check_layout(self) -> None:
        """Check that the tensors fill the file after the header without gaps."""
        end = 0
        for name, (dtype, shape, start) in sorted(
            self._entries.items(), key=lambda item: (item[1][2], math.prod(item[1][1]))
        ):
            if start != end:
                raise self._source.make_error(
                    f"{quote(name)} starts at byte {start}. Expected byte {end}"
                )
            end += math.prod(shape) * dtype.itemsize
        self._source.check_size(self._data_start + end, exact=True)
