"""Read files from a local or remote folder."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import BinaryIO, TypeVar

from encoder_zoo.common.wording import decode_text, invalid
from encoder_zoo.presets.files.json_data import SETTINGS, VOCABULARY, parse_array, parse_object

MAX_TEXT_BYTES = 32 * 2**20  # a vocabulary with 900,000 tokens has 18 MB
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocabulary.json", "idf.json")
_LFS = b"version https://git-lfs"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Safeguards:
    """Safety options for `from_preset`, passed as keyword arguments.

    Attributes:
        verify: Boolean. Whether to verify all file checksums. Defaults to True.
        max_bytes: Integer. Maximum size of all weights in bytes, in float32. Defaults to 8 GiB.
        allow_nonfinite: Boolean. Whether to accept weights that are NaN or infinite. Defaults to
            False.
    """

    verify: bool = True
    max_bytes: int = 8 * 2**30
    allow_nonfinite: bool = False

    @classmethod
    def pop_from_arguments(cls, arguments: dict) -> Safeguards:
        """Remove all safety options from the arguments of `from_preset`, and return the options.

        Example:
            >>> arguments = {"verify": False, "dropout": 0.0}
            >>> Safeguards.pop_from_arguments(arguments).verify, arguments
            (False, {'dropout': 0.0})
        """
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: arguments.pop(name) for name in names if name in arguments})


class FolderFiles:
    """Base class for reading files from a folder.

    Subclasses implement `_open` and `check_unchanged`.

    Args:
        path: Folder path for error messages.

    Attributes:
        inside: String. Path of this folder in `root`, or "" for the root folder.
        listed: Collection of strings. The names of all files in the folder.
        not_downloaded: Sequence of strings. The names of files in the repository that were not
            downloaded.
        safeguards: The `Safeguards` for reading the files.
    """

    inside: str = ""
    listed: list[str]
    not_downloaded: Sequence[str] = ()
    safeguards = Safeguards()

    def __init__(self, path: pathlib.PurePath):
        self.path = path
        self._closing = contextlib.ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._parsed: dict[str, dict] = {}

    @property
    def root(self) -> FolderFiles:
        """`FolderFiles` of the whole preset, even if this object only contains a subfolder."""
        return self

    def __enter__(self) -> FolderFiles:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close all files and all contexts that were passed to `enter_context`."""
        self._closing.close()

    def enter_context(self, resource: contextlib.AbstractContextManager[T]) -> T:
        """Enter a context manager. The method `close` exits it."""
        return self._closing.enter_context(resource)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def open_file(self, name: str, named_in: object = None) -> BinaryIO:
        """Open a binary file, or return a file that is already open. `close` closes all files.

        Args:
            name: String. The file name without a folder. For files in a subfolder, see `Subfolder`.
            named_in: Optional string. File and field that contain `name`, for error messages.

        Returns:
            The file object, positioned at the start.

        Raises:
            ValueError: If `name` is invalid or the file does not exist.
        """
        if not is_plain(name):
            raise invalid(str(named_in or self.path), name, "the name of a file in the preset")
        return self._open_path(name, named_in)

    def _open_path(self, path: str, named_in: object) -> BinaryIO:
        """Open the file at a path in this folder. See `open_file`."""
        if path not in self._files:
            try:
                self._open(path)
            except FileNotFoundError:
                by = f" The name is from {named_in}." if named_in else ""
                raise ValueError(f"{self.path / path}: file not found.{by}") from None
        file = self._files[path]
        file.seek(0)
        if file.read(len(_LFS)) == _LFS:
            raise ValueError(
                f"{file.name} is a Git LFS pointer instead of the actual file. Run `git lfs pull` "
                "in the repository, or download the file from the hub."
            )
        file.seek(0)
        return file

    def read_json(self, name: str) -> dict:
        """Read a JSON object. The result is cached and must not be modified.

        Raises:
            ValueError: If the file is too large or invalid. See `open_file` and `parse_object`.
        """
        if name not in self._parsed:
            limit = VOCABULARY if name in _VOCABULARIES else SETTINGS
            content = self._read(name, limit.content)
            self._parsed[name] = parse_object(content, self.path / name, limit)
        return self._parsed[name]

    def read_json_array(self, name: str) -> list:
        """Read a JSON array.

        Raises:
            ValueError: If the file is too large or invalid. See `open_file` and `parse_array`.
        """
        return parse_array(self._read(name, SETTINGS.content), self.path / name)

    def read_text(self, name: str) -> str:
        """Read a text file with UTF-8 encoding.

        Raises:
            ValueError: If the file is too large or not encoded as UTF-8. See also `open_file`.
        """
        return decode_text(self._read(name, MAX_TEXT_BYTES), self.path / name)

    def read_bytes(self, name: str) -> bytes:
        """Read a file as bytes.

        Raises:
            ValueError: If the file is too large. See also `open_file`.
        """
        return self._read(name, MAX_TEXT_BYTES)

    def list_opened(self, folder: str) -> list[str]:
        """List all open files in a subfolder."""
        prefix = f"{folder}/"
        return sorted(n.removeprefix(prefix) for n in self._files if n.startswith(prefix))

    def check_unchanged(self) -> None:
        """Raise a ValueError if an open file was modified."""
        raise NotImplementedError

    def _open(self, name: str) -> None:
        """Open a file and add it to `_files`. Raise a FileNotFoundError for missing files."""
        raise NotImplementedError

    def _read(self, name: str, most: int) -> bytes:
        file = self.open_file(name)
        size = get_size(file)
        if size > most:
            raise ValueError(f"{file.name} has {size} bytes. Expected at most {most} bytes.")
        file.seek(0)
        return file.read(most)


class Subfolder(FolderFiles):
    """Files in a subfolder of an open folder.

    Args:
        files: The `FolderFiles` of the whole folder, which must stay open.
        name: String. The subfolder name.
    """

    def __init__(self, files: FolderFiles, name: str):
        super().__init__(files.path / name)
        self._whole, self._name, self.inside = files, name, name
        self.listed, self.safeguards = files.list_opened(name), files.safeguards

    @property
    def root(self) -> FolderFiles:
        return self._whole

    def __contains__(self, name: str) -> bool:
        return f"{self._name}/{name}" in self._whole

    def _open_path(self, path: str, named_in: object) -> BinaryIO:
        return self._whole._open_path(f"{self._name}/{path}", named_in)

    def close(self) -> None:
        self._whole.close()

    def check_unchanged(self) -> None:
        self._whole.check_unchanged()


def is_plain(name: object) -> bool:
    """Return whether a name is a file name without a folder.

    Example:
        >>> [is_plain(name) for name in ("vocab.txt", "../vocab.txt", "a/b", "C:x", "a\\0")]
        [True, False, False, False, False]
    """
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and len(name) < 256
        and re.search(r"[/\\:\x00-\x1f\ud800-\udfff]", name) is None
    )


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches any of the patterns. Patterns can contain wildcards.

    Example:
        >>> matches_any("model.safetensors", ["*.bin", "*.safetensors"])
        True
    """
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def get_size(file: BinaryIO) -> int:
    """Return an open file's size in bytes, and move to the end of the file."""
    return file.seek(0, os.SEEK_END)
