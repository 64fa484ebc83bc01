"""Vectors of texts, of any kind, and the settings that compare them."""

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
    """An embedder that runs in an engine, with the search methods of its task."""

    @property
    def index_class(self) -> type[Index]:
        """Class of the indexes that `index` builds."""
        from encoder_zoo.tasks.retrieval.hybrid_index import INDEXES

        return INDEXES[self._answers.index_kind]


@dataclasses.dataclass(frozen=True)
class EmbeddingAnswers(Answers):
    """Base of the answers of embedders.

    A subclass has `embed` and `similarity_function`.

    Attributes:
        index_kind: Name of the indexes of such vectors, see `INDEXES`.
        similarity_prompts: Prompts of the first and the second texts of `similarity`.
        embedding_dim: Positive integer. Number of dimensions that the model computes.
    """

    opened_class = OpenedEmbedder
    index_kind: ClassVar[str]
    similarity_prompts: ClassVar[tuple[str | None, str | None]] = (None, None)
    embedding_dim: PositiveInt

    def given_vectors(self, x: Any, name: str) -> tuple[Any, bool] | None:
        """Return vectors that are given in place of texts, and whether it is a single vector.

        Args:
            x: Vectors, as `embed` returns them, or texts.
            name: String. Name of the argument for error messages.

        Returns:
            None for texts.
        """
        if hasattr(x, "tocsr"):
            return x, False
        if not (isinstance(x, np.ndarray) and x.dtype.kind == "f"):
            return None
        check_finite(np.atleast_2d(x), name)
        return np.atleast_2d(x), x.ndim == 1
