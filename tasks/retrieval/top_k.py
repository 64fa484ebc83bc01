"""The best of many scores, taken block by block, so that memory does not grow with the corpus.

Comment letters: Q queries, N vectors, B vectors of a block, D width, P pairs of a query and a
vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from encoder_zoo.tasks.retrieval.options import Hit

BLOCK = 2**20  # numbers at a time, of scores or of vectors: 4 MB
QUERIES = 1024  # at a time
SAMPLE = 4096  # vectors whose scores show which ones can be among the best
# The same vector may get scores that differ in their last bits, by where it stands in a block.
ROUNDING = 4e-6
TIES = 1000  # vectors beyond `k`, as near as the last one, that are looked at


class BestPairs:
    """Keeps those pairs of a query and a vector that can be among the `k` best of the query.

    Args:
        queries: Q, how many.
        k: of every query.

    Example:
        >>> best = BestPairs(queries=2, k=1)
        >>> best.add(np.array([[1.0, 3.0], [5.0, 4.0]], "float32"), start=0)
        >>> best.add(np.array([[2.0], [6.0]], "float32"), start=2)
        >>> [part.tolist() for part in best.pairs()]
        [[0, 1], [1, 2]]
    """

    def __init__(self, queries: int, k: int):
        self.k = k
        self._least = np.full((queries, 1), -np.inf, "float32")  # a lower score is not kept
        self._rows = self._columns = np.zeros(0, "int64")  # (P,) of queries, of vectors
        self._scores = np.zeros(0, "float32")
        self._limit = 0

    def add(self, scores: np.ndarray, start: int) -> None:
        """Add the scores (Q, B) of the vectors from index `start` on."""
        sample = scores[:, : max(SAMPLE, 64 * self.k)]
        if start == 0 and sample.shape[1] > self.k:
            self._raise_least(np.partition(sample, -self.k, axis=1)[:, -self.k])
        found = np.flatnonzero(scores >= self._least)  # 10 times as fast as `np.nonzero`
        rows, columns = np.divmod(found, scores.shape[1])
        self._scores = np.concatenate([self._scores, scores.ravel()[found]])
        self._rows = np.concatenate([self._rows, rows])
        self._columns = np.concatenate([self._columns, columns + start])
        if len(self._rows) > self._limit:
            self._drop()

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the queries (P,) and the vectors (P,) of the pairs, sorted by query."""
        self._drop()
        return self._rows, self._columns

    def _raise_least(self, kth: np.ndarray) -> None:
        self._least = (kth - ROUNDING * np.abs(kth))[:, None]

    def _drop(self) -> None:
        """Drop the pairs that are not among the best so far."""
        order = np.lexsort((-self._scores, self._rows))  # equal ones keep their order
        rows, scores = self._rows[order], self._scores[order]
        ranks = ranks_in_groups(rows)
        kth = np.full(len(self._least), -np.inf, "float32")
        is_kth = ranks == self.k - 1
        kth[rows[is_kth]] = scores[is_kth]
        self._raise_least(kth)
        kept = (scores >= self._least[rows, 0]) & (ranks < self.k + TIES)
        self._rows, self._scores = rows[kept], scores[kept]
        self._columns = self._columns[order][kept]
        self._limit = 2 * len(self._rows)


def ranks_in_groups(groups: np.ndarray) -> np.ndarray:
    """Return the position of each item in its group, of sorted numbers of groups (P,).

    Example:
        >>> ranks_in_groups(np.array([0, 0, 0, 2, 2])).tolist()
        [0, 1, 2, 0, 1]
    """
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def scan(
    scores: Callable[[int, int], np.ndarray], queries: int, count: int, made: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of queries and vectors that include the `k` best of each query.

    Args:
        scores: returns those of all queries and the vectors from one index up to another, (Q, B).
        queries: Q.
        count: N.
        made: how many numbers `scores` holds in memory for each vector.
        k: of each query, at most N.

    Returns:
        Queries (P,) and vectors (P,), sorted by query.

    Example:
        >>> vectors = np.array([[1.0], [3.0], [2.0]], "float32")
        >>> [part.tolist() for part in scan(lambda a, b: vectors[a:b].T, 1, 3, made=1, k=2)]
        [[0, 0], [1, 2]]
    """
    best = BestPairs(queries, k)
    step = max(1, BLOCK // max(queries, made))
    starts = range(0, count, step)
    blocks = _one_ahead(lambda start: scores(start, min(start + step, count)), starts)
    for start, block in zip(starts, blocks, strict=True):
        best.add(block, start)
    return best.pairs()


def _one_ahead(function: Callable[[int], np.ndarray], items: Sequence[int]) -> Iterator[np.ndarray]:
    """Yield the function of each item, computing the next one while one is used."""
    if len(items) == 1:
        yield function(items[0])
        return
    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(function, items[0])
        for item in items[1:]:
            found = following.result()
            following = thread.submit(function, item)
            yield found
        yield following.result()


def nearest(store, queries: np.ndarray, function: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` vectors nearest to each query, the nearest first, of equal ones the earlier.

    The scores of what a store finds are computed again from the float32 query and the store's
    vectors. So they do not depend on the other queries, equal vectors have equal scores, and
    candidates that a coarse precision found come into their order.

    Args:
        store: of `tasks.retrieval.vectors`.
        queries: (Q, D) float32; of unit length if the function is "cosine".
        function: a `Similarity`.
        k: at most N.

    Returns:
        Indices (Q, k) int64, scores (Q, k) float32.

    Example:
        >>> from encoder_zoo.tasks.retrieval.vectors import Float32Vectors
        >>> store = Float32Vectors.of(np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]], "float32"))
        >>> indices, scores = nearest(store, np.array([[1.0, 3.0]], "float32"), "dot", k=3)
        >>> indices.tolist(), scores.tolist()
        ([[1, 2, 0]], [[6.0, 6.0, 1.0]])
    """
    step = max(1, min(QUERIES, BLOCK // k))
    parts = [
        _nearest(store, queries[i : i + step], function, k) for i in range(0, len(queries), step)
    ]
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def _nearest(store, queries: np.ndarray, function: str, k: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = store.candidates(queries, function, k)
    scores = np.empty(len(rows), "float32")
    step = max(1, BLOCK // queries.shape[1])
    for i in range(0, len(rows), step):
        part = slice(i, i + step)
        scores[part] = pair_scores(queries[rows[part]], store.rows(columns[part]), function)
    order = np.lexsort((columns, -scores, rows))
    order = order[ranks_in_groups(rows) < k]  # `rows` are sorted, before and after
    return columns[order].reshape(-1, k), scores[order].reshape(-1, k)


def pair_scores(a: np.ndarray, b: np.ndarray, function: str) -> np.ndarray:
    """Return the similarity of each vector to the one in the same row, (P,) float32.

    Args:
        a: (P, D).
        b: (P, D).
        function: a `Similarity`; for "cosine" the vectors have unit length.

    Example:
        >>> a, b = np.array([[3.0, 4.0]]), np.array([[0.0, 0.0]])
        >>> [pair_scores(a, b, name).tolist() for name in ("dot", "euclidean", "manhattan")]
        [[0.0], [-5.0], [-7.0]]
    """
    if function in ("cosine", "dot"):
        found = np.multiply(a, b, dtype="float64").sum(axis=1)
    elif function == "euclidean":
        found = 0 - np.sqrt(np.square(np.subtract(a, b, dtype="float64")).sum(axis=1))
    else:
        found = 0 - np.abs(np.subtract(a, b, dtype="float64")).sum(axis=1)
    return found.astype("float32")


def ordering_scores(queries: np.ndarray, vectors: np.ndarray, function: str) -> np.ndarray:
    """Return scores (Q, B) that order vectors (B, D) for each query as the similarity does.

    Example:
        >>> vectors = np.array([[3.0, 4.0], [1.0, 0.0]], "float32")
        >>> ordering_scores(np.array([[1.0, 1.0]], "float32"), vectors, "euclidean").tolist()
        [[-5.5, 0.5]]
    """
    if function == "manhattan":
        return np.stack([-np.abs(query - vectors).sum(axis=1) for query in queries])
    products = queries @ vectors.T
    if function == "euclidean":  # half of the negative squared distance, plus the query's own part
        products -= 0.5 * np.einsum("nd,nd->n", vectors, vectors)
    return products


def reranked(reranker: Any, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
    """Return the best of some hits in the reranker's order, with its scores."""
    ranked = reranker.rank(query, [hit["text"] for hit in hits], top_k=top_k)
    return [{**hits[one["index"]], "score": one["score"]} for one in ranked]
