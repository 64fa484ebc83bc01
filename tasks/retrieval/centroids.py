"""Centroids of vectors, by k-means of their directions.

Comment letters: T vectors, K centroids, D width.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.tasks.retrieval.similarity import grouped_means
from encoder_zoo.tasks.retrieval.vectors import BLOCK

MOST = 2**16  # centroids, whose numbers take two bytes
FOR_EACH = 16  # vectors for each centroid, to learn it from
ROUNDS = 4


def centroids_of(vectors: np.ndarray) -> np.ndarray:
    """Return centroids (K, D) of vectors (T, D), each as long as its vectors on average.

    K is the largest power of two up to `8 sqrt(T)`. They are learned from a sample.

    Source: Santhanam et al. 2022, ColBERTv2, section 3.3, for centroids of tokens.

    Example:
        >>> vectors = np.repeat(np.eye(3, dtype="float32"), 50, axis=0)
        >>> centroids_of(vectors).shape
        (64, 3)
    """
    count = min(MOST, 2 ** int(np.log2(max(1.0, 8 * np.sqrt(len(vectors))))), len(vectors))
    draw = np.random.default_rng(0)  # the same vectors give the same index
    size = min(len(vectors), FOR_EACH * count)
    sample = np.asarray(vectors[np.sort(draw.choice(len(vectors), size, replace=False))])
    centroids = sample[draw.choice(size, count, replace=False)]
    for _ in range(ROUNDS):
        numbers, means = grouped_means(sample, nearest_centroids(sample, centroids))
        centroids = centroids.copy()
        centroids[numbers] = means  # one without vectors stays
    return centroids


def nearest_centroids(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the number of the nearest of centroids (K, D) for each of vectors (T, D), uint16.

    Example:
        >>> nearest_centroids(np.array([[0.0, 1.0], [1.0, 0.1]]), np.eye(2)).tolist()
        [1, 0]
    """
    found = np.empty(len(vectors), "uint16")
    half_squares = np.einsum("kd,kd->k", centroids, centroids) / 2
    step = max(1, BLOCK // len(centroids))
    for i in range(0, len(vectors), step):
        nearness = vectors[i : i + step] @ centroids.T
        found[i : i + step] = np.subtract(nearness, half_squares, out=nearness).argmax(axis=1)
    return found
