"""Presets from hubs: Hugging Face through huggingface_hub, Kaggle through kagglehub."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from encoder_zoo.presets.blobs import (
    HubFile,
    cache_folder,
    download_large_files,
    lock_file,
    missing_files,
)
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
    tokenizer_file_names,
)
from encoder_zoo.presets.remote_folder import RemoteFolder

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

logger = logging.getLogger("encoder_zoo")

_ADDRESS = re.compile(r"hf://(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?")
# Formats of weights, the better one first: the file, the index of its shards, their names.
_WEIGHTS = (
    (WEIGHTS, INDEX, re.compile(r"model-\d+-of-\d+\.safetensors")),
    (PYTORCH_WEIGHTS, PYTORCH_INDEX, re.compile(r"pytorch_model-\d+-of-\d+\.bin")),
)
# The hub's own program that converts weights, and what it calls its pull requests.
_CONVERTER, _CONVERSION = "SFconvertbot", "Adding `safetensors` variant of this model"
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
    `HF_HUB_OFFLINE`, `HF_HUB_DISABLE_PROGRESS_BARS`. How much is to come is logged or, where
    nothing logs it, printed beside the progress bars. A download that breaks off is tried again,
    and large files go on where they broke off, also in another process.

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
        _announce(address, repository, commit, wanted)
        fetch = functools.partial(_snapshot, address, repository, revision, wanted, commit)
    except _Unreachable as error:
        wanted = {}
        fetch = functools.partial(_cached, address, repository, revision, weights, str(error))
    folder = fetch()
    if verify and _drop_wrong(folder, wanted):
        folder = fetch()
        wrong = _drop_wrong(folder, wanted)
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
    sizes = {name: file.size for name, file in wanted.items()}
    return RemoteFolder(repository, commit or revision or "main", sizes, _endpoint())


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
) -> tuple[dict[str, HubFile], str | None]:
    """Returns the files to fetch, by name, and the commit that they are of.

    Raises:
        ValueError: see `_asked`, "...: the listing from ... is none", "... have 9.1 GB ..."
        _Unreachable: where the hub cannot be asked.
    """
    from huggingface_hub import HfApi

    def listing() -> tuple[dict[str, HubFile], str | None]:
        info = HfApi(endpoint=_endpoint()).model_info(
            repository, revision=revision, files_metadata=True, timeout=10
        )
        return {file.rfilename: _listed(file) for file in info.siblings}, info.sha

    try:
        files, commit = _asked(address, listing)
    except _Unreachable as error:
        cause = error.__cause__
        if isinstance(cause, _NO_LISTING) and not hasattr(cause, "response"):
            raise ValueError(_no_listing(address, _first_line(cause))) from error
        raise
    sizes = [file.size for file in files.values()]
    if not all(isinstance(n, str) for n in files) or not all(
        type(size) is int and size >= 0 for size in sizes
    ):
        raise ValueError(_no_listing(address, "files without a name and a size"))
    try:
        names = select_files(address, list(files), weights)
    except ValueError as error:
        raise ValueError(f"{error}{_converted(repository)}") from None
    wanted = {name: files[name] for name in names}
    total = sum(file.size for file in wanted.values())
    if total > max_bytes:
        raise ValueError(
            f"{address}: the files have {total / 1e9:.1f} GB, the limit is {max_bytes / 1e9:.1f} "
            f"GB. If you trust the preset, pass max_bytes={total}."
        )
    return wanted, commit


def _listed(file: RepoSibling) -> HubFile:
    checksum = getattr(file.lfs, "sha256", None) or file.blob_id
    return HubFile(file.size or 0, checksum)


def _converted(repository: str) -> str:
    """Returns a sentence about the hub's own conversion to safetensors, if it waits there."""
    from huggingface_hub import HfApi

    try:
        requests = HfApi(endpoint=_endpoint()).get_repo_discussions(
            repository, author=_CONVERTER, discussion_type="pull_request", discussion_status="open"
        )
        for request in requests:
            if (request.author, request.title) == (_CONVERTER, _CONVERSION):
                return (
                    " The hub's converter offers model.safetensors in a pull request, which the "
                    f"publisher has not merged: hf://{repository}@refs/pr/{request.num}."
                )
    except Exception as error:  # of the client: what is missing is said all the same
        logger.debug("%s: its pull requests cannot be listed: %s", repository, error)
    return ""


def _announce(
    address: str, repository: str, commit: str | None, files: Mapping[str, HubFile]
) -> None:
    """Tells how much is to be downloaded, if anything: in the log or else beside the bars."""
    from huggingface_hub.utils import are_progress_bars_disabled

    missing = missing_files(repository, commit, files)
    if not missing:
        return
    megabytes = sum(file.size for file in missing.values()) / 1e6
    count = "1 file" if len(missing) == 1 else f"{len(missing)} files"
    size = f"{megabytes:.0f} MB" if megabytes >= 10 else f"{megabytes:.1f} MB"
    text = f"{address}: downloading {count}, {size}, into {cache_folder(repository)}"
    logger.info(text)
    if not logger.isEnabledFor(logging.INFO) and not are_progress_bars_disabled():
        print(text, file=sys.stderr)


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
    plain = {CONFIG, MANIFEST, *tokenizer_file_names()}
    if not weights:
        return [name for name in names if name in {*plain, *kerashub.tokenizer_file_names()}]
    if kerashub.WEIGHTS in names:
        return [name for name in names if name in kerashub.files()]
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
    """Tells whether a cached folder has weights; one of which only a tokenizer was asked has none.

    A folder with an index and some of the shards counts: the error names the shard that is missing.
    """
    kinds = {kerashub.WEIGHTS, *(name for whole, index, _ in _WEIGHTS for name in (whole, index))}
    return not kinds.isdisjoint(os.listdir(folder))


def _snapshot(
    address: str,
    repository: str,
    revision: str | None,
    files: Mapping[str, HubFile],
    commit: str | None,
) -> pathlib.Path:
    """Downloads what is not in the cache yet.

    Raises:
        ValueError: "...: the download broke off ...", "... has changed since its files were listed
            ..."
    """
    from huggingface_hub import snapshot_download

    def download() -> str:
        if commit is not None:
            download_large_files(repository, commit, files, _endpoint())
        return snapshot_download(
            repository, revision=revision, allow_patterns=[*files], endpoint=_endpoint()
        )

    try:
        folder = pathlib.Path(_asked(address, download, whatever=True))
    except _Unreachable as error:
        raise ValueError(
            f"{address}: the download broke off: {error}. Try again: what came is kept."
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


def _drop_wrong(folder: pathlib.Path, files: Iterable[str]) -> list[str]:
    """Deletes files in the cache that are not what their name, a checksum, says.

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
    """Tells whether a cached file is there, with the contents that its blob's name tells."""
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
