"""The files of an index: vectors.safetensors, texts.jsonl and encoder_zoo.json with checksums.

Comment letters: N vectors, D width.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.atomic import replacing
from encoder_zoo.presets.files.manifest import NAME, read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.tasks.retrieval.index_checks import PROBES
from encoder_zoo.tasks.retrieval.vectors import STORES, Float32Vectors, check_finite

VECTORS, TEXTS = "vectors.safetensors", "texts.jsonl"
PROBE = "probe"  # the embedder's own vectors of some texts
KIND = "vector_index"  # where the manifest of a preset names its task


def write_index(
    folder: str | os.PathLike,
    store: Float32Vectors,
    texts: Sequence[str] | None,
    probe: np.ndarray,
    settings: Mapping,
) -> None:
    """Write the files of an index, in place of those that are there, in one step.

    Args:
        folder: to write.
        store: the vectors.
        texts: N texts, or None.
        probe: the embedder's vectors of `index_checks.PROBES`.
        settings: plain data for the manifest.
    """
    with replacing(folder) as new:
        arrays = {name: np.ascontiguousarray(array) for name, array in store.arrays.items()}
        save_file({**arrays, PROBE: probe}, new / VECTORS)
        if texts is not None:
            with open(new / TEXTS, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
        write_manifest(new, {"task": KIND, "precision": store.precision, **settings})


def read_index(
    folder: str | os.PathLike, verify: bool
) -> tuple[Float32Vectors, list[str] | None, np.ndarray, dict]:
    """Return the contents of an index's files, all of the same version; vectors are mapped.

    Returns:
        The store, N texts or None, the probe, and the manifest.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: "... holds no index: ...", "... is damaged or changed: ...", "...: ranges has
            the shape (3, 8). Expected (2, 8).", and see `SafetensorsFile`.
    """
    with OpenFolder(folder, [NAME, VECTORS, TEXTS]) as files:
        manifest = read_manifest(files, verify)
        if manifest.get("task") != KIND:
            raise ValueError(
                f"{files.path} holds no index: expected the folder of an index's save, with its "
                f"{NAME}."
            )
        store, probe = _read_vectors(files.file(VECTORS), manifest)
        texts = _read_texts(files.file(TEXTS), len(store)) if TEXTS in files else None
        return store, texts, probe, manifest


def _read_vectors(file: BinaryIO, manifest: dict) -> tuple[Float32Vectors, np.ndarray]:
    path, file = pathlib.Path(file.name), SafetensorsFile(file)
    kind = STORES.get(manifest.get("precision"))
    if kind is None:
        raise ValueError(
            f"{path.parent / NAME}: precision is {shown(manifest.get('precision'))}. Expected one "
            f"of {', '.join(STORES)}."
        )
    found = {name: file.dtype(name).name for name in file.shapes}
    expected = {**dict(kind.types), PROBE: "float32"}
    if found != expected or len(file.shapes["vectors"]) != 2 or not all(file.shapes["vectors"]):
        raise ValueError(f"{path}: it holds {found}. Expected {expected}, vectors of two axes.")
    count, width = file.shapes["vectors"]
    shapes = {
        "vectors": (count, width),
        "ranges": (2, width),
        "signs": (-(-width // 64), count),
        PROBE: (len(PROBES), width),
    }
    for name, shape in file.shapes.items():
        if shape != shapes[name]:
            raise ValueError(f"{path}: {name} has the shape {shape}. Expected {shapes[name]}.")
    mapped = {name: np.asarray(file.mapped(name)) for name in dict(kind.types)}
    for name, array in mapped.items():
        if array.dtype.kind == "f":
            check_finite(array, f"{path}: {name}")
    return kind(**mapped), file.read(PROBE)


def _read_texts(file: BinaryIO, count: int) -> list[str]:
    """Return the texts of a file with a JSON string on each line."""
    texts = []
    for number, line in enumerate(file, 1):
        try:
            text = json.loads(line) if line.startswith(b'"') else None
        except ValueError:
            text = None
        if text is None:
            raise ValueError(f"{file.name}: line {number} is no text in JSON.")
        texts.append(text)
    if len(texts) != count:
        raise ValueError(f"{file.name}: it has {len(texts)} texts for {count} vectors.")
    return texts
