"""Methods of `TextEmbedder` on top of its vectors: similarity, search, evaluation, negatives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Unpack

import numpy as np

from encoder_zoo.tasks.embedding.columns import as_columns
from encoder_zoo.tasks.retrieval.evaluation import evaluate_retrieval, evaluate_similarity
from encoder_zoo.tasks.retrieval.mining import mine_negatives
from encoder_zoo.tasks.retrieval.options import (
    IndexOptions,
    MiningOptions,
    OpenOptions,
    RetrievalOptions,
    SimilarityOptions,
)
from encoder_zoo.tasks.retrieval.similarity import similarity_matrix
from encoder_zoo.tasks.retrieval.vector_index import VectorIndex


class VectorRetrieval:
    """Mixin of `TextEmbedder`."""

    def similarity(self, a: object, b: object) -> np.ndarray:
        """Return how similar each of some texts is to each of others.

        Args:
            a: texts, or vectors (N, D).
            b: texts, or vectors (M, D).

        Returns:
            (N, M) float32, by the model's `similarity_function`; more is closer. Of a single text
            or vector the axis is left out.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> embedder.similarity("A cat.", ["A cat.", "A dog."]).shape
            (2,)
        """
        a, b = (x if _are_vectors(x) else self.embed(x) for x in (a, b))
        found = similarity_matrix(np.atleast_2d(a), np.atleast_2d(b), self.similarity_function)
        return found.reshape(np.shape(a)[:-1] + np.shape(b)[:-1])

    def index(self, documents: object, **options: Unpack[IndexOptions]) -> VectorIndex:
        """Return an index that finds the documents nearest to a text; see `VectorIndex.build`.

        Args:
            documents: texts.
            **options: of `VectorIndex.build`, such as `precision="int8"`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> [hit] = embedder.index(["A cat.", "A dog."]).search("A dog.", top_k=1)
            >>> hit["index"], hit["text"]
            (1, 'A dog.')
        """
        return VectorIndex.build(self, documents, **options)

    def load_index(
        self, folder: str | os.PathLike[str], **options: Unpack[OpenOptions]
    ) -> VectorIndex:
        """Open an index that `VectorIndex.save` wrote; see `VectorIndex.load`.

        Args:
            folder: of the index.
            **options: of `VectorIndex.load`, such as `engine="faiss"`.
        """
        return VectorIndex.load(folder, self, **options)

    def evaluate_retrieval(
        self,
        queries: object,
        documents: object,
        relevant: Sequence[object] | None = None,
        **options: Unpack[RetrievalOptions],
    ) -> dict[str, float]:
        """Return how well queries find their documents; see `tasks.retrieval.evaluation`.

        Args:
            queries: texts.
            documents: texts.
            relevant: for each query the index of its document, or a list of indices; None: the
                document with the query's own index.
            **options: of `evaluate_retrieval` there.
        """
        return evaluate_retrieval(self, queries, documents, relevant, **options)

    def evaluate_similarity(
        self, pairs: object, scores: object, **options: Unpack[SimilarityOptions]
    ) -> dict[str, float]:
        """Return how well the similarities of pairs agree with scores, by rank and linearly.

        Args:
            pairs: `(first, second)`, a list of pairs, or a table of two columns, as for `fit`.
            scores: (N,) numbers.
            **options: of `evaluate_similarity` in `tasks.retrieval.evaluation`.

        Raises:
            ValueError: "pairs has 3 columns. Expected two ..."
        """
        columns = [np.asarray(column) for column in as_columns(pairs)]
        if len(columns) != 2:
            raise ValueError(
                f"pairs has {len(columns)} columns of texts. Expected two: (first, second), a list "
                "of pairs, or a table of two columns."
            )
        return evaluate_similarity(self, tuple(columns), scores, **options)

    def mine_negatives(
        self, queries: object, documents: object, **options: Unpack[MiningOptions]
    ) -> tuple[list[str], list[str], list[list[str]]]:
        """Return hard negatives of each query: documents that are near and not its own.

        Args:
            queries: texts.
            documents: their documents.
            **options: of `mine_negatives` in `tasks.retrieval.mining`.
        """
        return mine_negatives(self, queries, documents, **options)


def _are_vectors(x) -> bool:
    """Return whether an input is numbers, not texts."""
    kind = getattr(getattr(x, "dtype", None), "kind", "")
    return kind == "f"
