"""Checks of an index's arguments, before any work.

Comment letters: N documents, D width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from encoder_zoo.common.lazy import require
from encoder_zoo.tasks.preprocessing.preprocessor import as_column
from encoder_zoo.tasks.retrieval.faiss_engine import faiss
from encoder_zoo.tasks.retrieval.vectors import check_finite

# The vectors of these tell embedders apart: other weights, pooling, prompts, tokenizers.
FINGERPRINT_TEXTS = ("Where is the key?", "A naïve 东西 of 12.5 kg, isn't it?")
MAX_APART = 0.05  # of a vector's length; bfloat16 in place of float32 changes 0.01


def check_engine(engine: str | None, precision: str) -> None:
    """Raise an error if faiss is asked for and not installed, or has no such precision."""
    if engine is None:
        return
    if precision != "float32":
        raise ValueError(f"engine='faiss' searches in float32. Received: precision={precision!r}.")
    require(faiss)


def checked_texts(values, name: str, least: int = 1) -> list[str]:
    """Return a column of texts as a list.

    Raises:
        ValueError: "documents is empty. Expected one or more texts.", "documents[3] is empty. ..."
    """
    texts = [text.decode("utf-8", "replace") for text in as_column(values, name).numpy().tolist()]
    if len(texts) < least:
        raise ValueError(f"{name} is empty. Expected one or more texts.")
    for i, text in enumerate(texts):
        if not text.strip():
            raise ValueError(
                f"{name}[{i}] is empty. Expected some text: leave it out, or put a placeholder "
                "there."
            )
    return texts


def checked_vectors(vectors, most: int) -> np.ndarray:
    """Return a copy of vectors (N, D) as float32.

    Raises:
        ValueError: "vectors has the shape (3,). ...", "vectors are 512 wide. Expected at most ..."
    """
    found = np.asarray(vectors)
    if found.ndim != 2 or found.dtype.kind != "f" or not found.size:
        raise ValueError(
            f"vectors has the shape {found.shape} and the type {found.dtype}. Expected (N, D) "
            "floating-point numbers, as of embed."
        )
    if found.shape[1] > most:
        raise ValueError(
            f"vectors are {found.shape[1]} wide. Expected at most {most}, the embedder's width."
        )
    check_finite(found, "vectors")
    return np.array(found, "float32")


def check_text_count(texts: Sequence[str] | None, count: int, name: str) -> None:
    """Raise an error if there are texts, and not one for each document.

    Raises:
        ValueError: "There are 2 texts for 3 vectors."
    """
    if texts is not None and len(texts) != count:
        raise ValueError(f"There are {len(texts)} texts for {count} {name}.")


def checked_and_normalized(vectors: np.ndarray, function: str, name: str) -> np.ndarray:
    """Return vectors (N, D), checked, and changed to unit length if they are for "cosine".

    Raises:
        ValueError: "vectors[3] has a number that is NaN or infinite. Expected finite numbers."

    Example:
        >>> vectors = np.array([[3.0, 4.0]], "float32")
        >>> checked_and_normalized(vectors, "cosine", "vectors").round(1).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    check_finite(vectors, name)
    if function == "cosine":
        vectors /= np.maximum(np.sqrt(np.einsum("nd,nd->n", vectors, vectors)), 1e-12)[:, None]
    return vectors


def are_close(vectors: np.ndarray, expected: np.ndarray) -> bool:
    """Return whether vectors (N, D) differ from others by rounding alone.

    Example:
        >>> are_close(np.array([[1.02, 0.0]]), np.array([[1.0, 0.0]]))
        True
        >>> are_close(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]))
        False
    """
    if vectors.shape != expected.shape:
        return False
    apart = np.linalg.norm(vectors - expected, axis=1)
    return bool((apart <= MAX_APART * np.linalg.norm(expected, axis=1)).all())


def check_embedder(
    embedder, dim: int, fingerprint: np.ndarray, manifest: dict, folder, fingerprint_of: Callable
) -> None:
    """Raise an error if an index was not built with this embedder.

    Args:
        embedder: to be used.
        dim: the width of the index's vectors.
        fingerprint: the vectors of `FINGERPRINT_TEXTS` when it was built.
        manifest: of the index.
        folder: of the index, for the message.
        fingerprint_of: makes those vectors.

    Raises:
        ValueError: "... is the index of another embedder: ... Build it again with this ..."
    """
    function = manifest.get("similarity_function")
    if dim > embedder.embedding_dim:
        reason = f"its vectors are {dim} wide, this one's {embedder.embedding_dim}"
    elif function != embedder.similarity_function:
        reason = f"it was built for {function!r}, this one compares by "
        reason += repr(embedder.similarity_function)
    elif are_close(fingerprint_of(embedder, dim), fingerprint):
        return
    else:
        reason = "its vectors of the same texts are others"
    raise ValueError(
        f"{os.fspath(folder)} is the index of another embedder: {reason}. Build it again with this "
        "one, embedder.index(documents), or load the embedder that it was built with."
    )
