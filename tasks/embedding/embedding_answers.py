"""Answers of all kinds of embedders, with the settings that compare embeddings."""

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
    """Opened export of an embedder, with the search methods of the task."""

    @property
    def index_class(self) -> type[Index]:
        """The class of index that `index` builds."""
        from encoder_zoo.tasks.retrieval.hybrid_index import INDEXES

        return INDEXES[self._answers.index_kind]


@dataclasses.dataclass(frozen=True)
class EmbeddingAnswers(Answers):
    """Base class for the answers from embedders.

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
        """Return vectors that were passed instead of texts, and whether it is a single vector.

        Args:
            x: Texts, or vectors as returned by `embed`.
            name: String. Name of the argument for error messages.

        Returns: None for texts.
        """
        if hasattr(x, "tocsr"):
            return x, False
        if not (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
            return None
        check_finite(np.atleast_2d(x), name)
        return np.atleast_2d(x), x.ndim == 1
