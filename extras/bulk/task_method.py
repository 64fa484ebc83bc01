"""Compute predictions for text columns with missing values.

Comments use these letters for shapes: N rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from encoder_zoo.common.lazy import require
from encoder_zoo.common.missing import is_missing
from encoder_zoo.common.validation import Rule, check_argument, get_rules
from encoder_zoo.common.wording import invalid
from encoder_zoo.extras.bulk.columns import insert_null_rows, make_answer_columns, pa

if TYPE_CHECKING:
    import pyarrow

    from encoder_zoo.tasks.base.task import Task


def _is_list_of_columns(value) -> bool:
    names = [*value, *value.values()] if isinstance(value, Mapping) else value
    return bool(value) and all(isinstance(name, str) and name for name in names)


Columns = Annotated[
    str | Sequence[str] | Mapping[str, str],
    Rule(_is_list_of_columns, "the name of a column, a list of names, or {argument: name}"),
]
MethodName = Annotated[str, Rule(lambda v: isinstance(v, str) and v.isidentifier(), "a method")]


class TaskMethod:
    """A method of a task that computes predictions for text columns.

    Args:
        task, columns, method: See `BatchAnswers`.
        options: Dict. Additional method arguments.

    Raises:
        ValueError: If `task` has no method with this name, or if the method does not support
            `options`.
        ImportError: If pyarrow is not installed.
    """

    def __init__(
        self,
        task: Task | Callable[[], Task],
        columns: str | Sequence[str] | Mapping[str, str],
        method: str | None,
        options: dict[str, Any],
    ):
        require(pa)
        self.task = task if hasattr(task, "record") else task()
        self.columns = columns
        self.method = method or self.task.record.text_method
        name = type(self.task).__name__
        if self.method is None:
            raise ValueError(f"{name} has no prediction method for texts. Set `method`.")
        self._function = getattr(self.task, self.method, None)
        if self._function is None:
            raise ValueError(f"{name} has no method `{self.method}`. Expected a prediction method.")
        self.options = dict(options)
        self._check_call()

    @property
    def names(self) -> list[str]:
        """Names of all text columns."""
        if isinstance(self.columns, str):
            return [self.columns]
        return list(self.columns.values() if isinstance(self.columns, Mapping) else self.columns)

    def compute_answers(
        self, values: Sequence[Sequence], present: Sequence[bool]
    ) -> pyarrow.Table | None:
        """Compute predictions as a table with N rows. Return None if no row has text.

        For rows without text, predictions are null.

        Args:
            values: A sequence with N values for each column in `names`.
            present: Sequence of N booleans. Whether each row has text.
        """
        chosen = [[v for v, p in zip(column, present, strict=True) if p] for column in values]
        count = len(chosen[0])
        if not count:
            return None
        args, named = self._make_arguments(chosen)
        answers = self._function(*args, **named, **self.options)
        found = answers.shape[0] if hasattr(answers, "shape") else len(answers)
        if found != count:
            raise ValueError(f"{self.method} returned {found} predictions for {count} texts.")
        kind = self.task.record.answer_type
        return insert_null_rows(make_answer_columns(answers, self.method, kind), present)

    def sample(self, are_lists: Sequence[bool]) -> pyarrow.Table:
        """Compute predictions for an example text, to determine the prediction columns.

        Args:
            are_lists: Sequence of booleans. Whether each column in `names` contains lists of
                texts.
        """
        model = getattr(self.task, "classifier", self.task)  # for a ZeroShotClassifier
        mask = getattr(model.preprocessor.tokenizer, "mask_token", None)
        text = f"a {mask or 'b'}"  # `fill_mask` requires a mask
        return self.compute_answers(
            [[[text] if is_list else text] for is_list in are_lists], [True]
        )

    def _make_arguments(self, values: Sequence) -> tuple[tuple, dict]:
        """Create the positional and keyword arguments for the method."""
        if isinstance(self.columns, str):
            return (values[0],), {}
        if isinstance(self.columns, Mapping):
            return (), dict(zip(self.columns, values, strict=True))
        return (tuple(values),), {}

    def _check_call(self) -> None:
        """Raise a ValueError if the method cannot be called with the arguments."""
        signature = inspect.signature(self._function)
        if "verbose" in signature.parameters:
            self.options.setdefault("verbose", 0)
        args, named = self._make_arguments([None] * len(self.names))
        try:
            signature.bind(*args, **named, **self.options)
        except TypeError as error:
            raise ValueError(
                f"`{self.method}` cannot be called with these arguments: {error}. The method has "
                f"the arguments {', '.join(signature.parameters)}. Use columns={{argument: name}} "
                "to choose a column for each argument."
            ) from None
        for name, rule in get_rules(self._function).items():
            if name in self.options:
                check_argument(name, self.options[name], rule)


def has_text(row: Sequence, names: Sequence[str], location: str) -> bool:
    """Return whether a row has text, after validating all values.

    Args:
        row: A sequence with one value per column.
        names: Sequence of strings. Column names for error messages.
        location: String. Row location for error messages.

    Raises:
        ValueError: If a value is neither a string nor a list of strings.

    Example:
        >>> has_text(["a", ["b"]], ["x", "y"], "Row 0"), has_text([None], ["x"], "Row 0")
        (True, False)
    """
    found = True
    for value, name in zip(row, names, strict=True):
        texts = value if isinstance(value, list | tuple) else [value]
        if is_missing(value):
            found = False
        elif all(isinstance(text, str) for text in texts):
            found = found and len(texts) > 0 and all(text.strip() for text in texts)
        else:
            raise invalid(f"{location}: {name!r}", value, "a string or a list of strings")
    return bool(found)
