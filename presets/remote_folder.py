"""Reads files on the Hugging Face hub without downloading them as a whole."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from encoder_zoo.presets.files.folder_files import FolderFiles

_BLOCK = 64 * 1024  # the header of 400 tensors


class RemoteFolder(FolderFiles):
    """Opens files on the hub, and fetches only the blocks of 64 KB that are read.

    Args:
        repository: `organisation/name`.
        commit: of the files.
        sizes: {file name: bytes} of the files to open.
        endpoint: the hub's address; None for the default of huggingface_hub.

    Attributes:
        path: the repository, for error messages.
        listed: names of the files that are not in subfolders.

    Raises:
        FileNotFoundError: if the hub has no such repository or commit.
    """

    def __init__(
        self, repository: str, commit: str, sizes: Mapping[str, int], endpoint: str | None = None
    ):
        from huggingface_hub import HfFileSystem

        super().__init__(pathlib.PurePosixPath(repository))
        self.listed = sorted(name for name in sizes if "/" not in name)
        self.commit, self._sizes = commit, sizes
        self._caches = {}
        self._hub = HfFileSystem(endpoint=endpoint, skip_instance_cache=True)
        for name in sorted(sizes):
            self._open(name)

    @property
    def fetched(self) -> int:
        """Upper bound of the fetched bytes: the last block of a file may be shorter."""
        return sum(
            min(cache.miss_count * _BLOCK, self._sizes[name])
            for name, cache in self._caches.items()
        )

    def check_unchanged(self) -> None:
        """Do nothing: a commit does not change."""

    def _open(self, name: str) -> None:
        if name not in self._sizes:
            raise FileNotFoundError(self.path / name)
        file = self.keep(
            self._hub.open(
                f"{self.path}/{name}",
                revision=self.commit,
                block_size=_BLOCK,
                cache_type="blockcache",
                size=self._sizes[name],
            )
        )
        file.name = str(self.path / name)
        self._files[name], self._caches[name] = file, file.cache
