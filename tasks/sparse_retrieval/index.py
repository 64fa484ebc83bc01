"""An inverted index: the documents of each term, and the search for those nearest to a text.

Comment letters: N documents, Q queries, V vocabulary.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, Unpack, overload

import numpy as np

from encoder_zoo.common.validation import PositiveInt, rule_of, validate_arguments
from encoder_zoo.tasks.retrieval.index_checks import (
    FINGERPRINT_TEXTS,
    check_text_count,
    checked_texts,
)
from encoder_zoo.tasks.retrieval.index_files import check_shape
from encoder_zoo.tasks.retrieval.model_index import ModelIndex
from encoder_zoo.tasks.retrieval.options import Hit, SearchOptions
from encoder_zoo.tasks.sparse_retrieval.postings import Postings
from encoder_zoo.tasks.sparse_retrieval.sparse_matrices import normalized_for, sparse

if TYPE_CHECKING:
    from typing import Self

    from scipy.sparse import csr_array


class SparseIndexOptions(TypedDict, total=False):
    """Keyword arguments of `SparseIndex.build` after `documents`."""

    prompt: str | None
    batch_size: int | None
    max_terms: int | None
    keep_texts: bool


class SparseSearchOptions(SearchOptions, total=False):
    """Keyword arguments of `SparseIndex.search` after `top_k`."""

    max_terms: int | None


class SparseIndex(ModelIndex):
    """Find the documents that share terms with a text. Made by `SparseEncoder.index`.

        index = encoder.index(documents)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = encoder.load_index("index")

    For each term of the vocabulary it holds the documents that have it, and their weights. A
    search reads the lists of the query's terms alone: no document without any of them is looked
    at, and no score is approximate.

    Args:
        embedder: of the queries; a `SparseEncoder`.
        store: the documents of each term.
        texts: N of them, or None.
        prompt: of further documents.
        max_terms: of further documents.
        fingerprint: the encoder's vectors of `index_checks.FINGERPRINT_TEXTS`.

    Attributes:
        embedder, texts, prompt, max_terms: as given.

    Example:
        >>> from encoder_zoo import SparseEncoder
        >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased", max_terms=50)
        >>> index = SparseIndex.build(encoder, ["A cat.", "Tax law.", "A dog."])
        >>> index
        <SparseIndex: 3 texts; 50 terms each; dot>
        >>> len(index.search("Tax law.", top_k=1))
        1
    """

    kind = "sparse_index"
    types: ClassVar = {None: Postings.types}
    settings: ClassVar = {"max_terms": rule_of(PositiveInt | None)}

    @validate_arguments
    def __init__(
        self,
        embedder,
        store: Postings,
        texts: list[str] | None,
        prompt: str | None,
        max_terms: PositiveInt | None,
        fingerprint: np.ndarray,
    ):
        super().__init__(embedder, store, texts, prompt, fingerprint)
        self.max_terms = max_terms

    @classmethod
    @validate_arguments
    def build(
        cls,
        embedder: Any,
        documents: object,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        max_terms: PositiveInt | None = None,
        keep_texts: bool = True,
    ) -> Self:
        """Return an index of texts.

        Args:
            embedder: a `SparseEncoder`.
            documents: a list, array or column of texts.
            prompt, batch_size, max_terms: of `embed`.
            keep_texts: whether results have the text itself; without it, "text" is None.

        Raises:
            ValueError: "documents is empty. ...", "documents[3] is empty. ..."
        """
        texts = checked_texts(documents, "documents")
        vectors = embedder.embed(texts, prompt, max_terms, batch_size)
        return cls._of(embedder, vectors, texts if keep_texts else None, prompt, max_terms)

    @classmethod
    @validate_arguments
    def from_vectors(
        cls,
        embedder: Any,
        vectors: object,
        texts: object = None,
        prompt: str | None = "document",
        max_terms: PositiveInt | None = None,
    ) -> Self:
        """Return an index of vectors that the encoder made before.

        Args:
            embedder: as for `build`.
            vectors: (N, V), a sparse matrix of scipy.
            texts: N texts to return with the results, or None.
            prompt, max_terms: of `embed`, for further documents.

        Raises:
            ValueError: "vectors is ... Expected a sparse matrix (N, 30522), as of embed.", "There
                are 2 texts for 3 vectors."

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> vectors = encoder.embed(["A cat.", "A dog."], prompt="document")
            >>> [hit] = SparseIndex.from_vectors(encoder, vectors).search("A dog.", top_k=1)
            >>> hit["text"] is None
            True
        """
        width = embedder.embedding_dim
        known = sparse.issparse(vectors)
        if not known or vectors.shape[1:] != (width,) or not vectors.shape[0]:
            raise ValueError(
                f"vectors is {vectors!r:.80}. Expected a sparse matrix (N, {width}), as of embed."
            )
        texts = None if texts is None else checked_texts(texts, "texts")
        check_text_count(texts, vectors.shape[0], "vectors")
        return cls._of(embedder, vectors, texts, prompt, max_terms)

    @classmethod
    def _of(cls, embedder, vectors, texts, prompt, max_terms) -> Self:
        vectors = normalized_for(vectors, embedder.similarity_function)
        store = Postings(vectors.T.tocsr())
        return cls(embedder, store, texts, prompt, max_terms, cls._fingerprint_of(embedder))

    # -- description ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        kind = "vectors" if self.texts is None else "texts"
        return (
            f"<SparseIndex: {len(self):,} {kind}; {self.mean_terms:.0f} terms each; "
            f"{self.embedder.similarity_function}>"
        )

    @property
    def mean_terms(self) -> float:
        """Return the mean number of terms of a document."""
        return self._store.weights.nnz / len(self)

    @property
    def vectors(self) -> csr_array:
        """Return the vectors (N, V), of unit length where the similarity is "cosine"."""
        return self._store.vectors

    # -- search --------------------------------------------------------------------------------

    @overload
    def search(
        self, queries: str, top_k: int = 10, **options: Unpack[SparseSearchOptions]
    ) -> list[Hit]: ...
    @overload
    def search(
        self, queries: object, top_k: int = 10, **options: Unpack[SparseSearchOptions]
    ) -> list[list[Hit]]: ...
    @validate_arguments
    def search(
        self,
        queries: object,
        top_k: PositiveInt = 10,
        prompt: str | None = "query",
        reranker: object = None,
        candidates: PositiveInt | None = None,
        max_terms: PositiveInt | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the documents nearest to each query, the nearest first, of equal ones the earlier.

        Args:
            queries: a text, or a list, array or column of texts.
            top_k: how many documents; fewer if fewer share a term with the query.
            prompt, reranker, candidates: see `VectorIndex.search`.
            max_terms: of the queries, see `embed`.

        Returns:
            Of a single query a list of `{"index", "score", "text"}`, otherwise a list of these for
            each query.

        Raises:
            ValueError: "queries[1] is empty. ...", "A reranker reads texts, and ..."

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> index = encoder.index(["A cat.", "Tax law."])
            >>> [len(hits) for hits in index.search(["Tax law.", "A cat."])]
            [2, 2]
        """
        options = {"prompt": prompt, "max_terms": max_terms}
        return self._search(queries, top_k, reranker, candidates, **options)

    @validate_arguments
    def evaluate(
        self,
        queries: object,
        relevant: Sequence,
        cutoffs: Sequence[int] = (1, 5, 10),
        **options: Unpack[SparseSearchOptions],
    ) -> dict[str, float]:
        return self._evaluate(queries, relevant, cutoffs, options)

    def _find(self, queries: list[str], top_k: int, **options):
        vectors = self.embedder.embed(queries, **options)
        return self._store.nearest(
            normalized_for(vectors, self.embedder.similarity_function), top_k
        )

    # -- changes and files ---------------------------------------------------------------------

    @staticmethod
    def _fingerprint_of(embedder, dim: int | None = None) -> np.ndarray:
        return embedder.embed(list(FINGERPRINT_TEXTS), "query").toarray()

    def _embedded(self, texts: list[str], batch_size: int | None) -> csr_array:
        vectors = self.embedder.embed(texts, self.prompt, self.max_terms, batch_size)
        return normalized_for(vectors, self.embedder.similarity_function)

    @classmethod
    def _store_of(
        cls, path: pathlib.Path, arrays: dict[str, np.ndarray], precision: str | None
    ) -> Postings:
        shape = arrays["fingerprint"].shape
        check_shape(path, "fingerprint", shape, (len(FINGERPRINT_TEXTS), shape[1]))
        return Postings.of_arrays(path, arrays, width=shape[1])

    @classmethod
    @validate_arguments
    def load(cls, folder: str | os.PathLike[str], embedder: Any, verify: bool = True) -> Self:
        """Return the index that `save` wrote.

        Args:
            folder: written by `save`.
            embedder: the one that the index was built with, or an equal one.
            verify: whether to verify the checksums of the files.

        Raises:
            FileNotFoundError: if there is no such folder.
            ValueError: "... holds no index: ...", "... is damaged or changed: ...", "... is the
                index of another embedder: ..."
        """
        store, texts, manifest, fingerprint = cls._open(folder, embedder, verify)
        settings = manifest.get("prompt"), manifest.get("max_terms")
        return cls(embedder, store, texts, *settings, fingerprint)

    @validate_arguments
    def export(self, path: str | os.PathLike[str], top_k: PositiveInt = 10) -> None:
        """Write the encoder and the documents as one SavedModel; see `export_index`.

        Args:
            path: the version folder, such as "served/1".
            top_k: how many documents it finds for each query.
        """
        from encoder_zoo.tasks.sparse_retrieval.index_export import export_index

        export_index(self, path, top_k)
