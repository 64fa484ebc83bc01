"""An index of documents as many vectors each, one for a token, for late interaction.

Comment letters: N documents, D width.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from encoder_zoo.common.lazy import require
from encoder_zoo.common.validation import PositiveInt, integer_from, one_of, validate_arguments
from encoder_zoo.tasks.retrieval.index_checks import (
    FINGERPRINT_TEXTS,
    check_text_count,
    checked_texts,
)
from encoder_zoo.tasks.retrieval.index_files import checked_store
from encoder_zoo.tasks.retrieval.model_index import ModelIndex
from encoder_zoo.tasks.retrieval.options import TokenPrecision
from encoder_zoo.tasks.retrieval.token_pooling import hierarchy, pooled
from encoder_zoo.tasks.retrieval.token_vectors import STORES, TokenVectors
from encoder_zoo.tasks.retrieval.vectors import check_finite

if TYPE_CHECKING:
    from typing import Self


class MultiVectorIndex(ModelIndex):
    """Find the documents that match a text best, token by token. Made by `LateInteraction.index`.

        index = colbert.index(documents, pool_factor=2)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = colbert.load_index("index")

    The score of a document is MaxSim: the sum over the query's tokens of the largest product with
    one of the document's. `precision` is that of the documents' vectors, the query is always
    float32. Of a document of 180 tokens and vectors of 128 numbers:

    - "float32": 92 kB. A query is compared with all tokens of all documents: nothing is learned,
      nothing is approximated.
    - "int8": 24 kB. A vector is the number of its nearest centroid, and the difference from it in
      255 steps. The documents are compared by the centroids of their tokens; the
      best of them, 16 for each result, 512 at least, are scored by their vectors.
    - "binary": 4 kB. The same, with one bit for each number of the difference. Scores are coarse:
      `search(..., reranker=model)` embeds the best 50 texts again and orders them by exact ones.

    `pool_factor=2` halves all of these, and the time of a search: tokens with like meanings become
    one.

    Args:
        embedder: of the queries; a `LateInteraction`, or an object with its `embed`,
            `embedding_dim` and `similarity_function`.
        tokens: the vectors.
        texts: N of them, or None.
        prompt: of further documents.
        pool_factor: of further documents.
        fingerprint: the embedder's vectors of `index_checks.FINGERPRINT_TEXTS`.

    Attributes:
        embedder, texts, prompt, pool_factor: as given.

    Source: Khattab and Zaharia 2020, ColBERT, section 3; Santhanam et al. 2022, PLAID, section 4,
    for the search by centroids.

    Example:
        >>> class Letters:  # in place of an embedder: a text as vectors of its letters
        ...     embedding_dim, similarity_function = 256, "maxsim"
        ...     def embed(self, texts, prompt=None, batch_size=None):
        ...         return [np.eye(256, dtype="float32")[list(text.encode())] for text in texts]
        >>> index = MultiVectorIndex.build(Letters(), ["A cat.", "Tax law."])
        >>> index
        <MultiVectorIndex: 2 texts, 14 vectors of 256, float32>
        >>> index.search("Tax", top_k=1)
        [{'index': 1, 'score': 3.0, 'text': 'Tax law.'}]
    """

    kind = "multi_vector_index"
    types: ClassVar = {p: {**store.types, "ends": ("int64", 1)} for p, store in STORES.items()}
    settings: ClassVar = {"precision": one_of(*STORES), "pool_factor": integer_from(1)}

    @validate_arguments
    def __init__(
        self,
        embedder,
        tokens: TokenVectors,
        texts: list[str] | None,
        prompt: str | None,
        pool_factor: PositiveInt,
        fingerprint: np.ndarray,
    ):
        super().__init__(embedder, tokens, texts, prompt, fingerprint)
        self.pool_factor = pool_factor

    @classmethod
    @validate_arguments
    def build(
        cls,
        embedder: Any,
        documents: object,
        precision: TokenPrecision = "float32",
        pool_factor: PositiveInt = 1,
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        keep_texts: bool = True,
    ) -> Self:
        """Return an index of texts.

        Args:
            embedder: see the class.
            documents: a list, array or column of texts.
            precision: see the class. The centroids of "int8" and "binary" are learned from
                these documents, and used for those that are added later, too.
            pool_factor: so many tokens of a document become one vector; 1 leaves them as they are.
            prompt, batch_size: of `embed`.
            keep_texts: whether results have the text itself; without it, "text" is None.

        Raises:
            ValueError: "documents is empty. ...", "documents[3] is empty. ...", "precision is ..."
            ImportError: "pool_factor needs the package scipy: ..."
        """
        texts = checked_texts(documents, "documents")
        if pool_factor > 1:
            require(hierarchy)
        vectors = embedder.embed(texts, prompt=prompt, batch_size=batch_size)
        vectors = _prepared(vectors, embedder.embedding_dim, pool_factor)
        return cls._of(
            embedder, vectors, texts if keep_texts else None, precision, prompt, pool_factor
        )

    @classmethod
    @validate_arguments
    def from_vectors(
        cls,
        embedder: Any,
        vectors: Sequence[np.ndarray],
        texts: object = None,
        precision: TokenPrecision = "float32",
        pool_factor: PositiveInt = 1,
        prompt: str | None = "document",
    ) -> Self:
        """Return an index of vectors that the embedder made before.

        Args:
            vectors: N arrays (tokens, D) of floating-point numbers; they are copied.
            texts: N texts to return with the results, or None.
            embedder, precision, pool_factor, prompt: as for `build`.

        Raises:
            ValueError: "vectors is empty. ...", "vectors[2] has the shape (8,) and the type
                float32. Expected (tokens, 128) ...", "There are 2 texts for 3 documents."
        """
        vectors = _prepared(vectors, embedder.embedding_dim, pool_factor)
        texts = None if texts is None else checked_texts(texts, "texts")
        check_text_count(texts, len(vectors), "documents")
        return cls._of(embedder, vectors, texts, precision, prompt, pool_factor)

    @classmethod
    def _of(cls, embedder, vectors, texts, precision, prompt, pool_factor) -> Self:
        tokens = TokenVectors.of(vectors, precision)
        return cls(embedder, tokens, texts, prompt, pool_factor, cls._fingerprint_of(embedder))

    # -- description ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        kind = "documents" if self.texts is None else "texts"
        return (
            f"<MultiVectorIndex: {len(self):,} {kind}, {len(self._store.store):,} vectors of "
            f"{self.dim}, {self.precision}>"
        )

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self._store.width

    @property
    def precision(self) -> str:
        """Return the precision of the vectors."""
        return self._store.store.precision

    @property
    def vectors(self) -> list[np.ndarray]:
        """Return the vectors of each document, (tokens, D) float32, as the search sees them:
        pooled, and rounded where the precision is lower."""
        return [self._store.document(i) for i in range(len(self))]

    # -- search --------------------------------------------------------------------------------

    def _find(self, queries: list[str], top_k: int, prompt: str | None):
        vectors = self.embedder.embed(queries, prompt=prompt)
        return zip(*self._store.nearest(_prepared(vectors, self.dim), top_k), strict=True)

    # -- changes and files ---------------------------------------------------------------------

    @staticmethod
    def _fingerprint_of(embedder, dim: int | None = None) -> np.ndarray:
        return np.concatenate(embedder.embed(list(FINGERPRINT_TEXTS), prompt="query")).astype(
            "float32"
        )

    def _embedded(self, texts: list[str], batch_size: int | None) -> list[np.ndarray]:
        vectors = self.embedder.embed(texts, prompt=self.prompt, batch_size=batch_size)
        return _prepared(vectors, self.dim, self.pool_factor)

    @classmethod
    def _store_of(
        cls, path: pathlib.Path, arrays: dict[str, np.ndarray], precision: str
    ) -> TokenVectors:
        tokens = TokenVectors(checked_store(STORES[precision], path, arrays), arrays["ends"])
        tokens.check(path)
        return tokens

    @classmethod
    @validate_arguments
    def load(cls, folder: str | os.PathLike[str], embedder: Any, verify: bool = True) -> Self:
        """Return the index that `save` wrote. Its vectors are read from the file when needed.

        Args:
            folder: written by `save`.
            embedder: the one that the index was built with, or an equal one.
            verify: whether to verify the checksums of the files.

        Raises:
            FileNotFoundError: if there is no such folder.
            ValueError: "... holds no index: ...", "... is damaged or changed: ...", "... is the
                index of another embedder: ..."
        """
        tokens, texts, manifest, fingerprint = cls._open(folder, embedder, verify)
        settings = manifest.get("prompt"), manifest.get("pool_factor")
        return cls(embedder, tokens, texts, *settings, fingerprint)

    @validate_arguments
    def export(self, path: str | os.PathLike[str], top_k: PositiveInt = 10) -> None:
        """Write the embedder and the documents as one SavedModel; see `export_multi_vector_index`.

        Args:
            path: the version folder, such as "served/1".
            top_k: how many documents it finds for each query.
        """
        from encoder_zoo.tasks.retrieval.multi_vector_export import export_multi_vector_index

        export_multi_vector_index(self, path, top_k)


def _prepared(vectors, width: int, pool_factor: int = 1) -> list[np.ndarray]:
    """Return copies of the vectors of each document, checked, and pooled.

    Raises:
        ValueError: "vectors is empty. ...", "vectors[2] has the shape (8,) ..."
    """
    if not len(vectors):
        raise ValueError("vectors is empty. Expected an array (tokens, D) for each document.")
    prepared = []
    for i, tokens in enumerate(vectors):
        tokens = np.asarray(tokens)
        if tokens.shape[1:] != (width,) or tokens.dtype.kind != "f" or not len(tokens):
            raise ValueError(
                f"vectors[{i}] has the shape {tokens.shape} and the type {tokens.dtype}. Expected "
                f"(tokens, {width}) floating-point numbers, one token or more, as of embed."
            )
        tokens = np.array(tokens, "float32")
        check_finite(tokens, f"vectors[{i}]")
        prepared.append(pooled(tokens, pool_factor))
    return prepared
