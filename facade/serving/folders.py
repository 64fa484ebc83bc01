"""Open folders for the command line."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import encoder_zoo as ez

MANIFEST = "encoder_zoo.json"


def open_folders(sources: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Load all models and indexes to pass to `create_app`.

    Args:
        sources: List of strings. Folders to open, as written by `save_to_preset`, `export` or the
            `save` method of an index. To call `Reranker.from_preset(SOURCE)`, use
            `"Reranker=SOURCE"`. The folder name will be used as the name of the model or index.

    Returns:
        Tuple of a dict of models and a dict of indexes. For each index, the first matching embedder
        will be used.

    Raises:
        FileNotFoundError: If a folder does not exist.
        ValueError: If a folder contains no model or index, or if two folders have the same name.

    Example:
        >>> models, indexes = open_folders(["Classifier=bert_nano_en_uncased_sentiment"])
        >>> [*models], [*indexes]
        (['bert_nano_en_uncased_sentiment'], [])
    """
    models: dict[str, Any] = {}
    index_folders: dict[str, str] = {}
    for source in sources:
        cls, folder = split_class(source)
        name = pathlib.PurePath(folder).name
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

    If the part before "=" is not a class name, the source is the whole string.

    Example:
        >>> split_class("Reranker=served/reranker"), split_class("served/a=b")
        (('Reranker', 'served/reranker'), (None, 'served/a=b'))
    """
    cls, _, folder = source.partition("=")
    return (cls, folder) if cls in ez.__all__ and folder else (None, source)


def read_kind(folder: str) -> str:
    """Read the manifest of a folder to find the name of the task or index."""
    path = pathlib.Path(folder) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{os.fspath(path)} does not exist. Expected a folder written by save_to_preset, "
            "export or save. For other checkpoints, also pass the class, for example "
            "Classifier=FOLDER."
        )
    try:
        return str(json.loads(path.read_text("utf-8"))["task"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"The manifest in {os.fspath(path)} has no valid 'task' field. Save the folder again."
        ) from error


def open_model(folder: str, kind: str) -> Any:
    """Load a model from a folder, as written by `save_to_preset` or `export`."""
    if kind == "export":
        # On a busy machine with two cores (load average 18), spinning threads increased the CPU
        # time per request from 17 to 36 ms, for a sentence with MiniLM.
        return ez.open_export(folder, spinning=False)
    from encoder_zoo.tasks import list_tasks  # imports Keras, which is not needed for exports

    classes = {task.record.name: task for task in list_tasks()}
    if kind not in classes:
        raise ValueError(f"{folder} contains a {kind}. Expected {', '.join(classes)} or an index.")
    return classes[kind].from_preset(folder)


def find_embedder(folder: str | os.PathLike[str], models: dict[str, Any]) -> Any:
    """Find the embedder for an index. For a `BM25Index`, return None.

    For a hybrid index, return a list of embedders, one for each part.

    Raises:
        ValueError: If none of the models was used to build the index.
    """
    manifest = json.loads((pathlib.Path(folder) / MANIFEST).read_text("utf-8"))
    if manifest["task"] == "bm25_index":
        return None
    if manifest["task"] == "hybrid_index":
        parts = [pathlib.Path(folder) / name for name in manifest["indexes"]]
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
