"""Replaces folders and files atomically, and only what was written here.

A folder that is written has a manifest with the checksums of its files. Those that it lists are
replaced and deleted; every other thing in the folder is the user's and stays. Links are not
followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import filecmp
import fnmatch
import glob
import json
import logging
import os
import pathlib
import platform
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

from encoder_zoo.presets.files.folder_files import is_plain
from encoder_zoo.presets.files.json_data import SETTINGS, parse_object
from encoder_zoo.presets.files.manifest import NAME, checksum_of, digest

logger = logging.getLogger("encoder_zoo")

_LEFTOVER_SECONDS = 24 * 3600  # files of a killed process are deleted after a day
_TEMPORARY = ".encoder_zoo_temporary"  # file that marks the folders made here


class Kind(NamedTuple):
    """A kind of folder that is written here.

    Attributes:
        name: for errors, such as "an index".
        is_written: whether a manifest is that of this kind.
        manifest: the name of the file that lists the others.
        read: patterns of the names of files that its readers open: none of them may be a user's.
    """

    name: str
    is_written: Callable[[Mapping], bool]
    manifest: str = NAME
    read: Sequence[str] = ()


@contextlib.contextmanager
def replacing(folder: str | os.PathLike, kind: Kind) -> Iterator[pathlib.Path]:
    """Replace a folder atomically by the one that the block fills.

    The new folder is written beside the target, flushed to disk, and exchanged with it. Of the
    files in the target those that its manifest lists are replaced, after a line in the log if one
    was changed since; all other files and folders stay. If the block fails, the target is
    unchanged.

    Args:
        folder: the target; it need not exist.
        kind: of what the block writes, with a manifest.

    Yields:
        The path of the new folder.

    Raises:
        ValueError: If the folder is a mount point or a link, or holds a file that was not saved
            there by this package.
        OSError: If the folder cannot be written, for example because the disk is full.

    Example:
        >>> from encoder_zoo.presets.files.manifest import write_manifest
        >>> notes = Kind("notes", lambda manifest: manifest["task"] == "notes")
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "notes"
        >>> for text in ("first", "second"):
        ...     with replacing(target, notes) as new:
        ...         _ = (new / f"{text}.txt").write_text(text)
        ...         write_manifest(new, {"task": "notes"})
        ...     _ = (target / "mine.txt").write_text("of the user")
        >>> sorted(path.name for path in target.iterdir())
        ['encoder_zoo.json', 'mine.txt', 'second.txt']
    """
    target = checked_folder(folder)
    _check_exchangeable(target)
    owned = _owned(target, kind)
    for name in sorted(os.listdir(target) if target.is_dir() else ()):
        matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in kind.read)
        if matches and name not in owned and not (target / name).is_dir():
            raise _foreign(target, name, kind)
    with _beside(target) as temporary:
        new = temporary / "new"
        new.mkdir()
        yield new
        written = [path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()]
        for name in sorted({*written, *owned}):
            _check_replaceable(target, name, owned, new, kind)
        _reset_permissions(new, target)
        _force_to_disk(new)
        _keep_others(target, new, owned)
        _exchange(new, target, temporary)
        _return_late_files(new, target, owned)


@contextlib.contextmanager
def replacing_file(
    path: str | os.PathLike, is_written: Callable[[pathlib.Path], bool] = lambda path: False
) -> Iterator[pathlib.Path]:
    """Replace a file atomically by the one that the block writes.

    If the block fails, the file is unchanged.

    Args:
        path: of the file; it need not exist.
        is_written: whether the file that is there was written here. A file with the same bytes is.

    Raises:
        ValueError: If the file is a link, or was not written by this package.
        OSError: If the file cannot be written, for example because the disk is full.

    Example:
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
        >>> with replacing_file(target) as new:
        ...     _ = new.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    target = _absolute(path)
    _check_no_link(target)
    if target.exists():
        if not target.is_file():
            raise ValueError(f"{target} is no regular file. Expected a path for a file.")
        _check_writable(target)
    is_ours = not target.exists() or is_written(target)
    with _beside(target) as folder:
        yield folder / target.name
        if not (is_ours or _same_bytes(target, folder / target.name)):
            raise ValueError(
                f"{target} is there and was not written by encoder_zoo: it is kept. Delete it, or "
                "give another path."
            )
        _reset_permissions(folder, folder)
        _force_to_disk(folder)
        os.replace(folder / target.name, target)


def remove_written(folder: str | os.PathLike, kind: Kind) -> None:
    """Delete the files that a folder's manifest lists, and the folder if it is empty then.

    Files that were changed since they were written stay, with a line in the log, and so do links.
    Folders without a manifest of this kind are left as they are.
    """
    target = pathlib.Path(folder)
    try:
        owned = _owned(checked_folder(target), kind)
    except (ValueError, OSError) as error:
        logger.warning("%s is kept: %s", target, error)
        return
    own = sorted({*owned} - {kind.manifest})
    for name in own:
        path = target / name
        if _is_link(target, name) or not path.is_file():
            continue
        if _is_unchanged(path, owned[name]):
            path.unlink()
        else:
            logger.warning("%s was changed since it was written, and is kept.", path)
    if kind.manifest in owned:
        (target / kind.manifest).unlink()
    for parent in sorted({target / name for name in own for name in _parents(name)}, reverse=True):
        with contextlib.suppress(OSError):  # it holds other files
            parent.rmdir()
    with contextlib.suppress(OSError):
        target.rmdir()


def write_signed(path: pathlib.Path, description: Mapping) -> None:
    """Write a description, with its checksum, as a file that is replaced atomically.

    Args:
        path: of the file.
        description: plain data; its `sha256`, if it has one, is made anew.
    """
    description = {**description, "sha256": digest(description)}
    with replacing_file(path, _is_signed) as new:
        new.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def _is_signed(path: pathlib.Path) -> bool:
    try:
        description = json.loads(path.read_bytes())
        return description["sha256"] == digest(description)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def checked_folder(folder: str | os.PathLike) -> pathlib.Path:
    """Return the path of a folder to write to, which need not exist.

    Raises:
        ValueError: If the path is a link or a file.
        PermissionError: If the folder is read-only.
    """
    target = _absolute(folder)
    _check_no_link(target)
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file. Expected a folder, or a path where none is yet.")
    if target.exists():
        _check_writable(target)
    return target


def _check_exchangeable(target: pathlib.Path) -> None:
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


def _absolute(path: str | os.PathLike) -> pathlib.Path:
    """Return a path whose last part may be a link, which is not followed."""
    path = pathlib.Path(path)
    last = path.name if path.name not in ("", "..") else ""
    return pathlib.Path(os.path.realpath(path.parent if last else path), last)


def _check_no_link(path: pathlib.Path) -> None:
    if path.is_symlink():
        raise ValueError(
            f"{path} is a link to {os.readlink(path)}, and links are not followed when something "
            "is written. Give the path that it leads to, or delete the link."
        )


def _check_writable(path: pathlib.Path) -> None:
    """Raise an error for what is marked as read-only, also of a user who may do everything."""
    if not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK):
        raise PermissionError(
            errno.EACCES, f"{path} is read-only: nothing was written. Make it writable (chmod u+w)"
        )


# -- what was written here ----------------------------------------------------------------------


def _owned(target: pathlib.Path, kind: Kind) -> dict[str, dict]:
    """Return the entries of the files that the manifest of a folder lists, and of itself."""
    path = target / kind.manifest
    if not os.path.lexists(path):
        return {}
    _check_no_link(path)
    try:
        if not path.is_file() or path.stat().st_size > SETTINGS.content:
            raise ValueError(f"{path} is no manifest.")
        manifest = parse_object(path.read_bytes(), path)
        files = manifest["files"]
        good = kind.is_written(manifest) and all(
            all(map(is_plain, name.split("/"))) and type(entry["sha256"]) is str
            for name, entry in files.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise _foreign(target, kind.manifest, kind)
    own = {} if manifest.get("sha256") == digest(manifest) else {"sha256": ""}
    return {**files, kind.manifest: own}


def _check_replaceable(
    target: pathlib.Path, name: str, owned: Mapping, new: pathlib.Path, kind: Kind
) -> None:
    """Raise an error if a file is a user's; log one that was changed since it was written."""
    path = target / name
    if _is_link(target, name) or any((target / parent).is_file() for parent in _parents(name)):
        raise _foreign(target, name, kind)
    if not path.exists():
        return
    if not path.is_file():
        raise _foreign(target, name, kind)
    same = (new / name).is_file() and _same_bytes(path, new / name)
    if name not in owned and not same:
        raise _foreign(target, name, kind)
    _check_writable(path)
    if not same and not _is_unchanged(path, owned.get(name, {})):
        logger.warning("%s was changed since it was saved, and is replaced.", path)


def _is_unchanged(path: pathlib.Path, entry: Mapping) -> bool:
    return "sha256" not in entry or checksum_of(path) == entry["sha256"]


def _same_bytes(one: pathlib.Path, other: pathlib.Path) -> bool:
    return filecmp.cmp(one, other, shallow=False)


def _foreign(target: pathlib.Path, name: str, kind: Kind) -> ValueError:
    return ValueError(
        f"{target} holds {name}, which is not of {kind.name} that was saved there: it is kept. "
        f"Delete it, or save to a folder of its own, such as {target / 'saved'}."
    )


def _parents(name: str) -> list[str]:
    """Return the folders of a relative path, the outermost first.

    Example:
        >>> _parents("assets/tokenizer/merges.txt")
        ['assets', 'assets/tokenizer']
    """
    parts = name.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _is_link(target: pathlib.Path, name: str) -> bool:
    return any((target / part).is_symlink() for part in [*_parents(name), name])


# -- beside the target, and in its place --------------------------------------------------------


@contextlib.contextmanager
def _beside(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make a temporary folder beside the target."""
    _remove_leftovers(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name}.saving-{platform.node()}-{os.getpid()}-"
        new = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        (new / _TEMPORARY).touch()
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


def _remove_leftovers(target: pathlib.Path) -> None:
    """Remove the temporary folders of processes that were killed."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.saving-*"):
        with contextlib.suppress(OSError):
            old = time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
            if _is_temporary(path) and (old or _process_has_ended(path.name)):
                shutil.rmtree(path)


def remove_temporary(folder: pathlib.Path, names: str) -> None:
    """Remove the temporary folders, for targets of a pattern of names, that no process writes."""
    for path in folder.glob(f".{names}.saving-*"):
        if _is_temporary(path):
            shutil.rmtree(path)


def _is_temporary(path: pathlib.Path) -> bool:
    """Return whether a folder was made by `_beside`; a user's may have such a name."""
    return not path.is_symlink() and (path / _TEMPORARY).is_file()


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
    new.chmod(stat.S_IMODE(target.stat().st_mode) if target.is_dir() else 0o777 & ~mask)


def _keep_others(target: pathlib.Path, new: pathlib.Path, owned: Mapping) -> None:
    """Link or copy everything that was not written here into the new folder."""
    ours = {folder for name in owned for folder in _parents(name)}
    folders = []
    for path, name in _everything(target):
        there = new / name
        if path.is_dir() and not path.is_symlink():
            if name not in ours and not there.exists():
                there.mkdir(parents=True)
                folders.append((path, there))
        elif name not in owned and not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            _link(path, there)
    for path, there in reversed(folders):  # one may be read-only
        shutil.copystat(path, there)


def _return_late_files(old: pathlib.Path, target: pathlib.Path, owned: Mapping) -> None:
    """Move what came into the old folder after the others had been linked."""
    for path, name in _everything(old):
        there = target / name
        is_folder = path.is_dir() and not path.is_symlink()
        if name not in owned and not is_folder and not os.path.lexists(there):
            there.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, there)


def _everything(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    """Yield all paths in a folder, outer ones first, with their relative names."""
    for parent, folders, files in os.walk(folder, onerror=_raise):
        for name in sorted([*folders, *files]):
            path = pathlib.Path(parent, name)
            yield path, path.relative_to(folder).as_posix()


def _raise(error: OSError) -> NoReturn:
    if not isinstance(error, FileNotFoundError):  # of a folder that need not exist
        raise error


def _link(old: str | os.PathLike, new: str | os.PathLike) -> None:
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


def _exchange(new: pathlib.Path, target: pathlib.Path, temporary: pathlib.Path) -> None:
    """Replace the target by the new folder; the old one gets the new folder's name."""
    if not target.exists():
        os.replace(new, target)
    elif not _exchange_in_one_step(new, target):
        # Not atomic: for an instant there is no folder of this name.
        os.replace(target, temporary / "old")
        os.replace(new, target)
        os.replace(temporary / "old", new)


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
