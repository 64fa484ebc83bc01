"""The text side of answers: convert texts to examples and outputs to answers, without Keras.

Comments use these letters for shapes: B batch, L sequence, N examples.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar

import numpy as np

from encoder_zoo.common.lazy import array_ops, use_numpy
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.serving.opened_export import OpenedExport

P = ParamSpec("P")
R = TypeVar("R")


def prepares_in_numpy(method: Callable[P, R]) -> Callable[P, R]:
    """Use NumPy instead of TensorFlow operations in a method of `Answers`, except in its runner.

    Outside a graph, a TensorFlow operation takes longer than the same NumPy operation. TensorFlow
    will still be used to prepare tensors, and texts that would get different tokens.
    """

    @functools.wraps(method)
    def prepare(self, *args, **kwargs):
        has_tensors = any(map(_has_tensors, (*args, *kwargs.values())))
        if has_tensors or not self.preprocessor.tokenizer.library_is_equal:
            return method(self, *args, **kwargs)
        with use_numpy():
            return method(self, *args, **kwargs)

    return prepare


def _has_tensors(values: object) -> bool:
    """Return whether a value is a tensor, or a tuple of columns with a tensor."""
    is_tuple = isinstance(values, tuple)
    return any(map(_has_tensors, values)) if is_tuple else array_ops.is_tensor(values)


class Runner(Protocol):
    """Compute the tensor side of answers from arrays. A task does this on the Keras backend."""

    def predict(self, x: Any, batch_size: int | None = None, *, verbose: Any = ...) -> Any:
        """Compute the outputs for texts or prepared inputs, in the input order."""

    def run_texts(self, texts: tuple, batch_size: int, encode: Callable) -> np.ndarray:
        """Compute the outputs for columns of texts, with `encode` to make the examples."""

    def run_examples(
        self, examples: dict, batch_size: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the example indices for each batch (B,), and the outputs for this batch."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers to raw texts, computed by a runner.

    A subclass has the settings and methods needed to answer. A task creates this object for every
    call, with itself as the runner. An opened export creates it from the settings in its folder.
    The attribute types are used as rules to check these settings.

    Attributes:
        preprocessor_class: Preprocessor class.
        methods: A tuple of strings. Method names for answering.
        instead_of_predict: Optional string. Method to use for raw texts when `predict` only takes
            prepared inputs.
        opened_class: Class to use for opened exports with these answers.
        preprocessor: The task's preprocessor.
        runner: Runner used to compute the outputs.
    """

    preprocessor_class: ClassVar[type[Preprocessor]]
    methods: ClassVar[tuple[str, ...]]
    instead_of_predict: ClassVar[str | None] = None
    opened_class: ClassVar[type[OpenedExport]] = OpenedExport
    preprocessor: Preprocessor
    runner: Runner

    def with_model(self) -> Answers:
        """Return equal answers that only need the model, to export its file."""
        return self

    def predict_texts(self, x: Any, batch_size: int | None = None) -> Any:
        """Compute the outputs for raw inputs in memory, in the input order. See `Task.predict`.

        Raises:
            ValueError: If `predict` only takes prepared inputs.
        """
        if self.instead_of_predict:
            expected = f"prepared inputs. Or use {self.instead_of_predict}"
            raise invalid("x", x, expected)
        return self.runner.predict(x, batch_size, verbose=0)

    def compute_unpadded_outputs(
        self, examples: dict, batch_size: int | None = None, axis: int | None = 0
    ) -> list[np.ndarray]:
        """Compute the outputs for every example without padding.

        Args:
            examples: Encoded examples.
            batch_size: Positive integer. Defaults to 32.
            axis: Optional integer. Axis for the tokens in the output for an example. If None, there
                is no such axis. Defaults to 0.
        """
        lengths = examples["token_ids"].row_lengths().numpy()
        outputs = {}
        for indices, values in self.runner.run_examples(examples, batch_size):
            for i, output in zip(indices.tolist(), values, strict=True):
                whole = axis is None
                outputs[i] = output if whole else np.split(output, lengths[i : i + 1], axis)[0]
        return [outputs[i] for i in range(len(lengths))]
