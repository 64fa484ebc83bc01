"""Reads ranges of an open file, which may be shorter than its contents say, and arrays of them."""

from __future__ import annotations

import pathlib
from typing import BinaryIO

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import shown

TORCH_SAVE = "The file is damaged or not one that torch.save wrote"


class FileBytes:
    """Reads ranges of an open file.

    Args:
        file: seekable, opened for reading in binary; only `seek` and `readinto` are called.
        advice: last sentence of errors, without its full stop.

    Attributes:
        name: path of the file, for errors.
        size: bytes of the file.

    Example:
        >>> import io
        >>> file = io.BytesIO(b"abcdef")
        >>> file.name = "letters.bin"
        >>> FileBytes(file).read(2, 3)
        b'cde'
        >>> FileBytes(file).read(4, 3)
        Traceback (most recent call last):
        ValueError: letters.bin is cut off: it has 6 bytes, expected at least 7. Download it again.
    """

    def __init__(self, file: BinaryIO, advice: str = TORCH_SAVE):
        self._file = file
        self._advice = advice
        self.name = file.name
        self.size = file.seek(0, 2)

    def read(self, start: int, count: int) -> bytes:
        """Read `count` bytes from offset `start`.

        Raises:
            ValueError: If the file is cut off.
        """
        return self.read_array(start, count).tobytes()

    def read_array(self, start: int, count: int) -> np.ndarray:
        """Read `count` bytes from offset `start` into a new uint8 array.

        Raises:
            ValueError: If the file is cut off.
        """
        self.check_size(start + count)
        content = np.empty(count, "uint8")
        waiting = memoryview(content)
        self._file.seek(start)
        while waiting:
            taken = self._file.readinto(waiting)
            if not taken:
                raise self.error("it was changed while it was read")
            waiting = waiting[taken:]
        return content

    def check_size(self, expected: int, exact: bool = False) -> None:
        """Raise an error if the file has fewer bytes than expected, or, if `exact`, more.

        Raises:
            ValueError: If the file is shorter than expected, or longer and `exact` is True.
        """
        sizes = f"it has {self.size} bytes, expected {'' if exact else 'at least '}{expected}"
        if self.size < expected:
            raise ValueError(f"{self.name} is cut off: {sizes}. Download it again.")
        if exact and self.size > expected:
            raise self.error(sizes)

    def error(self, what: str, advice: str | None = None) -> ValueError:
        """Return an error about this file."""
        return ValueError(f"{self.name}: {what}. {advice or self._advice}.")


def check_stored(path: str | pathlib.Path, declared: int, size: int) -> None:
    """Raise an error if arrays are larger than the file, before memory is allocated.

    Args:
        path: of the file, for the error message.
        declared: bytes of the arrays, by their shapes.
        size: bytes that are stored.
    """
    if declared > size:
        raise ValueError(
            f"{path}: its arrays have {declared} bytes, but only {size} are there. The file is "
            "damaged, compressed or made up."
        )


def check_floats(dtype: np.dtype, path: str | pathlib.Path, name: str) -> None:
    """Raise an error if weights are not floating-point numbers."""
    if dtype.kind != "f" and dtype != ml_dtypes.bfloat16:
        raise ValueError(
            f"{path}: {shown(name)} is of type {shown(str(dtype))}. Expected float16, bfloat16, "
            "float32 or float64."
        )
