"""Reads the files of a folder, local or remote."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import BinaryIO, TypeVar

from encoder_zoo.common.wording import decoded, invalid
from encoder_zoo.presets.files.json_data import SETTINGS, VOCABULARY, parse_array, parse_object

TEXT_BYTES = 32 * 2**20  # of a vocabulary: that of 900,000 tokens has 18 MB
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocabulary.json", "idf.json")
_LFS = b"version https://git-lfs"

T = TypeVar("T")


class FolderFiles:
    """Reads the files of a folder; subclasses open them by `_open`.

    Args:
        path: of the folder, for error messages.

    Attributes:
        inside: name of the subfolder of `root` that these are in; "" for the folder itself.
        listed: names of all files in the folder.
        not_downloaded: names of those that only its repository has.
    """

    inside: str = ""
    listed: list[str]
    not_downloaded: Sequence[str] = ()

    def __init__(self, path: pathlib.PurePath):
        self.path = path
        self._closing = contextlib.ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._parsed: dict[str, dict] = {}

    @property
    def root(self) -> FolderFiles:
        """The files of the whole preset, where these are of its subfolder."""
        return self

    def __enter__(self) -> FolderFiles:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and the contexts passed to `keep`."""
        self._closing.close()

    def keep(self, resource: contextlib.AbstractContextManager[T]) -> T:
        """Enter a context that is exited when the folder is closed."""
        return self._closing.enter_context(resource)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def file(self, name: str, named_in: object = None, inside: str = "") -> BinaryIO:
        """Return an open binary file, at its beginning; it is closed with the folder.

        Args:
            name: of the file, without a folder.
            named_in: file and field that contain the name, for error messages.
            inside: path of the subfolder that holds the file.

        Raises:
            ValueError: If the name is not that of a file in the folder, or if the file does not
                exist.
        """
        if not is_plain(name):
            raise invalid(
                str(named_in or self.path), name, "the plain name of a file in the preset"
            )
        inner = f"{inside}/{name}" if inside else name
        if inner not in self._files:
            try:
                self._open(inner)
            except FileNotFoundError:
                by = f" {named_in} names it." if named_in else ""
                raise ValueError(f"{self.path / inner}: file not found.{by}") from None
        file = self._files[inner]
        file.seek(0)
        if file.read(len(_LFS)) == _LFS:
            raise ValueError(
                f"{file.name} is a Git-LFS pointer, not the file itself. Run `git lfs pull` in the "
                "repository it is from, or download the file from the hub."
            )
        file.seek(0)
        return file

    def read_json(self, name: str, inside: str = "") -> dict:
        """Read a JSON object. It is cached, so do not change it.

        Raises:
            ValueError: If the file is too large. See also `file` and `parse_object`.
        """
        inner = f"{inside}/{name}" if inside else name
        if inner not in self._parsed:
            limit = VOCABULARY if name in _VOCABULARIES else SETTINGS
            content = self._read(name, limit.content, inside)
            self._parsed[inner] = parse_object(content, self.path / inner, limit)
        return self._parsed[inner]

    def read_json_array(self, name: str) -> list:
        """Read a JSON array.

        Raises:
            ValueError: If the file is too large. See also `file` and `parse_array`.
        """
        return parse_array(self._read(name, SETTINGS.content, ""), self.path / name)

    def read_text(self, name: str, inside: str = "") -> str:
        """Read a text file in UTF-8.

        Raises:
            ValueError: If the file is too large or not UTF-8. See also `file`.
        """
        return decoded(self._read(name, TEXT_BYTES, inside), self.path / inside / name)

    def read_bytes(self, name: str, inside: str = "") -> bytes:
        """Read a file as bytes.

        Raises:
            ValueError: If the file is too large. See also `file`.
        """
        return self._read(name, TEXT_BYTES, inside)

    def opened_in(self, folder: str) -> list[str]:
        """Return the names of the files in a subfolder that were opened with the folder."""
        prefix = f"{folder}/"
        return sorted(n.removeprefix(prefix) for n in self._files if n.startswith(prefix))

    def check_unchanged(self) -> None:
        """Raise an error if a file was written to since it was opened."""
        raise NotImplementedError

    def _open(self, name: str) -> None:
        """Open a file and add it to `_files`; raise a FileNotFoundError if it is missing."""
        raise NotImplementedError

    def _read(self, name: str, most: int, inside: str) -> bytes:
        file = self.file(name, inside=inside)
        size = size_of(file)
        if size > most:
            raise ValueError(f"{file.name} has {size} bytes. Expected at most {most}.")
        file.seek(0)
        return file.read(most)


class Subfolder(FolderFiles):
    """Reads the files of one subfolder, by the files of the whole folder.

    Args:
        files: of the whole folder, which stays open as long as this is read.
        name: of the subfolder.

    Raises:
        ValueError: If the name is not that of a folder inside.
    """

    def __init__(self, files: FolderFiles, name: str):
        super().__init__(files.path / name)
        self._whole, self._name, self.inside = files, name, name
        self.listed = files.opened_in(name)

    @property
    def root(self) -> FolderFiles:
        return self._whole

    def __contains__(self, name: str) -> bool:
        return f"{self._name}/{name}" in self._whole

    def file(self, name: str, named_in: object = None, inside: str = "") -> BinaryIO:
        inner = f"{self._name}/{inside}" if inside else self._name
        return self._whole.file(name, named_in, inner)

    def close(self) -> None:
        self._whole.close()

    def check_unchanged(self) -> None:
        self._whole.check_unchanged()


def is_plain(name: object) -> bool:
    """Return whether a name is that of a file directly in a folder.

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


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file in bytes; seeks to its end."""
    return file.seek(0, os.SEEK_END)
