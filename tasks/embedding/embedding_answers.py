"""Vectors of texts, of any kind, and what decides how they are compared."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from encoder_zoo.common.validation import PositiveInt
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.retrieval.index import Index
from encoder_zoo.tasks.retrieval.similarity import check_finite


@dataclasses.dataclass(frozen=True)
class EmbeddingAnswers(Answers):
    """Base of the answers of embedders.

    A subclass has `embed` and `similarity_function`.

    Attributes:
        index_class: Class of the index of such vectors.
        similarity_prompts: Prompts of the first and the second texts of `similarity`.
        embedding_dim: Positive integer. Number of dimensions that the model computes.
    """

    index_class: ClassVar[type[Index]]
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
