"""Downloads files to the hub's cache, at paths of checked parts; interrupted ones are resumed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Mapping
from typing import NamedTuple

from encoder_zoo.presets.files.manifest import checksum_of
from encoder_zoo.presets.hub_requests import retried, within


class HubFile(NamedTuple):
    """A file in the listing of a repository.

    Attributes:
        size: in bytes.
        checksum: its name in the cache: a SHA-256 for large files, git's SHA-1 for the others;
            None if the hub does not tell.
    """

    size: int
    checksum: str | None


def cache_folder(repository: str) -> pathlib.Path:
    """Return the folder of a repository in the hub's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=repository, repo_type="model")
    return pathlib.Path(constants.HF_HUB_CACHE) / name


def missing_files(repository: str, commit: str, files: Mapping[str, HubFile]) -> dict[str, HubFile]:
    """Return those of a repository's files that are not in the cache."""
    folder = cache_folder(repository)
    return {
        name: file
        for name, file in files.items()
        if not (folder / "snapshots" / commit / name).exists()
        and not (folder / "blobs" / str(file.checksum)).exists()
    }


def download_files(
    address: str,
    repository: str,
    revision: str | None,
    commit: str,
    files: Mapping[str, HubFile],
    endpoint: str | None,
) -> pathlib.Path:
    """Download files to the cache, in the client's layout, and return the folder of their commit.

    The client takes names of blobs and commits from what the server sends with each file; here
    they are those of the listing, checked before. A part stays in the cache as `BLOB.part`, and the
    next process requests the rest. A file with a wrong checksum is deleted and downloaded anew.

    Args:
        address: String. The address that the user gave, for errors.
        repository: `organisation/name`.
        revision: that was asked for; None: the default branch.
        commit: of the files, 40 hexadecimal digits.
        files: {name: file}, with names and checksums that are plain.
        endpoint: the hub's address; None for the default of huggingface_hub.

    Raises:
        ValueError: If a path in the cache is a link or no regular file, or if downloaded bytes do
            not have their checksum.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = cache_folder(repository)
    snapshot = folder / "snapshots" / commit
    for path in (folder, folder / "blobs", folder / "snapshots", snapshot):
        if path.is_symlink():
            raise ValueError(f"{path} is a link, which is not followed. Delete it.")
        path.mkdir(parents=True, exist_ok=True)

    def download(name: str, file: HubFile) -> None:
        # Without a checksum, named so that nothing takes the name for one.
        unnamed = f"of-{hashlib.sha256(f'{commit}/{name}'.encode()).hexdigest()}"
        blob = folder / "blobs" / (file.checksum or unnamed)
        with WeakFileLock(lock_file(folder, blob.name)):
            check_regular(blob)
            if (snapshot / name).exists():
                return
            if not blob.exists():  # another process may have been faster
                url = hf_hub_url(repository, name, revision=commit, endpoint=endpoint)
                _download(url, blob, name, file)
            _point(snapshot / name, blob)

    for item in files.items():  # each with attempts of its own: a repository may have hundreds
        retried(address, functools.partial(download, *item), any_error=True)
    if revision != commit:
        reference = folder / "refs" / (revision or "main")
        reference.parent.mkdir(parents=True, exist_ok=True)
        new = reference.with_name(f".{secrets.token_hex(8)}")
        new.write_text(commit, encoding="utf-8")
        os.replace(new, reference)
    return snapshot


def check_regular(path: pathlib.Path) -> None:
    """Raise an error for a pipe, a device or a folder in place of a file; one may be missing."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file. Delete it, and load again.")


def lock_file(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the lock file of the client for a blob."""
    path = folder.parent / ".locks" / folder.name / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    check_regular(path)
    return path


def _point(pointer: pathlib.Path, blob: pathlib.Path) -> None:
    """Make a file of a commit a link to its blob, as the client does; a copy where links fail."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    new = pointer.with_name(f".{secrets.token_hex(8)}")
    try:
        new.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:  # on Windows, without the right to make links
        shutil.copyfile(blob, new)
    os.replace(new, pointer)


class _Part(io.FileIO):
    """A part of a file, to which no more is written than the listing says.

    Args:
        path: of the part, which is neither a link nor a pipe.
        size: of the whole file.
    """

    def __init__(self, path: pathlib.Path, size: int):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        super().__init__(path, "ab", opener=lambda name, _: os.open(name, flags, 0o666))
        if not stat.S_ISREG(os.fstat(self.fileno()).st_mode):
            self.close()
            raise ValueError(f"{path} is no regular file. Delete it, and load again.")
        self._size = size

    def write(self, content) -> int:
        if self.tell() + len(content) > self._size:
            raise ValueError(f"more than the {self._size} bytes came that the hub's list says")
        return super().write(content)


def _download(url: str, blob: pathlib.Path, name: str, file: HubFile) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    part = blob.with_name(f"{blob.name}.part")
    if part.is_symlink():
        raise ValueError(f"{part} is a link, which is not followed. Delete it.")
    check_regular(part)
    for _ in range(2):
        with contextlib.closing(_Part(part, file.size)) as target:
            begun = target.seek(0, os.SEEK_END)
            if begun > file.size:
                target.truncate(0)
                begun = target.seek(0)

            def get(target=target, begun=begun) -> None:
                http_get(
                    url,
                    target,
                    resume_size=begun,
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    displayed_filename=name,
                )

            try:
                within(get, lambda: part.stat().st_size)
            except ValueError:  # too many bytes: they are of another file, or begin anew
                part.unlink()
                raise
        if part.stat().st_size == file.size and _fits(part, file):
            os.replace(part, blob)
            return
        part.unlink()
    raise ValueError(
        f"{name} came twice with other bytes than its checksum says. The copies were deleted: try "
        "again later."
    )


def _fits(part: pathlib.Path, file: HubFile) -> bool:
    if file.checksum is None:
        return True
    if len(file.checksum) == 64:
        return checksum_of(part) == file.checksum
    return checksum_of(part, "sha1", f"blob {file.size}\0".encode()) == file.checksum
