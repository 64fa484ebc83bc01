"""Downloads presets from the Hugging Face hub and from Kaggle."""

from __future__ import annotations

import functools
import logging
import os
import pathlib
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from encoder_zoo.common.wording import invalid, shown
from encoder_zoo.presets import adapters
from encoder_zoo.presets.blobs import (
    HubFile,
    cache_folder,
    check_regular,
    download_files,
    lock_file,
    missing_files,
)
from encoder_zoo.presets.files.folder_files import is_plain
from encoder_zoo.presets.files.manifest import checksum_of
from encoder_zoo.presets.formats import kerashub
from encoder_zoo.presets.formats.huggingface import no_weights
from encoder_zoo.presets.formats.preset_files import (
    CARD,
    COLBERT_LINEAR,
    COLBERT_SETTINGS,
    CONFIG,
    GLINER,
    IDF,
    MANIFEST,
    MODEL_SETTINGS,
    MODULES,
    ROUTER,
    SPARSE_LINEAR,
    TRANSFORMER_SETTINGS,
    WEIGHT_FORMATS,
    tokenizer_file_names,
)
from encoder_zoo.presets.hub_requests import Unreachable, endpoint, first_line, retried, within

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

logger = logging.getLogger("encoder_zoo")


def cached_folder(
    address: str, repository: str, revision: str | None, weights: bool, why: str
) -> pathlib.Path:
    """Return a repository's folder in the cache; raise an error if files are missing."""
    from huggingface_hub import try_to_load_from_cache

    cached = (
        try_to_load_from_cache(repository, name, revision=revision)
        for name in (CONFIG, GLINER, MODULES, *tokenizer_file_names())
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


_ADDRESS = re.compile(r"hf://(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?")
# The hub's converter to safetensors, and the title of its pull requests.
_CONVERTER, _CONVERSION = "SFconvertbot", "Adding `safetensors` variant of this model"
_SETTINGS = {CONFIG, MANIFEST, MODULES, MODEL_SETTINGS, COLBERT_SETTINGS, *TRANSFORMER_SETTINGS}
_SETTINGS |= {GLINER, ROUTER, IDF, *tokenizer_file_names()}
_ADAPTERS = (adapters.CONFIG, adapters.WEIGHTS)  # for `load_adapters` of the folder
_LINEAR = (SPARSE_LINEAR, COLBERT_LINEAR)
_MODULE_FILE = re.compile(r"((?:\w+_)?\d+_\w+)/([^/]+)")
_FIRST = re.compile(r"(?:\w+_)?0_")  # of a folder with an encoder
_NO_LISTING = (TypeError, KeyError, AttributeError, ValueError)
# {folder of a commit in the cache: the names of all its files, as the hub has listed them}
_LISTED: dict[pathlib.Path, list[str]] = {}


def from_hugging_face(
    address: str, verify: bool = True, max_bytes: int = 2**63, weights: bool = True
) -> pathlib.Path:
    """Return a repository's folder in the hub's cache, after downloading missing files.

    All files are of one commit. Without a connection the cached copy is used. The environment
    variables of huggingface_hub apply: `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`,
    `HF_HUB_DISABLE_PROGRESS_BARS`. The size of the download is logged or, if logging is off,
    printed. Downloads are retried, and large files resumed, also in another process.

    Args:
        address: `hf://organisation/name`, optionally with `@` and a branch, tag or commit.
        verify: whether to verify the hub's checksum of every file.
        max_bytes: limit of the total size of the files.
        weights: whether to download the weights, or only the tokenizer's files.

    Raises:
        ValueError: If the address is malformed, or if the repository does not exist or has no
            weights.
    """
    repository, revision = _parse(address)
    try:
        wanted, commit, names = _wanted_files(address, repository, revision, max_bytes, weights)
        _announce(address, repository, commit, wanted)
        fetch = functools.partial(_snapshot, address, repository, revision, wanted, commit)
    except Unreachable as error:
        wanted, names = {}, []
        fetch = functools.partial(cached_folder, address, repository, revision, weights, str(error))
    folder = fetch()
    if verify and drop_wrong(folder, wanted):
        folder = fetch()
        wrong = drop_wrong(folder, wanted)
        if wrong:
            raise ValueError(
                f"{address}: {', '.join(wrong)} came twice with other bytes than its checksum "
                "says. The copies were deleted: try again later."
            )
    if names:
        _LISTED[folder] = names
    return folder


def not_downloaded(folder: pathlib.Path) -> list[str]:
    """Return the names of the files of a repository that its folder in the cache lacks.

    Args:
        folder: from `from_hugging_face`; of any other, and of one that this process has only found
            in the cache, none are known.
    """
    names = [name for name in _LISTED.get(folder, ()) if "/" not in name]
    return [name for name in names if not (folder / name).exists()]


def _parse(address: str) -> tuple[str, str | None]:
    """Return the repository and the revision, None if the address has none."""
    matched = _ADDRESS.fullmatch(address)
    if matched is None:
        raise invalid(
            "The address", address, "hf://organisation/name or hf://organisation/name@revision"
        )
    repository, revision = matched.groups()
    if revision and not all(map(is_plain, revision.split("/"))):
        raise invalid(f"The revision of {address!r}", revision, "a branch, tag or commit")
    return repository, revision


def _wanted_files(
    address: str, repository: str, revision: str | None, max_bytes: int, weights: bool
) -> tuple[dict[str, HubFile], str | None, list[str]]:
    """Return {name: file} to download, their commit, and the names of all files."""
    from huggingface_hub import HfApi

    def listing() -> tuple[list[tuple[str, HubFile]], str | None]:
        info = HfApi(endpoint=endpoint()).model_info(
            repository, revision=revision, files_metadata=True, timeout=10
        )
        return [(file.rfilename, _listed(file)) for file in info.siblings], info.sha

    try:
        files, commit = retried(address, lambda: within(listing))
    except Unreachable as error:
        cause = error.__cause__
        if isinstance(cause, _NO_LISTING) and not hasattr(cause, "response"):
            raise ValueError(_no_listing(address, first_line(cause))) from error
        raise
    _check_listing(address, files, commit)
    files = dict(files)
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
    return wanted, commit, list(files)


def _check_listing(address: str, files: list[tuple[str, HubFile]], commit: str | None) -> None:
    """Raise an error for parts of a listing that are none: paths are built from them."""
    names = [name for name, _ in files]
    if not isinstance(commit, str) or re.fullmatch(r"[0-9a-f]{40}", commit) is None:
        raise ValueError(_no_listing(address, f"its commit is {shown(commit)}"))
    if not all(isinstance(name, str) for name in names) or not all(
        type(file.size) is int and file.size >= 0 for _, file in files
    ):
        raise ValueError(_no_listing(address, "files without a name and a size"))
    if len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise ValueError(_no_listing(address, f"{shown(again)} is there twice"))
    for name, (_, checksum) in files:
        pattern = r"[0-9a-f]{64}|[0-9a-f]{40}"
        if checksum is not None and not (
            isinstance(checksum, str) and re.fullmatch(pattern, checksum)
        ):
            raise ValueError(
                _no_listing(address, f"the checksum of {shown(name)} is {shown(checksum)}")
            )


def _listed(file: RepoSibling) -> HubFile:
    checksum = getattr(file.lfs, "sha256", None) or file.blob_id
    return HubFile(file.size or 0, checksum)


def _converted(repository: str) -> str:
    """Return a sentence about an open pull request of the hub's converter, "" if there is none."""
    from huggingface_hub import HfApi

    try:
        api = HfApi(endpoint=endpoint())
        kinds = {"discussion_type": "pull_request", "discussion_status": "open"}
        requests = within(
            lambda: [*api.get_repo_discussions(repository, author=_CONVERTER, **kinds)]
        )
        for request in requests:
            known = (request.author, request.title) == (_CONVERTER, _CONVERSION)
            if known and type(request.num) is int:
                return (
                    " The hub's converter offers model.safetensors in a pull request, which the "
                    f"publisher has not merged: hf://{repository}@refs/pr/{request.num}."
                )
    except Exception as error:  # of the client; the caller's error is raised all the same
        logger.debug("%s: its pull requests cannot be listed: %s", repository, error)
    return ""


def _announce(
    address: str, repository: str, commit: str | None, files: Mapping[str, HubFile]
) -> None:
    """Log the size of the download or, if logging is off, print it beside the progress bars."""
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
        f"{address}: what {endpoint() or 'the hub'} sent is no list of a repository's files "
        f"({why}). Check HF_ENDPOINT."
    )


def select_files(address: str, names: list[str], weights: bool = True) -> list[str]:
    """Return the names of the files of a preset in a repository, with weights in one format.

    Args:
        address: of the repository, for the error message.
        names: of all its files.
        weights: whether to include the weights, or only the tokenizer's files.

    Raises:
        ValueError: If there are no weights.

    Example:
        >>> select_files("hf://a/b", ["config.json", "model.safetensors", "pytorch_model.bin"])
        ['config.json', 'model.safetensors']
    """
    modules = _module_files(names, weights)
    if not weights:
        wanted = {*_SETTINGS, *modules, *kerashub.tokenizer_file_names()}
    elif kerashub.WEIGHTS in names:
        wanted = {*kerashub.files(), CARD}
    else:
        of_encoder = _weights_among(names)
        in_folder = [n.split("/")[1] for n in modules if _FIRST.match(n)]
        if not of_encoder and not _weights_among(in_folder):
            raise ValueError(no_weights(address, names))
        wanted = {*_SETTINGS, *modules, *of_encoder, *_LINEAR, *_ADAPTERS, CARD}
    return [name for name in names if name in wanted]


def _weights_among(names: Collection[str]) -> list[str]:
    """Return the files with weights in one format, the preferred one; none if there are none."""
    for weights_format in WEIGHT_FORMATS:
        if weights_format.file in names:
            return [weights_format.file]
        if weights_format.index in names:
            return [name for name in names if weights_format.is_index_or_shard(name)]
    return []


def _module_files(names: list[str], weights: bool) -> set[str]:
    """Return the files of sentence-transformers' modules, which are in subfolders.

    Example:
        >>> names = ["modules.json", "1_Pooling/config.json", "onnx/config.json"]
        >>> _module_files(names, weights=True)
        {'1_Pooling/config.json'}
    """
    folders: dict[str, list[str]] = {}
    for name in names if MODULES in names else ():
        if matched := _MODULE_FILE.fullmatch(name):
            folders.setdefault(matched[1], []).append(matched[2])
    return {
        f"{folder}/{name}"
        for folder, inner in folders.items()
        for name in [*_SETTINGS.intersection(inner), *(_weights_among(inner) if weights else ())]
    }


def _snapshot(
    address: str,
    repository: str,
    revision: str | None,
    files: Mapping[str, HubFile],
    commit: str,
) -> pathlib.Path:
    """Download the files that are not in the cache."""

    try:
        return download_files(address, repository, revision, commit, files, endpoint())
    except Unreachable as error:
        raise ValueError(
            f"{address}: the download broke off: {error}. Try again: the parts that came are kept."
        ) from error


def from_kaggle(address: str) -> pathlib.Path:
    """Return the folder of a KerasHub preset in kagglehub's cache, downloaded if missing.

    Args:
        address: `kaggle://organisation/model/keras/variant[/version]`, as KerasHub lists them.

    Raises:
        ValueError: If the address is malformed or the model cannot be downloaded.
    """
    import kagglehub  # comes with keras-nlp

    handle = address.removeprefix("kaggle://")
    if re.fullmatch(r"[\w-]+/[\w-]+/keras/[\w-]+(/\d+)?", handle, re.IGNORECASE) is None:
        raise invalid(
            "The address", address, "one such as kaggle://keras/bert/keras/bert_base_en/2"
        )
    try:
        return pathlib.Path(kagglehub.model_download(handle))
    except Exception as error:
        raise ValueError(
            f"{address} cannot be downloaded: {first_line(error)}. Check the address and the "
            "connection."
        ) from error
