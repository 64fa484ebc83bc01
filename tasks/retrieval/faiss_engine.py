"""The exact index of faiss as the engine of a search.

Comment letters: Q queries, N vectors, D width, P pairs of a query and a vector.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.tasks.retrieval.similarity import Similarity
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors

faiss = LazyModule(
    "faiss",
    "engine='faiss' needs the package faiss-cpu: `pip install faiss-cpu`, or leave engine out for "
    "the search in NumPy, which finds the same.",
)
METRICS = {
    "cosine": "METRIC_INNER_PRODUCT",
    "dot": "METRIC_INNER_PRODUCT",
    "euclidean": "METRIC_L2",
    "manhattan": "METRIC_L1",
}
SPARE = 16  # pairs beyond `k`, so that of equal vectors the earlier ones are found


class FaissVectors(Float32Vectors):
    """Vectors in a `faiss.IndexFlat`, which holds their only copy.

    Args:
        vectors: (N, D) float32.
        function: the similarity.

    Raises:
        ImportError: "engine='faiss' needs the package faiss-cpu: ..."
    """

    def __init__(self, vectors: np.ndarray, function: Similarity):
        self._index = faiss.IndexFlat(vectors.shape[1], getattr(faiss, METRICS[function]))
        self._index.add(np.ascontiguousarray(vectors))

    @property
    def vectors(self) -> np.ndarray:
        """Return (N, D), a view of faiss's memory, which a further vector moves."""
        count = self._index.ntotal * self._index.d
        view = faiss.rev_swig_ptr(self._index.get_xb(), count)
        return view.reshape(-1, self._index.d)

    def __len__(self) -> int:
        return self._index.ntotal

    @property
    def width(self) -> int:
        return self._index.d

    def joined(self, vectors: np.ndarray) -> FaissVectors:
        self._index.add(np.ascontiguousarray(vectors))
        return self

    def rows(self, indices) -> np.ndarray:
        return np.array(self.vectors[indices])

    def candidates(
        self, queries: np.ndarray, function: str, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        count = min(k + SPARE, len(self))
        columns = self._index.search(np.ascontiguousarray(queries), count)[1]
        return np.repeat(np.arange(len(queries)), count), columns.ravel()
