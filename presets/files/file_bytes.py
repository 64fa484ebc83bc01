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
        file: Binary file with the methods `seek` and `readinto`.
        advice: String. Last sentence of error messages, without the final period.

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
        ValueError: letters.bin is cut off: it has 6 bytes, expected at least 7. Download it again.
    """

    def __init__(self, file: BinaryIO, advice: str = TORCH_SAVE):
        self._file: Any = file  # `BinaryIO` does not declare `readinto`
        self._advice = advice
        self.name = file.name
        self.size = file.seek(0, 2)

    def read(self, start: int, count: int) -> bytes:
        """Read `count` bytes, starting at offset `start`.

        Raises:
            ValueError: If the file is truncated.
        """
        return self.read_array(start, count).tobytes()

    def read_array(self, start: int, count: int) -> np.ndarray:
        """Read `count` bytes, starting at offset `start`, into a new uint8 array.

        Raises:
            ValueError: If the file is truncated.
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
        """Check that the file has at least the expected size, or exactly this size if `exact`.

        Raises:
            ValueError: If the file is smaller than `expected`, or larger while `exact` is True.
        """
        sizes = f"it has {self.size} bytes, expected {'' if exact else 'at least '}{expected}"
        if self.size < expected:
            raise ValueError(f"{self.name} is cut off: {sizes}. Download it again.")
        if exact and self.size > expected:
            raise self.make_error(sizes)

    def make_error(self, what: str, advice: str | None = None) -> ValueError:
        """Create a ValueError that names this file."""
        return ValueError(f"{self.name}: {what}. {advice or self._advice}.")


def check_stored(path: str | pathlib.Path, declared: int, size: int) -> None:
    """Check that a file is large enough for its arrays, before allocating memory.

    Args:
        path: String or path. The file to name in the error message.
        declared: Integer. The number of bytes according to the shapes of the arrays.
        size: Integer. Number of bytes that the file stores.
    """
    if declared > size:
        raise ValueError(
            f"{path}: the arrays need {declared} bytes, but the file only stores {size} bytes. It "
            "is damaged, compressed or manipulated."
        )


def check_floats(dtype: np.dtype, path: str | pathlib.Path, name: str) -> None:
    """Check that an array's dtype is a floating-point type."""
    if dtype.kind != "f" and dtype != ml_dtypes.bfloat16:
        raise ValueError(
            f"{path}: {quote(name)} has dtype {quote(str(dtype))}. Expected float16, bfloat16, "
            "float32 or float64."
        )
