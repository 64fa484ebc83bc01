"""The files of an index: vectors.safetensors, texts.jsonl and encoder_zoo.json with checksums.

Comment letters: N vectors, D width.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.validation import Rule, check_argument, one_of
from encoder_zoo.presets.files.atomic import Kind, replacing
from encoder_zoo.presets.files.manifest import NAME, read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.tasks.retrieval.documents import Documents

VECTORS, TEXTS, DOCUMENTS = "vectors.safetensors", "texts.jsonl", "documents.jsonl"
# As every `kind` of index does, and no task of a preset.
KIND = Kind(
    "an index",
    lambda manifest: manifest["task"].endswith("_index"),
    read=(VECTORS, TEXTS, DOCUMENTS),
)


# Of arrays by their names: type, and number of axes.
Types = Mapping[str, tuple[str, int]]
FINGERPRINT: Types = {"fingerprint": ("float32", 2)}

TEXT_OR_NONE = Rule(lambda v: isinstance(v, str | None), "a text, or None")


class IndexFiles(NamedTuple):
    """The contents of an index's files.

    Attributes:
        path: of the vectors.
        arrays: of the vectors, mapped, by name.
        documents: their texts, ids and fields.
        manifest: the settings.
    """

    path: pathlib.Path
    arrays: dict[str, np.ndarray]
    documents: Documents
    manifest: dict


def write_index(
    folder: str | os.PathLike,
    kind: str,
    arrays: Mapping[str, np.ndarray],
    documents: Documents,
    settings: Mapping,
) -> None:
    """Write the files of an index, in place of those of an older one; see `replacing`.

    Args:
        folder: to write.
        kind: of the index, for the manifest's "task".
        arrays: the vectors.
        documents: their texts, ids and fields.
        settings: plain data for the manifest.

    Raises:
        ValueError: If the folder holds files that are not of an index.
    """
    with replacing(folder, KIND) as new:
        if arrays:
            save_file(
                {n: np.ascontiguousarray(array) for n, array in arrays.items()}, new / VECTORS
            )
        if documents.texts is not None:
            lines = (json.dumps(text, ensure_ascii=False) for text in documents.texts)
            write_lines(new / TEXTS, lines)
        if (lines := documents.lines()) is not None:
            write_lines(new / DOCUMENTS, lines)
        write_manifest(new, {"task": kind, **settings})


def kind_of(folder: str | os.PathLike) -> str:
    """Return the kind of the index in a folder, by its manifest.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If the folder does not hold an index.
    """
    with OpenFolder(folder, [NAME]) as files:
        kind = read_manifest(files, verify=False).get("task", "")
        if not kind.endswith("_index"):
            raise _holds_none(files)
    return kind


def _holds_none(files: OpenFolder) -> ValueError:
    return ValueError(
        f"{files.path} holds no index. Expected a folder written by save, with its {NAME}."
    )


def write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    """Write lines of JSON."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def read_index(
    folder: str | os.PathLike,
    kind: str,
    types: Mapping[str | None, Types],
    optional_types: Types,
    rules: Mapping[str, Rule],
    verify: bool,
) -> IndexFiles:
    """Return the contents of an index's files, all of the same version; vectors are mapped.

    Args:
        folder: that `write_index` wrote.
        kind: of the index.
        types: of the arrays beside the fingerprint, for each precision.
        optional_types: of arrays of which a file has all or none.
        rules: of the settings beside the prompt; without one the precision is None.
        verify: whether to verify the checksums.

    Raises:
        FileNotFoundError: If the folder does not exist.
        ValueError: If the folder does not hold an index of this kind, or is damaged. See also
            `SafetensorsFile`.
    """
    with OpenFolder(folder, [NAME, VECTORS, TEXTS, DOCUMENTS]) as files:
        rules = {"precision": one_of(None), "prompt": TEXT_OR_NONE, **rules}
        manifest = checked_manifest(files, kind, verify, rules)
        file, types_of_file = files.file(VECTORS), types[manifest.get("precision")]
        required = {**types_of_file, **FINGERPRINT}
        arrays = _read_arrays(SafetensorsFile(file), required, optional_types)
        return IndexFiles(pathlib.Path(file.name), arrays, read_documents(files), manifest)


def checked_manifest(
    files: OpenFolder, kind: str, verify: bool, rules: Mapping[str, Rule] | None = None
) -> dict:
    """Return the manifest of an index's folder.

    Args:
        files: of the folder.
        kind: of the index.
        verify: whether to verify the checksums.
        rules: of the settings in the manifest.

    Raises:
        ValueError: If the folder does not hold an index of this kind, or if a field does not fit
            its rule.
    """
    manifest = read_manifest(files, verify)
    if manifest.get("task") != kind:
        raise _holds_none(files)
    for name, rule in (rules or {}).items():
        try:
            check_argument(name, manifest.get(name), rule)
        except ValueError as error:
            raise ValueError(f"{files.path / NAME}: {error}") from None
    return manifest


def _read_arrays(
    file: SafetensorsFile, types: Types, optional_types: Types
) -> dict[str, np.ndarray]:
    found = {name: (file.dtype(name).name, len(shape)) for name, shape in file.shapes.items()}
    if found.keys() & optional_types.keys():
        types = {**types, **optional_types}
    if found != types:
        raise ValueError(f"{file.path} holds {found}. Expected {types}, types and numbers of axes.")
    return {name: np.asarray(file.mapped(name)) for name in types}


def read_documents(files: OpenFolder) -> Documents:
    """Return the texts, ids and fields of an index's files.

    Raises:
        ValueError: If a line of a file is not a document, or if the files disagree in their number.
    """
    texts, lines = read_texts(files), files.file(DOCUMENTS) if DOCUMENTS in files else None
    documents = Documents.of_lines(lines, texts, DOCUMENTS if lines is None else lines.name)
    counts = {len(c) for c in (texts, documents.ids, documents.metadata) if c is not None}
    if len(counts) > 1:
        raise ValueError(
            f"There are {' and '.join(map(str, sorted(counts)))} texts and documents in "
            f"{files.path}."
        )
    return documents


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
        if b"\\u" in line:
            check_writable(text, f"{file.name}: line {number}")
        texts.append(text)
    return texts
