"""Reading parts of an open file that may end too early."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np


class FileBytes:
    """Reads ranges of an open file.

    Args:
        file: seekable, opened for reading in binary. It is sought and read, and nothing else is
            asked of it, so it need not lie on a disk.

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

    def __init__(self, file: BinaryIO):
        self._file = file
        self.name = file.name
        self.size = file.seek(0, 2)

    def read(self, start: int, count: int) -> bytes:
        """Read `count` bytes from the byte `start` on.

        Raises:
            ValueError: "... is cut off: it has 1000 bytes, expected at least 2000 ..."
        """
        return self.read_array(start, count).tobytes()

    def read_array(self, start: int, count: int) -> np.ndarray:
        """Read `count` bytes from the byte `start` on into a new array of them.

        Raises:
            ValueError: "... is cut off: it has 1000 bytes, expected at least 2000 ..."
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

    def check_size(self, expected: int) -> None:
        """Raise unless the file has as many bytes as expected, or more.

        Raises:
            ValueError: "... is cut off: it has 1000 bytes, expected at least 2000 ..."
        """
        if self.size < expected:
            raise ValueError(
                f"{self.name} is cut off: it has {self.size} bytes, expected at least {expected}. "
                "Download it again."
            )

    def error(
        self, what: str, advice: str = "The file is damaged or not one that torch.save wrote"
    ) -> ValueError:
        """Word an error about this file."""
        return ValueError(f"{self.name}: {what}. {advice}.")
