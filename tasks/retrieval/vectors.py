"""The vectors of an index in memory: as float32, as int8, or as int8 with their signs packed.

A store finds candidates for queries; `top_k.nearest` brings these into order. Of N vectors of D
numbers, D a multiple of 64, "float32" takes 4 N D bytes, "int8" N D, "binary" N D and N D / 8 of
signs: the search reads the signs alone and then, of a few candidates, the int8 vectors.

Comment letters: Q queries, N vectors, D width, P pairs of a query and a vector, W words of signs.
"""

from __future__ import annotations

import functools
import os
from typing import ClassVar

import numpy as np

from encoder_zoo.tasks.retrieval.top_k import BLOCK, ordering_scores, scan

OVERSAMPLED = 20  # candidates for each result of the search among signs
MIN_CANDIDATES = 200
AT_ONCE = 32  # queries whose signs are compared: then a block has many vectors


class Float32Vectors:
    """Vectors as they are.

    Args:
        vectors: (N, D) float32.

    Example:
        >>> store = Float32Vectors.of(np.eye(3, 2, dtype="float32"))
        >>> store, store.rows([1]).tolist(), store.nbytes
        (<Float32Vectors: 3 of 2>, [[0.0, 1.0]], 24)
    """

    precision = "float32"
    types: ClassVar[dict[str, tuple[str, int]]] = {"vectors": ("float32", 2)}  # with axes

    def __init__(self, vectors: np.ndarray):
        self.vectors = vectors

    @classmethod
    def of(cls, vectors: np.ndarray) -> Float32Vectors:
        """Return a store of vectors (N, D) float32."""
        return cls(vectors)

    @classmethod
    def shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays that fit those of some of them, as found in a file."""
        return {"vectors": found["vectors"]}

    def check(self, path: str | os.PathLike) -> None:
        """Raise an error if numbers that were read from a file cannot be."""
        for name, array in self.arrays.items():
            if array.dtype.kind == "f":
                check_finite(array, f"{path}: {name}")

    def __len__(self) -> int:
        return self.vectors.shape[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} of {self.width}>"

    @property
    def width(self) -> int:
        """Return D."""
        return self.vectors.shape[1]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arguments of the constructor, for a file."""
        return {name: getattr(self, name) for name in self.types}

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def joined(self, vectors: np.ndarray) -> Float32Vectors:
        """Return a store of these vectors and further ones (M, D) float32."""
        return type(self)(np.concatenate([self.vectors, vectors]))

    def rows(self, indices) -> np.ndarray:
        """Return some vectors in float32; `indices` is an array or a slice."""
        return np.asarray(self.vectors[indices])

    def candidates(
        self, queries: np.ndarray, function: str, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of queries and vectors that include the `k` nearest of each query.

        Returns:
            Queries (P,) and vectors (P,), sorted by query.
        """

        def scores(start: int, stop: int) -> np.ndarray:
            return self._scores(queries, slice(start, stop), function)

        return scan(scores, len(queries), len(self), self._numbers_made(function), k)

    def _numbers_made(self, function: str) -> int:
        """Return how many numbers `_scores` holds in memory for each vector of a block."""
        return self.width if function == "manhattan" else 1

    def _scores(self, queries: np.ndarray, part: slice, function: str) -> np.ndarray:
        return ordering_scores(queries, self.rows(part), function)


class Int8Vectors(Float32Vectors):
    """Vectors in 256 steps, each dimension over its own range of the corpus.

    Vectors that are added later widen the ranges, and those that are there are rounded again.

    Args:
        vectors: (N, D) int8.
        ranges: (2, D) float32, the least and the largest number of each dimension.

    Example:
        >>> store = Int8Vectors.of(np.array([[0.0, -1.0], [1.0, 1.0], [0.2, 0.5]], "float32"))
        >>> store.vectors.tolist()
        [[-128, -128], [127, 127], [-77, 63]]
        >>> store.rows([2]).astype("float64").round(3).tolist()
        [[0.2, 0.498]]
    """

    precision = "int8"
    types: ClassVar = {"vectors": ("int8", 2), "ranges": ("float32", 2)}

    def __init__(self, vectors: np.ndarray, ranges: np.ndarray):
        super().__init__(vectors)
        self.ranges = ranges

    @classmethod
    def of(cls, vectors: np.ndarray) -> Int8Vectors:
        ranges = np.stack([vectors.min(axis=0), vectors.max(axis=0)])
        return cls(quantized(vectors, ranges), ranges)

    @classmethod
    def shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {**super().shapes(found), "ranges": (2, found["vectors"][1])}

    def joined(self, vectors: np.ndarray) -> Int8Vectors:
        least = np.minimum(self.ranges[0], vectors.min(axis=0))
        ranges = np.stack([least, np.maximum(self.ranges[1], vectors.max(axis=0))])
        parts = [self._in_ranges(ranges), quantized(vectors, ranges)]
        return type(self)(np.concatenate(parts), ranges)

    def _in_ranges(self, ranges: np.ndarray) -> np.ndarray:
        """Return the vectors (N, D) int8 in the steps of other ranges."""
        if np.array_equal(ranges, self.ranges):
            return self.vectors
        rows = max(1, BLOCK // self.width)
        starts = range(0, len(self), rows)
        parts = [quantized(self.rows(slice(i, i + rows)), ranges) for i in starts]
        return np.concatenate(parts)

    def rows(self, indices) -> np.ndarray:
        found = self.vectors[indices].astype("float32")
        found *= steps_of(self.ranges)
        return np.add(found, middles_of(self.ranges), out=found)

    def _numbers_made(self, function: str) -> int:
        return self.width

    def _scores(self, queries: np.ndarray, part: slice, function: str) -> np.ndarray:
        if function not in ("cosine", "dot"):
            return super()._scores(queries, part, function)
        # A number for each query is left out: its product with the middles of the ranges.
        return (queries * steps_of(self.ranges)) @ self.vectors[part].astype("float32").T


class BinaryVectors(Int8Vectors):
    """Vectors as signs for the search, and as int8 for the order of what it finds.

    Args:
        vectors: (N, D) int8.
        ranges: (2, D) float32, see `Int8Vectors`.
        signs: (W, N) uint64, see `packed_signs`.

    Example:
        >>> store = BinaryVectors.of(np.array([[0.5, -1.0], [1.0, 1.0]], "float32"))
        >>> store.signs.tolist()
        [[128, 192]]
    """

    precision = "binary"
    types: ClassVar = {**Int8Vectors.types, "signs": ("uint64", 2)}

    def __init__(self, vectors: np.ndarray, ranges: np.ndarray, signs: np.ndarray):
        super().__init__(vectors, ranges)
        self.signs = signs

    @classmethod
    def of(cls, vectors: np.ndarray) -> BinaryVectors:
        coarse = Int8Vectors.of(vectors)
        return cls(coarse.vectors, coarse.ranges, packed_signs(vectors))

    @classmethod
    def shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        count, width = found["vectors"]
        return {**super().shapes(found), "signs": (-(-width // 64), count)}

    def joined(self, vectors: np.ndarray) -> BinaryVectors:
        coarse = Int8Vectors(self.vectors, self.ranges).joined(vectors)
        signs = np.concatenate([self.signs, packed_signs(vectors)], axis=1)
        return type(self)(coarse.vectors, coarse.ranges, signs)

    def candidates(
        self, queries: np.ndarray, function: str, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        words = packed_signs(queries).T  # (Q, W)
        oversampled = min(len(self), max(OVERSAMPLED * k, MIN_CANDIDATES))
        parts = [
            (i, self._nearest_signs(words[i : i + AT_ONCE], oversampled))
            for i in range(0, len(words), AT_ONCE)
        ]
        rows = np.concatenate([i + rows for i, (rows, _) in parts])
        return rows, np.concatenate([columns for _, (_, columns) in parts])

    def _nearest_signs(self, words: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        def scores(start: int, stop: int) -> np.ndarray:
            return -np.stack([hamming(self.signs[:, start:stop], query) for query in words])

        return scan(scores, len(words), len(self), 1, k)


def check_finite(vectors: np.ndarray, name: str) -> None:
    """Raise an error if a number of vectors (N, D) is NaN or infinite.

    Raises:
        ValueError: "vectors[3] has a number that is NaN or infinite. Expected finite numbers."
    """
    step = max(1, BLOCK // vectors.shape[1])
    for i in range(0, len(vectors), step):
        finite = np.isfinite(vectors[i : i + step]).all(axis=1)
        if not finite.all():
            raise ValueError(
                f"{name}[{i + int(finite.argmin())}] has a number that is NaN or infinite. "
                "Expected finite numbers."
            )


def steps_of(ranges: np.ndarray) -> np.ndarray:
    """Return the width (D,) of each dimension's 256 steps.

    Example:
        >>> steps_of(np.array([[0.0], [255.0]], "float32")).tolist()
        [1.0]
    """
    return (ranges[1] - ranges[0]) / np.float32(255)


def middles_of(ranges: np.ndarray) -> np.ndarray:
    """Return the numbers (D,) whose int8 is 0.

    Example:
        >>> middles_of(np.array([[0.0], [255.0]], "float32")).tolist()
        [128.0]
    """
    return ranges[0] + 128 * steps_of(ranges)


def quantized(vectors: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Return vectors (N, D) in the 256 steps of their ranges (2, D), as int8.

    Example:
        >>> quantized(np.array([[0.0], [300.0]], "float32"), np.array([[0.0], [255.0]], "float32"))
        array([[-128],
               [ 127]], dtype=int8)
    """
    steps = steps_of(ranges)
    steps = np.where(steps > 0, steps, np.float32(1))  # of a dimension that is the same everywhere
    found = np.empty(vectors.shape, "int8")
    rows = max(1, BLOCK // vectors.shape[1])
    for i in range(0, len(vectors), rows):
        values = np.rint((vectors[i : i + rows] - ranges[0]) / steps) - 128
        found[i : i + rows] = np.clip(values, -128, 127)
    return found


def packed_signs(vectors: np.ndarray) -> np.ndarray:
    """Return one bit for each number of vectors (N, D), whether it is positive: (W, N) uint64.

    Example:
        >>> packed_signs(np.array([[1.0, -1.0, 2.0]], "float32")).tolist()
        [[160]]
    """
    packed = np.packbits(vectors > 0, axis=1)
    words = np.zeros((len(vectors), -(-packed.shape[1] // 8) * 8), "uint8")
    words[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(words.view("<u8").T)


def hamming(signs: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return how many signs of vectors (W, N) differ from those of a query (W,), (N,) float32.

    Example:
        >>> hamming(np.array([[0b1011, 0b0000]], "uint64"), np.array([0b0010], "uint64")).tolist()
        [2.0, 1.0]
    """
    count = np.zeros(signs.shape[1], "uint16")
    for word, of_query in zip(signs, query, strict=True):
        count += bit_count(word ^ of_query)
    return count.astype("float32")


def bit_count(words: np.ndarray) -> np.ndarray:
    """Return how many bits are set in each uint64, (N,) uint8.

    Example:
        >>> bit_count(np.array([0b1011, 2**64 - 1], "uint64")).tolist()
        [3, 64]
    """
    if hasattr(np, "bitwise_count"):  # NumPy 2
        return np.bitwise_count(words)
    return _bits_of_bytes()[words.view("uint8")].reshape(-1, 8).sum(axis=1, dtype="uint8")


@functools.cache
def _bits_of_bytes() -> np.ndarray:
    """Return the number of bits in each of the 256 bytes."""
    return np.unpackbits(np.arange(256, dtype="uint8")[:, None], axis=1).sum(axis=1, dtype="uint8")


STORES = {store.precision: store for store in (Float32Vectors, Int8Vectors, BinaryVectors)}
