"""Sparse matrices with one row for each text, by scipy.

Comment letters: N texts, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import LazyModule

if TYPE_CHECKING:
    from scipy.sparse import csr_array

sparse = LazyModule("scipy.sparse", "Sparse vectors need the package scipy: `pip install scipy`.")


def as_rows(weights: np.ndarray, most: int | None = None) -> csr_array:
    """Return dense weights (N, V) as a sparse matrix, with the largest of each row if they are
    more than `most`.

    Example:
        >>> as_rows(np.array([[0.0, 2.0, 1.0, 3.0]]), 2).toarray().tolist()
        [[0.0, 2.0, 0.0, 3.0]]
    """
    if most is not None and most < weights.shape[1]:
        kept = np.argpartition(-weights, most - 1, axis=1)[:, :most]
        rows = np.zeros_like(weights)
        np.put_along_axis(rows, kept, np.take_along_axis(weights, kept, axis=1), axis=1)
        weights = rows
    return sparse.csr_array(weights)


def unit_rows(rows: csr_array) -> csr_array:
    """Return rows (N, V) divided by their Euclidean length; rows of zeros unchanged.

    Example:
        >>> unit_rows(as_rows(np.array([[0.0, 4.0], [0.0, 0.0]]))).toarray().tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    lengths = np.sqrt(rows.multiply(rows).sum(axis=1))
    scale = (1 / np.maximum(lengths, 1e-12)).astype(rows.dtype)
    scaled = rows.copy()
    scaled.data *= np.repeat(scale, np.diff(rows.indptr))
    return scaled


def normalized_for(rows, function: str) -> csr_array:
    """Return rows (N, V) of weights in float32, of unit length if "cosine" compares them.

    Raises:
        ValueError: "vectors[3] has a weight that is NaN or infinite. Expected finite numbers."
    """
    rows = sparse.csr_array(rows).astype("float32")
    finite = np.isfinite(rows.data)
    if not finite.all():
        row = int(np.searchsorted(rows.indptr, finite.argmin(), side="right")) - 1
        raise ValueError(
            f"vectors[{row}] has a weight that is NaN or infinite. Expected finite numbers."
        )
    return unit_rows(rows) if function == "cosine" else rows


def best_first(weights: np.ndarray, indices: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the largest weights, of equal ones the lower index first.

    Args:
        weights: (P,).
        indices: (P,), different numbers.
        most: how many, at most P.

    Example:
        >>> best_first(np.array([1.0, 5.0, 1.0]), np.array([7, 3, 2]), 2).tolist()
        [1, 2]
    """
    candidates = np.arange(len(weights))
    if most < len(weights):
        candidates = np.flatnonzero(weights >= np.partition(weights, -most)[-most])
    order = np.lexsort((indices[candidates], -weights[candidates]))
    return candidates[order[:most]]
