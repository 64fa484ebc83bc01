"""Token vectors of documents in memory, and search by MaxSim scores.

The MaxSim score of a document is the sum over the query tokens of the maximum dot product with a
document token. In float32, the query is compared with all documents. In int8 and binary, each
vector is stored as the index of the nearest centroid, and a residual with its scale. The residual
is the difference between the vector and the centroid, in int8 or with a single bit per dimension. A
search first compares the query with the centroids of all documents. Only the best candidates are
scored with their complete vectors. For T vectors with D dimensions, where D is a multiple of 8, the
size is 4 T + T D bytes for "int8", and 4 T + T D / 8 bytes for "binary". The centroids are small in
comparison.

Comments use these letters for shapes: Q queries, N documents, T tokens of all documents, L tokens
of all queries, D dimensions, B tokens of a block or bytes of signs, M documents of a block, K
centroids.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Self

import numpy as np

from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.common.machine import count_cores
from encoder_zoo.tasks.retrieval.options import Precision
from encoder_zoo.tasks.retrieval.similarity import check_finite, compute_group_means
from encoder_zoo.tasks.retrieval.vectors import VECTOR_BLOCK, BestPairs, Float32Vectors

hierarchy = LazyModule(
    "scipy.cluster.hierarchy",
    "`pool_factor` requires the package scipy: `pip install scipy`. Or remove this argument.",
)
MAX_CENTROIDS = 2**16  # the index of a centroid takes two bytes
TOKENS_PER_CENTROID = 16  # number of training vectors per centroid
ROUNDS = 4  # number of iterations of k-means
MIN_SCALE = 1e-6  # minimum scale of a residual in half precision
# Documents per result that are scored with complete vectors, after a search by centroids.
TOKEN_CANDIDATES_PER_RESULT = 16
MIN_TOKEN_CANDIDATES = 512
TOKEN_QUERIES_PER_STEP = 2  # number of queries that are compared with a block at a time
CACHED = 2**18  # number of dot products that are computed at a time, 1 MB
THREADS = min(8, count_cores())
# OpenBLAS uses a single thread for products with fewer multiplications. For such narrow products,
# several threads would wait for each other and take twice as long.
ONE_THREAD = 2**17


class Int8Residuals(Float32Vectors):
    """Store vectors as centroids and int8 residuals with 255 steps.

    Args:
        vectors: Int8 array of shape (T, D). Residuals.
        codes: Uint16 array of shape (T,). Index of the centroid of each vector.
        scales: Float16 array of shape (T, 1). Factor for each residual.
        centroids: Float32 array of shape (K, D).

    Source: Santhanam et al. 2022, ColBERTv2, section 3.3. The scales are an addition of this
    package.

    Example:
        >>> vectors = np.eye(4, dtype="float32")
        >>> store = Int8Residuals.create(vectors)
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
    of_rows = ("vectors", "codes", "scales")
    codes: np.ndarray
    scales: np.ndarray
    centroids: np.ndarray

    @classmethod
    def create(cls, vectors: np.ndarray) -> Self:
        centroids = compute_centroids(vectors)
        none = np.zeros((0, cls._get_packed_width(vectors.shape[1])), cls.types["vectors"][0])
        empty = cls(none, np.zeros(0, "uint16"), np.zeros((0, 1), "float16"), centroids)
        return empty.join(vectors)

    @classmethod
    def get_expected_shapes(cls, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        count, (centroids, width) = found["vectors"][0], found["centroids"]
        return {
            "vectors": (count, cls._get_packed_width(width)),
            "codes": (count,),
            "scales": (count, 1),
            "centroids": (centroids, width),
        }

    def check(self, path: str | os.PathLike) -> None:
        super().check(path)
        most = int(self.codes.max())
        if most >= len(self.centroids):
            last = len(self.centroids) - 1
            raise ValueError(
                f"{path}: `codes` contains the centroid {most}. Expected at most {last}."
            )
        if (least := self.scales.min()) < 0:
            raise ValueError(f"{path}: `scales` contains {least}. Expected no negative values.")

    @property
    def width(self) -> int:
        return self.centroids.shape[1]

    def join(self, vectors: np.ndarray) -> Self:
        codes = find_nearest_centroids(vectors, self.centroids)
        step = max(1, VECTOR_BLOCK // vectors.shape[1])
        parts = [slice(i, i + step) for i in range(0, len(vectors), step)]
        packed = [self._pack(vectors[part] - self.centroids[codes[part]]) for part in parts]
        residuals, scales = (np.concatenate(parts) for parts in zip(*packed, strict=True))
        further = zip(self.of_rows, (residuals, codes, scales), strict=True)
        return self._replace(**{n: np.concatenate([getattr(self, n), new]) for n, new in further})

    def rows(self, indices) -> np.ndarray:
        found = self._unpack(self.vectors[indices])
        found *= self.scales[indices]
        found += self.centroids[self.codes[indices]]
        return found

    def make_coarse_scorer(self, queries: np.ndarray) -> Callable[[slice], np.ndarray]:
        """Return a function that computes dot products of queries with the centroids of vectors.

        Args:
            queries: Float32 array of shape (L, D).

        Returns:
            Function that computes the products (B, L) for a slice of the vectors.
        """
        products = self.centroids @ queries.T  # (K, L)
        return lambda part: np.take(products, self.codes[part], axis=0)

    @staticmethod
    def _get_packed_width(width: int) -> int:
        return width

    def _pack(self, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pack residuals (T, D), and compute their scales, float16 (T, 1)."""
        most = np.abs(residuals).max(axis=1, keepdims=True)
        scales = np.maximum(most / 127, MIN_SCALE).astype("float16")
        steps = np.rint(residuals / scales)
        return np.clip(steps, -127, 127).astype("int8"), scales

    def _unpack(self, packed: np.ndarray) -> np.ndarray:
        """Unpack residuals to float32. The scales are not applied."""
        return packed.astype("float32")


class BinaryResiduals(Int8Residuals):
    """Store vectors as centroids and packed signs of the residuals.

    After unpacking, all values of a residual have the same absolute value, which is stored as the
    scale. It is the mean absolute value of the original residual, which minimizes the squared
    error.

    Args:
        vectors: Uint8 array of shape (T, B). Signs, one bit per dimension.
        codes, scales, centroids: See `Int8Residuals`.

    Example:
        >>> store = BinaryResiduals.create(np.eye(16, dtype="float32"))
        >>> store.vectors.shape, int(store.rows([3]).argmax())
        ((16, 2), 3)
    """

    precision = "binary"
    types: ClassVar = {**Int8Residuals.types, "vectors": ("uint8", 2)}

    @staticmethod
    def _get_packed_width(width: int) -> int:
        return -(-width // 8)

    def _pack(self, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scales = np.abs(residuals).mean(axis=1, keepdims=True).astype("float16")
        return np.packbits(residuals >= 0, axis=1), scales

    def _unpack(self, packed: np.ndarray) -> np.ndarray:
        bits = np.unpackbits(packed, axis=1, count=self.width)
        return np.where(bits, np.float32(1), np.float32(-1))


def compute_centroids(vectors: np.ndarray) -> np.ndarray:
    """Compute centroids (K, D) for vectors (T, D) with k-means on a sample.

    K is the largest power of two up to `8 sqrt(T)`. Vectors are clustered by direction. The norm of
    a centroid is the mean norm of the vectors in its cluster.

    Source: Santhanam et al. 2022, ColBERTv2, section 3.3, for centroids of tokens.

    Example:
        >>> vectors = np.repeat(np.eye(3, dtype="float32"), 50, axis=0)
        >>> compute_centroids(vectors).shape
        (64, 3)
    """
    count = min(MAX_CENTROIDS, 2 ** int(np.log2(max(1.0, 8 * np.sqrt(len(vectors))))), len(vectors))
    draw = np.random.default_rng(0)  # a fixed seed, so that the same vectors give the same index
    size = min(len(vectors), TOKENS_PER_CENTROID * count)
    sample = np.asarray(vectors[np.sort(draw.choice(len(vectors), size, replace=False))])
    centroids = sample[draw.choice(size, count, replace=False)]
    for _ in range(ROUNDS):
        numbers, means = compute_group_means(sample, find_nearest_centroids(sample, centroids))
        centroids = centroids.copy()
        centroids[numbers] = means  # a centroid without vectors does not change
    return centroids


def find_nearest_centroids(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the index of the nearest centroid (K, D) of each vector (T, D), as uint16 (T,).

    Example:
        >>> find_nearest_centroids(np.array([[0.0, 1.0], [1.0, 0.1]]), np.eye(2)).tolist()
        [1, 0]
    """
    found = np.empty(len(vectors), "uint16")
    half_squares = np.einsum("kd,kd->k", centroids, centroids) / 2
    step = max(1, VECTOR_BLOCK // len(centroids))
    for i in range(0, len(vectors), step):
        nearness = vectors[i : i + step] @ centroids.T
        found[i : i + step] = np.subtract(nearness, half_squares, out=nearness).argmax(axis=1)
    return found


TOKEN_STORES = {
    store.precision: store for store in (Float32Vectors, Int8Residuals, BinaryResiduals)
}


class TokenVectors:
    """The token vectors of all documents, in a single array.

    Args:
        store: Store of T vectors, an instance of a class in `TOKEN_STORES`.
        ends: Int64 array of shape (N,). End offset of each document in the token vectors.

    Example:
        >>> documents = [np.eye(2, dtype="float32"), np.array([[0.6, 0.8]], "float32")]
        >>> tokens = TokenVectors.create(documents, "float32")
        >>> len(tokens), tokens.get_document_vectors(1).round(1).tolist()
        (2, [[0.6000000238418579, 0.800000011920929]])
        >>> indices, scores = tokens.find_nearest([np.eye(2, dtype="float32")], k=2)
        >>> indices.tolist(), scores.round(1).tolist()
        ([[0, 1]], [[2.0, 1.399999976158142]])
    """

    def __init__(self, store: Float32Vectors, ends: np.ndarray):
        self.store = store
        self.ends = ends
        self._begins = np.concatenate([[0], ends[:-1]])

    @classmethod
    def create(cls, documents: Sequence[np.ndarray], precision: Precision) -> TokenVectors:
        """Create a store from the float32 token vectors (tokens, D) of each document."""
        return cls(
            TOKEN_STORES[precision].create(np.concatenate(documents)), _compute_ends(documents)
        )

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def width(self) -> int:
        """Return the vector dimension."""
        return self.store.width

    @property
    def precision(self) -> str:
        """Return the vector precision."""
        return self.store.precision

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that are saved to a file."""
        return {**self.store.arrays, "ends": self.ends}

    @property
    def nbytes(self) -> int:
        """Return the total array size in bytes."""
        return self.store.nbytes + self.ends.nbytes

    @classmethod
    def open(
        cls, path: str | os.PathLike, arrays: Mapping[str, np.ndarray], precision: Precision
    ) -> Self:
        """Create a store from the arrays in a file, and check their values.

        Args:
            path: String or path. File path for error messages.
            arrays: Dict with the arrays of the store, in the correct types, and "ends".
            precision: String. Precision of the store.

        Raises:
            ValueError: If `ends` is not an increasing list up to the number of vectors.
        """
        tokens = cls(TOKEN_STORES[precision].open(path, arrays), arrays["ends"])
        ends, begins, count = tokens.ends, tokens._begins, len(tokens.store)
        if not len(ends) or begins[0] or (ends <= begins).any() or ends[-1] != count:
            raise ValueError(
                f"{path}: `ends` is not an increasing list up to {count}, the number of vectors. "
                "Build the index again."
            )
        return tokens

    def join(self, documents: Sequence[np.ndarray]) -> TokenVectors:
        """Return a store with additional documents at the end."""
        ends = np.concatenate([self.ends, self.ends[-1] + _compute_ends(documents)])
        return TokenVectors(self.store.join(np.concatenate(documents)), ends)

    def take(self, indices: np.ndarray) -> TokenVectors:
        """Return a store with only the documents at the given indices, in this order."""
        tokens, ends = self._find_tokens(indices)
        return TokenVectors(self.store.take(tokens), ends)

    def _find_tokens(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the token indices of the given documents, and the documents' ends in them."""
        lengths = self.ends[documents] - self._begins[documents]
        ends = np.cumsum(lengths)
        tokens = np.repeat(self.ends[documents] - ends, lengths) + np.arange(lengths.sum())
        return tokens, ends

    def get_document_vectors(self, index: int) -> np.ndarray:
        """Return the token vectors of a document, float32 (tokens, D)."""
        return self.store.rows(slice(self._begins[index], self.ends[index]))

    def find_nearest(
        self, queries: Sequence[np.ndarray], k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the `k` best documents of each query. Documents with equal scores keep their order.

        Args:
            queries: Sequence of Q float32 arrays of shape (tokens, D).
            k: Integer. Number of results per query, at most the number of documents to search.
            among: Optional integer array. Indices of the documents to search, in ascending order.
                If None, all documents are searched.

        Returns:
            Tuple of int64 indices (Q, k) and float32 scores (Q, k).
        """
        found = []
        for i in range(0, len(queries), TOKEN_QUERIES_PER_STEP):
            part = queries[i : i + TOKEN_QUERIES_PER_STEP]
            rows, columns = self._find_candidates(part, k, among)
            found += [self._find_best(q, columns[rows == j], k) for j, q in enumerate(part)]
        return np.stack([f[0] for f in found]), np.stack([f[1] for f in found])

    def _find_candidates(
        self, queries: Sequence[np.ndarray], k: int, among: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Find the pairs (query, document) that can be among the `k` best pairs of the query."""
        of_queries = np.concatenate(queries)  # (L, D)
        if isinstance(self.store, Int8Residuals):
            products = self.store.make_coarse_scorer(of_queries)
            count = len(self) if among is None else len(among)
            k = min(count, max(TOKEN_CANDIDATES_PER_RESULT * k, MIN_TOKEN_CANDIDATES))
        else:
            products = functools.partial(_compute_products, self.store, of_queries)
        starts = np.concatenate([[0], _compute_ends(queries)[:-1]])
        scores = np.empty((len(queries), len(self)), "float32")

        def score(blocks: np.ndarray) -> None:
            for first, last in blocks:
                best = self._compute_max_over_tokens(products, first, last)
                scores[:, first:last] = np.add.reduceat(best, starts, axis=1).T

        with ThreadPoolExecutor(THREADS) as threads:
            parts = np.array_split(self._split_into_blocks(len(of_queries)), THREADS)
            list(threads.map(score, parts))
        best = BestPairs(len(queries), k)
        best.add(scores if among is None else scores[:, among], start=0)
        rows, columns = best.get_pairs()
        return rows, columns if among is None else among[columns]

    def _split_into_blocks(self, made: int) -> np.ndarray:
        """Return the bounds of blocks of documents whose products fit into the cache.

        Args:
            made: Integer. Number of products per token.
        """
        cuts = [0]
        while cuts[-1] < len(self):
            most = self._begins[cuts[-1]] + CACHED // made
            cuts.append(max(cuts[-1] + 1, int(np.searchsorted(self.ends, most, "right"))))
        return np.stack([cuts[:-1], cuts[1:]], axis=1)

    def _compute_max_over_tokens(self, products: Callable, first: int, last: int) -> np.ndarray:
        """Compute the maximum product of each document and query token, (M, L)."""
        begins = self._begins[first:last]
        part = slice(int(begins[0]), int(self.ends[last - 1]))
        return np.maximum.reduceat(products(part), begins - part.start, axis=0)

    def _find_best(self, query: np.ndarray, documents: np.ndarray, k: int):
        """Return the indices (k,) and float64 scores (k,) of the best documents."""
        if len(documents) > 2 * k:
            best = BestPairs(1, k)
            best.add(self._compute_scores(query, documents, "float32")[None], start=0)
            documents = documents[np.sort(best.get_pairs()[1])]
        scores = self._compute_scores(query, documents, "float64").astype("float32")
        order = np.lexsort((documents, -scores))[:k]
        return documents[order], scores[order]

    def _compute_scores(self, query: np.ndarray, documents: np.ndarray, dtype: str) -> np.ndarray:
        """Compute the scores of documents (M,) from their complete vectors."""
        tokens, ends = self._find_tokens(documents)
        vectors = self.store.rows(tokens).astype(dtype, copy=False)
        products = query.astype(dtype) @ vectors.T
        starts = ends - np.diff(ends, prepend=0)
        return np.maximum.reduceat(products, starts, axis=1).sum(axis=0)


def _compute_products(store: Float32Vectors, queries: np.ndarray, part: slice) -> np.ndarray:
    """Compute the dot products (B, L) of the vectors in a slice and the query tokens (L, D)."""
    tokens, width = store.rows(part), store.width
    rows = max(1, ONE_THREAD // queries.size)
    whole = len(tokens) // rows * rows
    found = np.empty((len(tokens), len(queries)), "float32")
    shape = (-1, rows, len(queries))
    np.matmul(tokens[:whole].reshape(-1, rows, width), queries.T, out=found[:whole].reshape(shape))
    np.matmul(tokens[whole:], queries.T, out=found[whole:])
    return found


def _compute_ends(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the end offset of each array after all arrays are concatenated."""
    return np.cumsum([len(array) for array in arrays], dtype="int64")


def pool_tokens(tokens: np.ndarray, factor: int) -> np.ndarray:
    """Merge similar tokens of a document, about `factor` tokens into one vector.

    Tokens are grouped by hierarchical clustering with Ward's method. Each step merges the two
    groups that increase the sum of squared distances to the mean least. A group's vector has
    the mean direction and the mean norm of its tokens.

    Args:
        tokens: Float32 array of shape (T, D).
        factor: Integer. If 1, the tokens are returned unchanged.

    Returns:
        Float32 array of up to `ceil(T / factor)` vectors, sorted by the first token of each group.

    Raises:
        ImportError: If scipy is not installed.

    Source: Clavié et al. 2024, Reducing the Footprint of Multi-Vector Retrieval with Minimal
    Performance Impact via Token Pooling, section 2.

    Example:
        >>> tokens = np.array([[1, 0], [0, 1], [0.96, 0.28], [0, 1]], "float32")
        >>> pool_tokens(tokens, 2).round(2).tolist()
        [[0.9900000095367432, 0.14000000059604645], [0.0, 1.0]]
    """
    groups = -(-len(tokens) // factor)
    if groups == len(tokens):
        return tokens
    labels = hierarchy.fcluster(hierarchy.linkage(tokens, "ward"), groups, "maxclust")
    _, firsts = np.unique(labels, return_index=True)
    _, means = compute_group_means(tokens, labels)
    return means[np.argsort(firsts)]


def prepare_tokens(vectors, width: int, pool_factor: int = 1) -> list[np.ndarray]:
    """Copy, check and pool the token vectors of each document.

    Raises:
        ValueError: If `vectors` is empty, or if an item is not a float array of shape (tokens,
            `width`).
    """
    if not len(vectors):
        raise ValueError(
            "`vectors` is empty. Expected an array of shape (tokens, D) for each document."
        )
    prepared = []
    for i, tokens in enumerate(vectors):
        tokens = np.asarray(tokens)
        if tokens.shape[1:] != (width,) or tokens.dtype.kind != "f" or not len(tokens):
            raise ValueError(
                f"vectors[{i}] has shape {tokens.shape} and dtype {tokens.dtype}. Expected floats "
                f"of shape (tokens, {width}) with at least one token."
            )
        tokens = np.array(tokens, "float32")
        check_finite(tokens, f"vectors[{i}]")
        prepared.append(pool_tokens(tokens, pool_factor))
    return prepared
