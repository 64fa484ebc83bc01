"""Similarity of vectors, in NumPy.

Comment letters: N and M vectors, D width.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]


def similarity_matrix(a: np.ndarray, b: np.ndarray, function: Similarity) -> np.ndarray:
    """Return how similar each of some vectors is to each of others; more is closer.

    Args:
        a: (N, D).
        b: (M, D).
        function: "cosine", "dot", or the negative distance, "euclidean" or "manhattan".

    Returns:
        (N, M) float32.

    Example:
        >>> a, b = np.array([[3.0, 4.0]]), np.array([[3.0, 4.0], [0.0, 2.0]])
        >>> similarity_matrix(a, b, "cosine").round(1).tolist()
        [[1.0, 0.800000011920929]]
        >>> similarity_matrix(a, b, "manhattan").tolist()
        [[0.0, -5.0]]
    """
    a, b = np.asarray(a, "float32"), np.asarray(b, "float32")
    if function == "cosine":
        a, b = unit_rows(a), unit_rows(b)
    if function in ("cosine", "dot"):
        return a @ b.T
    if function == "euclidean":
        a, b = a.astype("float64"), b.astype("float64")  # equal vectors are 0 apart
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * (a @ b.T)
        return -np.sqrt(np.maximum(squares, 0)).astype("float32")
    return np.stack([0 - np.abs(row - b).sum(1) for row in a]) if len(a) else np.zeros((0, len(b)))


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """Return rows (N, D) divided by their Euclidean length; rows of zeros unchanged.

    Example:
        >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
