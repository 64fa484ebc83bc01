"""Documents as vectors of their tokens, and the search for those that match queries best (MaxSim).

The score of a document is the sum over the query's tokens of the largest product with one of the
document's tokens. In float32 all documents are compared. As residuals, a vector is its nearest
centroid and the difference from it, in int8 or one bit, with a scale of its own: the documents are
compared by the centroids of their tokens, and those that match best by all that is stored of them.
Of T vectors of D numbers, D a multiple of 8, "int8" takes 4 T + T D bytes, "binary" 4 T + T D / 8,
and the centroids some more.

Comment letters: Q queries, N documents, T tokens of all documents, L tokens of all queries, D
width, B tokens of a block or bytes of signs, M documents of a block, K centroids.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.common.machine import usable_cores
from encoder_zoo.tasks.retrieval.similarity import check_finite, grouped_means
from encoder_zoo.tasks.retrieval.vectors import BLOCK, BestPairs, Float32Vectors, Precision

if TYPE_CHECKING:
    from typing import Self

hierarchy = LazyModule(
    "scipy.cluster.hierarchy",
    "pool_factor needs the package scipy: `pip install scipy`, or leave it out.",
)
MOST_CENTROIDS = 2**16  # whose numbers take two bytes
TOKENS_PER_CENTROID = 16  # vectors for each centroid, to learn it from
ROUNDS = 4  # of k-means
LEAST_SCALE = 1e-6  # of residuals, which are stored in half precision
OVERSAMPLED = 16  # documents scored in full for each result of the search by centroids
MIN_CANDIDATES = 512
AT_ONCE = 2  # queries that are compared with a block
CACHED = 2**18  # products at a time: 1 MB
THREADS = min(8, usable_cores())
# Multiplications of a matrix product that OpenBLAS leaves to one thread. Its own threads wait for
# each other: twice the time for products as flat as these.
ONE_THREAD = 2**17


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
    of_rows = ("vectors", "codes", "scales")
    codes: np.ndarray
    scales: np.ndarray
    centroids: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray) -> Self:
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
        if (least := self.scales.min()) < 0:
            raise ValueError(f"{path}: scales has {least}. Expected no negative numbers.")

    @property
    def width(self) -> int:
        return self.centroids.shape[1]

    def joined(self, vectors: np.ndarray) -> Self:
        codes = nearest_centroids(vectors, self.centroids)
        packed = [self._pack(part) for part in _residuals(vectors, codes, self.centroids)]
        residuals, scales = (np.concatenate(parts) for parts in zip(*packed, strict=True))
        further = zip(self.of_rows, (residuals, codes, scales), strict=True)
        return self._with(**{n: np.concatenate([getattr(self, n), new]) for n, new in further})

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
        scales = np.maximum(most / 127, LEAST_SCALE).astype("float16")
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


def centroids_of(vectors: np.ndarray) -> np.ndarray:
    """Return centroids (K, D) of vectors (T, D), each as long as its vectors on average.

    K is the largest power of two up to `8 sqrt(T)`. They are learned from a sample, by k-means of
    the vectors' directions.

    Source: Santhanam et al. 2022, ColBERTv2, section 3.3, for centroids of tokens.

    Example:
        >>> vectors = np.repeat(np.eye(3, dtype="float32"), 50, axis=0)
        >>> centroids_of(vectors).shape
        (64, 3)
    """
    count = min(
        MOST_CENTROIDS, 2 ** int(np.log2(max(1.0, 8 * np.sqrt(len(vectors))))), len(vectors)
    )
    draw = np.random.default_rng(0)  # the same vectors give the same index
    size = min(len(vectors), TOKENS_PER_CENTROID * count)
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


TOKEN_STORES = {
    store.precision: store for store in (Float32Vectors, Int8Residuals, BinaryResiduals)
}


class TokenVectors:
    """The tokens' vectors of documents, one document after the other.

    Args:
        store: of `TOKEN_STORES`, T vectors.
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
    def of(cls, documents: Sequence[np.ndarray], precision: Precision) -> TokenVectors:
        """Return the tokens of documents, each (tokens, D) float32 of unit length."""
        return cls(TOKEN_STORES[precision].of(np.concatenate(documents)), _ends(documents))

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def width(self) -> int:
        """Return D."""
        return self.store.width

    @property
    def precision(self) -> str:
        """Return the precision of the vectors."""
        return self.store.precision

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a file."""
        return {**self.store.arrays, "ends": self.ends}

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return self.store.nbytes + self.ends.nbytes

    @classmethod
    def opened(
        cls, path: str | os.PathLike, arrays: Mapping[str, np.ndarray], precision: Precision
    ) -> Self:
        """Return the tokens of a file's arrays, which have the right types, checked.

        Args:
            path: of the file, for errors.
            arrays: those of the store, and "ends".
            precision: of the store.

        Raises:
            ValueError: If `ends` does not divide the vectors among the documents.
        """
        tokens = cls(TOKEN_STORES[precision].opened(path, arrays), arrays["ends"])
        ends, begins, count = tokens.ends, tokens._begins, len(tokens.store)
        if not len(ends) or begins[0] or (ends <= begins).any() or ends[-1] != count:
            raise ValueError(f"{path}: ends is no growing list up to the {count} vectors.")
        return tokens

    def joined(self, documents: Sequence[np.ndarray]) -> TokenVectors:
        """Return these documents and further ones behind them."""
        ends = np.concatenate([self.ends, self.ends[-1] + _ends(documents)])
        return TokenVectors(self.store.joined(np.concatenate(documents)), ends)

    def taken(self, indices: np.ndarray) -> TokenVectors:
        """Return the tokens of some documents, in the order of their indices."""
        lengths = self.ends[indices] - self._begins[indices]
        return TokenVectors(self.store.taken(self._tokens_of(indices)), np.cumsum(lengths))

    def _tokens_of(self, documents: np.ndarray) -> np.ndarray:
        """Return the indices of the tokens of some documents, one document after the other."""
        lengths = self.ends[documents] - self._begins[documents]
        starts = np.cumsum(lengths) - lengths
        return np.repeat(self._begins[documents] - starts, lengths) + np.arange(lengths.sum())

    def document(self, index: int) -> np.ndarray:
        """Return the vectors of a document, (tokens, D) float32."""
        return self.store.rows(slice(self._begins[index], self.ends[index]))

    def nearest(
        self, queries: Sequence[np.ndarray], k: int, among: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the `k` documents that match each query best, of equal ones the earlier.

        Args:
            queries: Q arrays (tokens, D) float32.
            k: at most N, or as many as there are `among`.
            among: the indices of the documents that may be found, rising; None: all.

        Returns:
            Indices (Q, k) int64, scores (Q, k) float32.
        """
        found = []
        for i in range(0, len(queries), AT_ONCE):
            part = queries[i : i + AT_ONCE]
            rows, columns = self._candidates(part, k, among)
            found += [self._best(q, columns[rows == j], k) for j, q in enumerate(part)]
        return np.stack([f[0] for f in found]), np.stack([f[1] for f in found])

    def _candidates(
        self, queries: Sequence[np.ndarray], k: int, among: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of queries and documents that can be among the `k` best of each query."""
        of_queries = np.concatenate(queries)  # (L, D)
        if isinstance(self.store, Int8Residuals):
            products = self.store.coarse(of_queries)
            count = len(self) if among is None else len(among)
            k = min(count, max(OVERSAMPLED * k, MIN_CANDIDATES))
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
        best.add(scores if among is None else scores[:, among], start=0)
        rows, columns = best.pairs()
        return rows, columns if among is None else among[columns]

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
        vectors = self.store.rows(self._tokens_of(documents)).astype(dtype, copy=False)
        products = query.astype(dtype) @ vectors.T
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


def pooled(tokens: np.ndarray, factor: int) -> np.ndarray:
    """Return about one vector for each `factor` tokens of a document.

    The tokens are put into groups by hierarchical clustering, which joins those whose sum of
    squared distances to their mean grows least (Ward's method); a group becomes a vector in the
    direction of its mean, as long as its tokens on average.

    Args:
        tokens: (T, D) float32.
        factor: 1 leaves them as they are.

    Returns:
        At most `ceil(T / factor)` vectors, in the order of the groups' first tokens.

    Raises:
        ImportError: If the package scipy is not installed.

    Source: Clavié et al. 2024, Reducing the Footprint of Multi-Vector Retrieval with Minimal
    Performance Impact via Token Pooling, section 2.

    Example:
        >>> tokens = np.array([[1, 0], [0, 1], [0.96, 0.28], [0, 1]], "float32")
        >>> pooled(tokens, 2).round(2).tolist()
        [[0.9900000095367432, 0.14000000059604645], [0.0, 1.0]]
    """
    groups = -(-len(tokens) // factor)
    if groups == len(tokens):
        return tokens
    labels = hierarchy.fcluster(hierarchy.linkage(tokens, "ward"), groups, "maxclust")
    _, firsts = np.unique(labels, return_index=True)
    _, means = grouped_means(tokens, labels)
    return means[np.argsort(firsts)]


def prepared_tokens(vectors, width: int, pool_factor: int = 1) -> list[np.ndarray]:
    """Return copies of the vectors of each document, checked, and pooled.

    Raises:
        ValueError: If `vectors` is empty, or if an entry is not an array (tokens, `width`) of
            floats.
    """
    if not len(vectors):
        raise ValueError("vectors is empty. Expected an array (tokens, D) for each document.")
    prepared = []
    for i, tokens in enumerate(vectors):
        tokens = np.asarray(tokens)
        if tokens.shape[1:] != (width,) or tokens.dtype.kind != "f" or not len(tokens):
            raise ValueError(
                f"vectors[{i}] has shape {tokens.shape} and type {tokens.dtype}. Expected floats "
                f"of shape (tokens, {width}), one token or more."
            )
        tokens = np.array(tokens, "float32")
        check_finite(tokens, f"vectors[{i}]")
        prepared.append(pooled(tokens, pool_factor))
    return prepared
