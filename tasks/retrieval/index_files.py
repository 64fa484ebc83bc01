"""Read and write index files: vectors.safetensors, texts.jsonl, and encoder_zoo.json.

Comments use these letters for shapes: N vectors, D width.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.validation import Rule, check_argument, one_of
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.files.manifest import MANIFEST_NAME, read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.tasks.retrieval.documents import Documents

VECTORS_FILE, TEXTS_FILE, DOCUMENTS = "vectors.safetensors", "texts.jsonl", "documents.jsonl"
# The name of each kind of index ends with "_index". Names of tasks do not.
INDEX_KIND = FolderKind(
    "an index",
    lambda manifest: manifest["task"].endswith("_index"),
    read=(VECTORS_FILE, TEXTS_FILE, DOCUMENTS),
)


# Dict of array names to the type and the number of axes of each array.
Types = Mapping[str, tuple[str, int]]
FINGERPRINT: Types = {"fingerprint": ("float32", 2)}

TEXT_OR_NONE = Rule(lambda v: isinstance(v, str | None), "a string or None")


def write_index(
    folder: str | os.PathLike,
    kind: str,
    arrays: Mapping[str, np.ndarray],
    documents: Documents,
    settings: Mapping,
) -> None:
    """Write all files of an index to a folder. An existing index is replaced.

    Args:
        folder: String or path. Folder to write.
        kind: String. Kind of index, saved as "task" in the manifest.
        arrays: Dict mapping names to arrays.
        documents: The texts, ids and fields for the documents.
        settings: Dict of plain values for the manifest.

    Raises:
        ValueError: If `folder` contains a preset, or if a file from another program would be
            replaced.
    """
    with replace_folder(folder, INDEX_KIND) as new:
        if arrays:
            save_file(
                {n: np.ascontiguousarray(array) for n, array in arrays.items()}, new / VECTORS_FILE
            )
        if documents.texts is not None:
            lines = (json.dumps(text, ensure_ascii=False) for text in documents.texts)
            write_lines(new / TEXTS_FILE, lines)
        if (lines := documents.make_json_lines()) is not None:
            write_lines(new / DOCUMENTS, lines)
        write_manifest(new, {"task": kind, **settings})


def read_kind(folder: str | os.PathLike) -> str:
    """Read the kind of index from the manifest in a folder.

    Raises:
        FileNotFoundError: If `folder` does not exist.
        ValueError: If `folder` does not contain an index.
    """
    with OpenFolder(folder, [MANIFEST_NAME]) as files:
        kind = read_manifest(files, verify=False).get("task", "")
        if not kind.endswith("_index"):
            raise _make_missing_error(files)
    return kind


def _make_missing_error(files: OpenFolder) -> ValueError:
    return ValueError(
        f"{files.path} does not contain an index. Expected a folder with {MANIFEST_NAME}, as "
        "written by `save`."
    )


def write_lines(path: pathlib.Path, lines: Iterable[str]) -> None:
    """Write JSON lines to a file."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def read_index(
    folder: str | os.PathLike,
    kind: str,
    types: Mapping[str | None, Types],
    optional_types: Types,
    rules: Mapping[str, Rule],
    verify: bool,
) -> tuple[pathlib.Path, dict[str, np.ndarray], Documents, dict]:
    """Read all files of an index. The vectors are memory-mapped.

    Args:
        folder: String or path. Folder written by `write_index`.
        kind: String. The expected kind of index.
        types: Dict mapping precisions to the types of the arrays, without the fingerprint.
        optional_types: Types of optional arrays. A file contains either all or none of them.
        rules: Dict of validation rules for the settings. A rule for the prompt is added. Without a
            rule for the precision, the precision must be None.
        verify: Boolean. Whether to verify the file checksums.

    Returns:
        Tuple of the path of the file with the vectors, a dict with memory-mapped arrays, the
        documents, and a dict with the settings.

    Raises:
        FileNotFoundError: If `folder` does not exist.
        ValueError: If `folder` does not contain an index of this `kind`, or if the index is
            damaged.
    """
    with OpenFolder(folder, [MANIFEST_NAME, VECTORS_FILE, TEXTS_FILE, DOCUMENTS]) as files:
        rules = {"precision": one_of(None), "prompt": TEXT_OR_NONE, **rules}
        manifest = check_manifest(files, kind, verify, rules)
        file, types_of_file = files.open_file(VECTORS_FILE), types[manifest.get("precision")]
        required = {**types_of_file, **FINGERPRINT}
        arrays = _read_arrays(SafetensorsFile(file), required, optional_types)
        return pathlib.Path(file.name), arrays, read_documents(files), manifest


def check_manifest(
    files: OpenFolder, kind: str, verify: bool, rules: Mapping[str, Rule] | None = None
) -> dict:
    """Read and check the manifest of an index.

    Args:
        files: The opened folder.
        kind: String. The expected kind of index.
        verify: Boolean. Whether to verify the file checksums.
        rules: Optional dict of validation rules for the settings.

    Raises:
        ValueError: If the folder does not contain an index, if the index is of another kind, or if
            a setting is invalid.
    """
    manifest = read_manifest(files, verify)
    if manifest.get("task") != kind:
        raise _make_missing_error(files)
    for name, rule in (rules or {}).items():
        try:
            check_argument(name, manifest.get(name), rule)
        except ValueError as error:
            raise ValueError(f"{files.path / MANIFEST_NAME}: {error}") from None
    return manifest


def _read_arrays(
    file: SafetensorsFile, types: Types, optional_types: Types
) -> dict[str, np.ndarray]:
    found = {name: (file.get_dtype(name).name, len(shape)) for name, shape in file.shapes.items()}
    if found.keys() & optional_types.keys():
        types = {**types, **optional_types}
    if found != types:
        raise ValueError(
            f"{file.path} contains {found}. Expected {types} (type and number of axes)."
        )
    return {name: np.asarray(file.map_tensor(name)) for name in types}


def read_documents(files: OpenFolder) -> Documents:
    """Read the texts, ids and fields of an index.

    Raises:
        ValueError: If a line is not a valid document, or if the files have different numbers of
            lines.
    """
    texts, lines = read_texts(files), files.open_file(DOCUMENTS) if DOCUMENTS in files else None
    documents = Documents.from_lines(lines, texts, DOCUMENTS if lines is None else lines.name)
    counts = {len(column) for column in documents.columns if column is not None}
    if len(counts) > 1:
        raise ValueError(
            f"The files in {files.path} have different numbers of lines: "
            f"{' and '.join(map(str, sorted(counts)))}. Build the index again."
        )
    return documents


def read_texts(files: OpenFolder) -> list[str] | None:
    """Read a file with one JSON string per line, or return None if the file does not exist."""
    if TEXTS_FILE not in files:
        return None
    texts, file = [], files.open_file(TEXTS_FILE)
    for number, line in enumerate(file, 1):
        try:
            text = json.loads(line) if line.startswith(b'"') else None
        except ValueError:
            text = None
        if text is None:
            raise ValueError(f"{file.name}: line {number} is not a JSON string.")
        if b"\\u" in line:
            check_encodable(text, f"{file.name}: line {number}")
        texts.append(text)
    return texts
