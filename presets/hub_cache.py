"""Downloads files into the cache of huggingface_hub, to paths that no server chooses.

`snapshot_download` of huggingface_hub 2.4 takes paths from the headers that come with a file: an
ETag of "../../../x" is written outside of its cache. Here all parts of paths come from the listing,
which `presets/hub.py` checks, and an interrupted download is resumed by the next process.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from typing import NamedTuple

from encoder_zoo.presets.files.manifest import checksum_of
from encoder_zoo.presets.hub_requests import endpoint, retried, within

SHA1 = re.compile(r"[0-9a-f]{40}")
CHECKSUM = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


class HubFile(NamedTuple):
    """A file in the listing of a repository.

    Attributes:
        size: Integer. Number of bytes.
        checksum: String or None. SHA-256 of a large file, git's SHA-1 of any other, None if the hub
            does not say. It is the file's name in the cache.
    """

    size: int
    checksum: str | None

    def is_at(self, path: pathlib.Path, verify: bool = True) -> bool:
        """Return whether a path holds this file.

        Raises:
            ValueError: If the path is a pipe, a device or a folder.
        """
        if not path.exists():
            return False
        if not path.is_file():
            raise ValueError(f"{path.resolve()} is no regular file. Delete it, and load again.")
        if self.checksum is None or not verify:
            return True
        if len(self.checksum) == 64:
            return checksum_of(path) == self.checksum
        prefix = f"blob {path.stat().st_size}\0".encode()
        return checksum_of(path, "sha1", prefix) == self.checksum


def cache_folder(repository: str) -> pathlib.Path:
    """Return the folder of a repository in the hub's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=repository, repo_type="model")
    return pathlib.Path(constants.HF_HUB_CACHE) / name


def missing_files(
    folder: pathlib.Path, files: Mapping[str, HubFile], verify: bool
) -> dict[str, HubFile]:
    """Return the files that a folder lacks or, if `verify`, holds with other bytes."""
    return {name: file for name, file in files.items() if not file.is_at(folder / name, verify)}


def linked_files(folder: pathlib.Path) -> dict[str, HubFile]:
    """Return the files of a cached commit whose links lead to checksums."""
    links = (path for path in folder.rglob("*") if path.is_symlink() and path.exists())
    targets = ((path, pathlib.PurePath(os.readlink(path)).name) for path in links)
    return {
        path.relative_to(folder).as_posix(): HubFile(path.stat().st_size, checksum)
        for path, checksum in targets
        if CHECKSUM.fullmatch(checksum)
    }


def download_files(
    address: str, repository: str, commit: str, files: Mapping[str, HubFile], verify: bool
) -> None:
    """Download the missing files of a commit into the cache, one process after another.

    Args:
        address: String. The address that the user gave, for errors.
        repository: String. "organisation/name".
        commit: String. 40 hexadecimal digits.
        files: Dict from names, relative to the folder of the commit, to files.
        verify: Boolean. Whether files that are there with other bytes are missing, too.

    Raises:
        Unreachable: If a download fails, or if its bytes keep differing from their checksum.
        ValueError: If a path in the cache is a link or no regular file.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = cache_folder(repository)
    snapshot, lock = folder / "snapshots" / commit, folder.parent / ".locks" / f"{folder.name}.lock"
    for path in (folder, folder / "blobs", folder / "snapshots", snapshot, lock.parent):
        if path.is_symlink():
            raise ValueError(f"{path} is a link, which is not followed. Delete it.")
        path.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):  # another process may be faster
        for name, file in missing_files(snapshot, files, verify).items():
            pointer = snapshot / name
            blob = folder / "blobs" / file.checksum if file.checksum else pointer
            url = hf_hub_url(repository, name, revision=commit, endpoint=endpoint())
            if not file.is_at(blob):
                fetch = functools.partial(_download, url, blob, name, file)
                retried(address, fetch, any_error=True)
            if blob != pointer:
                _replace(pointer, functools.partial(_link, blob, pointer.parent))


def write_reference(folder: pathlib.Path, revision: str, commit: str) -> None:
    """Write the commit of a branch or tag, which is found by its name without a connection."""
    path = folder / "refs" / revision
    if not path.is_file() or path.read_text("utf-8") != commit:
        _replace(path, lambda new: new.write_text(commit, encoding="utf-8"))


def _replace(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    """Write a file beside a path, and move it there in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{secrets.token_hex(8)}")
    write(new)
    os.replace(new, path)


def _link(blob: pathlib.Path, folder: pathlib.Path, new: pathlib.Path) -> None:
    try:
        new.symlink_to(os.path.relpath(blob, folder))
    except OSError:  # on Windows, without the right to make links
        shutil.copyfile(blob, new)


class _Part(io.FileIO):
    """The part of a file that has come, to which no more than a number of bytes is written."""

    def __init__(self, path: pathlib.Path, size: int):
        super().__init__(path, "ab")
        self._size = size
        if self.tell() > size:
            self.truncate(0)
            self.seek(0)

    def write(self, content) -> int:
        if self.tell() + len(content) > self._size:
            raise ValueError(f"more than the {self._size} bytes came that the hub's list says")
        return super().write(content)


def _download(url: str, blob: pathlib.Path, name: str, file: HubFile) -> None:
    """Download a file, or the rest of it, to its place in the cache."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    blob.parent.mkdir(parents=True, exist_ok=True)  # of a file without a checksum any folder
    part = blob.with_name(f"{blob.name}.part")
    if part.is_symlink() or (part.exists() and not part.is_file()):
        raise ValueError(f"{part} is no regular file. Delete it, and load again.")
    try:
        with _Part(part, file.size) as target:

            def get() -> None:
                http_get(
                    url,
                    target,
                    resume_size=target.tell(),
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    displayed_filename=name,
                )

            within(get, lambda: part.stat().st_size)
        if not file.is_at(part):
            raise ValueError(f"{name} came with other bytes than its checksum says")
    except ValueError:  # too many bytes, or others: the rest would not make them right
        part.unlink()
        raise
    os.replace(part, blob)
