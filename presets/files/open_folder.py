"""The files of one folder, opened together: one version of them, whoever replaces the folder."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pathlib
import re
import stat
from collections.abc import Iterable
from typing import BinaryIO, TypeVar

from encoder_zoo.encoders.wording import decoded, shown
from encoder_zoo.presets.files.json_data import SETTINGS, VOCABULARY, parse_object

TEXT_BYTES = 32 * 2**20  # of a vocabulary: that of 900,000 tokens has 18 MB
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocabulary.json")
_LFS = b"version https://git-lfs"
_ATTEMPTS = 100  # opening takes a millisecond; nobody replaces a folder that often in a row
_HAS_HANDLES = os.open in os.supports_dir_fd and os.listdir in os.supports_fd  # not on Windows

T = TypeVar("T")


class Replaced(Exception):
    """The folder was replaced while its files were being opened."""


class OpenFolder:
    """Opens the files of a folder, all of the same version.

    A writer that replaces a folder in one step (`replacing`) may do so between two files that a
    reader opens by path: the reader would mix two versions. Here a handle of the folder is opened
    first and every file relative to it, so that all of them are of the folder that was there
    then. Contents stay readable after the folder was replaced and deleted.

    Args:
        path: of the folder.
        patterns: of the names of the files to open at once. Other files can still be opened with
            `file`, as long as the folder has not been deleted. A pattern with a slash is the path
            of one file.

    Attributes:
        path: of the folder, for errors.
        listed: names of all that was in the folder when it was opened.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: "... is a link out of the preset, ...", "... is not a regular file.",
            "... is a Git-LFS pointer ...", "... was replaced 100 times while it was opened ..."

    Example:
        >>> import tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.json").write_text('{"hidden_size": 8}')
        >>> with OpenFolder(folder, ["*.json"]) as files:
        ...     (folder / "config.json").unlink()
        ...     files.read_json("config.json")
        {'hidden_size': 8}
    """

    def __init__(self, path: str | os.PathLike, patterns: Iterable[str] = ()):
        self.path = pathlib.Path(path)
        patterns = list(patterns)
        for _ in range(_ATTEMPTS):
            self._closing = contextlib.ExitStack()
            self._files: dict[str, BinaryIO] = {}
            self._states: dict[str, tuple[int, int]] = {}
            self._parsed: dict[str, dict] = {}
            try:
                self._open_handle()
                self._open_all(patterns)
                return
            except Replaced:
                self.close()
            except BaseException:
                self.close()
                raise
        raise ValueError(
            f"{self.path} was replaced {_ATTEMPTS} times while it was opened. Load it when whoever "
            "writes it is done."
        )

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Closes the handles, and what was passed to `keep`."""
        self._closing.close()

    def keep(self, resource: contextlib.AbstractContextManager[T]) -> T:
        """Enters a context that is left when the folder is closed."""
        return self._closing.enter_context(resource)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def file(self, name: str, named_in: object = None, inside: str = "") -> BinaryIO:
        """An open file, at its beginning.

        Args:
            name: of the file, without any folder.
            named_in: file and field that the name is from, for the error.
            inside: path of a folder in this one that holds the file.

        Returns:
            A binary file, whose `name` is its path. It is closed with the folder.

        Raises:
            ValueError: "...: '../x' is not a plain file name ...", "...: file not found", and see
                above.
        """
        if not is_plain(name):
            raise ValueError(
                f"{named_in or self.path}: {shown(name)} is not a plain file name in the preset."
            )
        inner = f"{inside}/{name}" if inside else name
        if inner not in self._files:
            try:
                self._open(inner)
            except (FileNotFoundError, Replaced):
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
        """Reads a JSON object as plain data; parsed once, so not to be changed.

        Raises:
            ValueError: "... has 300000000 bytes ...", and see `file` and `parse_object`.
        """
        inner = f"{inside}/{name}" if inside else name
        if inner not in self._parsed:
            limit = VOCABULARY if name in _VOCABULARIES else SETTINGS
            content = self._read(name, limit.content, inside)
            self._parsed[inner] = parse_object(content, self.path / inner, limit)
        return self._parsed[inner]

    def read_text(self, name: str, inside: str = "") -> str:
        """Reads a text.

        Raises:
            ValueError: "... has 3000000000 bytes ...", "... is not text in UTF-8: ...", and see
                `file`.
        """
        return decoded(self._read(name, TEXT_BYTES, inside), self.path / inside / name)

    def read_bytes(self, name: str, inside: str = "") -> bytes:
        """Reads a file's bytes.

        Raises:
            ValueError: "... has 3000000000 bytes ...", and see `file`.
        """
        return self._read(name, TEXT_BYTES, inside)

    def check_unchanged(self) -> None:
        """Refuses files that another process has written to since they were opened.

        Raises:
            ValueError: "... was changed while it was read ..."
        """
        for name, file in self._files.items():
            if _state(file) != self._states[name]:
                raise ValueError(
                    f"{self.path / name} was changed while it was read: what was loaded may be of "
                    "two versions. Load it again when whoever writes it is done. save_to_preset "
                    "replaces a folder in one step, which readers do not notice."
                )

    def _read(self, name: str, most: int, inside: str) -> bytes:
        file = self.file(name, inside=inside)
        size = size_of(file)
        if size > most:
            raise ValueError(f"{file.name} has {size} bytes. Expected at most {most}.")
        file.seek(0)
        return file.read(most)

    def _open_handle(self) -> None:
        self._identity = self.path.stat().st_ino
        self._handle = os.open(self.path, os.O_RDONLY) if _HAS_HANDLES else None
        if self._handle is not None:
            self._closing.callback(os.close, self._handle)
        self.listed = sorted(os.listdir(self.path if self._handle is None else self._handle))

    def _open_all(self, patterns: list[str]) -> None:
        inner = [pattern for pattern in patterns if "/" in pattern and self._stat(pattern)]
        top = [n for n in self.listed if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
        for name in [*top, *inner]:
            try:
                self._open(name)
            except FileNotFoundError:  # it was listed: the folder is being deleted
                if self._is_link(name):
                    raise ValueError(f"{self.path / name}: file not found.") from None
                raise Replaced from None

    def _open(self, name: str) -> None:
        path = self.path / name
        if not self._is_link(name) and not stat.S_ISREG(self._stat(name, missing=True).st_mode):
            raise ValueError(f"{path} is not a regular file.")
        real = self._real(path) if self._has_links(name) else None

        def opener(_: str, flags: int) -> int:
            # A link may lead to a pipe, which would wait for a writer.
            flags |= getattr(os, "O_NONBLOCK", 0)
            return os.open(path if self._handle is None else name, flags, dir_fd=self._handle)

        file = self.keep(open(path, "rb", opener=opener))  # noqa: SIM115  closed by `close`
        self._files[name], self._states[name] = file, _state(file)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a regular file.")
        # What a link leads to by its path may be of another version than what was opened.
        if real and not (real.exists() and os.path.samestat(real.stat(), os.fstat(file.fileno()))):
            raise Replaced
        if self._handle is None and self.path.stat().st_ino != self._identity:
            raise Replaced

    def _stat(self, name: str, missing: bool = False) -> os.stat_result | None:
        """Of a name itself, not of what a link points to; None, or an error, if it is missing."""
        where = self.path / name if self._handle is None else name
        try:
            return os.stat(where, dir_fd=self._handle, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            if missing:
                raise FileNotFoundError(self.path / name) from None
            return None

    def _is_link(self, name: str) -> bool:
        found = self._stat(name)
        return found is not None and stat.S_ISLNK(found.st_mode)

    def _has_links(self, name: str) -> bool:
        """Whether the name, or a folder on the way to it, is a link."""
        parts = name.split("/")
        return any(self._is_link("/".join(parts[: i + 1])) for i in range(len(parts)))

    def _real(self, path: pathlib.Path) -> pathlib.Path:
        """Returns where a link leads to; refuses one that leads out of the folder.

        Links of the hub's cache lead to its blobs.
        """
        real, home = path.resolve(), self.path.resolve()
        allowed = [home]
        # The hub's cache keeps the contents beside the snapshots, or beside the repositories, and
        # links to them.
        if home.parent.name == "snapshots" and home.parents[1].name.startswith("models--"):
            allowed += [home.parents[1] / "blobs", home.parents[2] / "blobs"]
        if not any(place in real.parents for place in allowed):
            raise ValueError(
                f"{path} is a link out of the preset, to {real}. Put the file itself into the "
                "folder."
            )
        return real


def is_plain(name: object) -> bool:
    """Tells whether a name stands for a file in the folder at hand and nowhere else.

    Example:
        >>> [is_plain(name) for name in ("vocab.txt", "../vocab.txt", "a/b", "C:x", "a\\0")]
        [True, False, False, False, False]
    """
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and re.search(r"[/\\:\x00-\x1f]", name) is None
    )


def size_of(file: BinaryIO) -> int:
    """Returns the size of an open file in bytes; its position becomes its end."""
    return file.seek(0, os.SEEK_END)


def _state(file: BinaryIO) -> tuple[int, int]:
    """(size, time of the last change) of an open file."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns
