"""The vectors of a sparse index in its file, vectors.safetensors.

Comment letters: N documents, P weights above 0, V vocabulary.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.presets.files.atomic import replacing
from encoder_zoo.presets.files.manifest import NAME, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.tasks.retrieval.index_checks import PROBES, check_text_count
from encoder_zoo.tasks.retrieval.index_files import (
    TEXTS,
    VECTORS,
    check_shape,
    checked_manifest,
    read_texts,
    write_texts,
)
from encoder_zoo.tasks.retrieval.vectors import check_finite
from encoder_zoo.tasks.sparse_retrieval.rows import import_scipy

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PROBE = "probe"  # the encoder's own vectors of some texts
KIND = "sparse_index"  # where the manifest of a preset names its task
# Of the arrays: type and number of axes.
TYPES = {"weights": ("float32", 1), "terms": ("int32", 1), "starts": ("int64", 1)}
TYPES |= {PROBE: ("float32", 2)}


def write_index(
    folder: str | os.PathLike,
    vectors: csr_array,
    texts: Sequence[str] | None,
    probe: np.ndarray,
    settings: Mapping,
) -> None:
    """Write the files of an index, in place of those that are there, in one step.

    Args:
        folder: to write.
        vectors: (N, V).
        texts: N texts, or None.
        probe: see `probe_of`.
        settings: plain data for the manifest.
    """
    arrays = {
        "weights": vectors.data.astype("float32"),
        "terms": vectors.indices.astype("int32"),
        "starts": vectors.indptr.astype("int64"),
        PROBE: probe,
    }
    with replacing(folder) as new:
        save_file(arrays, new / VECTORS)
        if texts is not None:
            write_texts(new / TEXTS, texts)
        write_manifest(new, {"task": KIND, **settings})


def read_index(
    folder: str | os.PathLike, verify: bool
) -> tuple[csr_array, list[str] | None, np.ndarray, dict]:
    """Return the contents of an index's files, all of the same version.

    Returns:
        The vectors (N, V), N texts or None, the probe, and the manifest.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: "... holds no index: ...", "... is damaged or changed: ...", "...: terms holds
            30522. Expected numbers from 0 to 30521.", and see `SafetensorsFile`.
    """
    with OpenFolder(folder, [NAME, VECTORS, TEXTS]) as files:
        manifest = checked_manifest(files, KIND, verify)
        vectors, probe = _read_vectors(files.file(VECTORS))
        texts = read_texts(files)
        check_text_count(texts, vectors.shape[0], "vectors")
        return vectors, texts, probe, manifest


def _read_vectors(file: BinaryIO) -> tuple[csr_array, np.ndarray]:
    """Return the vectors (N, V) and the probe, checked: scipy reads memory by these numbers."""
    path, file = pathlib.Path(file.name), SafetensorsFile(file)
    found = {name: (file.dtype(name).name, len(shape)) for name, shape in file.shapes.items()}
    if found != TYPES:
        raise ValueError(f"{path}: it holds {found}. Expected {TYPES}, with the numbers of axes.")
    width = file.shapes[PROBE][1]
    check_shape(path, PROBE, file.shapes[PROBE], (len(PROBES), width))
    weights, terms, starts, probe = (file.read(name) for name in TYPES)
    check_finite(weights[:, None], f"{path}: weights")
    rises = len(starts) > 1 and starts[0] == 0 and bool((np.diff(starts) >= 0).all())
    if not rises or starts[-1] != len(terms) or len(terms) != len(weights):
        raise ValueError(
            f"{path}: starts does not divide {len(weights)} weights and {len(terms)} terms. "
            "Expected numbers that rise from 0 to the number of both."
        )
    if len(terms) and not (terms.min() >= 0 and terms.max() < width):
        outside = int(terms.min() if terms.min() < 0 else terms.max())
        raise ValueError(f"{path}: terms holds {outside}. Expected numbers from 0 to {width - 1}.")
    shape = (len(starts) - 1, width)
    return import_scipy().csr_array((weights, terms, starts), shape=shape), probe


def probe_of(encoder, dim: int | None = None) -> np.ndarray:
    """Return the encoder's vectors of `PROBES` (2, V), by which an index knows it again."""
    return encoder.embed(list(PROBES), "query").toarray()
