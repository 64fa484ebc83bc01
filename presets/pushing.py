"""Upload models to repositories on the Hugging Face Hub."""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import TYPE_CHECKING

from encoder_zoo.presets.files.folder_files import matches_any
from encoder_zoo.presets.files.manifest import CARD
from encoder_zoo.presets.hub_requests import REFUSALS, Unreachable, get_endpoint, run_with_retries
from encoder_zoo.presets.model_card import CARD_MARK
from encoder_zoo.presets.saving import list_replaced_patterns

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.presets.formats.preset_task import PresetTask

_REFUSALS = {
    **REFUSALS,
    401: "the hub requires a token (401). Set HF_TOKEN, or pass token= with write access",
    403: "the hub denies write access (403). Use a token with write access to this repository",
}


def push(
    model: Backbone | PresetTask,
    repository: str,
    private: bool | None,
    token: str | None,
    commit_message: str,
    **options,
) -> str:
    """Upload a model. See `Task.push_to_hub`."""
    from huggingface_hub import HfApi

    repository = repository.removeprefix("hf://")
    address = f"hf://{repository}"
    api = HfApi(endpoint=get_endpoint(), token=token)
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent) / repository.split("/")[1]
        folder.mkdir()
        try:
            fetch = functools.partial(_fetch_card, api, repository, folder)
            present = run_with_retries(address, fetch, refusals=_REFUSALS)
            model.save_to_preset(folder, repository=repository, **options)
            commit = functools.partial(
                _make_commit, api, repository, folder, present, private, commit_message
            )
            return f"{address}@{run_with_retries(address, commit, refusals=_REFUSALS)}"
        except Unreachable as error:
            raise ValueError(f"{address}: the model could not be uploaded: {error}.") from error


def _fetch_card(api: HfApi, repository: str, folder: pathlib.Path) -> list[str]:
    """Download the model card to the folder, if it was written by a user.

    Returns:
        A list of all file names in the repository, or [] if the repository does not exist.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        siblings = api.model_info(repository, timeout=10).siblings
    except RepositoryNotFoundError:
        return []
    names = [file.rfilename for file in siblings or ()]
    if CARD in names:
        cached = api.hf_hub_download(repository, CARD, cache_dir=folder.parent / ".cache")
        content = pathlib.Path(cached).read_bytes()
        if CARD_MARK.encode() not in content:  # generated cards are written again
            (folder / CARD).write_bytes(content)
    return names


def _make_commit(
    api: HfApi,
    repository: str,
    folder: pathlib.Path,
    present: list[str],
    private: bool | None,
    message: str,
) -> str:
    """Replace the preset in a repository with one commit. Create the repository if necessary.

    All other files are kept, as in `save_to_preset`.

    Returns:
        Commit hash.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api.create_repo(repository, private=private, exist_ok=True)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    operations = [CommitOperationAdd(name, path) for name, path in files.items()]
    operations += [CommitOperationDelete(n) for n in present if n not in files and _is_replaced(n)]
    try:
        return api.create_commit(repository, operations, commit_message=message).oid
    except RuntimeError as error:  # "Error while uploading ...", caused by the actual reason
        raise error.__cause__ or error from None


def _is_replaced(name: str) -> bool:
    """Return whether a file in a repository is replaced by saving a preset.

    Example:
        >>> [_is_replaced(n) for n in ("vocab.txt", "1_Pooling/config.json", "onnx/config.json")]
        [True, True, False]
    """
    return matches_any(name.split("/")[0], list_replaced_patterns())
