"""Downloads large files to the hub's cache; interrupted downloads are resumed."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from encoder_zoo.presets.files.manifest import checksum_of


class HubFile(NamedTuple):
    """A file in the listing of a repository.

    Attributes:
        size: in bytes.
        checksum: its name in the cache: a SHA-256 for large files, git's SHA-1 for the others;
            None if the hub does not tell.
    """

    size: int
    checksum: str | None

    @property
    def is_large(self) -> bool:
        """Whether the hub stores it outside the git repository, by its SHA-256."""
        return self.checksum is not None and len(self.checksum) == 64


def cache_folder(repository: str) -> pathlib.Path:
    """Return the folder of a repository in the hub's cache."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=repository, repo_type="model")
    return pathlib.Path(constants.HF_HUB_CACHE) / name


def missing_files(
    repository: str, commit: str | None, files: Mapping[str, HubFile]
) -> dict[str, HubFile]:
    """Return those of a repository's files that are not in the cache."""
    folder = cache_folder(repository)
    return {
        name: file
        for name, file in files.items()
        if not (folder / "snapshots" / str(commit) / name).exists()
        and not (folder / "blobs" / str(file.checksum)).exists()
    }


def download_large_files(
    repository: str, commit: str, files: Mapping[str, HubFile], endpoint: str | None
) -> None:
    """Download the large files to the cache.

    huggingface_hub restarts such a download in every process. Here a part stays in the cache, as
    `BLOB.part`, and the next process requests the rest. A file with a wrong checksum is deleted,
    so that the client downloads it.

    Args:
        repository: `organisation/name`.
        commit: of the files.
        files: {name: file}.
        endpoint: the hub's address; None for the default of huggingface_hub.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = cache_folder(repository)
    for name, file in missing_files(repository, commit, files).items():
        if not file.is_large:
            continue
        blob = folder / "blobs" / str(file.checksum)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock_file(folder, blob.name)):
            if not blob.exists():  # another process may have been faster
                url = hf_hub_url(repository, name, revision=commit, endpoint=endpoint)
                _download(url, blob, name, file)


def lock_file(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the lock file of the client for a blob."""
    path = folder.parent / ".locks" / folder.name / f"{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _download(url: str, blob: pathlib.Path, name: str, file: HubFile) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    part = blob.with_name(f"{blob.name}.part")
    with open(part, "ab") as target:
        if target.tell() > file.size:
            target.truncate(0)
            target.seek(0)
        http_get(
            url,
            target,
            resume_size=target.tell(),
            headers=build_hf_headers(),
            expected_size=file.size,
            displayed_filename=name,
        )
    if checksum_of(part) == file.checksum:
        os.replace(part, blob)
    else:
        part.unlink()
