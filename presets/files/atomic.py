"""Replaces folders and files atomically: if writing fails, the old ones are unchanged."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import pathlib
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

_LEFTOVER_SECONDS = 24 * 3600  # files of a killed process are deleted after a day


@contextlib.contextmanager
def replacing(folder: str | os.PathLike, replaced: Iterable[str] = ("*",)) -> Iterator:
    """Replace a folder atomically by the one that the block fills.

    The new folder is written beside the target, flushed to disk, and exchanged with it. If the
    block fails, the target is unchanged.

    Args:
        folder: the target; it need not exist.
        replaced: patterns of the names of files to replace; other files in the target are kept.

    Yields:
        The path of the new folder.

    Raises:
        ValueError: "... is a mount point: ..." if the target cannot be exchanged.
        OSError: naming the target, such as for a full disk.

    Example:
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "preset"
        >>> with replacing(target) as new:
        ...     _ = (new / "config.json").write_text("{}")
        >>> [path.name for path in target.iterdir()]
        ['config.json']
    """
    target = pathlib.Path(folder).resolve()
    _check_target(target)
    with _beside(target) as new:
        yield new
        _reset_permissions(new, target)
        _keep_others(target, new, replaced)
        _force_to_disk(new)
        _exchange(new, target)


@contextlib.contextmanager
def replacing_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Replace a file atomically by the one that the block writes.

    If the block fails, the file is unchanged.

    Raises:
        OSError: naming the file, such as for a full disk.

    Example:
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
        >>> with replacing_file(target) as new:
        ...     _ = new.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    target = pathlib.Path(path).resolve()
    with _beside(target) as folder:
        yield folder / target.name
        _reset_permissions(folder, folder)
        _force_to_disk(folder)
        os.replace(folder / target.name, target)


@contextlib.contextmanager
def _beside(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make a temporary folder beside the target."""
    _remove_leftovers(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name}.saving-{platform.node()}-{os.getpid()}-"
        new = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    except OSError as error:
        raise _with_target(error, target) from error
    try:
        yield new
    except Exception as error:
        if os_error := _as_os_error(error):
            raise _with_target(os_error, target) from error
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _check_target(target: pathlib.Path) -> None:
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file. Expected a folder, or a path where none is yet.")
    if target.is_mount():
        raise ValueError(
            f"{target} is a mount point: it cannot be replaced in one step. "
            f"Save to a folder inside it, such as {target / 'preset'}."
        )
    if target == pathlib.Path.cwd() or target in pathlib.Path.cwd().parents:
        raise ValueError(
            f"{target} is or holds the working directory: it cannot be replaced in one step. "
            "Save to a folder of its own."
        )


def _remove_leftovers(target: pathlib.Path) -> None:
    """Remove the temporary folders of processes that were killed."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.saving-*"):
        with contextlib.suppress(OSError):
            old = time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
            if old or _process_has_ended(path.name):
                shutil.rmtree(path)


def _process_has_ended(name: str) -> bool:
    """Return whether the process in a folder's name, ...-HOST-PROCESS-RANDOM, has ended."""
    mine = re.search(rf"\.saving-{re.escape(platform.node())}-(\d+)-\w+$", name)
    if mine is None or os.name != "posix":  # unknown: of another host, or on Windows
        return False
    try:
        os.kill(int(mine[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it runs, as another user
        return False
    return False


def _reset_permissions(new: pathlib.Path, target: pathlib.Path) -> None:
    """Give files the default permissions; some writers allow only the owner."""
    mask = os.umask(0)
    os.umask(mask)
    for path in new.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
    new.chmod(target.stat().st_mode if target.is_dir() else 0o777 & ~mask)


def _keep_others(target: pathlib.Path, new: pathlib.Path, replaced: Iterable[str]) -> None:
    """Link or copy the files that are not replaced into the new folder."""
    for path in target.iterdir() if target.is_dir() else ():
        if any(path.match(pattern) for pattern in replaced) or (new / path.name).exists():
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, new / path.name, symlinks=True, copy_function=_link)
        else:
            _link(path, new / path.name)


def _link(old: str | os.PathLike, new: str | os.PathLike, follow_symlinks: bool = False) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(old, new, follow_symlinks=False)


def _force_to_disk(folder: pathlib.Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if path.is_symlink() or (path.is_dir() and os.name == "nt"):
            continue  # Windows opens no folders
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(new: pathlib.Path, target: pathlib.Path) -> None:
    """Replace the target by the new folder; the old one gets the new folder's name."""
    if not target.exists():
        os.replace(new, target)
    elif not _exchange_in_one_step(new, target):
        # Not atomic: for an instant there is no folder of this name.
        aside = target.with_name(f".{target.name}.old")
        os.replace(target, aside)
        os.replace(new, target)
        shutil.rmtree(aside)


def _exchange_in_one_step(new: pathlib.Path, target: pathlib.Path) -> bool:
    """Exchange two paths by one system call; return False if there is none."""
    libc = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    paths = os.fsencode(new), os.fsencode(target)
    if sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        return libc.renamex_np(*paths, 2) == 0  # RENAME_SWAP
    if hasattr(libc, "renameat2"):
        cwd = -100  # AT_FDCWD
        return libc.renameat2(cwd, paths[0], cwd, paths[1], 2) == 0  # RENAME_EXCHANGE
    return False


def _as_os_error(error: Exception) -> OSError | None:
    """Return an error as an OSError; some libraries mention its code only in their message."""
    if isinstance(error, OSError) and error.errno:
        return error
    number = re.search(r"\b(?:os error|errno =) (\d+)", str(error))  # safetensors, HDF5
    if number:
        return OSError(int(number[1]), str(error))
    for code in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(code) in str(error):  # TensorFlow
            return OSError(code, str(error))
    return error if isinstance(error, OSError) else None


def _with_target(error: OSError, target: pathlib.Path) -> OSError:
    """Return the error with the target's path, and whether it is unchanged."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "The disk is full" if full else error.strerror or str(error)
    before = " What was there before is unchanged." if target.exists() else ""
    return type(error)(error.errno, f"{what}: {target} was not saved.{before}")
