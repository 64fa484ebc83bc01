"""Presets from hubs: Hugging Face through huggingface_hub, Kaggle through kagglehub."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import time

from encoder_zoo.presets.files.manifest import checksum
from encoder_zoo.presets.formats import kerashub
from encoder_zoo.presets.formats.huggingface import no_safetensors
from encoder_zoo.presets.preset_files import CONFIG, INDEX, MANIFEST, WEIGHTS, tokenizer_files

logger = logging.getLogger("encoder_zoo")

_ADDRESS = re.compile(r"hf://(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_PAUSES = (1, 4, None)  # seconds to wait before the next attempt


def from_hugging_face(address: str, verify: bool = True, max_bytes: int = 2**63) -> pathlib.Path:
    """A repository's folder in the hub's cache, brought there if need be.

    All files are of one commit. Without a connection the copy in the cache serves, if any. What
    huggingface_hub's environment variables say holds: `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    `HF_HUB_OFFLINE`. A download that breaks off is tried again; the client resumes it where it can.

    Args:
        address: `hf://organisation/name`, with `@` and a branch, tag or commit where wanted.
        verify: whether to compare every file with the checksum that the hub gave for it.
        max_bytes: the most that the files may have together.

    Returns:
        The folder.

    Raises:
        ValueError: "... is not an address such as hf://organisation/name", "... no such
            repository ...", "... no model.safetensors, only pytorch_model.bin ..."
    """
    matched = _ADDRESS.fullmatch(address)
    if matched is None:
        raise ValueError(
            f"{address!r} is not an address such as hf://organisation/name or "
            "hf://organisation/name@revision."
        )
    repository, revision = matched.groups()
    wanted = _wanted_files(address, repository, revision, max_bytes)
    folder = _snapshot(address, repository, revision, wanted)
    if verify and _drop_wrong(folder):
        folder = _snapshot(address, repository, revision, wanted)
        wrong = _drop_wrong(folder)
        if wrong:
            raise ValueError(
                f"{address}: {', '.join(wrong)} came with other bytes than its checksum says, "
                "twice. The copies were deleted; try again later."
            )
    return folder


def _wanted_files(
    address: str, repository: str, revision: str | None, max_bytes: int
) -> list[str] | None:
    """Which files to fetch; None where the hub cannot be asked."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from huggingface_hub.errors import RevisionNotFoundError as NoRevision

    try:
        info = HfApi(endpoint=_endpoint()).model_info(
            repository, revision=revision, files_metadata=True, timeout=10
        )
    except (GatedRepoError, RepositoryNotFoundError, NoRevision) as error:
        reasons = {
            GatedRepoError: "access must be asked for on its page, and a token set in HF_TOKEN",
            NoRevision: f"there is no revision '{revision}'",
        }
        default = "no such repository, or a private one without a token in HF_TOKEN"
        raise ValueError(f"{address}: {reasons.get(type(error), default)}.") from error
    except Exception as error:  # whatever the connection raises, the cache may do
        logger.debug("%s: %s", address, error)
        return None
    sizes = {file.rfilename: file.size or 0 for file in info.siblings}
    names = select_files(address, list(sizes))
    total = sum(sizes[name] for name in names)
    if total > max_bytes:
        raise ValueError(
            f"{address}: the files have {total / 1e9:.1f} GB, the limit is {max_bytes / 1e9:.1f} "
            f"GB. If you trust the preset, pass max_bytes={total}."
        )
    return names


def select_files(address: str, names: list[str]) -> list[str]:
    """Those of a repository's files that a preset needs: no other format, no pickle.

    Raises:
        ValueError: see `no_safetensors`.

    Example:
        >>> select_files("hf://a/b", ["config.json", "model.safetensors", "pytorch_model.bin"])
        ['config.json', 'model.safetensors']
    """
    plain = {CONFIG, MANIFEST, *tokenizer_files()}
    if WEIGHTS in names:
        return [name for name in names if name in {*plain, WEIGHTS}]
    if INDEX in names:
        return [name for name in names if name in {*plain, INDEX} or _SHARD.fullmatch(name)]
    if kerashub.WEIGHTS in names:
        return [name for name in names if name in kerashub.files()]
    raise ValueError(no_safetensors(address, names))


def _cached(address: str, repository: str, revision: str | None) -> pathlib.Path:
    """The repository's folder in the cache."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, "config.json", revision=revision)
    if not isinstance(path, str):
        raise ValueError(
            f"{address} is not in the cache and the hub cannot be reached. Check the connection "
            "and HF_ENDPOINT, and that HF_HUB_OFFLINE is not set."
        )
    return pathlib.Path(path).parent


def _snapshot(
    address: str, repository: str, revision: str | None, names: list[str] | None
) -> pathlib.Path:
    """Downloads what is not in the cache yet; a server that is busy is asked again."""
    from huggingface_hub import snapshot_download

    if names is None:
        return _cached(address, repository, revision)
    for pause in _PAUSES:
        try:
            folder = snapshot_download(
                repository,
                revision=revision,
                allow_patterns=names,
                endpoint=_endpoint(),
            )
        except Exception as error:  # the client raises its own, the connection's and the system's
            if pause is not None:
                time.sleep(pause)
                continue
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"{address}: the download broke off: {reason}. Try again: files that came whole "
                "are kept."
            ) from error
        return pathlib.Path(folder)
    raise AssertionError("the last pause is None")


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
        return checksum(blob) == blob.name
    if re.fullmatch(r"[0-9a-f]{40}", blob.name):
        prefix = f"blob {blob.stat().st_size}\0".encode()
        return checksum(blob, "sha1", prefix) == blob.name
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
