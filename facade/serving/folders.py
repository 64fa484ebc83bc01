"""Open the folders passed on the command line."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import encoder_zoo as ez

MANIFEST = "encoder_zoo.json"


def open_folders(sources: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Open models and indexes for `create_app`.

    Args:
        sources: List of folders to open, as written by `save_to_preset` or `export`, or by `save`
            for indexes. Use `"Reranker=SOURCE"` to call `Reranker.from_preset(SOURCE)`. The folder
            name will be used as the name for the model or index.

    Returns:
        Tuple with a dict of models and a dict of indexes. Each index is opened with the first model
        to match the embedder used to build the index.

    Raises:
        FileNotFoundError: If a folder does not exist.
        ValueError: If there is no model or index in a folder, or if two folders have the same name.

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
                f"Two folders have the name {name}, which must be unique. Rename one of them."
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
    """Split "Class=SOURCE" into the class name and the source.

    If the text before "=" is not a class name, the whole string is the path.

    Example:
        >>> split_class("Reranker=served/reranker"), split_class("served/a=b")
        (('Reranker', 'served/reranker'), (None, 'served/a=b'))
    """
    cls, _, folder = source.partition("=")
    return (cls, folder) if cls in ez.__all__ and folder else (None, source)


def read_kind(folder: str) -> str:
    """Read from the manifest which task or index a folder contains."""
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
            f"The manifest in {os.fspath(path)} does not contain a task. Save the folder again."
        ) from error


def open_model(folder: str, kind: str) -> Any:
    """Open a model folder, as written by `save_to_preset` or `export`."""
    if kind == "export":
        # On two cores with a load average of 18, spinning threads doubled the CPU time per request
        # (from 17 to 36 ms for a sentence with MiniLM).
        return ez.open_export(folder, spinning=False)
    from encoder_zoo.tasks import list_tasks  # imports Keras, which opened exports do not need

    classes = {task.record.name: task for task in list_tasks()}
    if kind not in classes:
        raise ValueError(f"{folder} contains a {kind}. Expected {', '.join(classes)} or an index.")
    return classes[kind].from_preset(folder)


def find_embedder(folder: str | os.PathLike[str], models: dict[str, Any]) -> Any:
    """Return the embedder for an index, or None for a `BM25Index`, which does not need it.

    For a hybrid index, a list with the embedder for each part is returned.

    Raises:
        ValueError: If there is no model to match the embedder used to build the index.
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
        f"The index in {os.fspath(folder)} can only be used with the embedder that it was built "
        f"with. Add the folder of the embedder to the command. {' '.join(reasons)}".rstrip()
    )
