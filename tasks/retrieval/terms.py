"""Search for documents that share terms with a query.

`Postings` stores sparse vectors, with a weight for each term in a vocabulary. `WordCounts` stores
texts, with BM25 weights of their words.

Comments use these letters for shapes: N documents or texts, Q queries, P positive weights, V
vocabulary.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from encoder_zoo.common.lazy import LazyModule, require
from encoder_zoo.tasks.retrieval.similarity import check_finite, find_invalid_row

if TYPE_CHECKING:
    from scipy.sparse import csr_array

sparse = LazyModule(
    "scipy.sparse", "Sparse vectors require the package scipy: `pip install scipy`."
)
bm25s = LazyModule("bm25s", "BM25 requires the package bm25s: `pip install bm25s`.")
TERM_QUERY_BLOCK = 64  # number of queries to search at a time
# Han and Hiragana are written without spaces.
UNSPACED = "\u3041-\u3096\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
SearchResults = tuple[list[np.ndarray], list[np.ndarray]]  # indices and scores for each query


def convert_to_sparse_rows(weights: np.ndarray, most: int | None = None) -> csr_array:
    """Convert dense weights (N, V) to a sparse matrix with at most `most` weights per row.

    Example:
        >>> convert_to_sparse_rows(np.array([[0.0, 2.0, 1.0, 3.0]]), 2).toarray().tolist()
        [[0.0, 2.0, 0.0, 3.0]]
    """
    if most is not None and most < weights.shape[1]:
        kept = np.argpartition(-weights, most - 1, axis=1)[:, :most]
        rows = np.zeros_like(weights)
        np.put_along_axis(rows, kept, np.take_along_axis(weights, kept, axis=1), axis=1)
        weights = rows
    return sparse.csr_array(weights)


def normalize_sparse_rows(rows: csr_array) -> csr_array:
    """Normalize rows (N, V) to unit length. Zero rows are not changed.

    Example:
        >>> rows = convert_to_sparse_rows(np.array([[0.0, 4.0], [0.0, 0.0]]))
        >>> normalize_sparse_rows(rows).toarray().tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    wide = rows.astype("float64")  # in float32, squares of small values are 0
    lengths = np.sqrt(wide.multiply(wide).sum(axis=1))
    scaled = rows.copy()
    scaled.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))
    return scaled


def normalize_rows(rows, function: str) -> csr_array:
    """Convert weights (N, V) to float32, and normalize the rows for "cosine".

    Raises:
        ValueError: If a weight in `rows` is NaN, infinite or too large for float32 products.
    """
    rows = sparse.csr_array(rows).astype("float32")
    if found := find_invalid_row(rows.data[:, None]):
        number, why = found
        row = int(np.searchsorted(rows.indptr, number, side="right")) - 1
        raise ValueError(f"vectors[{row}] has a weight {why}")
    return normalize_sparse_rows(rows) if function == "cosine" else rows


def find_largest_weights(weights: np.ndarray, indices: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the largest weights. Equal weights are sorted by index.

    Args:
        weights: Array of shape (P,).
        indices: Array of P unique integers.
        most: Integer. Number of positions to return, at most P.

    Example:
        >>> find_largest_weights(np.array([1.0, 5.0, 1.0]), np.array([7, 3, 2]), 2).tolist()
        [1, 2]
    """
    candidates = np.arange(len(weights))
    if most < len(weights):
        candidates = np.flatnonzero(weights >= np.partition(weights, -most)[-most])
    order = np.lexsort((indices[candidates], -weights[candidates]))
    return candidates[order[:most]]


class Postings:
    """Inverted index, which stores the documents and the weights of each term.

    Args:
        weights: Sparse matrix of shape (V, N).

    Example:
        >>> from scipy.sparse import csr_array
        >>> postings = Postings(csr_array(np.array([[0.0, 2.0], [3.0, 1.0]])))
        >>> [part[0].tolist() for part in postings.find_nearest(csr_array([[0.0, 1.0]]), k=2)]
        [[0, 1], [3.0, 1.0]]
    """

    precision = None
    types: ClassVar = {"weights": ("float32", 1), "terms": ("int32", 1), "starts": ("int64", 1)}

    def __init__(self, weights: csr_array):
        self.weights = weights

    @classmethod
    def create(cls, vectors: csr_array) -> Postings:
        """Create an inverted index from document vectors (N, V)."""
        return cls(vectors.T.tocsr())

    @classmethod
    def open(
        cls, path: str | os.PathLike, arrays: Mapping[str, np.ndarray], width: int
    ) -> Postings:
        """Create an inverted index from the arrays in a file.

        All values are checked, because scipy would use invalid values as memory offsets.

        Args:
            path: String or path. File path for error messages.
            arrays: Dict with the arrays in `types`, sorted by document.
            width: Integer. Size of the vocabulary.

        Raises:
            ValueError: If `arrays` is not a valid sparse matrix with `width` columns, or if the
                terms of a document are not sorted.
        """
        weights, terms, starts = (arrays[name] for name in cls.types)
        check_finite(weights[:, None], f"{path}: weights")
        rises = len(starts) > 1 and starts[0] == 0 and bool((np.diff(starts) >= 0).all())
        if not rises or starts[-1] != len(terms) or len(terms) != len(weights):
            raise ValueError(
                f"{path}: `starts` does not match {len(weights)} weights and {len(terms)} terms. "
                "Expected increasing integers from 0 to the number of weights and terms."
            )
        if len(terms) and not (terms.min() >= 0 and terms.max() < width):
            wrong = int(terms.min() if terms.min() < 0 else terms.max())
            raise ValueError(
                f"{path}: `terms` contains {wrong}. Expected integers from 0 to {width - 1}."
            )
        falls = np.flatnonzero(np.diff(terms) <= 0) + 1
        if wrong := np.setdiff1d(falls, starts).tolist():
            document = int(np.searchsorted(starts, wrong[0], side="right")) - 1
            raise ValueError(
                f"{path}: the terms of document {document} are not sorted. Expected increasing "
                "terms without duplicates."
            )
        shape = (len(starts) - 1, width)
        return cls.create(sparse.csr_array((weights, terms, starts), shape=shape))

    def __len__(self) -> int:
        return self.weights.shape[1]

    @property
    def width(self) -> int:
        """Return the vocabulary size."""
        return self.weights.shape[0]

    @property
    def vectors(self) -> csr_array:
        """Return the vectors (N, V)."""
        return self.weights.T.tocsr()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that are saved to a file."""
        vectors = self.vectors
        parts = vectors.data, vectors.indices, vectors.indptr
        named = zip(self.types.items(), parts, strict=True)
        return {name: part.astype(dtype) for (name, (dtype, _)), part in named}

    @property
    def nbytes(self) -> int:
        """The total size of the arrays, in bytes."""
        parts = self.weights.data, self.weights.indices, self.weights.indptr
        return sum(part.nbytes for part in parts)

    def join(self, vectors: csr_array) -> Postings:
        """Return an inverted index with more document vectors (N, V) at the end."""
        both = [self.weights, vectors.T.tocsr()]
        return Postings(sparse.hstack(both, format="csr"))

    def take(self, indices: np.ndarray) -> Postings:
        """Return an inverted index with only the documents at the given indices, in this order."""
        return Postings.create(self.vectors[indices])

    def find_nearest(
        self, vectors: csr_array, k: int, among: np.ndarray | None = None
    ) -> SearchResults:
        """Return the indices and scores of the nearest documents of each query.

        Args:
            vectors: Sparse matrix of shape (Q, V). Query vectors.
            k: Integer. Maximum number of results per query. Only documents that share a term with
                the query are returned.
            among: Integer array. Indices of the documents to search in. If None, all documents are
                searched.
        """
        allowed = _make_document_mask(among, len(self))
        indices, scores = [], []
        for start in range(0, vectors.shape[0], TERM_QUERY_BLOCK):
            products = (vectors[start : start + TERM_QUERY_BLOCK] @ self.weights).tocsr()
            for begin, end in zip(products.indptr[:-1], products.indptr[1:], strict=True):
                found, documents = products.data[begin:end], products.indices[begin:end]
                if allowed is not None:
                    kept = allowed[documents]
                    found, documents = found[kept], documents[kept]
                best = find_largest_weights(found, documents, min(k, len(found)))
                indices.append(documents[best])
                scores.append(found[best])
        return indices, scores


class WordCounts:
    """Keyword search in texts with BM25.

    Args:
        texts: List of N strings. Texts to search.

    Raises:
        ImportError: If bm25s is not installed.

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond,
    section 3. Words are similar to the words in Unicode Standard Annex 29, section 4. In contrast,
    apostrophes and periods always separate words, and text in Thai and similar scripts is not
    segmented, because this would require a dictionary.
    """

    def __init__(self, texts: list[str]):
        require(bm25s)
        self._texts, self._bm25 = texts, None
        words = [split_words(text) for text in texts]
        if any(words):
            self._bm25 = bm25s.BM25()
            self._bm25.index(words, show_progress=False)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """An empty dict, because words are counted again when an index is loaded."""
        return {}

    @property
    def nbytes(self) -> int:
        """The size of the weights, in bytes."""
        parts = self._bm25.scores.values() if self._bm25 else ()
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    def join(self, texts: list[str]) -> WordCounts:
        """Return a store with more texts at the end. All words are counted again."""
        return WordCounts([*self._texts, *texts])

    def take(self, indices: np.ndarray) -> WordCounts:
        """Return a store with only the texts at the given indices. Words are counted again."""
        return WordCounts([self._texts[i] for i in indices])

    def find_nearest(
        self, queries: list[str], k: int, among: np.ndarray | None = None
    ) -> SearchResults:
        """Return the indices and scores of the best texts of each query.

        Args:
            queries: List of Q strings. Queries.
            k: Integer. Maximum number of results per query. Only texts that share a word with the
                query are returned.
            among: Integer array. Indices of the texts to search in. If None, all texts are
                searched.
        """
        allowed = _make_document_mask(among, len(self))
        found = [self._find_best(query, k, allowed) for query in queries]
        return [indices for indices, _ in found], [scores for _, scores in found]

    def _find_best(
        self, query: str, top_k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = self._bm25.get_tokens_ids(split_words(query)) if self._bm25 else []
        if not ids:
            return np.zeros(0, "int64"), np.zeros(0, "float32")
        scores = self._bm25.get_scores_from_ids(ids)
        if allowed is not None:
            scores = np.where(allowed, scores, 0)
        found = np.flatnonzero(scores >= np.finfo("float32").tiny)
        found = found[find_largest_weights(scores[found], found, min(top_k, len(found)))]
        return found, scores[found]


def _make_document_mask(among: np.ndarray | None, count: int) -> np.ndarray | None:
    """Return a mask (N,) of the documents to search, or None if all documents are searched."""
    if among is None:
        return None
    allowed = np.zeros(count, bool)
    allowed[among] = True
    return allowed


def split_words(text: str) -> list[str]:
    """Split a text into lowercase words.

    Example:
        >>> split_words("It's naïve, No. 5!")
        ['it', 's', 'naïve', 'no', '5']
        >>> split_words("हिन्दी 東京タワー")
        ['हिन्दी', '東', '京', 'タワー']
    """
    return compile_word_pattern().findall(unicodedata.normalize("NFC", text.lower()))


@functools.cache
def compile_word_pattern() -> re.Pattern[str]:
    """Create the pattern that matches words. `\\w` does not match marks, such as vowel signs."""
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(c for c in characters if unicodedata.category(c) in ("Mn", "Mc"))
    return re.compile(rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[{marks}])+")
