"""Presets from hubs: Hugging Face through huggingface_hub, Kaggle through kagglehub."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import re
import time
from collections.abc import Callable
from typing import TypeVar

from encoder_zoo.presets.files.manifest import checksum_of
from encoder_zoo.presets.formats import kerashub
from encoder_zoo.presets.formats.huggingface import no_weights
from encoder_zoo.presets.preset_files import (
    CONFIG,
    INDEX,
    MANIFEST,
    PYTORCH_INDEX,
    PYTORCH_WEIGHTS,
    WEIGHTS,
    tokenizer_files,
)
from encoder_zoo.presets.remote_folder import RemoteFolder

logger = logging.getLogger("encoder_zoo")

_ADDRESS = re.compile(r"hf://(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?")
# Formats of weights, the better one first: the file, the index of its shards, their names.
_WEIGHTS = (
    (WEIGHTS, INDEX, re.compile(r"model-\d+-of-\d+\.safetensors")),
    (PYTORCH_WEIGHTS, PYTORCH_INDEX, re.compile(r"pytorch_model-\d+-of-\d+\.bin")),
)
_PAUSES = (1, 4, None)  # seconds to wait before the next attempt
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_REFUSALS = {
    401: "no such repository, or a private one: the hub asks for a token (401). Set HF_TOKEN",
    403: "the hub refuses access (403). Set HF_TOKEN to a token that may read it",
    404: "no such repository, or a private one without a token in HF_TOKEN",
    410: "the repository is gone (410)",
    451: "the hub may not give it out (451)",
}
_NO_LISTING = (TypeError, KeyError, AttributeError, ValueError)
T = TypeVar("T")


def from_hugging_face(
    address: str, verify: bool = True, max_bytes: int = 2**63, weights: bool = True
) -> pathlib.Path:
    """Returns a repository's folder in the hub's cache, downloaded if need be.

    All files are of one commit. Without a connection the copy in the cache serves, if any. What
    huggingface_hub's environment variables say holds: `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    `HF_HUB_OFFLINE`. A download that breaks off is tried again; the client resumes it where it can.

    Args:
        address: `hf://organisation/name`, with `@` and a branch, tag or commit where wanted.
        verify: whether to compare every file with the checksum that the hub gave for it.
        max_bytes: the most that the files may have together.
        weights: whether the weights are needed, or only what a tokenizer reads.

    Returns:
        The folder.

    Raises:
        ValueError: "... is not an address such as hf://organisation/name", "... no such
            repository ...", "... no model.safetensors and no pytorch_model.bin ..."
    """
    repository, revision = _parse(address)
    try:
        wanted, commit = _wanted_files(address, repository, revision, max_bytes, weights)
        fetch = functools.partial(_snapshot, address, repository, revision, [*wanted], commit)
    except _Unreachable as error:
        fetch = functools.partial(_cached, address, repository, revision, weights, str(error))
    folder = fetch()
    if verify and _drop_wrong(folder):
        folder = fetch()
        wrong = _drop_wrong(folder)
        if wrong:
            raise ValueError(
                f"{address}: {', '.join(wrong)} came with other bytes than its checksum says, "
                "twice. The copies were deleted; try again later."
            )
    return folder


def open_remote(address: str) -> RemoteFolder:
    """Opens those files of a repository that a preset needs where they are, on the hub.

    Args:
        address: as for `from_hugging_face`.

    Returns:
        The files, of one commit.

    Raises:
        ValueError: see `from_hugging_face`; and "...: the hub cannot be reached ..."
    """
    repository, revision = _parse(address)
    try:
        wanted, commit = _wanted_files(address, repository, revision, 2**63, True)
    except _Unreachable as error:
        raise ValueError(f"{address}: the hub cannot be reached. It was: {error}.") from error
    return RemoteFolder(repository, commit or revision or "main", wanted, _endpoint())


def _parse(address: str) -> tuple[str, str | None]:
    """Returns the repository and, where the address names one, the revision."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None:
        raise ValueError(
            f"{address!r} is not an address such as hf://organisation/name or "
            "hf://organisation/name@revision."
        )
    repository, revision = matched.groups()
    return repository, revision


class _Unreachable(Exception):
    """The hub said nothing, or not now: what is in the cache may do."""


def _asked(address: str, function: Callable[[], T], whatever: bool = False) -> T:
    """What the hub answers, asked again while it is busy, or whatever failed.

    Raises:
        ValueError: "...: the hub refuses access (403) ..."
        _Unreachable: with what was wrong the last time.
    """
    for pause in _PAUSES:
        try:
            return function()
        except Exception as error:  # the client raises its own, the connection's and the system's
            status = getattr(getattr(error, "response", None), "status_code", None)
            if status in _REFUSALS:
                raise ValueError(f"{address}: {_refusal(error, status)}.") from error
            if pause is None or not (whatever or status in _BUSY):
                answer = f"it answered {status}: " if status else ""
                raise _Unreachable(answer + _first_line(error)) from error
            logger.debug("%s: %s; asked again in %s s", address, error, pause)
            time.sleep(pause)
    raise AssertionError("the last pause is None")


def _refusal(error: Exception, status: int) -> str:
    """What to do about an answer that stays the same when asked again."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return "access must be asked for on its page, and a token set in HF_TOKEN"
    if isinstance(error, EntryNotFoundError):
        return "a file of its own list is not there"
    if isinstance(error, RevisionNotFoundError):
        return "there is no such revision"
    return _REFUSALS[status]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _wanted_files(
    address: str, repository: str, revision: str | None, max_bytes: int, weights: bool
) -> tuple[dict[str, int], str | None]:
    """Returns the sizes of the files to fetch, by name, and the commit that they are of.

    Raises:
        ValueError: see `_asked`, "...: the listing from ... is none", "... have 9.1 GB ..."
        _Unreachable: where the hub cannot be asked.
    """
    from huggingface_hub import HfApi

    def listing() -> tuple[dict[str, int], str | None]:
        info = HfApi(endpoint=_endpoint()).model_info(
            repository, revision=revision, files_metadata=True, timeout=10
        )
        return {file.rfilename: file.size or 0 for file in info.siblings}, info.sha

    try:
        sizes, commit = _asked(address, listing)
    except _Unreachable as error:
        cause = error.__cause__
        if isinstance(cause, _NO_LISTING) and not hasattr(cause, "response"):
            raise ValueError(_no_listing(address, _first_line(cause))) from error
        raise
    if not all(isinstance(n, str) and type(size) is int and size >= 0 for n, size in sizes.items()):
        raise ValueError(_no_listing(address, "files without a name and a size"))
    wanted = {name: sizes[name] for name in select_files(address, list(sizes), weights)}
    total = sum(wanted.values())
    if total > max_bytes:
        raise ValueError(
            f"{address}: the files have {total / 1e9:.1f} GB, the limit is {max_bytes / 1e9:.1f} "
            f"GB. If you trust the preset, pass max_bytes={total}."
        )
    return wanted, commit


def _no_listing(address: str, why: str) -> str:
    return (
        f"{address}: what {_endpoint() or 'the hub'} sent is no list of a repository's files "
        f"({why}). Check HF_ENDPOINT."
    )


def select_files(address: str, names: list[str], weights: bool = True) -> list[str]:
    """Selects those of a repository's files that a preset needs, in one format.

    Args:
        address: of the repository, for the error.
        names: of all its files.
        weights: whether the weights are needed, or only what a tokenizer reads.

    Raises:
        ValueError: see `no_weights`.

    Example:
        >>> select_files("hf://a/b", ["config.json", "model.safetensors", "pytorch_model.bin"])
        ['config.json', 'model.safetensors']
    """
    plain = {CONFIG, MANIFEST, *tokenizer_files()}
    if kerashub.WEIGHTS in names:
        skipped = () if weights else (kerashub.WEIGHTS, kerashub.TASK_WEIGHTS)
        return [n for n in names if n in kerashub.files() and n not in skipped]
    if not weights:
        return [name for name in names if name in plain]
    for whole, index, shard in _WEIGHTS:
        if whole in names:
            return [name for name in names if name in {*plain, whole}]
        if index in names:
            return [n for n in names if n in {*plain, index} or shard.fullmatch(n)]
    raise ValueError(no_weights(address, names))


def _cached(
    address: str, repository: str, revision: str | None, weights: bool, why: str
) -> pathlib.Path:
    """Returns the repository's folder in the cache, if all that is needed is there."""
    from huggingface_hub import try_to_load_from_cache

    cached = (
        try_to_load_from_cache(repository, name, revision=revision)
        for name in (CONFIG, *tokenizer_files())
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
    """Tells whether a cached folder has weights; one of which only a tokenizer was asked has none.

    A folder with an index and some of the shards counts: the error names the shard that is missing.
    """
    kinds = {kerashub.WEIGHTS, *(name for whole, index, _ in _WEIGHTS for name in (whole, index))}
    return not kinds.isdisjoint(os.listdir(folder))


def _snapshot(
    address: str, repository: str, revision: str | None, names: list[str], commit: str | None
) -> pathlib.Path:
    """Downloads what is not in the cache yet; one that breaks off is begun again.

    Raises:
        ValueError: "...: the download broke off ...", "... has changed since its files were listed
            ..."
    """
    from huggingface_hub import snapshot_download

    def download() -> str:
        return snapshot_download(
            repository, revision=revision, allow_patterns=names, endpoint=_endpoint()
        )

    try:
        folder = pathlib.Path(_asked(address, download, whatever=True))
    except _Unreachable as error:
        raise ValueError(
            f"{address}: the download broke off: {error}. Try again: files that came whole are "
            "kept."
        ) from error
    if commit not in (None, folder.name):
        raise ValueError(
            f"{address} has changed since its files were listed: they were of {commit[:12]}, and "
            f"came from {folder.name[:12]}. Try again."
        )
    return folder


def _endpoint() -> str | None:
    """The hub's address where the user set one, also after the client was imported."""
    return os.environ.get("HF_ENDPOINT")


def _drop_wrong(folder: pathlib.Path) -> list[str]:
    """Deletes files in the cache that are not what their name, a checksum, says.

    The cache keeps the contents of a file under the hub's checksum of it: a SHA-256 for large
    files, git's SHA-1 for the others.
    """
    wrong = []
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink():
            continue
        blob = path.parent / os.readlink(path)
        if not path.exists() or not _is_as_named(blob):
            blob.resolve().unlink(missing_ok=True)
            path.unlink()
            wrong.append(path.name)
    return wrong


def _is_as_named(blob: pathlib.Path) -> bool:
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        return checksum_of(blob) == blob.name
    if re.fullmatch(r"[0-9a-f]{40}", blob.name):
        prefix = f"blob {blob.stat().st_size}\0".encode()
        return checksum_of(blob, "sha1", prefix) == blob.name
    return True  # a server with names of its own


def from_kaggle(address: str) -> pathlib.Path:
    """The folder of a Kaggle model in kagglehub's cache, brought there if need be.

    Args:
        address: `kaggle://organisation/model/keras/variant`, with `/version` where wanted; what
            KerasHub lists as its presets.

    Returns:
        The folder, one version of a KerasHub preset.

    Raises:
        ValueError: "... is not an address such as kaggle://...", "... cannot be had: ..."
    """
    import kagglehub  # comes with keras-nlp

    handle = address.removeprefix("kaggle://")
    if re.fullmatch(r"[\w-]+/[\w-]+/keras/[\w-]+(/\d+)?", handle, re.IGNORECASE) is None:
        raise ValueError(
            f"{address!r} is not an address such as kaggle://keras/bert/keras/bert_base_en/2."
        )
    try:
        return pathlib.Path(kagglehub.model_download(handle))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{address} cannot be had: {reason}") from error
