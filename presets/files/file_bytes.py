"""Read bytes and arrays from an open file, and detect truncated files."""

from __future__ import annotations

import pathlib
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from encoder_zoo.common.wording import quote

TORCH_SAVE = "The file is damaged or was not written by torch.save"


class FileBytes:
    """Read byte ranges from an open file.

    Args:
        file: A binary file object with `name`, `seek` and `readinto`.
        advice: String. Default last sentence of error messages, without the period. Defaults to
            `TORCH_SAVE`.

    Attributes:
        name: String. File path for error messages.
        size: Integer. File size in bytes.

    Example:
        >>> import io
        >>> file = io.BytesIO(b"abcdef")
        >>> file.name = "letters.bin"
        >>> FileBytes(file).read(2, 3)
        b'cde'
        >>> FileBytes(file).read(4, 3)
        Traceback (most recent call last):
        ValueError: letters.bin is truncated: the file has 6 bytes. Expected at least 7 bytes. ...
    """

    def __init__(self, file: BinaryIO, advice: str = TORCH_SAVE):
        self._file: Any = file  # `BinaryIO` does not declare `readinto`
        self._advice = advice
        self.name = file.name
        self.size = file.seek(0, 2)

    def read(self, start: int, count: int) -> bytes:
        """Read `count` bytes, starting at offset `start`.

        Raises:
            ValueError: If the file ends before `start + count`.
        """
        return self.read_array(start, count).tobytes()

    def read_array(self, start: int, count: int) -> np.ndarray:
        """Read `count` bytes, starting at offset `start`, into a new uint8 array.

        Raises:
            ValueError: If the file ends before `start + count`.
        """
        self.check_size(start + count)
        content = np.empty(count, np.uint8)
        waiting = content.data
        self._file.seek(start)
        while waiting:
            taken = self._file.readinto(waiting)
            if not taken:
                raise self.make_error("the file was changed while it was read")
            waiting = waiting[taken:]
        return content

    def check_size(self, expected: int, exact: bool = False) -> None:
        """Check the file size.

        Args:
            expected: Integer. The minimum size in bytes.
            exact: Boolean. Whether to also reject larger files. Defaults to False.

        Raises:
            ValueError: If the file is smaller than `expected`, or if `exact` is True and the file
                is larger.
        """
        least = "" if exact else "at least "
        sizes = f"the file has {self.size} bytes. Expected {least}{expected} bytes"
        if self.size < expected:
            raise ValueError(f"{self.name} is truncated: {sizes}. Download it again.")
        if exact and self.size > expected:
            raise self.make_error(sizes)

    def make_error(self, what: str, advice: str | None = None) -> ValueError:
        """Create a ValueError whose message starts with the file name."""
        return ValueError(f"{self.name}: {what}. {advice or self._advice}.")


def check_file_size(path: str | pathlib.Path, declared: int, size: int) -> None:
    """Check that a file is large enough to contain its arrays, before allocating memory.

    Args:
        path: String or path. File path for the error message.
        declared: Integer. The number of bytes that the arrays need according to their shapes.
        size: Integer. The number of bytes in the file.

    Raises:
        ValueError: If `declared` exceeds `size`.
    """
    if declared > size:
        raise ValueError(
            f"{path}: the arrays need {declared} bytes, but the file only contains {size} bytes. "
            "The file is damaged, compressed or manipulated."
        )


def check_is_float(dtype: np.dtype, path: str | pathlib.Path, name: str) -> None:
    """Raise a ValueError if an array does not have a floating-point dtype."""
    if dtype.kind != "f" and dtype != ml_dtypes.bfloat16:
        raise ValueError(
            f"{path}: {quote(name)} has dtype {quote(str(dtype))}. Expected float16, bfloat16, "
            "float32 or float64."
        )
