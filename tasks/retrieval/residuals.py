"""Vectors as their nearest centroid and a residual, the difference from it, in int8 or one bit.

Of T vectors of D numbers, D a multiple of 8, "int8" takes 2 T + T D bytes, "binary" 2 T + T D / 8,
and the centroids some more.

Comment letters: T vectors, K centroids, D width, B bytes of signs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from encoder_zoo.tasks.retrieval.centroids import centroids_of, nearest_centroids
from encoder_zoo.tasks.retrieval.similarity import unit_rows
from encoder_zoo.tasks.retrieval.vectors import (
    BLOCK,
    Float32Vectors,
    middles_of,
    quantized,
    steps_of,
)

LEAST_RANGE = 0.5  # of int8 residuals, for documents that are added later


class Int8Residuals(Float32Vectors):
    """Vectors of unit length as centroids, and residuals in 256 steps.

    Args:
        vectors: (T, D) int8, the residuals.
        codes: (T,) uint16, the numbers of the vectors' centroids.
        centroids: (K, D) float32.
        levels: (2, D) float32, the least and the largest residual that there is a step for.

    Source: Santhanam et al. 2022, ColBERTv2, section 3.3.

    Example:
        >>> vectors = np.eye(4, dtype="float32")
        >>> store = Int8Residuals.of(vectors)
        >>> store, bool(np.abs(store.rows(slice(None)) - vectors).max() < 0.01)
        (<Int8Residuals: 4 of 4>, True)
    """

    precision = "int8"
    types: ClassVar = {
        "vectors": ("int8", 2),
        "codes": ("uint16", 1),
        "centroids": ("float32", 2),
        "levels": ("float32", 2),
    }

    def __init__(
        self, vectors: np.ndarray, codes: np.ndarray, centroids: np.ndarray, levels: np.ndarray
    ):
        super().__init__(vectors)
        self.codes = codes
        self.centroids = centroids
        self.levels = levels

    @classmethod
    def of(cls, vectors: np.ndarray) -> Int8Residuals:
        centroids = centroids_of(vectors)
        codes = nearest_centroids(vectors, centroids)
        levels = cls._levels_of(vectors, codes, centroids)
        return cls(cls._packed(vectors, codes, centroids, levels), codes, centroids, levels)

    @classmethod
    def shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        count, (centroids, width) = found["vectors"][0], found["centroids"]
        return {
            "vectors": (count, cls._packed_width(width)),
            "codes": (count,),
            "centroids": (centroids, width),
            "levels": (2, width),
        }

    def check(self, path: str | os.PathLike) -> None:
        super().check(path)
        most = int(self.codes.max())
        if most >= len(self.centroids):
            last = len(self.centroids) - 1
            raise ValueError(f"{path}: codes has the centroid {most}. Expected at most {last}.")

    @property
    def width(self) -> int:
        return self.centroids.shape[1]

    def joined(self, vectors: np.ndarray) -> Int8Residuals:
        codes = nearest_centroids(vectors, self.centroids)
        packed = self._packed(vectors, codes, self.centroids, self.levels)
        return type(self)(
            np.concatenate([self.vectors, packed]),
            np.concatenate([self.codes, codes]),
            self.centroids,
            self.levels,
        )

    def rows(self, indices) -> np.ndarray:
        return self.centroids[self.codes[indices]] + self._unpacked(self.vectors[indices])

    def coarse(self, queries: np.ndarray) -> Callable[[slice], np.ndarray]:
        """Return the function from a part of the vectors to their centroids' products with queries.

        Args:
            queries: (L, D).
        """
        products = self.centroids @ queries.T  # (K, L)
        return lambda part: np.take(products, self.codes[part], axis=0)

    @staticmethod
    def _packed_width(width: int) -> int:
        return width

    @staticmethod
    def _levels_of(vectors: np.ndarray, codes: np.ndarray, centroids: np.ndarray) -> np.ndarray:
        most = max(np.abs(part).max() for part in _residuals(vectors, codes, centroids))
        most = np.full(vectors.shape[1], max(most, LEAST_RANGE), "float32")
        return np.stack([-most, most])

    @classmethod
    def _packed(cls, vectors, codes, centroids, levels) -> np.ndarray:
        parts = [cls._pack(part, levels) for part in _residuals(vectors, codes, centroids)]
        return np.concatenate(parts)

    @staticmethod
    def _pack(residuals: np.ndarray, levels: np.ndarray) -> np.ndarray:
        return quantized(residuals, levels)

    def _unpacked(self, packed: np.ndarray) -> np.ndarray:
        return packed.astype("float32") * steps_of(self.levels) + middles_of(self.levels)


class BinaryResiduals(Int8Residuals):
    """Vectors of unit length as centroids, and the signs of their residuals, packed.

    Args:
        vectors: (T, B) uint8, one bit for each number.
        codes, centroids: see `Int8Residuals`.
        levels: (2, D) float32, the mean of the negative residuals of each dimension, and of the
            others.

    Example:
        >>> store = BinaryResiduals.of(np.eye(16, dtype="float32"))
        >>> store.vectors.shape, int(store.rows([3]).argmax())
        ((16, 2), 3)
    """

    precision = "binary"
    types: ClassVar = {**Int8Residuals.types, "vectors": ("uint8", 2)}

    def rows(self, indices) -> np.ndarray:
        return unit_rows(super().rows(indices))

    @staticmethod
    def _packed_width(width: int) -> int:
        return -(-width // 8)

    @staticmethod
    def _levels_of(vectors: np.ndarray, codes: np.ndarray, centroids: np.ndarray) -> np.ndarray:
        sums = np.zeros((2, vectors.shape[1]))
        counts = np.zeros((2, vectors.shape[1]))
        for residuals in _residuals(vectors, codes, centroids):
            for i, of_sign in enumerate((residuals < 0, residuals >= 0)):
                sums[i] += np.where(of_sign, residuals, 0).sum(axis=0)
                counts[i] += of_sign.sum(axis=0)
        return (sums / np.maximum(counts, 1)).astype("float32")

    @staticmethod
    def _pack(residuals: np.ndarray, levels: np.ndarray) -> np.ndarray:
        return np.packbits(residuals >= 0, axis=1)

    def _unpacked(self, packed: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(packed, axis=1, count=self.width)
        return np.where(bits, self.levels[1], self.levels[0])


def _residuals(
    vectors: np.ndarray, codes: np.ndarray, centroids: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the differences of vectors (T, D) from their centroids, some at a time."""
    step = max(1, BLOCK // vectors.shape[1])
    for i in range(0, len(vectors), step):
        yield vectors[i : i + step] - centroids[codes[i : i + step]]
