"""Vectors as their nearest centroid and a residual, the difference from it, in int8 or one bit.

A residual has a scale of its own. Of T vectors of D numbers, D a multiple of 8, "int8" takes
4 T + T D bytes, "binary" 4 T + T D / 8, and the centroids some more.

Comment letters: T vectors, K centroids, D width, B bytes of signs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from encoder_zoo.tasks.retrieval.centroids import centroids_of, nearest_centroids
from encoder_zoo.tasks.retrieval.vectors import BLOCK, Float32Vectors

LEAST = 1e-6  # of scales, which are stored in half precision


class Int8Residuals(Float32Vectors):
    """Vectors as centroids, and residuals in 255 steps.

    Args:
        vectors: (T, D) int8, the residuals.
        codes: (T,) uint16, the numbers of the vectors' centroids.
        scales: (T, 1) float16, by which a residual is multiplied.
        centroids: (K, D) float32.

    Source: Santhanam et al. 2022, ColBERTv2, section 3.3; the scales are of this package.

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
        "scales": ("float16", 2),
        "centroids": ("float32", 2),
    }

    def __init__(
        self, vectors: np.ndarray, codes: np.ndarray, scales: np.ndarray, centroids: np.ndarray
    ):
        super().__init__(vectors)
        self.codes = codes
        self.scales = scales
        self.centroids = centroids

    @classmethod
    def of(cls, vectors: np.ndarray) -> Int8Residuals:
        centroids = centroids_of(vectors)
        none = np.zeros((0, cls._packed_width(vectors.shape[1])), cls.types["vectors"][0])
        empty = cls(none, np.zeros(0, "uint16"), np.zeros((0, 1), "float16"), centroids)
        return empty.joined(vectors)

    @classmethod
    def shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        count, (centroids, width) = found["vectors"][0], found["centroids"]
        return {
            "vectors": (count, cls._packed_width(width)),
            "codes": (count,),
            "scales": (count, 1),
            "centroids": (centroids, width),
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
        packed = [self._pack(part) for part in _residuals(vectors, codes, self.centroids)]
        residuals, scales = (np.concatenate(parts) for parts in zip(*packed, strict=True))
        return type(self)(
            np.concatenate([self.vectors, residuals]),
            np.concatenate([self.codes, codes]),
            np.concatenate([self.scales, scales]),
            self.centroids,
        )

    def rows(self, indices) -> np.ndarray:
        found = self._unpacked(self.vectors[indices])
        found *= self.scales[indices]
        found += self.centroids[self.codes[indices]]
        return found

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

    def _pack(self, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return residuals (T, D) as they are stored, and their scales (T, 1) float16."""
        most = np.abs(residuals).max(axis=1, keepdims=True)
        scales = np.maximum(most / 127, LEAST).astype("float16")
        steps = np.rint(residuals / scales)
        return np.clip(steps, -127, 127).astype("int8"), scales

    def _unpacked(self, packed: np.ndarray) -> np.ndarray:
        """Return stored residuals in float32, without their scales."""
        return packed.astype("float32")


class BinaryResiduals(Int8Residuals):
    """Vectors as centroids, and the signs of their residuals, packed.

    A residual is taken for one whose numbers are all as large; its scale is the mean of theirs,
    which is nearest.

    Args:
        vectors: (T, B) uint8, one bit for each number.
        codes, scales, centroids: see `Int8Residuals`.

    Example:
        >>> store = BinaryResiduals.of(np.eye(16, dtype="float32"))
        >>> store.vectors.shape, int(store.rows([3]).argmax())
        ((16, 2), 3)
    """

    precision = "binary"
    types: ClassVar = {**Int8Residuals.types, "vectors": ("uint8", 2)}

    @staticmethod
    def _packed_width(width: int) -> int:
        return -(-width // 8)

    def _pack(self, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scales = np.abs(residuals).mean(axis=1, keepdims=True).astype("float16")
        return np.packbits(residuals >= 0, axis=1), scales

    def _unpacked(self, packed: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(packed, axis=1, count=self.width)
        return np.where(bits, np.float32(1), np.float32(-1))


def _residuals(
    vectors: np.ndarray, codes: np.ndarray, centroids: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the differences of vectors (T, D) from their centroids, some at a time."""
    step = max(1, BLOCK // vectors.shape[1])
    for i in range(0, len(vectors), step):
        yield vectors[i : i + step] - centroids[codes[i : i + step]]
