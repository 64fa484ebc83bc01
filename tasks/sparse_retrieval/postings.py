"""The documents of each term in memory, and the search for those nearest to sparse vectors.

Comment letters: N documents, Q queries, P weights above 0, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from encoder_zoo.tasks.retrieval.vectors import check_finite
from encoder_zoo.tasks.sparse_retrieval.sparse_matrices import best_first, sparse

if TYPE_CHECKING:
    from scipy.sparse import csr_array

QUERIES = 64  # at a time


class Postings:
    """For each term of the vocabulary the documents that have it, and its weights in them.

    Args:
        weights: (V, N), a sparse matrix.

    Example:
        >>> from scipy.sparse import csr_array
        >>> postings = Postings(csr_array(np.array([[0.0, 2.0], [3.0, 1.0]])))
        >>> [(i.tolist(), w.tolist()) for i, w in postings.nearest(csr_array([[0.0, 1.0]]), k=2)]
        [([0, 1], [3.0, 1.0])]
    """

    types: ClassVar = {"weights": ("float32", 1), "terms": ("int32", 1), "starts": ("int64", 1)}

    def __init__(self, weights: csr_array):
        self.weights = weights

    @classmethod
    def of_arrays(
        cls, path: str | os.PathLike, arrays: Mapping[str, np.ndarray], width: int
    ) -> Postings:
        """Return the postings of a file's arrays, checked: scipy reads memory by these numbers.

        Args:
            path: of the file, for errors.
            arrays: those of `types`, of documents one after the other.
            width: V.

        Raises:
            ValueError: "...: terms holds 30522. Expected numbers from 0 to 30521."
        """
        weights, terms, starts = (arrays[name] for name in cls.types)
        check_finite(weights[:, None], f"{path}: weights")
        rises = len(starts) > 1 and starts[0] == 0 and bool((np.diff(starts) >= 0).all())
        if not rises or starts[-1] != len(terms) or len(terms) != len(weights):
            raise ValueError(
                f"{path}: starts does not divide {len(weights)} weights and {len(terms)} terms. "
                "Expected numbers that rise from 0 to the number of both."
            )
        if len(terms) and not (terms.min() >= 0 and terms.max() < width):
            wrong = int(terms.min() if terms.min() < 0 else terms.max())
            raise ValueError(
                f"{path}: terms holds {wrong}. Expected numbers from 0 to {width - 1}."
            )
        shape = (len(starts) - 1, width)
        return cls(sparse.csr_array((weights, terms, starts), shape=shape).T.tocsr())

    def __len__(self) -> int:
        return self.weights.shape[1]

    @property
    def width(self) -> int:
        """Return V."""
        return self.weights.shape[0]

    @property
    def vectors(self) -> csr_array:
        """Return the vectors (N, V)."""
        return self.weights.T.tocsr()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a file."""
        vectors = self.vectors
        parts = vectors.data, vectors.indices, vectors.indptr
        named = zip(self.types.items(), parts, strict=True)
        return {name: part.astype(dtype) for (name, (dtype, _)), part in named}

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        parts = self.weights.data, self.weights.indices, self.weights.indptr
        return sum(part.nbytes for part in parts)

    def joined(self, vectors: csr_array) -> Postings:
        """Return the postings of these documents and of those with the vectors (N, V)."""
        both = [self.weights, vectors.T.tocsr()]
        return Postings(sparse.hstack(both, format="csr"))

    def nearest(self, vectors: csr_array, k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each of the vectors (Q, V) the indices of its nearest documents, and scores.

        Args:
            vectors: of queries.
            k: of each query; fewer if fewer share a term with it.
        """
        for start in range(0, vectors.shape[0], QUERIES):
            scores = (vectors[start : start + QUERIES] @ self.weights).tocsr()
            for begin, end in zip(scores.indptr[:-1], scores.indptr[1:], strict=True):
                found, documents = scores.data[begin:end], scores.indices[begin:end]
                best = best_first(found, documents, min(k, len(found)))
                yield documents[best], found[best]
