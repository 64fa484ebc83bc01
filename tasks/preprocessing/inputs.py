"""Declare the raw inputs of a task, and convert data in any container to these inputs.

    inputs = Inputs(Text("questions", "question"), Texts("choices", "choice"))

The declared columns are read from a tuple of columns, a list of rows, a list of dicts, or a table
from pandas, polars, Arrow or datasets, both in memory and inside `tf.data`. All tasks share the
same error messages.

Comments use these letters for shapes: N (examples), T (texts in all examples).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from encoder_zoo.common.context import get_context
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.wording import invalid, quote_with_type
from encoder_zoo.tasks.preprocessing.checks import check_each, check_no_iterator, has_text
from encoder_zoo.tasks.preprocessing.columns import (
    ROW_TYPES,
    check_text_columns,
    convert_to_plain,
    flatten_column,
)

TEXT_ADVICE = "Expected a text. Remove the row, or use a placeholder."
BY_NAME = "text_columns=[...], an argument of the preprocessor and of from_preset"
MAX_CHARACTERS_SHOWN = 60  # maximum number of characters of a value in an error message


@dataclasses.dataclass(frozen=True)
class Text:
    """Column with one text per example.

    Attributes:
        name: String. Column name in tables and error messages.
        one: String. Name of a single text. A table column can also have this name.
        optional: Boolean. Whether this column and the columns after it can be omitted.
        filled: Boolean. Whether texts must contain more than whitespace.
        repeated: Boolean. Whether the last column can be repeated. In this case, a list with the
            same number of texts for each example is split into several columns.
    """

    name: str
    one: str | None = None
    optional: bool = False
    filled: bool = False
    repeated: bool = False

    @property
    def plural(self) -> str:
        """Return the plural name, for error messages."""
        return self.name

    def convert(self, values, name: str, owner: str) -> xp.Tensor:
        """Check a column and return its texts (N,).

        Args:
            values: List, array, tensor or column.
            name: String. Column name in error messages.
            owner: String. Name of an example in error messages, such as "query" in "Expected a
                list of texts for each query."
        """
        texts = convert_column(values, name)
        return check_filled(texts, name) if self.filled else texts


@dataclasses.dataclass(frozen=True)
class Texts(Text):
    """Column with a list of one or more texts per example. Texts must not be empty."""

    @property
    def plural(self) -> str:
        return f"lists of {self.name}"

    def convert(self, values, name: str, owner: str) -> xp.RaggedTensor:
        return convert_text_lists(values, name, owner)


@dataclasses.dataclass(frozen=True)
class TextOrTexts(Text):
    """Column with one text per example, or with a list of texts per example."""

    def convert(self, values, name: str, owner: str) -> xp.Tensor | xp.RaggedTensor:
        if has_text_lists(values):
            return convert_text_lists(values, name, owner)
        return super().convert(values, name, owner)


class Inputs:
    """Declaration of the columns of texts that a task reads from lists, tables or datasets.

    Args:
        *columns: `Text` columns, in the order of a tuple. Optional columns come last.
        ignores_others: Boolean. Whether to ignore additional columns in a table if all required
            columns are found by name. Defaults to False.
        named: Boolean. Whether the preprocessor has the argument `text_columns`. If True, error
            messages suggest this argument. Defaults to False.

    Example:
        >>> inputs = Inputs(Text("queries", "query"), TextOrTexts("texts", "text", filled=True))
        >>> inputs
        (queries, texts)
        >>> queries, texts = inputs.convert([("q", "a"), ("r", "b")])
        >>> texts.numpy().tolist()
        [b'a', b'b']
        >>> queries, texts = inputs.convert([{"text": ["a", "b"], "query": "q"}])
        >>> texts.to_list()
        [[b'a', b'b']]
    """

    def __init__(self, *columns: Text, ignores_others: bool = False, named: bool = False):
        self._columns = columns
        self._named = named
        self._ignores_others = ignores_others
        self._least = sum(not column.optional for column in columns)
        self._most = np.inf if columns[-1].repeated else len(columns)

    def __repr__(self) -> str:
        """Describe the supported inputs, such as "texts or (texts, second texts)"."""
        names = [column.plural for column in self._columns]
        forms = [names[:count] for count in range(self._least, len(names) + 1)]
        if self._columns[-1].repeated:
            forms[-1].append("...")
        return " or ".join(f"({', '.join(form)})" if form[1:] else form[0] for form in forms)

    def convert(self, x, names: Sequence[str] | None = None) -> tuple:
        """Check an input, and convert its columns to string tensors.

        Args:
            x: Tuple of columns, list of rows or dicts, or table. If a single column is required,
                this column can be passed directly.
            names: Optional list of strings. Table column names, in the declared order.
                Defaults to None (see `get_columns`).

        Returns:
            Tuple with one tensor per column: strings (N,), or ragged strings (N, None) for lists of
            texts.

        Raises:
            ValueError: If a text is empty, if the columns have different numbers of rows, or if
                `get_columns` raises an error.
        """
        found = self._match_columns(x, names)
        owner = self._columns[0].one or self._columns[0].name
        converted = tuple(column.convert(values, name, owner) for column, name, values in found)
        counts = [values.shape[0] for values in converted]
        if None not in counts and len(set(counts)) > 1:
            kinds = [column.name for column, _, _ in found]
            for i, values in enumerate(converted):
                if isinstance(values, xp.RaggedTensor):
                    kinds[i] = f"lists of {kinds[i]}"
            given = ", ".join(f"{n} {kind}" for n, kind in zip(counts, kinds, strict=True))
            raise ValueError(
                f"x contains {given}. Expected the same number of {', '.join(kinds[:-1])} and "
                f"{kinds[-1]}."
            )
        return converted

    def get_columns(self, x, names: Sequence[str] | None = None) -> tuple:
        """Select the columns of an input, without converting them.

        In a table, the columns are selected by name if all required names exist. Otherwise, they
        are selected by position. For the `element_spec` of a dataset, the specs are returned.

        Args:
            x, names: See `convert`.

        Raises:
            ValueError: If a column is missing, cannot be found by name, or does not contain texts,
                or if a row has no value for a column.
        """
        return tuple(values for _, _, values in self._match_columns(x, names))

    def match_names(
        self, table: Sequence[str], names: Sequence[str] | None = None
    ) -> dict[str, str]:
        """Match a table's columns to the declared columns.

        Args:
            table: List of strings. Column names in the table.
            names: See `convert`.

        Returns:
            Dict mapping table columns to the names of declared columns, in the declared order.

        Raises:
            ValueError: If a column is missing, or cannot be found by name.

        Example:
            >>> Inputs(Text("texts", "text")).match_names(["body"])
            {'body': 'texts'}
        """
        shown = ", ".join(map(repr, table))
        if names is not None:
            for name in names:
                if name not in table:
                    raise ValueError(f"The table has no column {name!r}. Its columns are {shown}.")
            return self._match_by_position(names)
        named = {c: next((n for n in (c.name, c.one) if n in table), None) for c in self._columns}
        known = {column: name for column, name in named.items() if name is not None}
        all_known = all(column in known for column in self._columns[: self._least])
        if all_known and (self._ignores_others or len(known) == len(table)):
            return {name: column.name for column, name in known.items()}
        # If several columns are required and all are found by name, the meaning of the remaining
        # columns is unknown.
        in_order = self._least == 1 or not all_known
        if in_order and self._least <= len(table) <= self._most:
            found = self._match_by_position(table)
            if all(found[name] == column.name for column, name in known.items()):
                return found
        advice = (
            f"Pass the names of these columns in this order: {BY_NAME}."
            if self._named
            else "Pass the columns in this order: (x[...], x[...])."
        )
        raise ValueError(f"The table has the columns {shown}. Expected only {self}. {advice}")

    def _match_by_position(self, names: Sequence[str]) -> dict[str, str]:
        last = len(self._columns) - 1
        return {name: self._columns[min(i, last)].name for i, name in enumerate(names)}

    def _match_columns(self, x, names: Sequence[str] | None) -> list[tuple[Text, str, object]]:
        """Return a tuple (declared column, name, values) for each column in an input."""
        x = flatten_column(convert_to_plain(x))
        # In a list of texts, a dict after the first row is an invalid text.
        looked_at = x[:1] if self._least == 1 and isinstance(x, list) else x
        if isinstance(x, list) and any(isinstance(row, Mapping) for row in looked_at):
            x = self._make_table(x, names)
        if isinstance(x, Mapping):
            found = self.match_names(list(x), names)
            columns = {name: x[name] for name in found}
            if names is None and len(columns) > 1:
                check_text_columns(columns, list(found.values()), BY_NAME if self._named else None)
            names, x = list(columns), tuple(columns.values())
        elif isinstance(x, list | np.ndarray) and not len(x):
            names, x = None, tuple([] for _ in range(self._least))
        else:
            names, x = None, self._make_tuple(x)
        if len(x) > 1 and self._columns[-1].repeated and _has_rows(x[-1]):
            x = (*x[:-1], *_transpose_rows(x[-1], "the last column"))
        if not self._least <= len(x) <= self._most:
            raise ValueError(self._describe_expected(f"{len(x)} columns"))
        columns = [*self._columns, *[self._columns[-1]] * len(x)][: len(x)]
        names = [*(names or ()), *(column.name for column in columns[len(names or ()) :])]
        return list(zip(columns, names, x, strict=True))

    def _make_tuple(self, x) -> tuple:
        """Convert a tuple of columns, a list of rows or a single column to a tuple of columns."""
        if isinstance(x, tuple):
            return x
        if _has_rows(x) and (self._least > 1 or len(x[0]) != 1):
            return tuple(_transpose_rows(x, "x"))
        if self._least > 1:
            raise ValueError(self._describe_expected(quote_with_type(x)))
        return (x,)

    def _describe_expected(self, received: str) -> str:
        return (
            f"Expected {self}, a list of such rows, or a table with these columns. Received: "
            f"{received:.100}."
        )

    def _make_table(self, rows: list, names: Sequence[str] | None) -> dict[str, list]:
        """Convert a list of dicts to a dict mapping the selected column names to lists."""
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise invalid(f"Row {i}", row, "a dict, as in the other rows")
        every = list(dict.fromkeys(name for row in rows for name in row))
        names = list(self.match_names(every, names))
        for i, row in enumerate(rows):
            for name in names:
                if name not in row:
                    raise ValueError(
                        f"Row {i} has no {name!r}. Its keys are {sorted(map(str, row))}."
                    )
        return {name: [row[name] for row in rows] for name in names}


def _has_rows(x) -> bool:
    return isinstance(x, list | np.ndarray) and len(x) > 0 and isinstance(x[0], ROW_TYPES)


def _transpose_rows(rows, name: str) -> list[list]:
    """Convert rows of equal length to columns."""
    for i, row in enumerate(rows):
        if not isinstance(row, ROW_TYPES):
            raise invalid(f"Row {i} of {name}", row, "a list or tuple, as in row 0")
        if len(row) != len(rows[0]):
            raise ValueError(
                f"Row {i} of {name} has {len(row)} entries, but row 0 has {len(rows[0])}. "
                "Expected the same number of entries in every row."
            )
    return [list(column) for column in zip(*rows, strict=True)]


def has_text_lists(texts) -> bool:
    """Return whether each example has a list of texts instead of a single text.

    Args:
        texts: Column, or its spec in a dataset.

    Example:
        >>> has_text_lists([["a", "b"], ["c"]]), has_text_lists(["a", "c"])
        (True, False)
    """
    if isinstance(texts, list | tuple):
        return len(texts) > 0 and isinstance(texts[0], ROW_TYPES)
    if isinstance(texts, np.ndarray) and texts.dtype == object and texts.ndim == 1 and len(texts):
        return isinstance(texts[0], ROW_TYPES)
    shape = getattr(texts, "shape", None)
    return shape is not None and len(shape) > 1


def convert_column(x, name: str = "texts") -> xp.Tensor:
    """Check a list, array, column or tensor of texts, and convert it to a string tensor (N,).

    Raises:
        ValueError: If `x` is not a list, array, column or tensor.
    """
    from encoder_zoo.encoders.tokenizers.text.text_input import make_text_tensor

    texts = make_text_tensor(flatten_column(convert_to_plain(x)), name)
    if len(texts.shape) == 0:
        raise invalid(name, x, "a list, array or tensor of texts")
    return texts


def check_filled(texts: xp.Tensor, name: str) -> xp.Tensor:
    """Check that no text (N,) is blank, and return the texts.

    Raises:
        ValueError: If a text is empty or only contains whitespace.

    Example:
        >>> import tensorflow as tf
        >>> check_filled(tf.constant(["a", " "]), "texts")
        Traceback (most recent call last):
        ValueError: Row 1 of texts is empty. Expected a text. Remove the row, or use ...
    """
    if get_context().serves:
        return texts
    return check_each(texts, has_text(texts), f" of {name} is empty. {TEXT_ADVICE}")


def convert_text_lists(lists, name: str, owner: str) -> xp.RaggedTensor:
    """Check lists of texts, and convert them to ragged strings (N, None).

    Args:
        lists: List, array, tensor or column of lists of texts.
        name: String. Column name in error messages.
        owner: String. Name of an example in error messages, such as "question".

    Raises:
        ValueError: If a row is not a list of texts, is an empty list, or contains an empty text.

    Example:
        >>> convert_text_lists([["a"], []], "choices", "question")
        Traceback (most recent call last):
        ValueError: Row 1 of choices has no text. Expected at least one text for each question.
    """
    check_no_iterator(lists, name)
    lists = convert_to_plain(lists)
    if not isinstance(lists, xp.RaggedTensor):
        is_tensor = xp.is_tensor(lists)
        lists = (
            xp.RaggedTensor.from_tensor(lists) if is_tensor else _make_ragged(lists, name, owner)
        )
    if get_context().serves:
        return lists
    expected = f" of {name} has no text. Expected at least one text for each {owner}."
    lists = check_each(lists, lists.row_lengths() > 0, expected)
    right, row = has_text(lists.values), lists.value_rowids()  # (T,)
    return check_each(lists, right, f" of {name} has an empty text. {TEXT_ADVICE}", index=row)


def _make_ragged(rows, name: str, owner: str) -> xp.RaggedTensor:
    if isinstance(rows, str | bytes):
        raise invalid(name, rows, f"a list of texts for each {owner}")
    for i, row in enumerate(rows):
        is_list = isinstance(row, ROW_TYPES)
        wrong = [v for v in row if not isinstance(v, str | bytes)] if is_list else [row]
        if wrong:
            raise ValueError(
                f"Row {i} of {name} {'contains' if is_list else 'is'} "
                f"{quote_with_type(wrong[0]):.{MAX_CHARACTERS_SHOWN}}. Expected a list of texts "
                f"for each {owner}."
            )
    values = [text for row in rows for text in row]
    values = convert_column(values, name) if values else xp.constant([], xp.string)
    return xp.RaggedTensor.from_row_lengths(values, [len(row) for row in rows])
