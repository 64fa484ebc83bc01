"""Similarity, ranking and search for any kind of embeddings and for exports, without Keras.

Comments use these letters for shapes: N and M texts.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack

import numpy as np

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.retrieval import similarity
from encoder_zoo.tasks.retrieval.options import IndexOptions, OpenOptions
from encoder_zoo.tasks.retrieval.ranking import RankedText, rank_texts
from encoder_zoo.tasks.retrieval.terms import normalize_rows
from encoder_zoo.tasks.serving.opened_export import OpenedExport

if TYPE_CHECKING:  # the indexes are imported when they are used
    from encoder_zoo.tasks.retrieval.index import Index

IndexKind = TypeVar("IndexKind", bound="Index")


class Searchable(Generic[IndexKind]):
    """Mixin for `Embedder` and for opened exports with an `embed` method.

    Attributes:
        embedding_dim: Integer. The embedding dimension.
        similarity_function: String. Name of the function that compares vectors.
        index_class: The class of index that `index` builds.
    """

    embedding_dim: int
    similarity_function: str
    index_class: type[IndexKind]
    _answers: EmbeddingAnswers
    if TYPE_CHECKING:

        def embed(self, texts: object, prompt: str | None = None, **options: Any) -> Any: ...

    @lock_weights
    def similarity(self, a: object, b: object) -> np.ndarray:
        """Compute the similarity between all texts in `a` and all texts in `b`.

        Args:
            a: Texts, or vectors returned by `embed`. For `LateInteraction`, these should be
                queries.
            b: Texts, or vectors returned by `embed`. For `LateInteraction`, these should be
                documents.

        Returns:
            Float32 array of shape (N, M), based on the model's `similarity_function`. More similar
            texts will have higher scores. For a single text or vector, the corresponding axis is
            removed from the result.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> embedder.similarity("A cat.", ["A cat.", "A dog."]).shape
            (2,)
        """
        (a, one_a), (b, one_b) = (
            self._get_vectors(x, prompt, name)
            for x, prompt, name in zip((a, b), self._answers.similarity_prompts, "ab", strict=True)
        )
        found = compute_score_matrix(a, b, self.similarity_function)
        return found[tuple(0 if one else slice(None) for one in (one_a, one_b))]

    def _get_vectors(self, x: Any, prompt: str | None, name: str) -> tuple[Any, bool]:
        """Return the vectors for `x`, and whether `x` is a single text or vector."""
        if isinstance(x, str | bytes):
            return self.embed([x], prompt), True
        given = self._answers.read_vectors(x, name)
        return (self.embed(x, prompt), False) if given is None else given

    @validate_arguments
    @lock_weights
    def rank(
        self,
        query: str,
        texts: object,
        top_k: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
    ) -> list[RankedText]:
        """Rank texts by relevance to a query, sorted by decreasing score.

        Args:
            query: String. The query to compare the texts to.
            texts: List, array or column of texts to rank.
            top_k: Integer. The maximum number of results to return. If None, all texts are
                returned.
            batch_size: Integer. The batch size used for the computation. Defaults to 32.

        Returns:
            List with a dict `{"index", "score", "text"}` per result, sorted by decreasing score.
            "index" is the position in `texts`. Ties keep the original order.

        Raises:
            ValueError: If `query` is not a single text, or if `texts` is empty or contains an
                empty text.
        """
        return rank_texts(self, query, texts, top_k, batch_size)

    def _score_texts(self, query, texts, batch_size):
        documents = self.embed(texts, "document", batch_size=batch_size)
        return self.similarity(self.embed([query], "query", batch_size=batch_size), documents)[0]

    def index(self, documents: object, **options: Unpack[IndexOptions]) -> IndexKind:
        """Build an index for semantic search.

        Args:
            documents: List, array or column of texts to index. For a table or a list of dicts, a
                column "text" is required (or set `text_column=`). The column "id" is used for the
                ids, and all other columns for fields, which can be used in the `where` argument of
                `search`. The BEIR format is also supported: {id: text} or {id: {"title", "text"}}.
            **options: `ids` and `metadata` can be passed as lists if `documents` contains only
                texts. In addition, all options of `build` are supported, for example
                `precision="int8"`. See `VectorIndex`, `MultiVectorIndex` or `SparseIndex` for
                details.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> [hit] = embedder.index(["A cat.", "A dog."]).search("A dog.", top_k=1)
            >>> hit["index"], hit["text"]
            (1, 'A dog.')
        """
        return self.index_class.build(self, documents, **options)

    def load_index(
        self, folder: str | os.PathLike[str], **options: Unpack[OpenOptions]
    ) -> IndexKind:
        """Load an index built with this embedder. See also `encoder_zoo.load_index`.

        Args:
            folder: String or path. Folder of the index.
            **options: Additional options to pass to `encoder_zoo.load_index`, for example
                `verify=False`.
        """
        from encoder_zoo.tasks.retrieval.hybrid_index import load_index

        return load_index(folder, self, **options)


class OpenedEmbedder(OpenedExport, Searchable):
    """Opened export of an embedder, with the search methods of the task."""

    @property
    def index_class(self) -> type[Index]:
        """The class of index that `index` builds."""
        from encoder_zoo.tasks.retrieval.hybrid_index import INDEXES

        return INDEXES[self._answers.index_kind]


@dataclasses.dataclass(frozen=True)
class EmbeddingAnswers(Answers):
    """Base class of the `Answers` of embedders.

    Subclasses must define `embed` and `similarity_function`.

    Attributes:
        index_kind: String. Kind of index for the vectors (see `INDEXES`).
        similarity_prompts: Prompts to use for the first and the second argument in `similarity`.
        embedding_dim: Positive integer. Embedding dimension before truncation.
    """

    opened_class = OpenedEmbedder
    index_kind: ClassVar[str]
    similarity_prompts: ClassVar[tuple[str | None, str | None]] = (None, None)
    embedding_dim: PositiveInt

    def read_vectors(self, x: Any, name: str) -> tuple[Any, bool] | None:
        """Return vectors that were passed instead of texts, and whether `x` is a single vector.

        Args:
            x: Texts, or vectors as returned by `embed`.
            name: String. Name of the argument for error messages.

        Returns:
            Tuple of the vectors and a boolean, or None if `x` contains texts.
        """
        if hasattr(x, "tocsr"):
            return x, False
        if not (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
            return None
        similarity.check_finite(np.atleast_2d(x), name)
        return np.atleast_2d(x), x.ndim == 1


def compute_score_matrix(a: Any, b: Any, function: str) -> np.ndarray:
    """Compute the similarity between all rows in `a` and `b`, (N, M) float32."""
    if isinstance(a, list):
        return similarity.compute_max_sim(similarity.scale_queries(a, function), b)
    if isinstance(a, np.ndarray):
        return similarity.compute_similarity_matrix(a, b, function)
    a, b = (normalize_rows(x, function) for x in (a, b))
    return (a @ b.T).toarray()
