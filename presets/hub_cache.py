"""Download files to the cache of huggingface_hub, without using paths from the server.

`snapshot_download` in huggingface_hub 2.4 builds paths from response headers. With an ETag such as
"../../../x", a server can write files outside of the cache. This module only builds paths from the
list of files, which is validated in `presets/hub.py`. An interrupted download can be continued by
any process.
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

from encoder_zoo.presets.files.manifest import compute_checksum
from encoder_zoo.presets.hub_requests import get_endpoint, run_with_retries, run_with_timeout

SHA1 = re.compile(r"[0-9a-f]{40}")
CHECKSUM_PATTERN = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


class HubFile(NamedTuple):
    """File to download from a repository.

    Attributes:
        size: Integer. The size in bytes.
        checksum: Optional string. SHA-256 checksum for large files, or git SHA-1 checksum for other
            files. It is also the file name in the cache. None if the hub sends no checksum.
    """

    size: int
    checksum: str | None

    def matches_file(self, path: pathlib.Path, verify: bool = True) -> bool:
        """Return whether a local file has the expected contents.

        Args:
            path: The path to check.
            verify: Boolean. Whether to compare the checksums. Defaults to True.

        Raises:
            ValueError: If `path` is a pipe, a device or a folder.
        """
        if not path.exists():
            return False
        if not path.is_file():
            raise ValueError(
                f"{path.resolve()} is not a regular file. Delete this path, and load the preset "
                "again."
            )
        if self.checksum is None or not verify:
            return True
        if len(self.checksum) == 64:
            return compute_checksum(path) == self.checksum
        prefix = f"blob {path.stat().st_size}\0".encode()
        return compute_checksum(path, "sha1", prefix) == self.checksum


def get_cache_folder(repository: str) -> pathlib.Path:
    """Return the repository folder in the cache of huggingface_hub."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=repository, repo_type="model")
    return pathlib.Path(constants.HF_HUB_CACHE) / name


def find_missing_files(
    folder: pathlib.Path, files: Mapping[str, HubFile], verify: bool
) -> dict[str, HubFile]:
    """Find missing files in a folder, and damaged files if `verify` is True."""
    return {
        name: file for name, file in files.items() if not file.matches_file(folder / name, verify)
    }


def find_linked_files(folder: pathlib.Path) -> dict[str, HubFile]:
    """Find all links in the commit folder whose targets have a checksum as the file name."""
    links = (path for path in folder.rglob("*") if path.is_symlink() and path.exists())
    targets = ((path, pathlib.PurePath(os.readlink(path)).name) for path in links)
    return {
        path.relative_to(folder).as_posix(): HubFile(path.stat().st_size, checksum)
        for path, checksum in targets
        if CHECKSUM_PATTERN.fullmatch(checksum)
    }


def download_files(
    address: str, repository: str, commit: str, files: Mapping[str, HubFile], verify: bool
) -> None:
    """Download the missing files of a commit to the cache. Other processes wait for a lock file.

    Args:
        address: String. The address from the user for error messages.
        repository: String. "organisation/name".
        commit: String. Hash of 40 hexadecimal digits.
        files: Dict {path in the commit folder: `HubFile`}.
        verify: Boolean. Whether to replace existing files with different contents.

    Raises:
        Unreachable: If a download fails, or if a checksum is wrong after several attempts.
        ValueError: If a path in the cache is a link or not a regular file.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = get_cache_folder(repository)
    snapshot, lock = folder / "snapshots" / commit, folder.parent / ".locks" / f"{folder.name}.lock"
    for path in (folder, folder / "blobs", folder / "snapshots", snapshot, lock.parent):
        if path.is_symlink():
            raise ValueError(
                f"{path} is a link. For safety, links are not followed. Delete the link, and load "
                "the preset again."
            )
        path.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):  # another process may have downloaded the files in the meantime
        for name, file in find_missing_files(snapshot, files, verify).items():
            pointer = snapshot / name
            blob = folder / "blobs" / file.checksum if file.checksum else pointer
            url = hf_hub_url(repository, name, revision=commit, endpoint=get_endpoint())
            if not file.matches_file(blob):
                fetch = functools.partial(_download, url, blob, name, file)
                run_with_retries(address, fetch, any_error=True)
            if blob != pointer:
                _write_atomically(pointer, functools.partial(_link_or_copy, blob, pointer.parent))


def write_reference(folder: pathlib.Path, revision: str, commit: str) -> None:
    """Store the commit for a branch or tag, for loading without a connection."""
    path = folder / "refs" / revision
    if not path.is_file() or path.read_text("utf-8") != commit:
        _write_atomically(path, lambda new: new.write_text(commit, encoding="utf-8"))


def _write_atomically(path: pathlib.Path, write: Callable[[pathlib.Path], object]) -> None:
    """Write a temporary file, and move it to the path in a single step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{secrets.token_hex(8)}")
    write(new)
    os.replace(new, path)


def _link_or_copy(blob: pathlib.Path, folder: pathlib.Path, new: pathlib.Path) -> None:
    try:
        new.symlink_to(os.path.relpath(blob, folder))
    except OSError:  # on Windows without permission to create links
        shutil.copyfile(blob, new)


class _PartialFile(io.FileIO):
    """Partially downloaded file. Writing more than the expected bytes raises an error."""

    def __init__(self, path: pathlib.Path, size: int):
        super().__init__(path, "ab")
        self._size = size
        if self.tell() > size:
            self.truncate(0)
            self.seek(0)

    def write(self, content) -> int:
        if self.tell() + len(content) > self._size:
            raise ValueError(f"the server sent more than the expected {self._size} bytes")
        return super().write(content)


def _download(url: str, blob: pathlib.Path, name: str, file: HubFile) -> None:
    """Download a file to the cache, or complete a partial download."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    blob.parent.mkdir(parents=True, exist_ok=True)  # files without checksum can be in subfolders
    part = blob.with_name(f"{blob.name}.part")
    if part.is_symlink() or (part.exists() and not part.is_file()):
        raise ValueError(f"{part} is not a regular file. Delete it, and load the preset again.")
    try:
        with _PartialFile(part, file.size) as target:

            def resume_download() -> None:
                http_get(
                    url,
                    target,
                    resume_size=target.tell(),
                    headers=build_hf_headers(),
                    expected_size=file.size,
                    displayed_filename=name,
                )

            run_with_timeout(resume_download, lambda: part.stat().st_size)
        if not file.matches_file(part):
            raise ValueError(f"the content of {name} does not match its checksum")
    except ValueError:  # the content is wrong, so resuming the download would not help
        part.unlink()
        raise
    os.replace(part, blob)
