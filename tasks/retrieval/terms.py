"""Documents as their terms, and the search for those that share terms with a query.

`Postings` has sparse vectors, weights of a vocabulary's terms; `WordCounts` has texts, whose words
BM25 weighs.

Comment letters: N documents or texts, Q queries, P weights above 0, V vocabulary.
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
from encoder_zoo.tasks.retrieval.similarity import check_finite, first_not_held

if TYPE_CHECKING:
    from scipy.sparse import csr_array

sparse = LazyModule("scipy.sparse", "Sparse vectors need the package scipy: `pip install scipy`.")
bm25s = LazyModule("bm25s", "BM25 needs the package bm25s: `pip install bm25s`.")
QUERIES = 64  # at a time
# Han and Hiragana, which are written without spaces.
UNSPACED = "\u3041-\u3096\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
Found = tuple[list[np.ndarray], list[np.ndarray]]  # of each query indices and scores


def as_rows(weights: np.ndarray, most: int | None = None) -> csr_array:
    """Return dense weights (N, V) as a sparse matrix, with the largest of each row if they are
    more than `most`.

    Example:
        >>> as_rows(np.array([[0.0, 2.0, 1.0, 3.0]]), 2).toarray().tolist()
        [[0.0, 2.0, 0.0, 3.0]]
    """
    if most is not None and most < weights.shape[1]:
        kept = np.argpartition(-weights, most - 1, axis=1)[:, :most]
        rows = np.zeros_like(weights)
        np.put_along_axis(rows, kept, np.take_along_axis(weights, kept, axis=1), axis=1)
        weights = rows
    return sparse.csr_array(weights)


def sparse_unit_rows(rows: csr_array) -> csr_array:
    """Return rows (N, V) divided by their Euclidean length; rows of zeros unchanged.

    Example:
        >>> sparse_unit_rows(as_rows(np.array([[0.0, 4.0], [0.0, 0.0]]))).toarray().tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    wide = rows.astype("float64")  # squares of small numbers are 0 in float32
    lengths = np.sqrt(wide.multiply(wide).sum(axis=1))
    scaled = rows.copy()
    scaled.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))
    return scaled


def normalized_for(rows, function: str) -> csr_array:
    """Return rows (N, V) of weights in float32, of unit length if "cosine" compares them.

    Raises:
        ValueError: If a weight is NaN, infinite or too large for float32 products.
    """
    rows = sparse.csr_array(rows).astype("float32")
    if found := first_not_held(rows.data[:, None]):
        number, why = found
        row = int(np.searchsorted(rows.indptr, number, side="right")) - 1
        raise ValueError(f"vectors[{row}] has a weight {why}")
    return sparse_unit_rows(rows) if function == "cosine" else rows


def best_first(weights: np.ndarray, indices: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the largest weights, of equal ones the lower index first.

    Args:
        weights: (P,).
        indices: (P,), different numbers.
        most: how many, at most P.

    Example:
        >>> best_first(np.array([1.0, 5.0, 1.0]), np.array([7, 3, 2]), 2).tolist()
        [1, 2]
    """
    candidates = np.arange(len(weights))
    if most < len(weights):
        candidates = np.flatnonzero(weights >= np.partition(weights, -most)[-most])
    order = np.lexsort((indices[candidates], -weights[candidates]))
    return candidates[order[:most]]


class Postings:
    """For each term of the vocabulary the documents that have it, and its weights in them.

    Args:
        weights: (V, N), a sparse matrix.

    Example:
        >>> from scipy.sparse import csr_array
        >>> postings = Postings(csr_array(np.array([[0.0, 2.0], [3.0, 1.0]])))
        >>> [part[0].tolist() for part in postings.nearest(csr_array([[0.0, 1.0]]), k=2)]
        [[0, 1], [3.0, 1.0]]
    """

    precision = None
    types: ClassVar = {"weights": ("float32", 1), "terms": ("int32", 1), "starts": ("int64", 1)}

    def __init__(self, weights: csr_array):
        self.weights = weights

    @classmethod
    def of(cls, vectors: csr_array) -> Postings:
        """Return the postings of vectors (N, V)."""
        return cls(vectors.T.tocsr())

    @classmethod
    def opened(
        cls, path: str | os.PathLike, arrays: Mapping[str, np.ndarray], width: int
    ) -> Postings:
        """Return the postings of a file's arrays, checked: scipy reads memory by these numbers.

        Args:
            path: of the file, for errors.
            arrays: those of `types`, of documents one after the other.
            width: V.

        Raises:
            ValueError: If the arrays do not hold a sparse matrix `width` wide with sorted columns.
        """
        weights, terms, starts = (arrays[name] for name in cls.types)
        check_finite(weights[:, None], f"{path}: weights")
        rises = len(starts) > 1 and starts[0] == 0 and bool((np.diff(starts) >= 0).all())
        if not rises or starts[-1] != len(terms) or len(terms) != len(weights):
            raise ValueError(
                f"{path}: starts does not divide {len(weights)} weights and {len(terms)} terms. "
                "Expected integers that rise from 0 to both numbers."
            )
        if len(terms) and not (terms.min() >= 0 and terms.max() < width):
            wrong = int(terms.min() if terms.min() < 0 else terms.max())
            raise ValueError(
                f"{path}: terms holds {wrong}. Expected numbers from 0 to {width - 1}."
            )
        falls = np.flatnonzero(np.diff(terms) <= 0) + 1
        if wrong := np.setdiff1d(falls, starts).tolist():
            document = int(np.searchsorted(starts, wrong[0], side="right")) - 1
            raise ValueError(
                f"{path}: terms of document {document} do not rise. Expected each once, in order."
            )
        shape = (len(starts) - 1, width)
        return cls.of(sparse.csr_array((weights, terms, starts), shape=shape))

    def __len__(self) -> int:
        return self.weights.shape[1]

    @property
    def width(self) -> int:
        """Return V."""
        return self.weights.shape[0]

    @property
    def vectors(self) -> csr_array:
        """Return the vectors (N, V)."""
        return self.weights.T.tocsr()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of a file."""
        vectors = self.vectors
        parts = vectors.data, vectors.indices, vectors.indptr
        named = zip(self.types.items(), parts, strict=True)
        return {name: part.astype(dtype) for (name, (dtype, _)), part in named}

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        parts = self.weights.data, self.weights.indices, self.weights.indptr
        return sum(part.nbytes for part in parts)

    def joined(self, vectors: csr_array) -> Postings:
        """Return the postings of these documents and of those with the vectors (N, V)."""
        both = [self.weights, vectors.T.tocsr()]
        return Postings(sparse.hstack(both, format="csr"))

    def taken(self, indices: np.ndarray) -> Postings:
        """Return the postings of some documents, in the order of their indices."""
        return Postings.of(self.vectors[indices])

    def nearest(self, vectors: csr_array, k: int, among: np.ndarray | None = None) -> Found:
        """Return for each of the vectors (Q, V) the indices of its nearest documents, and scores.

        Args:
            vectors: of queries.
            k: of each query; fewer if fewer share a term with it.
            among: the indices of the documents that may be found; None: all.
        """
        allowed = _mask(among, len(self))
        indices, scores = [], []
        for start in range(0, vectors.shape[0], QUERIES):
            products = (vectors[start : start + QUERIES] @ self.weights).tocsr()
            for begin, end in zip(products.indptr[:-1], products.indptr[1:], strict=True):
                found, documents = products.data[begin:end], products.indices[begin:end]
                if allowed is not None:
                    kept = allowed[documents]
                    found, documents = found[kept], documents[kept]
                best = best_first(found, documents, min(k, len(found)))
                indices.append(documents[best])
                scores.append(found[best])
        return indices, scores


class WordCounts:
    """The words of texts, weighed by BM25.

    Args:
        texts: N of them.

    Raises:
        ImportError: If the package bm25s is not installed.

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond,
    section 3. Words: as in Unicode Standard Annex 29, section 4, but for Katakana and Hangul, whose
    runs are words, and text of Thai and its like, which would need a dictionary.
    """

    def __init__(self, texts: list[str]):
        require(bm25s)
        self._texts, self._bm25 = texts, None
        words = [words_of(text) for text in texts]
        if any(words):
            self._bm25 = bm25s.BM25()
            self._bm25.index(words, show_progress=False)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return no arrays: words are counted again when a file is opened."""
        return {}

    @property
    def nbytes(self) -> int:
        """Return the bytes of the words' weights."""
        parts = self._bm25.scores.values() if self._bm25 else ()
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    def joined(self, texts: list[str]) -> WordCounts:
        """Return the words of these texts and of further ones, all counted again."""
        return WordCounts([*self._texts, *texts])

    def taken(self, indices: np.ndarray) -> WordCounts:
        """Return the words of some texts, in the order of their indices, all counted again."""
        return WordCounts([self._texts[i] for i in indices])

    def nearest(self, queries: list[str], k: int, among: np.ndarray | None = None) -> Found:
        """Return for each query the indices of the best texts, and scores.

        Args:
            queries: Q texts.
            k: of each query; fewer if fewer share a word with it.
            among: the indices of the texts that may be found; None: all.
        """
        allowed = _mask(among, len(self))
        found = [self._best(query, k, allowed) for query in queries]
        return [indices for indices, _ in found], [scores for _, scores in found]

    def _best(
        self, query: str, top_k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = self._bm25.get_tokens_ids(words_of(query)) if self._bm25 else []
        if not ids:
            return np.zeros(0, "int64"), np.zeros(0, "float32")
        scores = self._bm25.get_scores_from_ids(ids)
        if allowed is not None:
            scores = np.where(allowed, scores, 0)
        least = max(np.partition(scores, -top_k)[-top_k], np.finfo("float32").tiny)
        found = np.flatnonzero(scores >= least)
        found = found[np.argsort(-scores[found], kind="stable")[:top_k]]
        return found, scores[found]


def _mask(among: np.ndarray | None, count: int) -> np.ndarray | None:
    """Return which of N documents are among some, (N,) bool; None: all are."""
    if among is None:
        return None
    allowed = np.zeros(count, bool)
    allowed[among] = True
    return allowed


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case.

    Example:
        >>> words_of("It's naïve, No. 5!")
        ['it', 's', 'naïve', 'no', '5']
        >>> words_of("हिन्दी 東京タワー")
        ['हिन्दी', '東', '京', 'タワー']
    """
    return word_pattern().findall(unicodedata.normalize("NFC", text.lower()))


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word. Marks, such as vowel signs, are no letters to `\\w`."""
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(c for c in characters if unicodedata.category(c) in ("Mn", "Mc"))
    return re.compile(rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[{marks}])+")
