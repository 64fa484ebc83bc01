"""Open folders for the command line."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from typing import Any

import encoder_zoo as ez
from encoder_zoo.common.wording import quote
from encoder_zoo.presets.files.manifest import MANIFEST_NAME, read_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder


def open_folders(sources: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load all models and indexes to pass to `create_app`.

    Args:
        sources: List of strings. Folders to open, as written by `save_to_preset`, `export` or the
            `save` method of an index. `"Reranker=SOURCE"` calls `Reranker.from_preset(SOURCE)`. The
            name of a folder is the name of its model or index.

    Returns:
        Tuple of a dict of models and a dict of indexes. Each index uses the first model that
        matches its embedder.

    Raises:
        FileNotFoundError: If a folder or its manifest does not exist.
        ValueError: If two folders have the same name, if a manifest names an unknown task, or if
            the embedder of an index is not in `sources`.

    Example:
        >>> models, indexes = open_folders(["Classifier=bert_nano_en_uncased_sentiment"])
        >>> [*models], [*indexes]
        (['bert_nano_en_uncased_sentiment'], [])
    """
    models: dict[str, Any] = {}
    index_folders: dict[str, str] = {}
    for source in sources:
        cls, folder = split_class(source)
        name = os.path.basename(os.path.abspath(folder))
        if name in models or name in index_folders:
            raise ValueError(
                f"Two folders have the same name, {name!r}. Rename one of the folders."
            )
        if cls is not None:
            models[name] = getattr(ez, cls).from_preset(folder)
        elif (kind := read_kind(folder)).endswith("_index"):
            index_folders[name] = folder
        else:
            models[name] = open_model(folder, kind)
    indexes = {
        name: ez.load_index(folder, find_embedder(folder, models))
        for name, folder in index_folders.items()
    }
    return models, indexes


def split_class(source: str) -> tuple[str | None, str]:
    """Split "Class=SOURCE" into a class name and a source.

    If the part before "=" is not the name of a class with `from_preset`, the source is the whole
    string.

    Example:
        >>> split_class("Reranker=served/reranker"), split_class("served/a=b")
        (('Reranker', 'served/reranker'), (None, 'served/a=b'))
    """
    cls, _, folder = source.partition("=")
    is_class = cls in ez.__all__ and hasattr(getattr(ez, cls), "from_preset")
    return (cls, folder) if is_class and folder else (None, source)


def read_kind(folder: str | os.PathLike[str]) -> str:
    """Read the name of the task or index from the manifest of a folder.

    Raises:
        FileNotFoundError: If the folder or its manifest does not exist.
        ValueError: If the manifest is invalid.
    """
    path = pathlib.Path(folder)
    if not (path / MANIFEST_NAME).exists():
        raise FileNotFoundError(
            f"{path / MANIFEST_NAME} does not exist. Expected a folder written by save_to_preset, "
            "export or save. For other checkpoints, also pass the class, for example "
            "Classifier=FOLDER."
        )
    with OpenFolder(path, [MANIFEST_NAME]) as files:
        return read_manifest(files, verify=False)["task"]


def open_model(folder: str, kind: str) -> Any:
    """Load a model from a folder, as written by `save_to_preset` or `export`."""
    if kind == "export":
        # On a busy machine with two cores (load average 18), spinning threads increased the CPU
        # time per request from 17 to 36 ms, for a sentence with MiniLM.
        return ez.open_export(folder, spinning=False)
    from encoder_zoo.tasks import list_tasks  # imports Keras, which is not needed for exports

    classes = {task.record.name: task for task in list_tasks()}
    if kind not in classes:
        expected = f"{', '.join(classes)}, export or the kind of an index"
        raise ValueError(f"{folder} contains the task {quote(kind)}. Expected {expected}.")
    return classes[kind].from_preset(folder)


def find_embedder(folder: str | os.PathLike[str], models: dict[str, Any]) -> Any:
    """Find the embedder for an index. For a `BM25Index`, return None.

    For a hybrid index, return a list of embedders, one for each part.

    Raises:
        ValueError: If none of the models was used to build the index.
    """
    kind = read_kind(folder)
    if kind == "bm25_index":
        return None
    if kind == "hybrid_index":
        # Indexes require safetensors, which exports do not need.
        from encoder_zoo.tasks.retrieval.hybrid_index import read_hybrid_manifest

        names = read_hybrid_manifest(folder, verify=False)["indexes"]
        parts = [pathlib.Path(folder) / name for name in names]
        return [find_embedder(part, models) for part in parts]
    reasons = []
    for name, model in models.items():
        if hasattr(model, "embed"):
            try:
                ez.load_index(folder, model)
                return model
            except ValueError as error:
                reasons.append(f"{name}: {error}")
    raise ValueError(
        f"The index in {os.fspath(folder)} requires the embedder used to build the index. Add the "
        f"folder of the embedder to the command. {' '.join(reasons)}".rstrip()
    )
