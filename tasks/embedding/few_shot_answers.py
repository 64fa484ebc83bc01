"""Classes of texts from their vectors, with a logistic head.

Comments use these letters for shapes: N texts, D dimensions, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np

from encoder_zoo.common.validation import PositiveInt, Rule
from encoder_zoo.tasks.classification.class_answers import ClassAnswers
from encoder_zoo.tasks.embedding.pair_columns import convert_single_texts
from encoder_zoo.tasks.embedding.vector_answers import VectorAnswers


def _is_head(value: object) -> bool:
    try:
        kernel, bias = (np.asarray(weights, "float32").shape for weights in value)
    except (TypeError, ValueError):
        return False
    return len(kernel) == 2 and bias == kernel[1:]


HeadWeights = Annotated[
    Sequence[np.ndarray], Rule(_is_head, "the kernel (D, C) and the bias (C,) of a head")
]


@dataclasses.dataclass(frozen=True)
class FewShotAnswers(VectorAnswers, ClassAnswers):
    """The `Answers` of `FewShotClassifier`: the vectors of texts, and classes from these vectors.

    Attributes:
        head_weights: Optional tuple of arrays of shape (D, C) and (C,). Kernel and bias of the
            logistic head. None before the first `fit`.
    """

    methods = ("classify", "predict_proba", "embed")
    embedding_dim: PositiveInt = dataclasses.field(kw_only=True)
    head_weights: HeadWeights | None = None

    def copy_with_model(self) -> FewShotAnswers:
        self.check_has_head()
        return super().copy_with_model()

    def predict_texts(self, x: Any, batch_size: int | None = None) -> np.ndarray:
        self.check_has_head()
        kernel, bias = (np.asarray(weights, "float32") for weights in self.head_weights)
        return self.embed(convert_single_texts(x), batch_size=batch_size) @ kernel + bias

    def check_has_head(self) -> None:
        """Raise a ValueError if the classes are not known yet."""
        if self.head_weights is None:
            raise ValueError(
                "This FewShotClassifier has no classes yet. Call fit with texts of each class."
            )
