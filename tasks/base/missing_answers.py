"""Return None as the answer for rows without text.

Comments use these letters for shapes: N (rows), M (rows with text).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, cast

import numpy as np

from encoder_zoo.common.missing import is_blank, is_missing
from encoder_zoo.common.validation import one_of
from encoder_zoo.common.wording import quote
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, flatten_column

F = TypeVar("F", bound=Callable)

Missing = Annotated[str, one_of("error", "none")]


def skips_missing(
    *columns: str, one_for_all: bool = False, beside: str | None = None
) -> Callable[[F], F]:
    """Decorator that makes a method return None for rows without text if `missing="none"`.

    The decorated method is only called with the rows that have text.

    Args:
        *columns: Names of the arguments that are columns of texts. Row `i` of every column belongs
            to the answer `i`.
        one_for_all: Boolean. If True, a single text in the first column is repeated for every row
            of the other columns. If False, a single text in the first column has one answer for all
            rows. Defaults to False.
        beside: Optional string. Name of an additional argument with one item per row, such as the
            labels.

    Example:
        >>> @skips_missing("texts")
        ... def measure(texts, missing="error"):
        ...     return [len(text) for text in texts]
        >>> measure(["good", None, " ", "bad"], missing="none")
        [4, None, None, 3]
    """

    def skip(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def answer(*args, **kwargs):
            bound = signature.bind(*args, **kwargs)
            if bound.arguments.pop("missing", "error") == "error":
                return function(*args, **kwargs)
            owner = bound.arguments.get("self")
            defaults = {name: signature.parameters[name].default for name in columns}
            read = {
                name: _get_text_columns(_convert_to_lists(value, function.__name__), owner)
                for name, value in bound.arguments.items()
                if name in columns and value is not defaults[name]
            }
            if _is_single_input(read[columns[0]]) and not (one_for_all and _collect_columns(read)):
                if all(map(_has_text, read.values())):
                    return function(*bound.args, **bound.kwargs)
                if not _has_text(read[columns[0]]) or not _collect_columns(read):
                    return None
                raise ValueError(
                    f"missing='none' requires one value of `{columns[0]}` per row, but all rows "
                    f"share the same `{columns[0]}`, which has missing texts. Remove the missing "
                    "texts."
                )
            kept = _find_rows_with_text(read)
            if kept is None:  # if the lengths differ, the method raises its own error
                return function(*bound.args, **bound.kwargs)
            more = bound.arguments.get(beside)
            if isinstance(more, list | tuple) and len(more) == len(kept) and _are_lists(more):
                read[beside] = list(more)
            bound.arguments.update({name: _keep_rows(value, kept) for name, value in read.items()})
            return _insert_missing_answers(function(*bound.args, **bound.kwargs), kept)

        return cast(F, answer)

    return skip


def _convert_to_lists(values, method: str):
    """Convert a column, a tuple of columns or a table to lists."""
    values = flatten_column(convert_to_plain(values))
    if hasattr(values, "numpy"):
        values = values.numpy()
    if isinstance(values, str | bytes | list | tuple | Mapping) or is_missing(values):
        return values
    if isinstance(values, np.ndarray):
        return values.tolist()
    raise ValueError(
        f"The input with missing='none' is {quote(values)}. Expected lists or columns in memory. "
        f"To use other data, call `{method}` for each part of it."
    )


def _get_text_columns(values, task):
    """Select the columns of texts that a task reads from a table or from rows that are dicts."""
    is_rows = isinstance(values, list) and any(isinstance(row, Mapping) for row in values)
    if is_rows:
        names = list(dict.fromkeys(n for row in values if isinstance(row, Mapping) for n in row))
        values = {n: [None if is_missing(row) else row.get(n) for row in values] for n in names}
    preprocessor = getattr(task, "preprocessor", None)
    if not isinstance(values, Mapping) or not hasattr(preprocessor, "inputs"):
        return values
    names = preprocessor.inputs.match_names(list(values), preprocessor.text_columns)
    return {name: values[name] for name in names}


def _is_single_input(value) -> bool:
    """Return whether a value is a single text or pair, or a missing value, instead of a column."""
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_single_input, value))
    return value is None or isinstance(value, str | bytes) or is_missing(value)


def _has_text(value) -> bool:
    """Return whether all texts in a row are present and not blank."""
    if isinstance(value, list | tuple):
        return all(map(_has_text, value))
    if isinstance(value, np.ndarray):
        return _has_text(value.tolist())
    return not (is_missing(value) or is_blank(value))


def _collect_columns(read: Mapping[str, Any]) -> list[list]:
    """List the columns in all arguments, except for single texts, which belong to every row."""
    parts = []
    for value in read.values():
        is_table = isinstance(value, Mapping)
        parts += value.values() if is_table else value if isinstance(value, tuple) else [value]
    return [part for part in parts if not _is_single_input(part)]


def _are_lists(values) -> bool:
    return not any(isinstance(value, str) for value in values)


def _find_rows_with_text(read: Mapping[str, Any]) -> np.ndarray | None:
    """Return a mask (N,) of the rows with text in all columns, or None if the lengths differ."""
    columns = _collect_columns(read)
    if len({len(column) for column in columns}) != 1:
        return None
    return np.array([all(map(_has_text, row)) for row in zip(*columns, strict=True)], bool)


def _keep_rows(value, kept: np.ndarray):
    """Select rows from the value of an argument."""
    if isinstance(value, Mapping):
        return {name: _keep_rows(column, kept) for name, column in value.items()}
    if isinstance(value, tuple):
        return tuple(_keep_rows(column, kept) for column in value)
    return (
        value
        if _is_single_input(value)
        else [v for v, keep in zip(value, kept, strict=True) if keep]
    )


def _insert_missing_answers(answers, kept: np.ndarray):
    """Insert an empty answer for each row without text.

    The answer for a row without text is None, NaN in an array, or an empty row in a sparse matrix.
    """
    if isinstance(answers, tuple):  # an answer with several fields, such as HybridVectors
        return type(answers)(*(_insert_missing_answers(part, kept) for part in answers))
    if hasattr(answers, "tocsr"):
        rows = np.concatenate([[0], np.cumsum(kept)])
        ends = answers.tocsr().indptr[rows]
        shape = (len(kept), answers.shape[1])
        return type(answers)((answers.data, answers.indices, ends), shape=shape)
    if not isinstance(answers, np.ndarray):
        found = iter(answers)
        return [next(found) if keep else None for keep in kept]
    spread = np.full((len(kept), *answers.shape[1:]), np.nan, answers.dtype)
    spread[kept] = answers
    return spread
