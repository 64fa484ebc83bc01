"""Open a consistent version of all files in a folder, and detect changes while reading."""

from __future__ import annotations

import glob
import os
import pathlib
import stat
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from encoder_zoo.common.validation import check_path
from encoder_zoo.presets.files.folder_files import FolderFiles, matches_any

_MAX_ATTEMPTS = 100  # opening only takes a millisecond
_HAS_HANDLES = os.open in os.supports_dir_fd and os.listdir in os.supports_fd  # not on Windows


class FolderReplaced(FileNotFoundError):
    """Raised when another process replaces a folder while its files are being opened."""


class OpenFolder(FolderFiles):
    """Local folder whose files are all opened in the same version.

    If another process replaces the folder (see `replace_folder`), opening files by path could mix
    two versions. For this reason, this class opens the folder, and then all files relative to the
    folder handle. The files can still be read after the folder was replaced or deleted.

    Args:
        path: String or path. Folder to open.
        patterns: Iterable of strings. The patterns of the files to open immediately. Patterns can
            contain wildcards. Patterns with a slash match files in subfolders. Other files can be
            opened later with `open_file`, unless the folder is deleted. Defaults to ().

    Attributes:
        path: Folder path for error messages.
        listed: List of strings. The names of all files in the folder at the time of opening.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If `path` is not a folder, if a file is not a regular file or links to a path
            outside of the preset, or if other processes replace the folder too often.

    Example:
        >>> import tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.json").write_text('{"hidden_size": 8}')
        >>> with OpenFolder(folder, ["*.json"]) as files:
        ...     (folder / "config.json").unlink()
        ...     files.read_json("config.json")
        {'hidden_size': 8}
    """

    path: pathlib.Path

    def __init__(self, path: str | os.PathLike, patterns: Iterable[str] = ()):
        patterns = list(patterns)
        for _ in range(_MAX_ATTEMPTS):
            super().__init__(check_path(path, "folder"))
            self._states: dict[str, tuple[int, int]] = {}
            try:
                self._open_handle()
                self._open_all(patterns)
                self._check_not_replaced()  # the list may not be complete during deletion
                return
            except FolderReplaced:
                self.close()
            except BaseException:
                self.close()
                raise
        raise ValueError(
            f"{self.path} was replaced {_MAX_ATTEMPTS} times while it was opened. Load the folder "
            "after the other process has finished writing."
        )

    def check_unchanged(self) -> None:
        """Check that no open file was modified by another process.

        Raises:
            ValueError: If a file was modified while it was open.
        """
        for name, file in self._files.items():
            if _get_state(file) != self._states[name]:
                raise ValueError(
                    f"{self.path / name} was changed while it was read, so the result could mix "
                    "two versions. Load the folder again after the other process has finished "
                    "writing. save_to_preset avoids this problem by replacing the folder in one "
                    "step."
                )

    def _open_handle(self) -> None:
        if self.path.is_file():
            raise ValueError(f"{self.path} is a file. Expected a folder.")
        self._handle = os.open(self.path, os.O_RDONLY) if _HAS_HANDLES else None
        if self._handle is not None:
            self._closing.callback(os.close, self._handle)
        self._folder = os.stat(self.path if self._handle is None else self._handle)
        self.listed = sorted(os.listdir(self.path if self._handle is None else self._handle))

    def _check_not_replaced(self) -> None:
        if not (self.path.exists() and os.path.samestat(self.path.stat(), self._folder)):
            raise FolderReplaced

    def _open_all(self, patterns: list[str]) -> None:
        deep = [pattern for pattern in patterns if "/" in pattern]
        globs = [pattern for pattern in deep if glob.has_magic(pattern)]
        exact = [pattern for pattern in deep if pattern not in globs and self._read_state(pattern)]
        parents = {pattern.split("/")[0] for pattern in globs}
        folders = [name for name in self.listed if matches_any(name, parents)]
        paths = [f"{folder}/{name}" for folder in folders for name in self._list(folder)]
        inner = [path for path in paths if matches_any(path, globs)]
        top = [name for name in self.listed if matches_any(name, patterns)]
        for name in [*top, *exact, *inner]:
            try:
                self._open(name)
            except FolderReplaced:
                raise
            except FileNotFoundError:  # listed but missing, because the folder is being deleted
                if self._is_link(name):
                    raise ValueError(
                        f"{self.path / name} is a broken link. Restore the file that it points to."
                    ) from None
                raise FolderReplaced from None

    def _list(self, folder: str) -> list[str]:
        """List all names in a subfolder. Return [] for files and deleted folders."""
        try:
            if self._handle is None:
                return sorted(os.listdir(self.path / folder))
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._handle)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return sorted(os.listdir(handle))
        finally:
            os.close(handle)

    def _open(self, name: str) -> None:
        path = self.path / name
        state = self._read_state(name)
        if state is None:
            raise FileNotFoundError(path)
        if not self._is_link(name) and not stat.S_ISREG(state.st_mode):
            raise ValueError(f"{path} is not a regular file.")
        real = self._resolve_link(path) if self._has_links(name) else None

        def open_descriptor(_: str, flags: int) -> int:
            # Opening a pipe would block until a writer connects.
            flags |= getattr(os, "O_NONBLOCK", 0)
            try:
                return os.open(path if self._handle is None else name, flags, dir_fd=self._handle)
            except PermissionError as error:
                error.filename = os.fspath(path)  # show the full path in the error message
                raise

        file = self.enter_context(open(path, "rb", opener=open_descriptor))  # noqa: SIM115  closed by `close`
        self._files[name], self._states[name] = file, _get_state(file)
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a regular file.")
        # A link may now point to another version.
        if real and not (real.exists() and os.path.samestat(real.stat(), os.fstat(file.fileno()))):
            raise FolderReplaced
        if self._handle is None:
            self._check_not_replaced()

    def _read_state(self, name: str) -> os.stat_result | None:
        """Return the status of a path without following links, or None if it does not exist."""
        path = self.path / name if self._handle is None else name
        try:
            return os.stat(path, dir_fd=self._handle, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _is_link(self, name: str) -> bool:
        found = self._read_state(name)
        return found is not None and stat.S_ISLNK(found.st_mode)

    def _has_links(self, name: str) -> bool:
        """Return whether a path or a parent folder is a link."""
        parts = name.split("/")
        return any(self._is_link("/".join(parts[: i + 1])) for i in range(len(parts)))

    def _resolve_link(self, path: pathlib.Path) -> pathlib.Path:
        """Return the link target, which must be inside the folder.

        In the hub cache, links can also point to the folders with downloaded blobs.

        Raises:
            ValueError: If the link points to a path outside of the folder.
        """
        # `Path.resolve` would raise a RuntimeError for circular links.
        real, home = (pathlib.Path(os.path.realpath(p)) for p in (path, self.path))
        allowed = [home]
        if home.parent.name == "snapshots" and home.parents[1].name.startswith("models--"):
            allowed += [home.parents[1] / "blobs", home.parents[2] / "blobs"]
        if not any(folder in real.parents for folder in allowed):
            raise ValueError(
                f"{path} is a link to {real}, which is outside of the preset. Replace the link "
                "with a copy of the file."
            )
        return real


def _get_state(file: BinaryIO) -> tuple[int, int]:
    """Return an open file's size and modification time."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


class InputFiles:
    """Input files that should not change while reading.

    Replaced and overwritten files are detected, even if the size is the same.

    Args:
        paths: List of strings or paths. Files whose state is recorded, to detect changes later.

    Attributes:
        paths: List of paths.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
        >>> _ = path.write_text("A cat.")
        >>> files = InputFiles([path])
        >>> files.check_unchanged()
        >>> _ = path.write_text("A dog, a cat.")
        >>> files.check_unchanged()
        Traceback (most recent call last):
        ValueError: .../a.txt was changed while it was read. The output so far belongs to ...
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]]):
        self.paths = [pathlib.Path(path) for path in paths]
        self._states = [os.stat(path) for path in self.paths]

    @property
    def sizes(self) -> list[int]:
        """Size of each file in bytes."""
        return [state.st_size for state in self._states]

    @property
    def modified(self) -> list[int]:
        """Modification time of each file in nanoseconds."""
        return [state.st_mtime_ns for state in self._states]

    def check_unchanged(self) -> None:
        """Raise a ValueError if a file has changed."""
        for path, before in zip(self.paths, self._states, strict=True):
            if not path.exists() or _get_version(os.stat(path)) != _get_version(before):
                raise ValueError(
                    f"{path} was changed while it was read. The output so far belongs to the "
                    "previous version of the file. Restore this version and try again, or write "
                    "to a different folder."
                )


def _get_version(state: os.stat_result) -> tuple:
    # Users cannot reset the change time (ctime), which is set by the system.
    times = state.st_mtime_ns, state.st_ctime_ns
    return state.st_dev, state.st_ino, state.st_size, *times
