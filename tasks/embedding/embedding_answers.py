"""Embeddings from any kind of embedder, with the settings needed to compare them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from encoder_zoo.common.validation import PositiveInt
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.embedding.searchable import Searchable
from encoder_zoo.tasks.retrieval.similarity import check_finite
from encoder_zoo.tasks.serving.opened_export import OpenedExport

if TYPE_CHECKING:
    from encoder_zoo.tasks.retrieval.index import Index


class OpenedEmbedder(OpenedExport, Searchable):
    """Embedder to be run in an inference engine, with the same search methods as the task."""

    @property
    def index_class(self) -> type[Index]:
        """The index class used by `index`."""
        from encoder_zoo.tasks.retrieval.hybrid_index import INDEXES

        return INDEXES[self._answers.index_kind]


@dataclasses.dataclass(frozen=True)
class EmbeddingAnswers(Answers):
    """Base class for the answers from embedders.

    Subclasses must define `embed` and `similarity_function`.

    Attributes:
        index_kind: Name of the index to use for these vectors. See `INDEXES` for details.
        similarity_prompts: Prompts to use for the first and the second argument in `similarity`.
        embedding_dim: Positive integer. Embedding dimension before truncation.
    """

    opened_class = OpenedEmbedder
    index_kind: ClassVar[str]
    similarity_prompts: ClassVar[tuple[str | None, str | None]] = (None, None)
    embedding_dim: PositiveInt

    def read_vectors(self, x: Any, name: str) -> tuple[Any, bool] | None:
        """Return vectors passed instead of texts, and whether a single vector was passed.

        Args:
            x: Texts, or vectors as returned by `embed`.
            name: String. Name to use for the argument in error messages.

        Returns: None for texts.
        """
        if hasattr(x, "tocsr"):
            return x, False
        if not (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
            return None
        check_finite(np.atleast_2d(x), name)
        return np.atleast_2d(x), x.ndim == 1
