"""Vectors in memory, and search for the nearest vectors, block by block.

Vectors are stored in float32, in int8, or in int8 with packed signs ("binary"). For N vectors with
D dimensions, where D is a multiple of 64, the size is 4 N D bytes for "float32", N D bytes for
"int8", and N D plus N D / 8 bytes for "binary". A binary search compares the query with all signs,
and then with the int8 vectors of a few candidates. Scores are computed in blocks, so that large
corpora do not need more memory.

Comments use these letters for shapes: Q queries, N vectors, B vectors of a block, D dimensions, P
pairs of a query and a vector, W words of signs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Self

import numpy as np

from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.retrieval.similarity import (
    Similarity,
    check_finite,
    compute_ordering_scores,
    compute_paired_similarities,
)

VECTOR_BLOCK = 2**20  # number of scores or vector values that are computed at a time, 4 MB
THRESHOLD_SAMPLE = 4096  # number of vectors from which the minimum score is estimated
# Maximum rounding error of a float32 score, relative to the largest product in it.
COSINE_ROUNDING = 4e-6
QUERY_BLOCK = 1024  # number of queries that are searched at a time
TIES = 1000  # number of vectors beyond `k` to keep if their scores are nearly equal
CANDIDATES_PER_RESULT = 20  # candidates per result in a search by signs
MIN_CANDIDATES = 200
# Number of queries whose signs are compared at a time, so that blocks contain many vectors.
QUERIES_AT_ONCE = 32


class BestPairs:
    """Collect the pairs (query, vector) that can be among the `k` best pairs of the query.

    Args:
        queries: Integer. Number of queries.
        k: Integer. Number of results per query.
        rounding: Optional array of shape (Q,). Rounding error of the scores of each query. If two
            scores differ by less, both pairs are kept. If None, the error is relative to the score.

    Attributes:
        crowded: Boolean array of shape (Q,). Whether vectors were dropped because more than `TIES`
            vectors are as near as the last result.

    Example:
        >>> best = BestPairs(queries=2, k=1)
        >>> best.add(np.array([[1.0, 3.0], [5.0, 4.0]], "float32"), start=0)
        >>> best.add(np.array([[2.0], [6.0]], "float32"), start=2)
        >>> [part.tolist() for part in best.get_pairs()]
        [[0, 1], [1, 2]]
    """

    def __init__(self, queries: int, k: int, rounding: np.ndarray | None = None):
        self.k = k
        self.crowded = np.zeros(queries, bool)
        self._rounding = rounding
        self._least = np.full((queries, 1), -np.inf, "float32")  # lower scores are dropped
        self._rows = self._columns = np.zeros(0, "int64")  # (P,) indices of queries and vectors
        self._scores = np.zeros(0, "float32")
        self._limit = 0

    def add(self, scores: np.ndarray, start: int) -> None:
        """Add the scores (Q, B) of a block of vectors that starts at index `start`."""
        sample = scores[:, : max(THRESHOLD_SAMPLE, 64 * self.k)]
        if start == 0 and sample.shape[1] > self.k:
            self._raise_threshold(np.partition(sample, -self.k, axis=1)[:, -self.k])
        found = np.flatnonzero(scores >= self._least)  # 10 times as fast as `np.nonzero`
        rows, columns = np.divmod(found, scores.shape[1])
        self._scores = np.concatenate([self._scores, scores.ravel()[found]])
        self._rows = np.concatenate([self._rows, rows])
        self._columns = np.concatenate([self._columns, columns + start])
        if len(self._rows) > self._limit:
            self._drop_pairs()

    def get_pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the query indices (P,) and vector indices (P,) of all pairs, sorted by query."""
        self._drop_pairs()
        return self._rows, self._columns

    def _raise_threshold(self, kth: np.ndarray) -> None:
        rounding = COSINE_ROUNDING * np.abs(kth) if self._rounding is None else self._rounding
        self._least = (kth - rounding)[:, None]

    def _drop_pairs(self) -> None:
        """Drop the pairs that cannot be among the best any more."""
        order = np.lexsort((-self._scores, self._rows))  # equal scores keep their order
        rows, scores = self._rows[order], self._scores[order]
        ranks = compute_ranks_in_groups(rows)
        kth = np.full(len(self._least), -np.inf, scores.dtype)
        is_kth = ranks == self.k - 1
        kth[rows[is_kth]] = scores[is_kth]
        self._raise_threshold(kth)
        near = scores >= self._least[rows, 0]
        kept = near & (ranks < self.k + TIES)
        self.crowded[rows[near & ~kept]] = True
        self._rows, self._scores = rows[kept], scores[kept]
        self._columns = self._columns[order][kept]
        self._limit = 2 * len(self._rows)


def compute_ranks_in_groups(groups: np.ndarray) -> np.ndarray:
    """Return the position of each item in its group. The group numbers (P,) must be sorted.

    Example:
        >>> compute_ranks_in_groups(np.array([0, 0, 0, 2, 2])).tolist()
        [0, 1, 2, 0, 1]
    """
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def replace_pairs(
    rows: np.ndarray, columns: np.ndarray, queries: np.ndarray, others: tuple
) -> tuple[np.ndarray, np.ndarray]:
    """Replace the pairs for some queries.

    Args:
        rows, columns: Integer arrays of shape (P,). Indices of queries and vectors, sorted by
            query.
        queries: Integer array. Indices of the queries whose pairs are replaced.
        others: Tuple of the rows and columns of the new pairs. The rows are positions in `queries`.

    Example:
        >>> pairs = replace_pairs(np.array([0, 1]), np.array([7, 8]), np.array([0]), ([0], [9]))
        >>> [part.tolist() for part in pairs]
        [[0, 1], [9, 8]]
    """
    stay = ~np.isin(rows, queries)
    rows = np.concatenate([rows[stay], queries[others[0]]])
    columns = np.concatenate([columns[stay], others[1]])
    order = np.argsort(rows, kind="stable")
    return rows[order], columns[order]


def find_best_pairs(
    score: Callable[[slice], np.ndarray],
    queries: int,
    count: int,
    made: int,
    k: int,
    rounding: np.ndarray | None = None,
) -> BestPairs:
    """Find pairs (query, vector) that include the `k` best pairs of each query.

    All queries are compared with all vectors, block by block.

    Args:
        score: Function that computes the scores (Q, B) of a slice of the vectors.
        queries: Integer. The number of queries.
        count: Integer. The number of vectors.
        made: Integer. Number of temporary values per vector in `score`.
        k: Integer. Number of results per query, at most N.
        rounding: Optional array. Rounding error of the scores, as in `BestPairs`.

    Example:
        >>> vectors = np.array([[1.0], [3.0], [2.0]], "float32")
        >>> best = find_best_pairs(lambda part: vectors[part].T, 1, 3, made=1, k=2)
        >>> [part.tolist() for part in best.get_pairs()]
        [[0, 0], [1, 2]]
    """
    best = BestPairs(queries, k, rounding)
    step = max(1, VECTOR_BLOCK // max(queries, made))
    parts = [slice(start, start + step) for start in range(0, count, step)]
    for part, block in zip(parts, _prefetch_results(score, parts), strict=True):
        best.add(block, part.start)
    best.get_pairs()
    return best


def _prefetch_results(
    function: Callable[[slice], np.ndarray], items: Sequence[slice]
) -> Iterator[np.ndarray]:
    """Apply a function to each item and yield the results. A thread computes the next result."""
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


class Float32Vectors:
    """Store vectors in float32.

    Args:
        vectors: Float32 array of shape (N, D). For "cosine", the vectors must be normalized to unit
            length.
        function: String. Similarity function of `find_nearest`. Defaults to "dot".

    Example:
        >>> store = Float32Vectors.create(np.eye(3, 2, dtype="float32"))
        >>> store, store.rows([1]).tolist(), store.nbytes
        (<Float32Vectors: 3 of 2>, [[0.0, 1.0]], 24)
    """

    precision = "float32"
    engine: str | None = None
    types: ClassVar[dict[str, tuple[str, int]]] = {"vectors": ("float32", 2)}  # dtypes and axes
    of_rows: ClassVar[tuple[str, ...]] = ("vectors",)  # arrays with one row per vector
    vectors: np.ndarray

    def __init__(self, *arrays: np.ndarray, function: Similarity = "dot"):
        for name, array in zip(self.types, arrays, strict=True):
            setattr(self, name, array)
        self.function = function

    @classmethod
    def create(cls, vectors: np.ndarray, function: Similarity = "dot") -> Self:
        """Create a store from float32 vectors (N, D)."""
        return cls(vectors, function=function)

    @classmethod
    def open(
        cls, path: str | os.PathLike, arrays: Mapping[str, np.ndarray], **settings: Similarity
    ) -> Self:
        """Create a store from the arrays in a file, and check their values.

        Args:
            path: String or path. File path for error messages.
            arrays: Dict with all arrays in `types`, in the correct types.
            **settings: Additional arguments to pass to the constructor.

        Raises:
            ValueError: If an array is empty or does not have the expected shape.
        """
        own = {name: arrays[name] for name in cls.types}
        for name, array in own.items():
            if not array.size:
                raise invalid(f"{path}: {name}.shape", array.shape, "no empty axis")
        for name, shape in cls.get_expected_shapes(
            {name: array.shape for name, array in own.items()}
        ).items():
            check_shape(path, name, own[name].shape, shape)
        store = cls(*own.values(), **settings)
        store.check(path)
        return store

    @classmethod
    def get_expected_shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the expected shapes of all arrays, from the shapes in a file."""
        return {"vectors": found["vectors"]}

    def check(self, path: str | os.PathLike) -> None:
        """Raise a ValueError if an array from a file has invalid values."""
        for name, array in self.arrays.items():
            if array.dtype.kind == "f":
                check_finite(array, f"{path}: {name}")

    def __len__(self) -> int:
        return self.vectors.shape[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} of {self.width}>"

    @property
    def width(self) -> int:
        """Return the vector dimension."""
        return self.vectors.shape[1]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are saved. They can be passed to the constructor."""
        return {name: getattr(self, name) for name in self.types}

    @property
    def nbytes(self) -> int:
        """Return the total array size in bytes."""
        return sum(array.nbytes for array in self.arrays.values())

    def join(self, vectors: np.ndarray) -> Self:
        """Return a store with more float32 vectors (M, D) at the end."""
        return self._replace(vectors=np.concatenate([self.vectors, vectors]))

    def take(self, indices: np.ndarray) -> Self:
        """Return a store with only the vectors at the given indices, in this order."""
        return self._replace(**{name: getattr(self, name)[indices] for name in self.of_rows})

    def _replace(self, **arrays: np.ndarray) -> Self:
        """Return a copy of the store with some arrays replaced."""
        return type(self)(*{**self.arrays, **arrays}.values(), function=self.function)

    def rows(self, indices) -> np.ndarray:
        """Return the vectors at `indices` (an array or a slice) in float32."""
        return np.asarray(self.vectors[indices])

    def find_nearest(
        self, queries: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the `k` nearest vectors of each query, sorted from nearest to farthest.

        Ties keep their order. The scores of the candidates are computed again from the float32
        query and the stored vectors. Scores therefore do not depend on other queries, equal vectors
        have equal scores, and candidates from a coarse search are sorted correctly.

        Args:
            queries: Float32 array of shape (Q, D). For "cosine", the vectors must be normalized to
                unit length.
            k: Integer. Number of results per query, at most the number of vectors to search.
            among: Optional integer array. Indices of the vectors to search, in ascending order. If
                None, all vectors are searched.

        Returns:
            Tuple with indices (Q, k) int64 and scores (Q, k) float32.

        Example:
            >>> vectors = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]], "float32")
            >>> store = Float32Vectors.create(vectors)
            >>> indices, scores = store.find_nearest(np.array([[1.0, 3.0]], "float32"), k=3)
            >>> indices.tolist(), scores.tolist()
            ([[1, 2, 0]], [[6.0, 6.0, 1.0]])
        """
        step = max(1, min(QUERY_BLOCK, VECTOR_BLOCK // k))
        starts = range(0, len(queries), step)
        parts = [self._find_nearest(queries[i : i + step], k, among) for i in starts]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def _find_nearest(
        self, queries: np.ndarray, k: int, among: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = self.find_candidates(queries, k, among)
        scores = np.empty(len(rows), "float64")
        step = max(1, VECTOR_BLOCK // self.width)
        for i in range(0, len(rows), step):
            part = slice(i, i + step)
            vectors = self.rows(columns[part])
            scores[part] = compute_paired_similarities(queries[rows[part]], vectors, self.function)
        order = np.lexsort((columns, -scores, rows))
        order = order[compute_ranks_in_groups(rows) < k]  # `rows` are sorted, before and after
        return columns[order].reshape(-1, k), scores[order].astype("float32").reshape(-1, k)

    def find_candidates(
        self, queries: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find pairs (query, vector) that include the `k` nearest vectors of each query.

        Returns:
            Tuple of query indices (P,) and vector indices (P,), sorted by query.
        """

        rounding, made = self._compute_rounding(queries), self._count_products()
        score = functools.partial(self._compute_scores, queries)
        best = self._scan(score, len(queries), made, k, among, rounding)
        rows, columns = best.get_pairs()
        if best.crowded.any() and rounding is not None:
            # Many vectors are so similar that float32 cannot tell which vectors are nearest.
            close = np.flatnonzero(best.crowded)
            score = functools.partial(self._compute_scores, queries[close].astype("float64"))
            rounding = rounding[close] * (np.finfo("float64").eps / np.finfo("float32").eps)
            again = self._scan(score, len(close), self.width, k, among, rounding)
            rows, columns = replace_pairs(rows, columns, close, again.get_pairs())
        return rows, columns if among is None else among[columns]

    def _scan(
        self,
        score: Callable[[slice | np.ndarray], np.ndarray],
        queries: int,
        made: int,
        k: int,
        among: np.ndarray | None,
        rounding: np.ndarray | None = None,
    ) -> BestPairs:
        """Compare the queries with the selected vectors, or with all vectors.

        Args:
            score: Function that computes the scores (Q, B) of vectors, from a slice or indices.
            queries, made, k, rounding: See `find_best_pairs`.
            among: See `find_nearest`.
        """
        if among is None:
            return find_best_pairs(score, queries, len(self), made, k, rounding)
        # Selected vectors are copied for each block.
        made = max(made, self.width)
        return find_best_pairs(lambda p: score(among[p]), queries, len(among), made, k, rounding)

    def _compute_rounding(self, queries: np.ndarray) -> np.ndarray | None:
        """Return bounds (Q,) of the rounding errors of float32 scores, or None for "manhattan".

        Manhattan distances only add non-negative terms, so their relative error is bounded instead.
        """
        if self.function == "manhattan":
            return None
        longest = self._max_norm
        if self.function == "cosine":
            longest = np.float32(1)
        lengths = np.sqrt(np.einsum("qd,qd->q", queries, queries, dtype="float64"))
        terms = lengths * longest
        if self.function == "euclidean":
            terms += longest**2 / 2
        return (COSINE_ROUNDING * terms).astype("float32")

    @functools.cached_property
    def _max_norm(self) -> float:
        """Return the largest norm of a vector."""
        step = max(1, VECTOR_BLOCK // self.width)
        parts = (self.rows(slice(i, i + step)) for i in range(0, len(self), step))
        squares = (np.einsum("nd,nd->n", p, p, dtype="float64").max() for p in parts)
        return float(np.sqrt(max(squares)))

    def _count_products(self) -> int:
        """Return the number of temporary values per vector in `_compute_scores`.

        This number limits the block size. It is 1 if only the scores require memory.
        """
        return self.width if self.function == "manhattan" else 1

    def _compute_scores(self, queries: np.ndarray, part: slice | np.ndarray) -> np.ndarray:
        vectors = self.rows(part).astype(queries.dtype, copy=False)
        return compute_ordering_scores(queries, vectors, self.function)


class Int8Vectors(Float32Vectors):
    """Store vectors in int8, with 256 steps over the range of values in each dimension.

    If vectors are added later, the ranges are extended, and existing vectors are rounded again.

    Args:
        vectors: Int8 array of shape (N, D).
        ranges: Float32 array of shape (2, D). Minimum and maximum of each dimension.

    Example:
        >>> store = Int8Vectors.create(np.array([[0.0, -1.0], [1.0, 1.0], [0.2, 0.5]], "float32"))
        >>> store.vectors.tolist()
        [[-128, -128], [127, 127], [-77, 63]]
        >>> store.rows([2]).astype("float64").round(3).tolist()
        [[0.2, 0.498]]
    """

    precision = "int8"
    types: ClassVar = {"vectors": ("int8", 2), "ranges": ("float32", 2)}
    ranges: np.ndarray

    @classmethod
    def create(cls, vectors: np.ndarray, function: Similarity = "dot") -> Self:
        ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
        return cls(quantize(vectors, ranges), ranges, function=function)

    @classmethod
    def get_expected_shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {**super().get_expected_shapes(found), "ranges": (2, found["vectors"][1])}

    def check(self, path: str | os.PathLike) -> None:
        super().check(path)
        turned = np.flatnonzero(self.ranges[0] > self.ranges[1])
        if len(turned):
            least, most = self.ranges[:, turned[0]]
            raise ValueError(
                f"{path}: the range of dimension {turned[0]} is {least} to {most}. Expected the "
                "smaller value first."
            )

    def join(self, vectors: np.ndarray) -> Self:
        least = np.minimum(self.ranges[0], vectors.min(axis=0))
        ranges = np.stack([least, np.maximum(self.ranges[1], vectors.max(axis=0))])
        joined = np.concatenate([self._requantize(ranges), quantize(vectors, ranges)])
        return self._replace(vectors=joined, ranges=ranges)

    def _requantize(self, ranges: np.ndarray) -> np.ndarray:
        """Quantize the vectors again with other ranges, int8 (N, D)."""
        if np.array_equal(ranges, self.ranges):
            return self.vectors
        rows = max(1, VECTOR_BLOCK // self.width)
        starts = range(0, len(self), rows)
        parts = [quantize(self.rows(slice(i, i + rows)), ranges) for i in starts]
        return np.concatenate(parts)

    def rows(self, indices) -> np.ndarray:
        steps, found = compute_steps(self.ranges), self.vectors[indices].astype("float32")
        found *= steps
        middles = self.ranges[0] + 128 * steps  # the values that are stored as 0
        return np.add(found, middles, out=found)

    def _count_products(self) -> int:
        return self.width

    def _compute_rounding(self, queries: np.ndarray) -> None:
        return None  # the quantization error is larger than the rounding error

    def _compute_scores(self, queries: np.ndarray, part: slice | np.ndarray) -> np.ndarray:
        if self.function not in ("cosine", "dot"):
            return super()._compute_scores(queries, part)
        # The product with the middles of the ranges is omitted, because it is constant per query.
        return (queries * compute_steps(self.ranges)) @ self.vectors[part].astype("float32").T


class BinaryVectors(Int8Vectors):
    """Store vectors as signs for search, and as int8 for sorting the results.

    Args:
        vectors: Int8 array of shape (N, D).
        ranges: Float32 array of shape (2, D), as in `Int8Vectors`.
        signs: Uint64 array of shape (W, N), as returned by `pack_signs`.

    Example:
        >>> store = BinaryVectors.create(np.array([[0.5, -1.0], [1.0, 1.0]], "float32"))
        >>> store.signs.tolist()
        [[128, 192]]
    """

    precision = "binary"
    types: ClassVar = {**Int8Vectors.types, "signs": ("uint64", 2)}
    signs: np.ndarray

    @classmethod
    def create(cls, vectors: np.ndarray, function: Similarity = "dot") -> Self:
        coarse = Int8Vectors.create(vectors)
        return cls(coarse.vectors, coarse.ranges, pack_signs(vectors), function=function)

    @classmethod
    def get_expected_shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        count, width = found["vectors"]
        return {**super().get_expected_shapes(found), "signs": (-(-width // 64), count)}

    def join(self, vectors: np.ndarray) -> Self:
        signs = np.concatenate([self.signs, pack_signs(vectors)], axis=1)
        return super().join(vectors)._replace(signs=signs)

    def take(self, indices: np.ndarray) -> Self:
        return super().take(indices)._replace(signs=np.ascontiguousarray(self.signs[:, indices]))

    def find_candidates(
        self, queries: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        words = pack_signs(queries).T  # (Q, W)
        count = len(self) if among is None else len(among)
        oversampled = min(count, max(CANDIDATES_PER_RESULT * k, MIN_CANDIDATES))
        parts = [
            (i, self._find_nearest_signs(words[i : i + QUERIES_AT_ONCE], oversampled, among))
            for i in range(0, len(words), QUERIES_AT_ONCE)
        ]
        rows = np.concatenate([i + rows for i, (rows, _) in parts])
        return rows, np.concatenate([columns for _, (_, columns) in parts])

    def _find_nearest_signs(
        self, words: np.ndarray, k: int, among: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        def score(part: slice | np.ndarray) -> np.ndarray:
            signs = self.signs[:, part]
            return -np.stack([count_differences(signs, query) for query in words])

        rows, columns = self._scan(score, len(words), 1, k, among).get_pairs()
        return rows, columns if among is None else among[columns]


def check_shape(path: str | os.PathLike, name: str, found: tuple, expected: tuple) -> None:
    """Raise a ValueError if an array from a file does not have the expected shape."""
    if found != expected:
        raise invalid(f"{path}: {name}.shape", found, str(expected))


def compute_steps(ranges: np.ndarray) -> np.ndarray:
    """Return the step size of each dimension, shape (D,).

    Example:
        >>> compute_steps(np.array([[0.0], [255.0]], "float32")).tolist()
        [1.0]
    """
    return (ranges[1] - ranges[0]) / np.float32(255)


def quantize(vectors: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Quantize vectors (N, D) to int8, with 256 steps over the ranges (2, D).

    Example:
        >>> quantize(np.array([[0.0], [300.0]], "float32"), np.array([[0.0], [255.0]], "float32"))
        array([[-128],
               [ 127]], dtype=int8)
    """
    steps = compute_steps(ranges)
    steps = np.where(steps > 0, steps, np.float32(1))  # a constant dimension
    found = np.empty(vectors.shape, "int8")
    rows = max(1, VECTOR_BLOCK // vectors.shape[1])
    for i in range(0, len(vectors), rows):
        values = np.rint((vectors[i : i + rows] - ranges[0]) / steps) - 128
        found[i : i + rows] = np.clip(values, -128, 127)
    return found


def pack_signs(vectors: np.ndarray) -> np.ndarray:
    """Pack the signs of vectors (N, D) to uint64 (W, N). Positive values have the bit 1.

    Example:
        >>> pack_signs(np.array([[1.0, -1.0, 2.0]], "float32")).tolist()
        [[160]]
    """
    packed = np.packbits(vectors > 0, axis=1)
    words = np.zeros((len(vectors), -(-packed.shape[1] // 8) * 8), "uint8")
    words[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(words.view("<u8").T)


def count_differences(signs: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Count the signs that differ between vectors (W, N) and a query (W,), as float32 (N,).

    Example:
        >>> a, b = np.array([[0b1011, 0b0000]], "uint64"), np.array([0b0010], "uint64")
        >>> count_differences(a, b).tolist()
        [2.0, 1.0]
    """
    count = np.zeros(signs.shape[1], "uint16")
    for word, of_query in zip(signs, query, strict=True):
        count += count_bits(word ^ of_query)
    return count.astype("float32")


def count_bits(words: np.ndarray) -> np.ndarray:
    """Count the bits that are 1 in each uint64 value, as uint8 (N,).

    Example:
        >>> count_bits(np.array([0b1011, 2**64 - 1], "uint64")).tolist()
        [3, 64]
    """
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(words)
    return _count_bits()[words.view("uint8")].reshape(-1, 8).sum(axis=1, dtype="uint8")


@functools.cache
def _count_bits() -> np.ndarray:
    """Return a table with the number of bits set to 1 in each of the 256 byte values."""
    return np.unpackbits(np.arange(256, dtype="uint8")[:, None], axis=1).sum(axis=1, dtype="uint8")


VECTOR_STORES = {store.precision: store for store in (Float32Vectors, Int8Vectors, BinaryVectors)}
