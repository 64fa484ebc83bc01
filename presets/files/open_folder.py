"""The files of one folder, opened together, so that all are of one version."""

from __future__ import annotations

import fnmatch
import os
import pathlib
import stat
from collections.abc import Iterable
from typing import BinaryIO

from encoder_zoo.presets.files.folder_files import FolderFiles

_ATTEMPTS = 100  # opening takes a millisecond: no writer replaces a folder that often in a row
_HAS_HANDLES = os.open in os.supports_dir_fd and os.listdir in os.supports_fd  # not on Windows


class Replaced(FileNotFoundError):
    """The folder was replaced while its files were being opened."""


class OpenFolder(FolderFiles):
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
        patterns = list(patterns)
        for _ in range(_ATTEMPTS):
            super().__init__(pathlib.Path(path))
            self._states: dict[str, tuple[int, int]] = {}
            try:
                self._open_handle()
                self._open_all(patterns)
                self._check_in_place()  # one that is being deleted lists what is left of it
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

    def _open_handle(self) -> None:
        self._handle = os.open(self.path, os.O_RDONLY) if _HAS_HANDLES else None
        if self._handle is not None:
            self._closing.callback(os.close, self._handle)
        self._folder = os.stat(self.path if self._handle is None else self._handle)
        self.listed = sorted(os.listdir(self.path if self._handle is None else self._handle))

    def _check_in_place(self) -> None:
        if not (self.path.exists() and os.path.samestat(self.path.stat(), self._folder)):
            raise Replaced

    def _open_all(self, patterns: list[str]) -> None:
        inner = [pattern for pattern in patterns if "/" in pattern and self._stat(pattern)]
        top = [n for n in self.listed if any(fnmatch.fnmatchcase(n, p) for p in patterns)]
        for name in [*top, *inner]:
            try:
                self._open(name)
            except Replaced:
                raise
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
        if self._handle is None:
            self._check_in_place()

    def _stat(self, name: str, missing: bool = False) -> os.stat_result | None:
        """Return the state of a name, not of what a link points to; None if it is missing."""
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
        """Return whether the name, or a folder on the way to it, is a link."""
        parts = name.split("/")
        return any(self._is_link("/".join(parts[: i + 1])) for i in range(len(parts)))

    def _real(self, path: pathlib.Path) -> pathlib.Path:
        """Return where a link leads to; refuses one that leads out of the folder.

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


def _state(file: BinaryIO) -> tuple[int, int]:
    """Return (size, time of the last change) of an open file."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns
