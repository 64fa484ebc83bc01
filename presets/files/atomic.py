"""Replace folders and files atomically, without losing user files.

Each saved folder contains a manifest with the checksums of all files. Saving again only replaces or
deletes the files in this list. All other files belong to the user and are kept. Links are not
followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import filecmp
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
from typing import Any, NamedTuple

from encoder_zoo.common.validation import check_path
from encoder_zoo.presets.files.folder_files import is_plain, matches_any
from encoder_zoo.presets.files.json_data import SETTINGS, parse_object
from encoder_zoo.presets.files.manifest import (
    MANIFEST_NAME,
    compute_checksum,
    compute_manifest_digest,
)

logger = logging.getLogger("encoder_zoo")

_LEFTOVER_SECONDS = 24 * 3600  # temporary files of a killed process are deleted after one day
_TEMPORARY = ".encoder_zoo_temporary"  # a file that marks temporary folders of this package


class FolderKind(NamedTuple):
    """Type of folder that this package writes, such as a preset or an index.

    Attributes:
        name: String. Type name for error messages, for example "an index".
        is_written: A function that takes a manifest and returns whether the folder has this type.
        manifest: String. Manifest file name. Defaults to "encoder_zoo.json".
        read: Sequence of strings. Patterns of the files that are read when the folder is loaded.
            User files must not match any pattern. Defaults to ().
    """

    name: str
    is_written: Callable[[Mapping], bool]
    manifest: str = MANIFEST_NAME
    read: Sequence[str] = ()


@contextlib.contextmanager
def replace_folder(folder: str | os.PathLike, kind: FolderKind) -> Iterator[pathlib.Path]:
    """Context manager that replaces a folder atomically with new contents.

    The `with` block writes to a new folder next to the target. The new folder is flushed to disk,
    and then exchanged with the target. Files in the target manifest are replaced, with a
    warning for modified files. All other files and folders are kept. If the block fails, the target
    is not changed.

    Args:
        folder: String or path. The target folder, which does not need to exist.
        kind: The `FolderKind` of the folder. The `with` block must write the manifest.

    Yields:
        The path of the new folder.

    Raises:
        ValueError: If `folder` is a mount point or a link, or if files saved by other programs
            would be replaced.
        OSError: If writing fails, for example because the disk is full.

    Example:
        >>> from encoder_zoo.presets.files.manifest import write_manifest
        >>> notes = FolderKind("notes", lambda manifest: manifest["task"] == "notes")
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "notes"
        >>> for text in ("first", "second"):
        ...     with replace_folder(target, notes) as new:
        ...         _ = (new / f"{text}.txt").write_text(text)
        ...         write_manifest(new, {"task": "notes"})
        ...     _ = (target / "mine.txt").write_text("of the user")
        >>> sorted(path.name for path in target.iterdir())
        ['encoder_zoo.json', 'mine.txt', 'second.txt']
    """
    target = check_folder(folder)
    _check_exchangeable(target)
    owned = _read_owned_files(target, kind)
    for name in sorted(os.listdir(target) if target.is_dir() else ()):
        is_foreign = matches_any(name, kind.read) and name not in owned
        if is_foreign and not (target / name).is_dir():
            raise _make_foreign_file_error(target, name, kind)
    with _make_temporary(target) as temporary:
        new = temporary / "new"
        new.mkdir()
        yield new
        written = [path.relative_to(new).as_posix() for path in new.rglob("*") if path.is_file()]
        for name in sorted({*written, *owned}):
            _check_replaceable(target, name, owned, new, kind)
        _reset_permissions(new, target)
        _sync_to_disk(new)
        _keep_user_files(target, new, owned)
        _exchange(new, target, temporary)
        _move_late_files(new, target, owned)


@contextlib.contextmanager
def replace_file(
    path: str | os.PathLike, is_written: Callable[[pathlib.Path], bool] = lambda path: False
) -> Iterator[pathlib.Path]:
    """Context manager that replaces a file atomically with new contents.

    The `with` block writes to a new file. If the block fails, the target is not changed.

    Args:
        path: String or path. The target file, which does not need to exist.
        is_written: A function that takes a path and returns whether this package wrote the file. By
            default, existing files are treated as files of other programs, which are only replaced
            by identical contents.

    Raises:
        ValueError: If `path` is a link, or if the file was written by another program.
        OSError: If writing fails, for example because the disk is full.

    Example:
        >>> target = pathlib.Path(tempfile.mkdtemp()) / "model.onnx"
        >>> with replace_file(target) as new:
        ...     _ = new.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    target = _make_absolute(path)
    _check_no_link(target)
    if target.exists():
        if not target.is_file():
            raise ValueError(f"{target} is not a regular file. Expected a path for a file.")
        _check_writable(target)
    is_ours = not target.exists() or is_written(target)
    with _make_temporary(target) as folder:
        yield folder / target.name
        if not (is_ours or filecmp.cmp(target, folder / target.name, shallow=False)):
            raise ValueError(
                f"{target} already exists and was not written by encoder_zoo. The file was not "
                "changed. Delete the file or choose a different path."
            )
        _reset_permissions(folder, folder)
        _sync_to_disk(folder)
        os.replace(folder / target.name, target)


def remove_saved_files(folder: str | os.PathLike, kind: FolderKind) -> None:
    """Delete the folder manifest, all files listed in it, and the folders that become empty.

    Modified files are kept with a warning. Links are kept. A folder without a manifest of this kind
    is not changed.

    Args:
        folder: String or path. Folder to clean up.
        kind: The `FolderKind` of the folder.
    """
    target = pathlib.Path(folder)
    try:
        owned = _read_owned_files(check_folder(target), kind)
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
            logger.warning("%s was modified after it was saved. The file is kept.", path)
    if kind.manifest in owned:
        (target / kind.manifest).unlink()
    for parent in sorted(
        {target / name for name in own for name in _list_parents(name)}, reverse=True
    ):
        with contextlib.suppress(OSError):  # the folder is not empty
            parent.rmdir()
    with contextlib.suppress(OSError):
        target.rmdir()


def write_with_checksum(path: pathlib.Path, description: Mapping) -> None:
    """Write a JSON object with a checksum, and replace the file atomically.

    Args:
        path: String or path. File to write.
        description: Dict. The JSON object to write. The field `sha256` is added or updated.
    """
    description = {**description, "sha256": compute_manifest_digest(description)}
    with replace_file(path, _has_valid_checksum) as new:
        new.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def _has_valid_checksum(path: pathlib.Path) -> bool:
    try:
        description = json.loads(path.read_bytes())
        return description["sha256"] == compute_manifest_digest(description)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def check_folder(folder: str | os.PathLike) -> pathlib.Path:
    """Check that a folder is writable, and return the absolute path.

    The folder does not need to exist.

    Raises:
        ValueError: If `folder` is a link or a regular file.
        PermissionError: If `folder` is read-only.
    """
    target = _make_absolute(folder)
    _check_no_link(target)
    if target.exists() and not target.is_dir():
        raise ValueError(f"{target} is a file. Expected a folder, or a path that does not exist.")
    if target.exists():
        _check_writable(target)
    return target


def _check_exchangeable(target: pathlib.Path) -> None:
    if target.is_mount():
        raise ValueError(
            f"{target} is a mount point, which cannot be replaced in one step. Save to a folder "
            f"inside it, such as {target / 'preset'}."
        )
    if target == pathlib.Path.cwd() or target in pathlib.Path.cwd().parents:
        raise ValueError(
            f"{target} is or contains the working directory, which cannot be replaced in one step. "
            "Save to a different folder."
        )


def _make_absolute(path: str | os.PathLike) -> pathlib.Path:
    """Return the absolute path. A link in the last component is not followed."""
    path = check_path(path)
    last = path.name if path.name not in ("", "..") else ""
    return pathlib.Path(os.path.realpath(path.parent if last else path), last)


def _check_no_link(path: pathlib.Path) -> None:
    if path.is_symlink():
        raise ValueError(
            f"{path} is a link to {os.readlink(path)}. For safety, files are never written through "
            "links. Pass the path of the target, or delete the link."
        )


def _check_writable(path: pathlib.Path) -> None:
    """Raise a PermissionError for a read-only path, even if an administrator could write to it."""
    if not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK):
        raise PermissionError(
            errno.EACCES, f"{path} is read-only. Nothing was written. Make it writable (chmod u+w)"
        )


# -- files that this package has written --------------------------------------------------------


def _read_owned_files(target: pathlib.Path, kind: FolderKind) -> dict[str, dict]:
    """Return the entry of each file in the folder manifest, and an entry for the manifest."""
    path = target / kind.manifest
    if not os.path.lexists(path):
        return {}
    _check_no_link(path)
    try:
        if not path.is_file() or path.stat().st_size > SETTINGS.content:
            raise ValueError(f"{path} is not a manifest.")
        manifest = parse_object(path.read_bytes(), path)
        files = manifest["files"]
        good = kind.is_written(manifest) and all(
            all(map(is_plain, name.split("/"))) and type(entry["sha256"]) is str
            for name, entry in files.items()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise _make_foreign_file_error(target, kind.manifest, kind)
    own = {} if manifest.get("sha256") == compute_manifest_digest(manifest) else {"sha256": ""}
    return {**files, kind.manifest: own}


def _check_replaceable(
    target: pathlib.Path, name: str, owned: Mapping, new: pathlib.Path, kind: FolderKind
) -> None:
    """Check that a file was saved by this package. Log a warning if it was modified later."""
    path = target / name
    if _is_link(target, name) or any((target / parent).is_file() for parent in _list_parents(name)):
        raise _make_foreign_file_error(target, name, kind)
    if not path.exists():
        return
    if not path.is_file():
        raise _make_foreign_file_error(target, name, kind)
    same = (new / name).is_file() and filecmp.cmp(path, new / name, shallow=False)
    if name not in owned and not same:
        raise _make_foreign_file_error(target, name, kind)
    _check_writable(path)
    if not same and not _is_unchanged(path, owned.get(name, {})):
        logger.warning("%s was modified after it was saved. The file is replaced.", path)


def _is_unchanged(path: pathlib.Path, entry: Mapping) -> bool:
    return "sha256" not in entry or compute_checksum(path) == entry["sha256"]


def _make_foreign_file_error(target: pathlib.Path, name: str, kind: FolderKind) -> ValueError:
    return ValueError(
        f"{target} contains {name}, which was not saved by this package as part of {kind.name}. "
        f"Delete the file, or save to a different folder, such as {target / 'saved'}."
    )


def _list_parents(name: str) -> list[str]:
    """List the parent folders of a relative path, starting with the outermost folder.

    Example:
        >>> _list_parents("assets/tokenizer/merges.txt")
        ['assets', 'assets/tokenizer']
    """
    parts = name.split("/")[:-1]
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _is_link(target: pathlib.Path, name: str) -> bool:
    return any((target / part).is_symlink() for part in [*_list_parents(name), name])


# -- temporary folders next to the target, and the exchange -------------------------------------


@contextlib.contextmanager
def _make_temporary(target: pathlib.Path) -> Iterator[pathlib.Path]:
    """Create a temporary folder next to the target."""
    _remove_leftovers(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name}.saving-{platform.node()}-{os.getpid()}-"
        new = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        (new / _TEMPORARY).touch()
    except OSError as error:
        raise _add_target(error, target) from error
    try:
        yield new
    except Exception as error:
        if os_error := _convert_error(error):
            raise _add_target(os_error, target) from error
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _remove_leftovers(target: pathlib.Path) -> None:
    """Remove the temporary folders of killed processes."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.saving-*"):
        with contextlib.suppress(OSError):
            old = time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS
            if _is_temporary(path) and (old or _has_process_ended(path.name)):
                shutil.rmtree(path)


def remove_temporary_folders(folder: pathlib.Path, names: str) -> None:
    """Remove the temporary folders of all targets whose names match a pattern."""
    for path in folder.glob(f".{names}.saving-*"):
        if _is_temporary(path):
            shutil.rmtree(path)


def _is_temporary(path: pathlib.Path) -> bool:
    """Return whether a temporary folder was created by this package."""
    return not path.is_symlink() and (path / _TEMPORARY).is_file()


def _has_process_ended(name: str) -> bool:
    """Return whether the process that created a temporary folder has ended."""
    mine = re.search(rf"\.saving-{re.escape(platform.node())}-(\d+)-\w+$", name)
    if mine is None or os.name != "posix":  # not known for other hosts or on Windows
        return False
    try:
        os.kill(int(mine[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # the process belongs to another user
        return False
    return False


def _reset_permissions(new: pathlib.Path, target: pathlib.Path) -> None:
    """Set default permissions, because some libraries create files that only the owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    for path in new.rglob("*"):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
    new.chmod(stat.S_IMODE(target.stat().st_mode) if target.is_dir() else 0o777 & ~mask)


def _keep_user_files(target: pathlib.Path, new: pathlib.Path, owned: Mapping) -> None:
    """Link or copy all files of the user from the old folder to the new folder."""
    ours = {folder for name in owned for folder in _list_parents(name)}
    folders = []
    for path, name in _walk(target):
        there = new / name
        if path.is_dir() and not path.is_symlink():
            if name not in ours and not there.exists():
                there.mkdir(parents=True)
                folders.append((path, there))
        elif name not in owned and not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(path, there)
    for path, there in reversed(folders):  # comes last, because folders can be read-only
        shutil.copystat(path, there)


def _move_late_files(old: pathlib.Path, target: pathlib.Path, owned: Mapping) -> None:
    """Move user files to the new folder if they were added to the old folder during saving."""
    for path, name in _walk(old):
        there = target / name
        is_folder = path.is_dir() and not path.is_symlink()
        if name not in owned and not is_folder and not os.path.lexists(there):
            there.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, there)


def _walk(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    """Yield (path, relative name) for all files and folders in a folder, parents first."""
    for parent, folders, files in os.walk(folder, onerror=_raise_unless_missing):
        for name in sorted([*folders, *files]):
            path = pathlib.Path(parent, name)
            yield path, path.relative_to(folder).as_posix()


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # the folder does not need to exist
        raise error


def _link_or_copy(old: str | os.PathLike, new: str | os.PathLike) -> None:
    try:
        os.link(old, new, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(old, new, follow_symlinks=False)


def _sync_to_disk(folder: pathlib.Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        if path.is_symlink() or (path.is_dir() and os.name == "nt"):
            continue  # Windows cannot open folders
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(new: pathlib.Path, target: pathlib.Path, temporary: pathlib.Path) -> None:
    """Exchange the names of the target and the new folder."""
    if not target.exists():
        os.replace(new, target)
    elif not _exchange_in_one_step(new, target):
        # Not atomic: for a short time, the target does not exist.
        os.replace(target, temporary / "old")
        os.replace(new, target)
        os.replace(temporary / "old", new)


def _exchange_in_one_step(new: pathlib.Path, target: pathlib.Path) -> bool:
    """Exchange two paths with one system call. Return False on unsupported systems."""
    libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    paths = os.fsencode(new), os.fsencode(target)
    if sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        return libc.renamex_np(*paths, 2) == 0  # RENAME_SWAP
    if hasattr(libc, "renameat2"):
        cwd = -100  # AT_FDCWD
        return libc.renameat2(cwd, paths[0], cwd, paths[1], 2) == 0  # RENAME_EXCHANGE
    return False


def _convert_error(error: Exception) -> OSError | None:
    """Convert an error to an OSError if its message contains the code or text of a system error.

    An OSError is always returned. For other errors without such a message, return None.
    """
    if isinstance(error, OSError) and error.errno:
        return error
    number = re.search(r"\b(?:os error|errno =) (\d+)", str(error))  # safetensors, HDF5
    if number:
        return OSError(int(number[1]), str(error))
    for code in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(code) in str(error):  # TensorFlow
            return OSError(code, str(error))
    return error if isinstance(error, OSError) else None


def _add_target(error: OSError, target: pathlib.Path) -> OSError:
    """Add the target to an error message. If the target exists, mention that it is unchanged."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    what = "The disk is full" if full else error.strerror or str(error)
    before = " The previous contents are unchanged." if target.exists() else ""
    return type(error)(error.errno, f"{what}: {target} was not saved.{before}")
