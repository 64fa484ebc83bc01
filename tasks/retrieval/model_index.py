"""The base of the indexes whose queries a model embeds: search, further documents, files.

Comment letters: N documents.
"""

from __future__ import annotations

import os
import pathlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Unpack, overload

import numpy as np

from encoder_zoo.common.validation import PositiveInt, Rule, validate_arguments
from encoder_zoo.tasks.retrieval.base_index import Index
from encoder_zoo.tasks.retrieval.index_checks import (
    are_close,
    check_embedder,
    check_text_count,
    checked_texts,
)
from encoder_zoo.tasks.retrieval.index_files import Types, read_index, write_index
from encoder_zoo.tasks.retrieval.options import Hit, SearchOptions


class ModelIndex(Index):
    """Base of the indexes whose queries a model embeds. A subclass makes vectors and compares them.

    Args:
        embedder: of the queries and of further documents.
        store: the vectors of the documents: with `len`, N, `width`, `nbytes`, `arrays` for a file,
            and `joined`, which returns a store with further ones.
        texts: N of them, or None.
        prompt: of further documents.
        fingerprint: the embedder's vectors of `index_checks.FINGERPRINT_TEXTS`.

    Attributes:
        kind: its name in the manifest, where that of a preset names the task.
        types: of the arrays of a store, for each precision.
        settings: rules of the attributes that stand in the manifest beside the prompt.
    """

    kind: ClassVar[str]
    types: ClassVar[Mapping[str | None, Types]]
    settings: ClassVar[Mapping[str, Rule]]

    def __init__(
        self, embedder, store, texts: list[str] | None, prompt: str | None, fingerprint: np.ndarray
    ):
        self.embedder = embedder
        self.texts = texts
        self.prompt = prompt
        self._store = store
        self._fingerprint = fingerprint

    @staticmethod
    @abstractmethod
    def _fingerprint_of(embedder, dim: int) -> np.ndarray:
        """Return the embedder's vectors of `FINGERPRINT_TEXTS`, by which it is recognized."""

    @abstractmethod
    def _embedded(self, texts: list[str], batch_size: int | None):
        """Return the vectors of further documents, as `joined` of the store takes them."""

    @classmethod
    @abstractmethod
    def _store_of(
        cls, path: pathlib.Path, arrays: dict[str, np.ndarray], precision: str | None
    ) -> Any:
        """Return the store of the arrays of a file, which have the right types, checked.

        Args:
            path: of the file, for errors.
            arrays: of the store, and "fingerprint".
            precision: of the store.
        """

    def __len__(self) -> int:
        return len(self._store)

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that the vectors take, or of the file they are mapped from."""
        return self._store.nbytes

    @overload
    def search(
        self, queries: str, top_k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hit]: ...
    @overload
    def search(
        self, queries: object, top_k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[list[Hit]]: ...
    @validate_arguments
    def search(
        self,
        queries: object,
        top_k: PositiveInt = 10,
        prompt: str | None = "query",
        reranker: object = None,
        candidates: PositiveInt | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the documents nearest to each query, the nearest first, of equal ones the earlier.

        Args:
            queries: a text, or a list, array or column of texts.
            top_k: how many documents; all if there are fewer.
            prompt: of `embed`.
            reranker: an object with `rank(query, texts, top_k)`, such as a `Reranker`. It puts
                the nearest documents in its own order, with its own scores.
            candidates: how many documents the reranker reads, default 50; `top_k` if that is more.

        Returns:
            Of a single query a list of `{"index", "score", "text"}`, otherwise a list of these for
            each query. Scores are the embedder's `similarity_function`, more is nearer: distances
            are negative.

        Raises:
            ValueError: "queries[1] is empty. ...", "A reranker reads texts, and ..."

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> index = embedder.index(["A cat.", "Tax law."])
            >>> [[hit["index"] for hit in hits] for hits in index.search(["Tax law.", "A cat."])]
            [[1, 0], [0, 1]]
        """
        return self._search(queries, top_k, reranker, candidates, prompt=prompt)

    @validate_arguments
    def evaluate(
        self,
        queries: object,
        relevant: Sequence,
        cutoffs: Sequence[int] = (1, 5, 10),
        **options: Unpack[SearchOptions],
    ) -> dict[str, float]:
        return self._evaluate(queries, relevant, cutoffs, options)

    # -- changes and files ---------------------------------------------------------------------

    @validate_arguments
    def add(self, documents: object, batch_size: PositiveInt | None = None) -> None:
        """Add documents behind those that are there. A call copies all vectors: add many at once.

        Args:
            documents: a list, array or column of texts.
            batch_size: of `embed`.

        Raises:
            ValueError: as `build`, and "The embedder has changed since the index was built. ..."
        """
        self._adding(checked_texts(documents, "documents"), batch_size)()

    def _adding(self, texts: list[str], batch_size: int | None = None) -> Callable[[], None]:
        """Embed further documents, and return the function that puts them into the index."""
        self._check_embedder()
        vectors = self._embedded(texts, batch_size)

        def put() -> None:
            self._store = self._store.joined(vectors)
            if self.texts is not None:
                self.texts = [*self.texts, *texts]

        return put

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index into a folder of its own, replaced atomically; `load` opens it.

        Args:
            folder: to write. A program that reads an older index in it is not disturbed.

        Raises:
            ValueError: "m holds config.json, ..., and no index: ...", "The embedder has changed
                since the index was built. ..."
            OSError: naming the folder, such as for a full disk.
        """
        self._check_embedder()
        settings = {name: getattr(self, name) for name in self.settings}
        settings["similarity_function"] = self.embedder.similarity_function
        settings["prompt"] = self.prompt
        arrays = {**self._store.arrays, "fingerprint": self._fingerprint}
        write_index(folder, self.kind, arrays, self.texts, settings)

    def _check_embedder(self) -> None:
        """Raise an error if the embedder makes other vectors now than those of the index."""
        now = self._fingerprint_of(self.embedder, self._store.width)
        if not are_close(now, self._fingerprint):
            raise ValueError(
                "The embedder has changed since the index was built, such as by training: its "
                "vectors of the same texts are others. Build the index again."
            )

    @classmethod
    def _open(cls, folder: str | os.PathLike, embedder: Any, verify: bool) -> tuple:
        """Return store, texts, manifest and fingerprint of the index in a folder, checked."""
        read = read_index(folder, cls.kind, cls.types, cls.settings, verify)
        path, arrays, texts, manifest = read
        store = cls._store_of(path, arrays, manifest.get("precision"))
        check_text_count(texts, len(store), f"documents in {folder}")
        fingerprint = arrays["fingerprint"]
        check_embedder(embedder, store.width, fingerprint, manifest, folder, cls._fingerprint_of)
        return store, texts, manifest, fingerprint
