"""Convert texts to examples, and model outputs to answers. This code does not need Keras.

Comments use these letters for shapes: B (batch size), L (sequence length), N (examples).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, ParamSpec, Protocol, Self, TypeVar, cast

import numpy as np

from encoder_zoo.common.lazy import use_numpy, xp
from encoder_zoo.common.validation import Rule, get_rules, validate_arguments
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import quote
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable)


def prepares_in_numpy(method: Callable[P, R]) -> Callable[P, R]:
    """Decorator that makes a method of `Answers` preprocess texts in NumPy instead of TensorFlow.

    Outside a graph, a TensorFlow operation takes longer than the same NumPy operation. TensorFlow
    is still used if an argument is a tensor, and when the runner computes the outputs.
    """

    @functools.wraps(method)
    def prepare(self, *args, **kwargs):
        if any(map(_has_tensors, (*args, *kwargs.values()))):
            return method(self, *args, **kwargs)
        with use_numpy():
            return method(self, *args, **kwargs)

    return prepare


def _has_tensors(values: object) -> bool:
    """Return whether a value is a tensor, or a tuple that contains a tensor."""
    is_tuple = isinstance(values, tuple)
    return any(map(_has_tensors, values)) if is_tuple else xp.is_tensor(values)


def delegate_to_answers(method: F) -> F:
    """Create a task method that calls the same method of the task's `Answers`.

    The task method has the same signature, argument checks and docstring. It holds the weights
    lock, because a method of `Answers` can run the model several times.

    Args:
        method: Method of a subclass of `Answers`.
    """

    @functools.wraps(method, updated=())  # without the signature that marks checked functions
    def answer(self, *args, **kwargs):
        first = next(iter((*args, *kwargs.values())), None)
        return getattr(self._get_answers(first), method.__name__)(*args, **kwargs)

    return validate_arguments(lock_weights(cast(F, answer)))


class Runner(Protocol):
    """Protocol for objects that run the model: Keras, or the engine of an opened export."""

    def predict(self, x: Any, batch_size: int | None = None) -> Any:
        """Compute the outputs for texts or preprocessed inputs, in the input order."""

    def run_texts(self, texts: tuple, batch_size: int, encode: Callable) -> np.ndarray:
        """Compute the outputs for columns of texts, which `encode` converts to examples."""

    def run_examples(
        self, examples: dict, batch_size: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the example indices (B,) of each batch, and the outputs for this batch."""


@dataclasses.dataclass(frozen=True)
class Answers:
    """Base class that preprocesses texts, runs the model, and converts its outputs to answers.

    A subclass has the settings of a task and its prediction methods, such as `classify`. A task
    creates this object for every call, with a `KerasRunner`. An opened export creates it from
    the settings in its folder, and checks these settings against the type annotations of the
    attributes.

    Attributes:
        preprocessor_class: Preprocessor class.
        methods: Tuple of strings. Prediction method names.
        returns_lists: Boolean. Whether `predict_texts` returns a list with one array per text.
            Defaults to False.
        instead_of_predict: Optional string. If `predict` only supports preprocessed inputs, the
            method to use for texts.
        opened_class: Optional class of opened exports with these answers. If None, `OpenedExport`
            is used.
        task_name: Optional string. Name of the task in an export, if it differs from the name in
            `TaskRecord`.
        preprocessor: The task's preprocessor.
        runner: `Runner` that computes the outputs.
    """

    preprocessor_class: ClassVar[type[Preprocessor]]
    methods: ClassVar[tuple[str, ...]]
    returns_lists: ClassVar[bool] = False
    instead_of_predict: ClassVar[str | None] = None
    opened_class: ClassVar[type | None] = None
    task_name: ClassVar[str | None] = None
    preprocessor: Preprocessor
    runner: Runner

    @classmethod
    def from_task(cls, task: Any, runner: Runner) -> Self:
        """Create the object with the settings of a task, which are attributes with the same names.

        Settings that the task does not have keep their defaults.

        Args:
            task: `Task`.
            runner: `Runner` that computes the outputs.
        """
        names = {field.name for field in dataclasses.fields(cls)} - {"preprocessor", "runner"}
        # `hasattr(task, name)` would also be False for an error in a property.
        known = {name for name in names if name in vars(task) or hasattr(type(task), name)}
        return cls(task.preprocessor, runner, **{name: getattr(task, name) for name in known})

    @classmethod
    def get_setting_rules(cls) -> dict[str, Rule]:
        """Return the rule of each setting that can be stored in the files of an export."""
        rules = {}
        for base in reversed(cls.__mro__[:-1]):  # annotations are read in the module of their class
            if dataclasses.is_dataclass(base):
                rules |= get_rules(base.__init__)
        return rules

    def copy_with_model(self) -> Answers:
        """Return the `Answers` to export. They must compute all outputs with the exported model."""
        return self

    def check_settings(self) -> None:
        """Raise a ValueError if the settings in the files of an export contradict each other."""

    def predict_texts(self, x: Any, batch_size: int | None = None) -> Any:
        """Compute the outputs for raw inputs in memory, in the input order. See `Task.predict`.

        Raises:
            ValueError: If `predict` only supports preprocessed inputs.
        """
        if self.instead_of_predict:
            raise ValueError(
                f"x is {quote(x)}, but predict only supports preprocessed inputs. Use "
                f"{self.instead_of_predict} for texts."
            )
        return self.runner.predict(x, batch_size)

    def predict_prepared(self, x: dict, batch_size: int | None = None) -> Any:
        """Compute the outputs of an export for preprocessed inputs, in the input order."""
        return self.runner.predict(x, batch_size)

    def compute_unpadded_outputs(
        self, examples: dict, batch_size: int | None = None, axis: int | None = 0
    ) -> list[np.ndarray]:
        """Compute the outputs for every example, and remove the outputs for padding tokens.

        Args:
            examples: Dict. Encoded examples.
            batch_size: Positive integer. Number of examples per batch. Defaults to 32.
            axis: Optional integer. Token axis of the output for a single example, or None for
                outputs without a token axis. Defaults to 0.

        Returns:
            List with one array per example.
        """
        lengths = examples["token_ids"].row_lengths().numpy()
        outputs = {}
        for indices, values in self.runner.run_examples(examples, batch_size):
            for i, output in zip(indices.tolist(), values, strict=True):
                whole = axis is None
                outputs[i] = output if whole else np.split(output, lengths[i : i + 1], axis)[0]
        return [outputs[i] for i in range(len(lengths))]
