"""Vector search with faiss: exact, or approximate with a graph.

Approximate search is based on HNSW graphs. Each vector is linked to nearby vectors, and the search
follows these links, so only a few thousand out of a million vectors are compared to the query. This
package uses faiss instead of usearch, because usearch does not support filtering during search in
Python or the Manhattan distance, and loads binary files without any checks. In faiss, the graph
consists of two arrays. They are stored in the index file with the vectors, and checked on loading.

Comments use these letters for shapes: Q queries, N vectors, D dimensions, L links of all vectors, R
vectors in a level, W links of a vector in a level.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from encoder_zoo.common.lazy import LazyModule, require
from encoder_zoo.tasks.retrieval.similarity import Similarity
from encoder_zoo.tasks.retrieval.vectors import (
    COSINE_ROUNDING,
    VECTOR_BLOCK,
    Float32Vectors,
    check_shape,
    compute_steps,
    replace_pairs,
)

faiss = LazyModule(
    "faiss",
    "engine='faiss' and engine='hnsw' require the package faiss-cpu: `pip install faiss-cpu`. "
    "Without `engine`, NumPy is used for exact search.",
)
METRICS = {
    "cosine": "METRIC_INNER_PRODUCT",
    "dot": "METRIC_INNER_PRODUCT",
    "euclidean": "METRIC_L2",
    "manhattan": "METRIC_L1",
}
SPARE_RESULTS = 16  # additional results beyond `k`, so that earlier vectors come first in ties
LINKS = 32  # per vector and level. The lowest level, which contains all vectors, has twice as many.
MAX_LEVELS = 15
BUILDING_BREADTH = 64  # number of candidates in the search for the links of a new vector
SEARCH_BREADTH = 128  # number of candidates in a search
KEPT_GRAPH_SHARE = 0.8  # minimum fraction of vectors to keep the graph after a removal
GRAPH_TYPES = {"links": ("int32", 1), "levels": ("int32", 1)}


def check_engine(engine: str | None, precision: str, function: str) -> None:
    """Check that an engine is installed, and supports the precision and the similarity.

    Args:
        engine: Optional string. Name of the engine.
        precision: String. Precision of the vectors.
        function: String. Name of the similarity function.

    Raises:
        ValueError: If `engine` does not support `precision` or `function`.
        ImportError: If faiss is not installed.
    """
    if engine is None:
        return
    known = {"faiss": ("float32",), "hnsw": ("float32", "int8")}[engine]
    if precision not in known:
        raise ValueError(
            f"engine={engine!r} does not support precision={precision!r}. Expected "
            f"precision={' or '.join(map(repr, known))}."
        )
    if precision == "int8" and function == "manhattan":
        raise ValueError(
            f"engine={engine!r} does not support manhattan distances for int8. Expected "
            "precision='float32'."
        )
    require(faiss)


def add_engine(store: Float32Vectors, engine: str | None) -> Float32Vectors:
    """Convert a store to a store that uses an engine. If `engine` is None, return it unchanged."""
    if engine is None or store.engine == engine:
        return store
    if engine == "faiss":
        return FaissVectors(store.rows(slice(None)), store.function)
    return GraphVectors(store)


class FaissVectors(Float32Vectors):
    """Store vectors in a `faiss.IndexFlat` without keeping a second copy.

    Args:
        vectors: Float32 array of shape (N, D).
        function: String. Name of the similarity function. Defaults to "dot".

    Raises:
        ImportError: If faiss-cpu is not installed.
    """

    engine = "faiss"

    def __init__(self, vectors: np.ndarray, function: Similarity = "dot"):
        self.function = function
        self._index = faiss.IndexFlat(vectors.shape[1], getattr(faiss, METRICS[function]))
        self._index.add(np.ascontiguousarray(vectors))

    @property
    def vectors(self) -> np.ndarray:
        """A view of the vectors (N, D) in the memory of faiss."""
        return _make_view(self._index, self._index)

    def rows(self, indices) -> np.ndarray:
        return np.array(self.vectors[indices])

    def find_candidates(
        self, queries: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if among is not None:
            return super().find_candidates(queries, k, among)
        count = min(k + SPARE_RESULTS, len(self))
        distances, columns = self._index.search(np.ascontiguousarray(queries), count)
        rows, columns = np.repeat(np.arange(len(queries)), count), columns.ravel()
        # If the last result is as near as the k-th, other vectors can be as near.
        kth, last = distances[:, k - 1], distances[:, -1]
        rounding = self._compute_rounding(queries)
        rounding = COSINE_ROUNDING * np.abs(kth) if rounding is None else rounding
        if self.function == "euclidean":
            rounding = 2 * rounding  # faiss returns squared distances without the factor 0.5
        close = np.flatnonzero(np.abs(last - kth) <= 2 * rounding)
        if count == len(self) or not len(close):
            return rows, columns
        return replace_pairs(rows, columns, close, super().find_candidates(queries[close], k))


class GraphVectors(Float32Vectors):
    """Store vectors in float32 or int8 with an HNSW graph for approximate search.

    An exact search is used instead if it needs fewer comparisons: for a small index, a narrow
    filter, or many results. It is also used if the graph search does not return enough results.

    Args:
        base: Store with the vectors to index. In float32, the vectors are only kept in faiss. In
            int8, faiss has a second copy.
        links: Optional int32 array of shape (L,). `GraphVectors.links` from an existing graph of
            the first vectors. If None, a new graph is built.
        levels: Optional int32 array of shape (N,). Number of levels of each vector in the existing
            graph.

    Raises:
        ImportError: If faiss-cpu is not installed.

    Source: Malkov and Yashunin 2018, Efficient and Robust Approximate Nearest Neighbor Search Using
    Hierarchical Navigable Small World Graphs, section 4.
    """

    engine = "hnsw"

    def __init__(
        self,
        base: Float32Vectors,
        links: np.ndarray | None = None,
        levels: np.ndarray | None = None,
    ):
        self._graph = _build_graph(base, links, levels)
        if base.precision == "float32":
            vectors = _make_view(faiss.downcast_index(self._graph.storage), self._graph)
            base = type(base)(vectors, function=base.function)
        self.base = base
        self.function = base.function
        self.precision = base.precision
        self.types = {**base.types, **GRAPH_TYPES}

    @classmethod
    def open_graph(
        cls, path: str | os.PathLike, base: Float32Vectors, arrays: Mapping[str, np.ndarray]
    ) -> Self:
        """Create a store from the vectors and the graph in a file, and check the graph.

        Args:
            path: String or path. File path for error messages.
            base: Store with the vectors to search.
            arrays: Dict with "links" and "levels".

        Raises:
            ValueError: If `arrays` is not a valid graph for these vectors.
        """
        check_graph(path, arrays["links"], arrays["levels"], len(base))
        return cls(base, arrays["links"], arrays["levels"])

    @property
    def vectors(self) -> np.ndarray:
        """The vectors, in the precision of the base store."""
        return self.base.vectors

    @property
    def links(self) -> np.ndarray:
        """The links of each vector, level by level, int32 (L,). Unused links are -1."""
        neighbors = self._graph.hnsw.neighbors
        return faiss.rev_swig_ptr(neighbors.data(), neighbors.size())

    @property
    def levels(self) -> np.ndarray:
        """The number of levels of each vector, int32 (N,)."""
        return faiss.vector_to_array(self._graph.hnsw.levels)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {**self.base.arrays, "links": self.links, "levels": self.levels}

    def join(self, vectors: np.ndarray) -> Self:
        return type(self)(self.base.join(vectors), self.links, self.levels)

    def take(self, indices: np.ndarray) -> Self:
        base = self.base.take(indices)
        if len(indices) < KEPT_GRAPH_SHARE * len(self):
            return type(self)(base)
        return type(self)(base, *take_from_graph(self.links, self.levels, indices))

    def rows(self, indices) -> np.ndarray:
        return np.array(self.base.rows(indices))

    def find_candidates(
        self, queries: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        count = len(self) if among is None else len(among)
        wanted = min(k + SPARE_RESULTS, count)
        # Only a fraction of the vectors passes the filter, so more candidates are needed.
        breadth = max(SEARCH_BREADTH, 2 * wanted) * len(self) // count
        if 2 * LINKS * breadth >= count:
            return self.base.find_candidates(queries, k, among)
        options: dict[str, Any] = {"efSearch": breadth}
        if among is not None:
            chosen = np.zeros(len(self), bool)
            chosen[among] = True
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
        params = faiss.SearchParametersHNSW(**options)
        columns = self._graph.search(np.ascontiguousarray(queries), wanted, params=params)[1]
        rows = np.repeat(np.arange(len(queries)), wanted)
        short = np.flatnonzero(columns[:, -1] < 0)  # the graph did not return enough results
        if not len(short):
            return rows, columns.ravel()
        others = self.base.find_candidates(queries[short], k, among)
        return replace_pairs(rows, columns.ravel(), short, others)


def _make_view(index: Any, owner: Any) -> np.ndarray:
    """Return a view of the vectors (N, D) in a flat faiss index.

    Stores must not add vectors to an existing index. This would move the memory while other threads
    might be searching in it.
    """
    view = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(-1, index.d)
    return np.asarray(_FaissArray(view, owner))


class _FaissArray:
    """Array in the memory of faiss. It keeps a reference to the index that owns the memory."""

    def __init__(self, view: np.ndarray, owner: Any):
        self.__array_interface__ = view.__array_interface__
        self.owner = owner


def _build_graph(base: Float32Vectors, links: np.ndarray | None, levels: np.ndarray | None) -> Any:
    """Create a faiss index. If there is a graph of the first vectors, extend this graph."""
    metric = getattr(faiss, METRICS[base.function])
    if base.precision == "float32":
        index = faiss.IndexHNSWFlat(base.width, LINKS, metric)
        storage = faiss.downcast_index(index.storage)
    else:
        index = faiss.IndexHNSWSQ(base.width, faiss.ScalarQuantizer.QT_8bit, LINKS, metric)
        storage = faiss.downcast_index(index.storage)
        # In faiss, a value is the middle of its step. In this package, it is the start of its step.
        steps = compute_steps(base.ranges)
        trained = np.concatenate([base.ranges[0] - steps / 2, base.ranges[1] - base.ranges[0]])
        faiss.copy_array_to_vector(trained.astype("float32"), storage.sq.trained)
        storage.is_trained = index.is_trained = True
    index.hnsw.efConstruction = BUILDING_BREADTH
    known = 0 if levels is None else len(levels)
    rows = max(1, VECTOR_BLOCK // base.width)
    for first in range(0, known, rows):
        storage.add(np.ascontiguousarray(base.rows(slice(first, min(first + rows, known)))))
    if known:
        index.ntotal = known
        _set_graph(index.hnsw, links, levels)
    rows = len(base) if base.precision == "float32" else 16 * rows
    for first in range(known, len(base), rows):
        index.add(np.ascontiguousarray(base.rows(slice(first, first + rows))))
    return index


def _set_graph(hnsw: Any, links: np.ndarray, levels: np.ndarray) -> None:
    faiss.copy_array_to_vector(_find_starts(levels).astype("uint64"), hnsw.offsets)
    faiss.copy_array_to_vector(np.asarray(levels, "int32"), hnsw.levels)
    hnsw.neighbors.resize(len(links))
    faiss.rev_swig_ptr(hnsw.neighbors.data(), len(links))[:] = links
    hnsw.entry_point, hnsw.max_level = int(np.argmax(levels)), int(levels.max()) - 1


def _find_starts(levels: np.ndarray) -> np.ndarray:
    """Return the offset of the first link of each vector, and the number of links, (N + 1,)."""
    return np.concatenate([[0], np.cumsum(LINKS * (levels.astype("int64") + 1))])


def _find_link_positions(starts: np.ndarray, level: int) -> np.ndarray:
    """Return the positions (R, W) in `links` of the links that each vector has in a level."""
    first, width = (0, 2 * LINKS) if level == 0 else (LINKS * (level + 1), LINKS)
    return starts[:, None] + np.arange(first, first + width)


def check_graph(path: object, links: np.ndarray, levels: np.ndarray, count: int) -> None:
    """Raise a ValueError if a graph from a file has invalid links.

    Args:
        path: Path to the file.
        links, levels: See `GraphVectors`.
        count: Integer. The number of vectors.
    """
    check_shape(path, "levels", levels.shape, (count,))
    if levels.min() < 1 or levels.max() > MAX_LEVELS:
        raise ValueError(
            f"{path}: `levels` contains values outside of 1 to {MAX_LEVELS}. Build the index again."
        )
    starts = _find_starts(levels)
    check_shape(path, "links", links.shape, (int(starts[-1]),))
    for level in range(int(levels.max())):
        of_level = np.flatnonzero(levels > level)
        for first in range(0, len(of_level), VECTOR_BLOCK // LINKS):
            found = links[
                _find_link_positions(starts[of_level[first : first + VECTOR_BLOCK // LINKS]], level)
            ]
            fits = (found >= -1) & (found < count)
            if not fits.all() or (levels[found[found >= 0]] <= level).any():
                raise ValueError(
                    f"{path}: `links` contains the index of a vector that is not in the same "
                    "level. Build the index again."
                )


def take_from_graph(
    links: np.ndarray, levels: np.ndarray, indices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a graph to the given vectors, and return the new links and levels.

    A link to a removed vector is replaced by one of the removed vector's links to a remaining
    vector, if possible, so that most vectors can still be reached.

    Args:
        links, levels: See `GraphVectors`.
        indices: Integer array. Unique indices of the vectors to keep.

    Example:
        >>> links = np.full(6 * LINKS, -1, "int32")
        >>> links[0], links[2 * LINKS], links[4 * LINKS] = 1, 2, 1  # 0 -> 1 -> 2 -> 1
        >>> links, levels = take_from_graph(links, np.array([1, 1, 1], "int32"), np.array([2, 0]))
        >>> levels.tolist(), links[[0, 2 * LINKS]].tolist()  # the former 0 -> 2
        ([1, 1], [-1, 0])
    """
    indices = np.asarray(indices)
    numbers = np.full(len(levels) + 1, -1, "int32")  # the last item is for the link -1
    numbers[indices] = np.arange(len(indices), dtype="int32")
    new_levels = levels[indices]
    starts, new_starts = _find_starts(levels), _find_starts(new_levels)
    new_links = np.full(new_starts[-1], -1, "int32")
    for level in range(int(new_levels.max())):
        of_level = np.flatnonzero(new_levels > level)
        for first in range(0, len(of_level), VECTOR_BLOCK // LINKS):
            part = of_level[first : first + VECTOR_BLOCK // LINKS]
            found = links[_find_link_positions(starts[indices[part]], level)]  # (R, W)
            renumbered = numbers[found]
            rows, columns = np.nonzero((found >= 0) & (renumbered < 0))  # links to removed vectors
            if len(rows):
                beyond = numbers[links[_find_link_positions(starts[found[rows, columns]], level)]]
                beyond[beyond == part[rows, None]] = -1  # the vector itself
                renumbered[rows, columns] = _choose_links(beyond, rows + columns)
            new_links[_find_link_positions(new_starts[part], level)] = _remove_duplicates(
                renumbered
            )
    return new_links, new_levels


def _choose_links(links: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Choose a link in each row, based on the integers in `draws`. Rows without links get -1."""
    counts = (links >= 0).sum(axis=1)
    links = np.take_along_axis(links, np.argsort(links < 0, axis=1, kind="stable"), axis=1)
    return links[np.arange(len(links)), draws % np.maximum(counts, 1)]


def _remove_duplicates(links: np.ndarray) -> np.ndarray:
    """Remove duplicate links in each row, and move -1 to the end, because a search stops at -1."""
    order = np.argsort(links, axis=1, kind="stable")
    ranked = np.take_along_axis(links, order, axis=1)
    again = np.zeros_like(links, dtype=bool)
    np.put_along_axis(again, order[:, 1:], ranked[:, 1:] == ranked[:, :-1], axis=1)
    links = np.where(again, -1, links)
    return np.take_along_axis(links, np.argsort(links < 0, axis=1, kind="stable"), axis=1)
