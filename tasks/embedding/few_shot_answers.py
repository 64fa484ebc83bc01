"""Classes of texts from their vectors, with a logistic head.

Comments use these letters for shapes: N texts, D dimensions, C classes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from encoder_zoo.common.validation import PositiveInt, Rule
from encoder_zoo.common.wording import invalid
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
            logistic head in an export.
        read_head: Optional function that returns these arrays for a task. They are only read when
            they are used. None before the first `fit`.
    """

    methods = ("classify", "predict_proba", "embed")
    task_name = "few_shot_classifier"
    embedding_dim: PositiveInt = dataclasses.field(kw_only=True)
    head_weights: HeadWeights | None = None
    read_head: Callable[[], Sequence[np.ndarray]] | None = None

    @functools.cached_property
    def head(self) -> tuple[np.ndarray, np.ndarray]:
        """The kernel (D, C) and the bias (C,) as arrays."""
        self.check_has_head()
        weights = self.head_weights if self.read_head is None else self.read_head()
        kernel, bias = (np.asarray(values, "float32") for values in weights)
        return kernel, bias

    def copy_with_model(self) -> FewShotAnswers:
        copied = super().copy_with_model()
        return dataclasses.replace(copied, head_weights=self.head, read_head=None)

    def check_settings(self) -> None:
        width, count = self.dim or self.embedding_dim, len(self.class_names)
        found = None if self.head_weights is None else [np.shape(w) for w in self.head_weights]
        if found != [(width, count), (count,)]:
            expected = f"[({width}, {count}), ({count},)] for {width} dimensions, {count} classes"
            raise invalid("The shape of head_weights", found, expected)

    def predict_texts(self, x: Any, batch_size: int | None = None) -> np.ndarray:
        kernel, bias = self.head
        return self.embed(convert_single_texts(x), batch_size=batch_size) @ kernel + bias

    def predict_prepared(self, x: dict, batch_size: int | None = None) -> np.ndarray:
        kernel, bias = self.head
        return self.truncate(super().predict_prepared(x, batch_size)) @ kernel + bias

    def check_has_head(self) -> None:
        """Raise a ValueError if the classes are not known yet."""
        if self.head_weights is None and self.read_head is None:
            raise ValueError(
                "This FewShotClassifier has no classes yet. Call fit with texts of each class."
            )
