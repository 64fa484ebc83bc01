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


def grouped_means(vectors: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a vector for each group: in the direction of its mean, as long as its average one.

    Args:
        vectors: (N, D).
        groups: (N,), the group of each.

    Returns:
        The groups (G,) that there are, sorted, and their vectors (G, D).

    Example:
        >>> vectors = np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 5.0]])
        >>> groups, means = grouped_means(vectors, np.array([7, 4, 4]))
        >>> groups.tolist(), means.tolist()
        ([4, 7], [[0.0, 4.0], [2.0, 0.0]])
    """
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)[order]
    counts = np.diff(starts, append=len(groups))[:, None]
    means = np.add.reduceat(lengths, starts, axis=0) / counts
    means = unit_rows(np.add.reduceat(vectors[order], starts, axis=0)) * means
    return present, means.astype(vectors.dtype)
