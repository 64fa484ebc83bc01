"""An inverted index: the documents of each term, and the search for those nearest to a text.

Comment letters: N documents, Q queries, V vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.retrieval.index_checks import (
    check_embedder,
    check_text_count,
    checked_texts,
)
from encoder_zoo.tasks.retrieval.searching import Index
from encoder_zoo.tasks.retrieval.typed_dicts import Hit, SearchOptions
from encoder_zoo.tasks.sparse_retrieval.index_files import probe_of, read_index, write_index
from encoder_zoo.tasks.sparse_retrieval.rows import best_first, import_scipy, unit_rows

if TYPE_CHECKING:
    from typing import Self, Unpack

    from scipy.sparse import csr_array

QUERIES = 64  # at a time


class SparseIndexOptions(TypedDict, total=False):
    """Keyword arguments of `SparseIndex.build` after `documents`."""

    prompt: str | None
    batch_size: int | None
    max_terms: int | None
    keep_texts: bool


class SparseSearchOptions(SearchOptions, total=False):
    """Keyword arguments of `SparseIndex.search` after `top_k`."""

    max_terms: int | None


class SparseIndex(Index):
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
        store: (V, N), the weight of each term in each document.
        texts: N of them, or None.
        prompt: of further documents.
        max_terms: of further documents.
        probe: see `index_files.probe_of`.

    Attributes:
        embedder, texts, prompt, max_terms: as given.
        postings: the store.

    Example:
        >>> from encoder_zoo import SparseEncoder
        >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased", max_terms=50)
        >>> index = SparseIndex.build(encoder, ["A cat.", "Tax law.", "A dog."])
        >>> index
        <SparseIndex: 3 texts; 50 terms each; dot>
        >>> len(index.search("Tax law.", top_k=1))
        1
    """

    @validate_arguments
    def __init__(
        self,
        embedder,
        store: csr_array,
        texts: list[str] | None,
        prompt: str | None,
        max_terms: PositiveInt | None,
        probe: np.ndarray,
    ):
        self.embedder = embedder
        self.texts = texts
        self.prompt = prompt
        self.max_terms = max_terms
        self.postings = store
        self._probe = probe

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
    def of_vectors(
        cls,
        embedder: Any,
        vectors: object,
        texts: object = None,
        prompt: str | None = "document",
    ) -> Self:
        """Return an index of vectors that the encoder made before.

        Args:
            embedder, prompt: as for `build`.
            vectors: (N, V), a sparse matrix of scipy.
            texts: N texts to return with the results, or None.

        Raises:
            ValueError: "vectors is ... Expected a sparse matrix (N, 30522), as of embed.", "There
                are 2 texts for 3 vectors."

        Example:
            >>> from encoder_zoo import SparseEncoder
            >>> encoder = SparseEncoder.from_preset("bert_nano_en_uncased")
            >>> vectors = encoder.embed(["A cat.", "A dog."], prompt="document")
            >>> [hit] = SparseIndex.of_vectors(encoder, vectors).search("A dog.", top_k=1)
            >>> hit["text"] is None
            True
        """
        width = embedder.embedding_dim
        known = import_scipy().issparse(vectors)
        if not known or vectors.shape[1:] != (width,) or not vectors.shape[0]:
            raise ValueError(
                f"vectors is {vectors!r:.80}. Expected a sparse matrix (N, {width}), as of embed."
            )
        texts = None if texts is None else checked_texts(texts, "texts")
        check_text_count(texts, vectors.shape[0], "vectors")
        return cls._of(embedder, vectors, texts, prompt, None)

    @classmethod
    def _of(cls, embedder, vectors, texts, prompt, max_terms) -> Self:
        postings = _postings(embedder, vectors)
        return cls(embedder, postings, texts, prompt, max_terms, probe_of(embedder))

    # -- description ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.postings.shape[1]

    def __repr__(self) -> str:
        kind = "vectors" if self.texts is None else "texts"
        return (
            f"<SparseIndex: {len(self):,} {kind}; {self.mean_terms:.0f} terms each; "
            f"{self.embedder.similarity_function}>"
        )

    @property
    def mean_terms(self) -> float:
        """Return the mean number of terms of a document."""
        return self.postings.nnz / len(self)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that terms, documents and weights take."""
        parts = self.postings.data, self.postings.indices, self.postings.indptr
        return sum(part.nbytes for part in parts)

    @property
    def vectors(self) -> csr_array:
        """Return the vectors (N, V), of unit length where the similarity is "cosine"."""
        return self.postings.T.tocsr()

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
            prompt: of `embed`.
            reranker: an object with `rank(query, texts, top_k)`, such as a `Reranker`. It orders
                the nearest documents anew, and their scores are its own.
            candidates: how many documents the reranker reads, default 50; `top_k` if that is more.
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

    def _find(self, queries: list[str], top_k: int, **options):
        return self.nearest(self.embedder.embed(queries, **options), top_k)

    @validate_arguments
    def nearest(
        self, vectors: object, top_k: PositiveInt
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each of the vectors (Q, V) the indices of its nearest documents, and scores."""
        if self.embedder.similarity_function == "cosine":
            vectors = unit_rows(vectors)
        for start in range(0, vectors.shape[0], QUERIES):
            scores = (vectors[start : start + QUERIES] @ self.postings).tocsr()
            for begin, end in zip(scores.indptr[:-1], scores.indptr[1:], strict=True):
                found, of_documents = scores.data[begin:end], scores.indices[begin:end]
                best = best_first(found, of_documents, min(top_k, len(found)))
                yield of_documents[best], found[best]

    # -- changes and files ---------------------------------------------------------------------

    @validate_arguments
    def add(self, documents: object, batch_size: PositiveInt | None = None) -> None:
        """Add documents behind those that are there. A call copies the index: add many at once.

        Args:
            documents: a list, array or column of texts.
            batch_size: of `embed`.

        Raises:
            ValueError: as `build`.
        """
        texts = checked_texts(documents, "documents")
        vectors = self.embedder.embed(texts, self.prompt, self.max_terms, batch_size)
        both = [self.postings, _postings(self.embedder, vectors)]
        self.postings = import_scipy().hstack(both, format="csr")
        if self.texts is not None:
            self.texts = [*self.texts, *texts]

    @validate_arguments
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index into a folder of its own, replaced in one step; `load` opens it.

        Args:
            folder: to write. A program that reads an older index in it is not disturbed.

        Raises:
            OSError: naming the folder, such as for a full disk.
        """
        settings = {
            "similarity_function": self.embedder.similarity_function,
            "prompt": self.prompt,
            "max_terms": self.max_terms,
        }
        write_index(folder, self.vectors, self.texts, self._probe, settings)

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
        vectors, texts, probe, manifest = read_index(folder, verify)
        check_embedder(embedder, vectors.shape[1], probe, manifest, folder, probe_of)
        settings = manifest.get("prompt"), manifest.get("max_terms")
        return cls(embedder, vectors.T.tocsr(), texts, *settings, probe)

    @validate_arguments
    def export(self, path: str | os.PathLike[str], top_k: PositiveInt = 10) -> None:
        """Write the encoder and the documents as one SavedModel; see `export_index`.

        Args:
            path: the version folder, such as "served/1".
            top_k: how many documents it finds for each query.
        """
        from encoder_zoo.tasks.sparse_retrieval.index_export import export_index

        export_index(self, path, top_k)


def _postings(embedder, vectors) -> csr_array:
    """Return the weights of terms in documents (V, N), of vectors (N, V)."""
    vectors = import_scipy().csr_array(vectors).astype("float32")
    if embedder.similarity_function == "cosine":
        vectors = unit_rows(vectors)
    return vectors.T.tocsr()
