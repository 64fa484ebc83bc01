"""The hub's cache: repositories that are there already, and files that are damaged."""

from __future__ import annotations

import logging
import os
import pathlib
import re
from collections.abc import Iterable

from encoder_zoo.presets.blobs import lock_file
from encoder_zoo.presets.files.manifest import checksum_of
from encoder_zoo.presets.formats import kerashub
from encoder_zoo.presets.formats.preset_files import CONFIG, WEIGHT_FORMATS, tokenizer_file_names

logger = logging.getLogger("encoder_zoo")


def cached_folder(
    address: str, repository: str, revision: str | None, weights: bool, why: str
) -> pathlib.Path:
    """Return the repository's folder in the cache, if all that is needed is there."""
    from huggingface_hub import try_to_load_from_cache

    cached = (
        try_to_load_from_cache(repository, name, revision=revision)
        for name in (CONFIG, *tokenizer_file_names())
    )
    path = next((path for path in cached if isinstance(path, str)), None)
    folder = path and pathlib.Path(path).parent
    if folder is None or (weights and not _has_weights(folder)):
        what = f"{address} is" if folder is None else f"The weights of {address} are"
        raise ValueError(
            f"{what} not in the cache and the hub cannot be reached. It was: {why}. Check the "
            "connection and HF_ENDPOINT, and that HF_HUB_OFFLINE is not set."
        )
    logger.info("%s: taken from the cache, the hub cannot be reached: %s", address, why)
    return folder


def _has_weights(folder: pathlib.Path) -> bool:
    """Return whether a cached folder has weights; it has none if only a tokenizer was fetched.

    A folder with an index and some of the shards counts: the error names the shard that is missing.
    """
    kinds = {kerashub.WEIGHTS, *(name for f in WEIGHT_FORMATS for name in (f.file, f.index))}
    return not kinds.isdisjoint(os.listdir(folder))


def drop_wrong(folder: pathlib.Path, files: Iterable[str]) -> list[str]:
    """Delete files in the cache that differ from the checksum that is their name.

    The cache keeps the contents of a file under the hub's checksum of it: a SHA-256 for large
    files, git's SHA-1 for the others.

    Args:
        folder: of one commit.
        files: that should be there, beside those that are.

    Returns:
        Names of the files that are missing now, also where another process deleted them.
    """
    from huggingface_hub.utils import WeakFileLock

    present = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink())
    wrong = [name for name in sorted({*files, *present}) if not _is_right(folder / name)]
    if wrong:
        # Another process may drop a file, too, and download it again meanwhile.
        with WeakFileLock(lock_file(folder.parents[1], "wrong")):
            for name in wrong:
                path = folder / name
                if path.is_symlink() and not _is_right(path):
                    (path.parent / os.readlink(path)).resolve().unlink(missing_ok=True)
                    path.unlink()
    return [pathlib.PurePath(name).name for name in wrong]


def _is_right(path: pathlib.Path) -> bool:
    """Return whether a cached file is there, with the contents that its blob's name tells."""
    try:
        if path.is_symlink():
            return _is_as_named(path.parent / os.readlink(path))
    except FileNotFoundError:
        return False
    return path.exists()


def _is_as_named(blob: pathlib.Path) -> bool:
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return checksum_of(blob) == blob.name
    if re.fullmatch(r"[0-9a-f]{40}", blob.name):
        prefix = f"blob {blob.stat().st_size}\0".encode()
        return checksum_of(blob, "sha1", prefix) == blob.name
    return True  # a server with names of its own
