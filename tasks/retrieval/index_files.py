"""The files of an index: vectors.safetensors, texts.jsonl and encoder_zoo.json with checksums.

Comment letters: N vectors, D width.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.atomic import replacing
from encoder_zoo.presets.files.manifest import NAME, read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors

VECTORS, TEXTS = "vectors.safetensors", "texts.jsonl"


class IndexFiles(NamedTuple):
    """The contents of an index's files.

    Attributes:
        store: the vectors, mapped.
        beside: the other arrays of the file, by name.
        texts: one for each document, or None.
        manifest: the settings.
    """

    store: Float32Vectors
    beside: dict[str, np.ndarray]
    texts: list[str] | None
    manifest: dict


def write_index(
    folder: str | os.PathLike,
    kind: str,
    store: Float32Vectors,
    beside: Mapping[str, np.ndarray],
    texts: Sequence[str] | None,
    settings: Mapping,
) -> None:
    """Write the files of an index, in place of those that are there, in one step.

    Args:
        folder: to write.
        kind: of the index, for the manifest's "task".
        store: the vectors.
        beside: further arrays for the same file.
        texts: one for each document, or None.
        settings: plain data for the manifest.
    """
    with replacing(folder) as new:
        arrays = {**store.arrays, **beside}
        save_file({n: np.ascontiguousarray(array) for n, array in arrays.items()}, new / VECTORS)
        if texts is not None:
            write_texts(new / TEXTS, texts)
        write_manifest(new, {"task": kind, "precision": store.precision, **settings})


def write_texts(path: pathlib.Path, texts: Sequence[str]) -> None:
    """Write texts as a JSON string on each line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)


def read_index(
    folder: str | os.PathLike,
    kind: str,
    stores: Mapping[str, type[Float32Vectors]],
    beside: Mapping[str, tuple[str, int]],
    verify: bool,
) -> IndexFiles:
    """Return the contents of an index's files, all of the same version; vectors are mapped.

    Args:
        folder: that `write_index` wrote.
        kind: of the index.
        stores: of each precision.
        beside: {name: (type, number of axes)} of the further arrays.
        verify: whether to verify the checksums.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: "... holds no index: ...", "... is damaged or changed: ...", "...: ranges has
            the shape (3, 8). Expected (2, 8).", and see `SafetensorsFile`.
    """
    with OpenFolder(folder, [NAME, VECTORS, TEXTS]) as files:
        manifest = checked_manifest(files, kind, verify)
        store, others = _read_vectors(files.file(VECTORS), manifest, stores, beside)
        return IndexFiles(store, others, read_texts(files), manifest)


def checked_manifest(files: OpenFolder, kind: str, verify: bool) -> dict:
    """Return the manifest of an index's folder.

    Raises:
        ValueError: "... holds no index: ..."
    """
    manifest = read_manifest(files, verify)
    if manifest.get("task") != kind:
        raise ValueError(
            f"{files.path} holds no index: expected the folder of an index's save, with its {NAME}."
        )
    return manifest


def _read_vectors(
    file: BinaryIO,
    manifest: dict,
    stores: Mapping[str, type[Float32Vectors]],
    beside: Mapping[str, tuple[str, int]],
) -> tuple[Float32Vectors, dict[str, np.ndarray]]:
    path, file = pathlib.Path(file.name), SafetensorsFile(file)
    kind = stores.get(manifest.get("precision"))
    if kind is None:
        raise ValueError(
            f"{path.parent / NAME}: precision is {shown(manifest.get('precision'))}. Expected one "
            f"of {', '.join(stores)}."
        )
    expected = {**kind.types, **beside}
    found = {name: (file.dtype(name).name, len(shape)) for name, shape in file.shapes.items()}
    if found != expected or not all(all(shape) for shape in file.shapes.values()):
        raise ValueError(
            f"{path}: it holds {found}, of shapes {file.shapes}. Expected {expected}, the number "
            "of axes behind the type, and nothing empty."
        )
    for name, shape in kind.shapes(file.shapes).items():
        check_shape(path, name, file.shapes[name], shape)
    store = kind(**{name: np.asarray(file.mapped(name)) for name in kind.types})
    store.check(path)
    return store, {name: file.read(name) for name in beside}


def check_shape(path: str | os.PathLike, name: str, found: tuple, expected: tuple) -> None:
    """Raise an error if an array of a file has another shape than expected."""
    if found != expected:
        raise ValueError(f"{path}: {name} has the shape {found}. Expected {expected}.")


def read_texts(files: OpenFolder) -> list[str] | None:
    """Return the texts of a file with a JSON string on each line; None without the file."""
    if TEXTS not in files:
        return None
    texts, file = [], files.file(TEXTS)
    for number, line in enumerate(file, 1):
        try:
            text = json.loads(line) if line.startswith(b'"') else None
        except ValueError:
            text = None
        if text is None:
            raise ValueError(f"{file.name}: line {number} is no text in JSON.")
        texts.append(text)
    return texts
