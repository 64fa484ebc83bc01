"""Download presets from the Hugging Face Hub and from Kaggle."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import re
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from encoder_zoo.common.extras import load_formats
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets import adapters, hub_cache, hub_requests
from encoder_zoo.presets.files.folder_files import is_plain
from encoder_zoo.presets.formats.huggingface import describe_missing_weights
from encoder_zoo.presets.formats.preset_files import (
    CARD,
    CONFIG,
    GLINER,
    LINEAR,
    MANIFEST,
    MODULE_SETTINGS,
    MODULES,
    WEIGHT_FORMATS,
    list_tokenizer_files,
)
from encoder_zoo.presets.hub_cache import HubFile, find_missing_files, get_cache_folder

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

logger = logging.getLogger("encoder_zoo")

_ADDRESS = re.compile(r"hf://(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?")
# Bot that converts weights to safetensors, and the title of its pull requests.
_CONVERTER, _CONVERSION = "SFconvertbot", "Adding `safetensors` variant of this model"
_SETTINGS = {CONFIG, GLINER, MANIFEST, *MODULE_SETTINGS, *list_tokenizer_files()}
# Files to download together with the weights. `load_adapters` reads the adapters.
_WITH_WEIGHTS = {CARD, *LINEAR, adapters.ADAPTER_CONFIG, adapters.ADAPTER_WEIGHTS}
_MODULE_FOLDER = re.compile(r"(?:\w+_)?\d+_\w+")
_FIRST = re.compile(r"(?:\w+_)?0_")  # the folder of an encoder
# {cache folder of a commit: names of all files on the hub}
_LISTED: dict[pathlib.Path, list[str]] = {}


def download_from_hugging_face(
    address: str, verify: bool = True, max_bytes: int = 2**63, weights: bool = True
) -> pathlib.Path:
    """Download the missing files of a repository, and return the cache folder.

    All files belong to the same commit. Without a connection, the cached copy is used. The
    environment variables `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE` and
    `HF_HUB_DISABLE_PROGRESS_BARS` of huggingface_hub are supported. The download size is
    logged, or printed if logging is disabled. Failed downloads are retried. An interrupted download
    can be continued by any process.

    Args:
        address: String. `hf://organisation/name`, optionally followed by `@` and a branch, tag or
            commit.
        verify: Boolean. Whether to verify the checksum of every file. Defaults to True.
        max_bytes: Integer. The maximum total file size. Defaults to 2**63.
        weights: Boolean. Whether to download the weights. If False, only configuration and
            tokenizer files will be downloaded. Defaults to True.

    Returns:
        The path to the folder.

    Raises:
        ValueError: If `address` is malformed, if the repository is missing, has no weights or
            exceeds `max_bytes`, or if the download fails.
    """
    repository, revision = parse_address(address)
    try:
        files, commit, names = list_files(address, max_bytes, weights)
    except hub_requests.Unreachable as error:
        folder = _find_cached_folder(address, weights, str(error))
        wrong = find_missing_files(folder, hub_cache.find_linked_files(folder), verify)
        if wrong:
            raise ValueError(
                f"{address}: the checksum of {', '.join(sorted(wrong))} in the cache is wrong, and "
                f"the hub cannot be reached: {error}. Load the preset again later."
            ) from error
        return folder
    folder = get_cache_folder(repository) / "snapshots" / commit
    if missing := find_missing_files(folder, files, verify):
        _log_download_size(address, repository, missing)
        try:
            hub_cache.download_files(address, repository, commit, files, verify)
        except hub_requests.Unreachable as error:
            raise ValueError(
                f"{address}: the download failed: {error}. Try again to continue the download."
            ) from error
    if revision != commit:
        hub_cache.write_reference(get_cache_folder(repository), revision or "main", commit)
    _LISTED[folder] = names
    return folder


def list_not_downloaded(folder: pathlib.Path) -> list[str]:
    """List the files of a repository that were not downloaded.

    Args:
        folder: Path. Cache folder from `download_from_hugging_face`. For other folders, and if
            this process has not listed the files on the hub, the result is [].
    """
    names = [name for name in _LISTED.get(folder, ()) if "/" not in name]
    return [name for name in names if not (folder / name).exists()]


def parse_address(address: str) -> tuple[str, str | None]:
    """Split an address into the repository and the revision, which can be None."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None:
        raise invalid(
            "address", address, "hf://organisation/name or hf://organisation/name@revision"
        )
    repository, revision = matched.groups()
    if revision and not all(map(is_plain, revision.split("/"))):
        raise invalid(f"revision in {address!r}", revision, "a branch, tag or commit")
    return repository, revision


def list_files(
    address: str, max_bytes: int = 2**63, weights: bool = True
) -> tuple[dict[str, HubFile], str, list[str]]:
    """List the files in a repository.

    Args:
        address: String. See `download_from_hugging_face`.
        max_bytes: Integer. The maximum total file size. Defaults to 2**63.
        weights: Boolean. Whether to select files with weights. Defaults to True.

    Returns:
        A tuple (dict {name: `HubFile`} of the selected files, commit, list of all file names).

    Raises:
        ValueError: If the hub rejects the request or sends an invalid list of files, if the
            repository has no weights, or if the files exceed `max_bytes`.
        Unreachable: If the hub does not respond.
    """
    from huggingface_hub import HfApi

    repository, revision = parse_address(address)

    def request_listing() -> tuple[dict[str, HubFile], str]:
        api = HfApi(endpoint=hub_requests.get_endpoint())
        info = api.model_info(repository, revision=revision, files_metadata=True, timeout=10)
        return _read_listing(info), info.sha

    try:
        files, commit = hub_requests.run_with_retries(
            address, lambda: hub_requests.run_with_timeout(request_listing)
        )
    except hub_requests.Unreachable as error:
        cause = error.__cause__
        kinds = (TypeError, KeyError, AttributeError, ValueError)
        if not isinstance(cause, kinds) or hasattr(cause, "response"):
            raise
        raise ValueError(
            f"{address}: {hub_requests.get_endpoint() or 'the hub'} did not send a valid list of "
            f"files ({hub_requests.read_first_line(cause)}). Check HF_ENDPOINT."
        ) from error
    try:
        wanted = {name: files[name] for name in select_files(address, list(files), weights)}
    except ValueError as error:
        raise ValueError(f"{error}{_find_conversion(repository)}") from None
    total = sum(file.size for file in wanted.values())
    if total > max_bytes:
        raise ValueError(
            f"{address}: the files have {total / 1e9:.1f} GB, but the limit is "
            f"{max_bytes / 1e9:.1f} GB. If you trust the preset, pass max_bytes={total}."
        )
    return wanted, commit, list(files)


def _read_listing(info: ModelInfo) -> dict[str, HubFile]:
    """Validate names, sizes and checksums of files, because paths are built from them."""
    if not isinstance(info.sha, str) or not hub_cache.SHA1.fullmatch(info.sha):
        raise ValueError(f"the commit is {quote(info.sha)}. Expected a SHA-1 hash")
    files = {}
    for file in info.siblings:
        name, size = file.rfilename, file.size or 0
        checksum = getattr(file.lfs, "sha256", None) or file.blob_id
        known = checksum is None or hub_cache.CHECKSUM_PATTERN.fullmatch(checksum)
        if not known or not isinstance(name, str) or type(size) is not int or size < 0:
            raise ValueError(
                f"{quote(name)} has {quote(size)} bytes and the checksum {quote(checksum)}"
            )
        files[name] = HubFile(size, checksum)
    return files


def _find_conversion(repository: str) -> str:
    """Return a sentence about an open pull request with converted weights, or ""."""
    from huggingface_hub import HfApi

    kinds = {"discussion_type": "pull_request", "discussion_status": "open"}
    ask = functools.partial(
        HfApi(endpoint=hub_requests.get_endpoint()).get_repo_discussions, repository, **kinds
    )
    try:
        for request in hub_requests.run_with_timeout(lambda: [*ask(author=_CONVERTER)]):
            known = (request.author, request.title) == (_CONVERTER, _CONVERSION)
            if known and type(request.num) is int:
                return (
                    " A pull request with model.safetensors exists, but the publisher has not "
                    f"merged it. Use hf://{repository}@refs/pr/{request.num}."
                )
    except Exception as error:  # the caller raises the original error in any case
        logger.debug("%s: pull requests could not be listed: %s", repository, error)
    return ""


def _log_download_size(address: str, repository: str, missing: Mapping[str, HubFile]) -> None:
    """Log the download size, or print the size if logging is disabled."""
    from huggingface_hub.utils import are_progress_bars_disabled

    megabytes = sum(file.size for file in missing.values()) / 1e6
    count = "1 file" if len(missing) == 1 else f"{len(missing)} files"
    size = f"{megabytes:.0f} MB" if megabytes >= 10 else f"{megabytes:.1f} MB"
    text = f"{address}: downloading {count}, {size}, into {get_cache_folder(repository)}"
    logger.info(text)
    if not logger.isEnabledFor(logging.INFO) and not are_progress_bars_disabled():
        print(text, file=sys.stderr)


def _find_cached_folder(address: str, weights: bool, why: str) -> pathlib.Path:
    """Find the cache folder of a repository. Raise a ValueError if files are missing."""
    from huggingface_hub import try_to_load_from_cache

    repository, revision = parse_address(address)
    cached = (
        try_to_load_from_cache(repository, name, revision=revision)
        for name in (CONFIG, GLINER, MODULES, *list_tokenizer_files())
    )
    path = next((path for path in cached if isinstance(path, str)), None)
    folder = path and pathlib.Path(path).parent
    if folder is None or (weights and not _has_weights(folder)):
        what = f"{address} is" if folder is None else f"The weights of {address} are"
        raise ValueError(
            f"{what} not in the cache, and the hub cannot be reached: {why}. Check the connection "
            "and the environment variable HF_ENDPOINT, and make sure that HF_HUB_OFFLINE is not "
            "set."
        )
    logger.info("%s: using the cached copy because the hub cannot be reached: %s", address, why)
    return folder


def _has_weights(folder: pathlib.Path) -> bool:
    """Return whether a cache folder contains weights, not only tokenizer files.

    An index of shards counts as weights even if shards are missing, because a later error message
    names the missing shard.
    """
    kinds = {name for f in WEIGHT_FORMATS for name in (f.file, f.index)}
    kinds |= {format.WEIGHTS for format in load_formats()}
    # Early versions of sentence-transformers write "0_Transformer".
    encoders = [folder, *folder.glob("0_*")]
    return any(not kinds.isdisjoint(os.listdir(path)) for path in encoders)


def select_files(address: str, names: list[str], weights: bool = True) -> list[str]:
    """Select the preset files in a repository, with weights in one format.

    Args:
        address: String. The repository address for error messages.
        names: List of strings. The names of all files.
        weights: Boolean. Whether to include the weights. If False, only configuration and tokenizer
            files will be selected. Defaults to True.

    Returns:
        A list of file names.

    Raises:
        ValueError: If the repository has no weights.

    Example:
        >>> select_files("hf://a/b", ["config.json", "model.safetensors", "pytorch_model.bin"])
        ['config.json', 'model.safetensors']
    """
    if weights and (other := next((f for f in load_formats() if f.WEIGHTS in names), None)):
        wanted = {*other.list_files(), CARD}
        return [name for name in names if name in wanted]
    folders: dict[str, list[str]] = {"": []}  # encoder and module folders
    for name in names:
        folder, slash, file = name.rpartition("/")
        if not slash or (MODULES in names and _MODULE_FOLDER.fullmatch(folder)):
            folders.setdefault(folder, []).append(file)
    stored = {
        folder: _select_weight_files(inner) if weights else [] for folder, inner in folders.items()
    }
    if weights and not any(stored[f] for f in folders if not f or _FIRST.match(f)):
        raise ValueError(describe_missing_weights(address, names))
    others = [name for format in load_formats() for name in format.list_tokenizer_file_names()]
    wanted = {*(_WITH_WEIGHTS if weights else others)}
    for folder, inner in folders.items():
        found = [*_SETTINGS.intersection(inner), *stored[folder]]
        wanted |= {f"{folder}/{file}" if folder else file for file in found}
    return [name for name in names if name in wanted]


def _select_weight_files(names: Collection[str]) -> list[str]:
    """Select the files with weights in the preferred format."""
    for weights_format in WEIGHT_FORMATS:
        if weights_format.file in names:
            return [weights_format.file]
        if weights_format.index in names:
            return [name for name in names if weights_format.is_index_or_shard(name)]
    return []


def download_from_kaggle(address: str) -> pathlib.Path:
    """Download a KerasHub preset if necessary, and return the folder in the kagglehub cache.

    Args:
        address: String. `kaggle://organisation/model/keras/variant[/version]`, as in KerasHub.

    Returns:
        The path to the folder.

    Raises:
        ValueError: If `address` is malformed, or if the model cannot be downloaded.
    """
    import kagglehub  # comes with keras-nlp

    handle = address.removeprefix("kaggle://")
    if re.fullmatch(r"[\w-]+/[\w-]+/keras/[\w-]+(/\d+)?", handle, re.IGNORECASE) is None:
        raise invalid(
            "address", address, "an address such as kaggle://keras/bert/keras/bert_base_en/2"
        )
    try:
        return pathlib.Path(kagglehub.model_download(handle))
    except Exception as error:
        raise ValueError(
            f"{address} cannot be downloaded: {hub_requests.read_first_line(error)}. Check the "
            "address and the connection."
        ) from error
