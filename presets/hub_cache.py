"""Finds repositories in the hub's cache, and deletes damaged files from it."""

from __future__ import annotations

import logging
import os
import pathlib
import re
from collections.abc import Iterable

from encoder_zoo.presets.blobs import check_regular, lock_file
from encoder_zoo.presets.files.manifest import checksum_of
from encoder_zoo.presets.formats import kerashub
from encoder_zoo.presets.formats.preset_files import (
    CONFIG,
    MODULES,
    WEIGHT_FORMATS,
    tokenizer_file_names,
)

logger = logging.getLogger("encoder_zoo")


def cached_folder(
    address: str, repository: str, revision: str | None, weights: bool, why: str
) -> pathlib.Path:
    """Return a repository's folder in the cache; raise an error if files are missing."""
    from huggingface_hub import try_to_load_from_cache

    cached = (
        try_to_load_from_cache(repository, name, revision=revision)
        for name in (CONFIG, MODULES, *tokenizer_file_names())
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
    """Return whether a cached folder has weights; it has none if only a tokenizer was downloaded.

    An index without all its shards counts: a later error names the missing shard.
    """
    kinds = {kerashub.WEIGHTS, *(name for f in WEIGHT_FORMATS for name in (f.file, f.index))}
    encoders = [folder, *folder.glob("0_*")]  # of sentence-transformers' first versions
    return any(not kinds.isdisjoint(os.listdir(path)) for path in encoders)


def drop_wrong(folder: pathlib.Path, files: Iterable[str]) -> list[str]:
    """Delete files in the cache whose contents differ from their checksum.

    The names of the blobs in the cache are the hub's checksums: a SHA-256 for large files, git's
    SHA-1 for the others.

    Args:
        folder: of one commit.
        files: expected files; others in the folder are checked, too.

    Returns:
        Names of the files that are now missing, also if another process deleted them.
    """
    from huggingface_hub.utils import WeakFileLock

    present = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_symlink())
    wrong = [name for name in sorted({*files, *present}) if not _is_right(folder / name)]
    if wrong:
        # Another process may have deleted and downloaded a file meanwhile.
        with WeakFileLock(lock_file(folder.parents[1], "wrong")):
            for name in wrong:
                path = folder / name
                if path.is_symlink() and not _is_right(path):
                    blob = path.parent / os.readlink(path)
                    blob = blob.parent.resolve() / blob.name  # which may be a link itself
                    blobs = [parent / "blobs" for parent in folder.resolve().parents[1:3]]
                    if blob.parent in blobs:  # a link elsewhere leads to another's file
                        blob.unlink(missing_ok=True)
                    path.unlink()
    return [pathlib.PurePath(name).name for name in wrong]


def _is_right(path: pathlib.Path) -> bool:
    """Return whether a cached file exists, with the checksum in its blob's name."""
    try:
        if path.is_symlink():
            return _is_as_named(path.parent / os.readlink(path))
    except FileNotFoundError:
        return False
    return path.exists()


def _is_as_named(blob: pathlib.Path) -> bool:
    check_regular(blob)
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return checksum_of(blob) == blob.name
    if re.fullmatch(r"[0-9a-f]{40}", blob.name):
        prefix = f"blob {blob.stat().st_size}\0".encode()
        return checksum_of(blob, "sha1", prefix) == blob.name
    return True  # of a server with other names
