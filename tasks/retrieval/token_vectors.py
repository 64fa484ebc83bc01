"""Documents as vectors of their tokens, and the search for those that match queries best (MaxSim).

The score of a document is the sum over the query's tokens of the largest product with one of the
document's tokens. In float32 all documents are compared. As residuals the documents are compared by
the centroids of their tokens, and those that match best by all that is stored of them.

Comment letters: Q queries, N documents, T tokens of all documents, L tokens of all queries, D
width, B tokens of a block, M documents of a block.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from encoder_zoo.tasks.retrieval.options import TokenPrecision
from encoder_zoo.tasks.retrieval.residuals import BinaryResiduals, Int8Residuals
from encoder_zoo.tasks.retrieval.top_k import BestPairs
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors

STORES = {store.precision: store for store in (Float32Vectors, Int8Residuals, BinaryResiduals)}
OVERSAMPLED = 16  # documents scored in full for each result of the search by centroids
MIN_CANDIDATES = 512
AT_ONCE = 2  # queries that are compared with a block
CACHED = 2**18  # products at a time: 1 MB
THREADS = min(8, os.cpu_count() or 1)
# Multiplications of a matrix product that OpenBLAS leaves to one thread. Its own threads wait for
# each other: twice the time for products as flat as these.
ONE_THREAD = 2**17


class TokenVectors:
    """The tokens' vectors of documents, one document after the other.

    Args:
        store: of `STORES`, T vectors.
        ends: (N,) int64, where the tokens of each document end.

    Example:
        >>> documents = [np.eye(2, dtype="float32"), np.array([[0.6, 0.8]], "float32")]
        >>> tokens = TokenVectors.of(documents, "float32")
        >>> len(tokens), tokens.document(1).round(1).tolist()
        (2, [[0.6000000238418579, 0.800000011920929]])
        >>> indices, scores = tokens.nearest([np.eye(2, dtype="float32")], k=2)
        >>> indices.tolist(), scores.round(1).tolist()
        ([[0, 1]], [[2.0, 1.399999976158142]])
    """

    def __init__(self, store: Float32Vectors, ends: np.ndarray):
        self.store = store
        self.ends = ends
        self._begins = np.concatenate([[0], ends[:-1]])

    @classmethod
    def of(cls, documents: Sequence[np.ndarray], precision: TokenPrecision) -> TokenVectors:
        """Return the tokens of documents, each (tokens, D) float32 of unit length."""
        return cls(STORES[precision].of(np.concatenate(documents)), _ends(documents))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def width(self) -> int:
        """Return D."""
        return self.store.width

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a file."""
        return {**self.store.arrays, "ends": self.ends}

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return self.store.nbytes + self.ends.nbytes

    def check(self, path: str | os.PathLike) -> None:
        """Raise an error if the ends that were read from a file cannot be.

        Raises:
            ValueError: "...: ends is no growing list up to the 90 vectors."
        """
        if self._begins[0] or (self.ends <= self._begins).any() or self.ends[-1] != len(self.store):
            raise ValueError(
                f"{path}: ends is no growing list up to the {len(self.store)} vectors."
            )

    def joined(self, documents: Sequence[np.ndarray]) -> TokenVectors:
        """Return these documents and further ones behind them."""
        ends = np.concatenate([self.ends, self.ends[-1] + _ends(documents)])
        return TokenVectors(self.store.joined(np.concatenate(documents)), ends)

    def document(self, index: int) -> np.ndarray:
        """Return the vectors of a document, (tokens, D) float32."""
        return self.store.rows(slice(self._begins[index], self.ends[index]))

    def nearest(self, queries: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the `k` documents that match each query best, of equal ones the earlier.

        Args:
            queries: Q arrays (tokens, D) float32.
            k: at most N.

        Returns:
            Indices (Q, k) int64, scores (Q, k) float32.
        """
        found = []
        for i in range(0, len(queries), AT_ONCE):
            part = queries[i : i + AT_ONCE]
            rows, columns = self._candidates(part, k)
            found += [self._best(q, columns[rows == j], k) for j, q in enumerate(part)]
        return np.stack([f[0] for f in found]), np.stack([f[1] for f in found])

    def _candidates(self, queries: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of queries and documents that can be among the `k` best of each query."""
        of_queries = np.concatenate(queries)  # (L, D)
        if isinstance(self.store, Int8Residuals):
            products = self.store.coarse(of_queries)
            k = min(len(self), max(OVERSAMPLED * k, MIN_CANDIDATES))
        else:
            products = functools.partial(_products, self.store, of_queries)
        starts = np.concatenate([[0], _ends(queries)[:-1]])
        scores = np.empty((len(queries), len(self)), "float32")

        def score(blocks: np.ndarray) -> None:
            for first, last in blocks:
                best = self._best_of_tokens(products, first, last)
                scores[:, first:last] = np.add.reduceat(best, starts, axis=1).T

        with ThreadPoolExecutor(THREADS) as threads:
            parts = np.array_split(self._blocks(len(of_queries)), THREADS)
            list(threads.map(score, parts))
        best = BestPairs(len(queries), k)
        best.add(scores, start=0)
        return best.pairs()

    def _blocks(self, made: int) -> np.ndarray:
        """Return the first and the last document of blocks whose products stay in a cache.

        Args:
            made: products of each token.
        """
        cuts = [0]
        while cuts[-1] < len(self):
            most = self._begins[cuts[-1]] + CACHED // made
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(self.ends, most, "right"))))
        return np.stack([cuts[:-1], cuts[1:]], axis=1)

    def _best_of_tokens(self, products: Callable, first: int, last: int) -> np.ndarray:
        """Return the largest product of each document's tokens with each query token, (M, L)."""
        begins = self._begins[first:last]
        part = slice(int(begins[0]), int(self.ends[last - 1]))
        return np.maximum.reduceat(products(part), begins - part.start, axis=0)

    def _best(self, query: np.ndarray, documents: np.ndarray, k: int):
        """Return the indices (k,) and scores (k,) of the best of some documents, in float64."""
        if len(documents) > 2 * k:
            best = BestPairs(1, k)
            best.add(self._scores(query, documents, "float32")[None], start=0)
            documents = documents[np.sort(best.pairs()[1])]
        scores = self._scores(query, documents, "float64").astype("float32")
        order = np.lexsort((documents, -scores))[:k]
        return documents[order], scores[order]

    def _scores(self, query: np.ndarray, documents: np.ndarray, dtype: str) -> np.ndarray:
        """Return the scores (M,) of some documents by all that is stored of their tokens."""
        lengths = self.ends[documents] - self._begins[documents]
        starts = np.cumsum(lengths) - lengths
        tokens = np.repeat(self._begins[documents] - starts, lengths) + np.arange(lengths.sum())
        products = query.astype(dtype) @ self.store.rows(tokens).astype(dtype, copy=False).T
        return np.maximum.reduceat(products, starts, axis=1).sum(axis=0)


def _products(store: Float32Vectors, queries: np.ndarray, part: slice) -> np.ndarray:
    """Return the products of a part of the vectors with query tokens (L, D), (B, L)."""
    tokens, width = store.rows(part), store.width
    rows = max(1, ONE_THREAD // queries.size)
    whole = len(tokens) // rows * rows
    found = np.empty((len(tokens), len(queries)), "float32")
    shape = (-1, rows, len(queries))
    np.matmul(tokens[:whole].reshape(-1, rows, width), queries.T, out=found[:whole].reshape(shape))
    np.matmul(tokens[whole:], queries.T, out=found[whole:])
    return found


def _ends(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return where each of some arrays ends, one behind the other."""
    return np.cumsum([len(array) for array in arrays], dtype="int64")
