"""An index: documents as vectors, and the search for those nearest to a text.

Comment letters: N documents, Q queries, D width.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from encoder_zoo.common.validation import PositiveInt, one_of, validate_arguments
from encoder_zoo.tasks.retrieval.faiss_engine import FaissVectors
from encoder_zoo.tasks.retrieval.index_checks import (
    FINGERPRINT_TEXTS,
    check_engine,
    check_text_count,
    checked_and_normalized,
    checked_texts,
    checked_vectors,
)
from encoder_zoo.tasks.retrieval.index_files import check_shape, checked_store
from encoder_zoo.tasks.retrieval.model_index import ModelIndex
from encoder_zoo.tasks.retrieval.options import Engine, Precision
from encoder_zoo.tasks.retrieval.top_k import nearest
from encoder_zoo.tasks.retrieval.vectors import STORES, Float32Vectors

if TYPE_CHECKING:
    from typing import Self


class VectorIndex(ModelIndex):
    """Find the documents that are nearest to a text. Made by `TextEmbedder.index`.

        index = embedder.index(documents)
        index.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]
        index.save("index")
        index = embedder.load_index("index")

    The search compares a query with all documents, in blocks: no training, memory that does not
    grow with the index. `precision` is that of the documents' vectors, the query is always float32:

    - "float32": exact. 4 bytes for a number, 150 MB for 100,000 vectors of 384.
    - "int8": a quarter of that. 256 steps for each dimension over its range in the corpus.
    - "binary": int8, and the signs, one bit for a number. Only the signs are compared with all
      documents, many times faster for a single query; the order of the 20 nearest for each result,
      200 at least, is that of int8.

    Args:
        embedder: of the queries; a `TextEmbedder`, or an object with its `embed`,
            `embedding_dim`, `dim` and `similarity_function`.
        store: the vectors, see `tasks.retrieval.vectors`.
        texts: N of them, or None.
        prompt: of further documents.
        fingerprint: the embedder's vectors of `index_checks.FINGERPRINT_TEXTS`.

    Attributes:
        embedder, texts, prompt: as given.

    Example:
        >>> from encoder_zoo import TextEmbedder
        >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
        >>> index = VectorIndex.build(embedder, ["A cat.", "Tax law.", "A dog."], "int8")
        >>> index
        <VectorIndex: 3 texts; vectors of 256, int8; cosine>
        >>> [hit["text"] for hit in index.search("Tax law.", top_k=1)]
        ['Tax law.']
    """

    kind = "vector_index"
    types: ClassVar = {precision: store.types for precision, store in STORES.items()}
    settings: ClassVar = {"precision": one_of(*STORES)}

    @classmethod
    @validate_arguments
    def build(
        cls,
        embedder: Any,
        documents: object,
        precision: Precision = "float32",
        prompt: str | None = "document",
        batch_size: PositiveInt | None = None,
        dim: PositiveInt | None = None,
        engine: Engine | None = None,
        keep_texts: bool = True,
    ) -> Self:
        """Return an index of texts.

        Args:
            embedder: see the class.
            documents: a list, array or column of texts.
            precision: see the class.
            prompt, batch_size: of `embed`.
            dim: keep so many leading numbers of each vector; see `TextEmbedder.embed`.
            engine: "faiss" searches by faiss-cpu's exact index, in float32; None in NumPy.
            keep_texts: whether results have the text itself; without it, "text" is None.

        Raises:
            ValueError: "documents is empty. ...", "documents[3] is empty. ...", "precision is ..."
            ImportError: "engine='faiss' needs the package faiss-cpu: ..."
        """
        check_engine(engine, precision)
        texts = checked_texts(documents, "documents")
        vectors = embedder.embed(texts, prompt=prompt, dim=dim, batch_size=batch_size)
        kept = texts if keep_texts else None
        return cls._of(embedder, np.array(vectors, "float32"), kept, precision, prompt, engine)

    @classmethod
    @validate_arguments
    def from_vectors(
        cls,
        embedder: Any,
        vectors: object,
        texts: object = None,
        precision: Precision = "float32",
        prompt: str | None = "document",
        engine: Engine | None = None,
    ) -> Self:
        """Return an index of vectors that the embedder made before.

        Args:
            vectors: (N, D) floating-point numbers; they are copied.
            texts: N texts to return with the results, or None.
            embedder, precision, prompt, engine: as for `build`.

        Raises:
            ValueError: "vectors has the shape (3,). Expected (N, D): ...", "vectors[3] has a
                number that is NaN or infinite. ...", "There are 2 texts for 3 vectors."

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> vectors = embedder.embed(["A cat.", "A dog."], prompt="document")
            >>> [hit] = VectorIndex.from_vectors(embedder, vectors).search("A dog.", top_k=1)
            >>> hit["index"], hit["text"]
            (1, None)
        """
        check_engine(engine, precision)
        vectors = checked_vectors(vectors, embedder.embedding_dim)
        texts = None if texts is None else checked_texts(texts, "texts")
        check_text_count(texts, len(vectors), "vectors")
        return cls._of(embedder, vectors, texts, precision, prompt, engine)

    @classmethod
    def _of(cls, embedder, vectors, texts, precision, prompt, engine) -> Self:
        function = embedder.similarity_function
        vectors = checked_and_normalized(vectors, function, "vectors")
        store = FaissVectors(vectors, function) if engine else STORES[precision].of(vectors)
        return cls(embedder, store, texts, prompt, cls._fingerprint_of(embedder, store.width))

    # -- description ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        kind = "vectors" if self.texts is None else "texts"
        engine = ", faiss" if isinstance(self._store, FaissVectors) else ""
        return (
            f"<VectorIndex: {len(self):,} {kind}; vectors of {self.dim}, {self.precision}{engine}; "
            f"{self.embedder.similarity_function}>"
        )

    @property
    def dim(self) -> int:
        """Return the width of the vectors."""
        return self._store.width

    @property
    def precision(self) -> str:
        """Return the precision of the vectors."""
        return self._store.precision

    @property
    def vectors(self) -> np.ndarray:
        """Return the vectors (N, D) float32, as the search sees them: of unit length where the
        similarity is "cosine", and rounded where the precision is lower."""
        return self._store.rows(slice(None))

    # -- search --------------------------------------------------------------------------------

    def _find(self, queries: list[str], top_k: int, prompt: str | None):
        vectors = np.array(self.embedder.embed(queries, prompt=prompt, dim=self.dim), "float32")
        return zip(*self._nearest(vectors, top_k), strict=True)

    def _nearest(self, vectors: np.ndarray, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return indices (Q, k) and scores (Q, k) of the documents nearest to vectors (Q, D)."""
        function = self.embedder.similarity_function
        vectors = checked_and_normalized(vectors, function, "The vectors of queries")
        return nearest(self._store, vectors, function, min(top_k, len(self)))

    # -- changes and files ---------------------------------------------------------------------

    @staticmethod
    def _fingerprint_of(embedder, dim: int) -> np.ndarray:
        return np.array(embedder.embed(list(FINGERPRINT_TEXTS), prompt="query", dim=dim), "float32")

    def _embedded(self, texts: list[str], batch_size: int | None) -> np.ndarray:
        options = {"prompt": self.prompt, "dim": self.dim, "batch_size": batch_size}
        vectors = np.array(self.embedder.embed(texts, **options), "float32")
        return checked_and_normalized(vectors, self.embedder.similarity_function, "vectors")

    @classmethod
    def _store_of(
        cls, path: pathlib.Path, arrays: dict[str, np.ndarray], precision: str
    ) -> Float32Vectors:
        store = checked_store(STORES[precision], path, arrays)
        check_shape(
            path, "fingerprint", arrays["fingerprint"].shape, (len(FINGERPRINT_TEXTS), store.width)
        )
        return store

    @classmethod
    @validate_arguments
    def load(
        cls,
        folder: str | os.PathLike[str],
        embedder: Any,
        engine: Engine | None = None,
        verify: bool = True,
    ) -> Self:
        """Return the index that `save` wrote. Its vectors are read from the file when needed.

        Args:
            folder: written by `save`.
            embedder: the one that the index was built with, or an equal one.
            engine: as for `build`.
            verify: whether to verify the checksums of the files.

        Raises:
            FileNotFoundError: if there is no such folder.
            ValueError: "... holds no index: ...", "... is damaged or changed: ...", "... is the
                index of another embedder: ..."
        """
        store, texts, manifest, fingerprint = cls._open(folder, embedder, verify)
        check_engine(engine, store.precision)
        if engine:
            store = FaissVectors(store.vectors, embedder.similarity_function)
        return cls(embedder, store, texts, manifest.get("prompt"), fingerprint)

    @validate_arguments
    def export(self, path: str | os.PathLike[str], top_k: PositiveInt = 10) -> None:
        """Write the embedder and the documents as one SavedModel; see `export_index`.

        Args:
            path: the version folder, such as "served/1".
            top_k: how many documents it finds for each query.
        """
        from encoder_zoo.tasks.retrieval.index_export import export_index

        export_index(self, path, top_k)
