"""The raw inputs of a task, declared once: the columns of texts that an example has.

    inputs = Inputs(Text("questions", "question"), Texts("choices", "choice"))

reads a tuple of columns, a list of rows, a list of dicts, and tables of pandas, polars, Arrow and
datasets, in memory and inside of `tf.data`, with one wording for what is wrong with them.

Comment letters: N examples, T texts of all their lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.trace import current_trace
from encoder_zoo.common.wording import invalid, with_type
from encoder_zoo.tasks.preprocessing.checks import (
    check_each,
    check_no_iterator,
    has_text,
)
from encoder_zoo.tasks.preprocessing.columns import ROWS, check_text_columns, plain, single_column

ADVICE = "Expected some text: leave it out, or put a placeholder there."
BY_NAME = "text_columns=[...], an argument of the preprocessor and of from_preset"
MAX_SHOWN = 60  # characters of a value in an error


@dataclasses.dataclass(frozen=True)
class Text:
    """A column with a text for each example.

    Attributes:
        name: of the column, in a table and in errors.
        one: of an entry; a table's column may be called so, too.
        optional: whether inputs may lack it, and those after it.
        filled: whether a text must have more than white space.
        repeated: of the last column, whether there may be more of its kind. A list of equally many
            texts for each example are several columns.
    """

    name: str
    one: str | None = None
    optional: bool = False
    filled: bool = False
    repeated: bool = False

    @property
    def plural(self) -> str:
        """Return what the column holds, in words."""
        return self.name

    def read(self, values, name: str, owner: str) -> array_ops.Tensor:
        """Return the texts (N,) of a column, checked.

        Args:
            values: a list, array, tensor or column.
            name: of the column, for errors.
            owner: what the first column holds, for errors.
        """
        texts = as_column(values, name)
        return check_filled(texts, name) if self.filled else texts


@dataclasses.dataclass(frozen=True)
class Texts(Text):
    """A column with a list of texts for each example, at least one, and none empty."""

    @property
    def plural(self) -> str:
        return f"lists of {self.name}"

    def read(self, values, name: str, owner: str) -> array_ops.RaggedTensor:
        return as_text_lists(values, name, owner)


@dataclasses.dataclass(frozen=True)
class TextOrTexts(Text):
    """A column with a text for each example, or with a list of them for each."""

    def read(self, values, name: str, owner: str) -> array_ops.Tensor | array_ops.RaggedTensor:
        if are_lists(values):
            return as_text_lists(values, name, owner)
        return super().read(values, name, owner)


class Inputs:
    """The columns of texts that a task reads, of any container.

    Args:
        *columns: in the order of a tuple's; optional ones last.
        ignores_others: whether a table may have columns beside those that are found by name.
        named: whether the preprocessor has the argument `text_columns`, for advice.

    Example:
        >>> inputs = Inputs(Text("queries", "query"), TextOrTexts("texts", "text", filled=True))
        >>> inputs
        (queries, texts)
        >>> queries, texts = inputs.read([("q", "a"), ("r", "b")])
        >>> texts.numpy().tolist()
        [b'a', b'b']
        >>> queries, texts = inputs.read([{"text": ["a", "b"], "query": "q"}])
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
        """Return the forms of a tuple, such as "texts or (texts, second texts)"."""
        names = [column.plural for column in self._columns]
        forms = [names[:count] for count in range(self._least, len(names) + 1)]
        if self._columns[-1].repeated:
            forms[-1].append("...")
        return " or ".join(f"({', '.join(form)})" if form[1:] else form[0] for form in forms)

    def read(self, x, names: Sequence[str] | None = None) -> tuple:
        """Return the columns of an input, checked: strings (N,), or ragged (N, None) of lists.

        Args:
            x: a tuple of columns, a list of rows or of dicts, or a table; of a task that needs only
                one column also that column.
            names: of a table's columns, in the order declared; None: see `columns`.

        Raises:
            ValueError: As for `columns`, or if a text is empty, or the columns have different
                numbers of rows.
        """
        found = self._found(x, names)
        owner = self._columns[0].one or self._columns[0].name
        read = tuple(column.read(values, name, owner) for column, name, values in found)
        counts = [values.shape[0] for values in read]
        if None not in counts and len(set(counts)) > 1:
            kinds = [column.name for column, _, _ in found]
            for i, values in enumerate(read):
                if isinstance(values, array_ops.RaggedTensor):
                    kinds[i] = f"lists of {kinds[i]}"
            given = ", ".join(f"{n} {kind}" for n, kind in zip(counts, kinds, strict=True))
            raise ValueError(
                f"x has {given}. Expected equally many {', '.join(kinds[:-1])} and {kinds[-1]}."
            )
        return read

    def columns(self, x, names: Sequence[str] | None = None) -> tuple:
        """Return the columns of an input as they are, or their specifications in a dataset.

        A table's columns are found by their names, if it has those of all that are needed; else by
        their order.

        Args:
            x, names: as of `read`.

        Raises:
            ValueError: If a column is missing, cannot be chosen by its name, or does not hold
                texts, or a row lacks a column.
        """
        return tuple(values for _, _, values in self._found(x, names))

    def names_in(self, table: Sequence[str], names: Sequence[str] | None = None) -> dict[str, str]:
        """Return {name of a column of a table: what it is taken for}, in the order declared.

        Args:
            table: the names of its columns.
            names: as of `read`.

        Raises:
            ValueError: If a column is missing, or cannot be chosen by its name.

        Example:
            >>> Inputs(Text("texts", "text")).names_in(["body"])
            {'body': 'texts'}
        """
        shown = ", ".join(map(repr, table))
        if names is not None:
            for name in names:
                if name not in table:
                    raise ValueError(f"There is no column {name!r}. The table has {shown}.")
            return self._in_order(names)
        named = {c: next((n for n in (c.name, c.one) if n in table), None) for c in self._columns}
        known = {column: name for column, name in named.items() if name is not None}
        all_known = all(column in known for column in self._columns[: self._least])
        if all_known and (self._ignores_others or len(known) == len(table)):
            return {name: column.name for column, name in known.items()}
        # Beside the names of all that is needed of several, another column may be anything.
        in_order = self._least == 1 or not all_known
        if in_order and self._least <= len(table) <= self._most:
            found = self._in_order(table)
            if all(found[name] == column.name for column, name in known.items()):
                return found
        advice = (
            f"Name those that hold them, in this order: {BY_NAME}."
            if self._named
            else "Pass the columns by themselves, in this order: (x[...], x[...])."
        )
        raise ValueError(
            f"The table has the columns {shown}. Expected {self}, and no others. {advice}"
        )

    def _in_order(self, names: Sequence[str]) -> dict[str, str]:
        last = len(self._columns) - 1
        return {name: self._columns[min(i, last)].name for i, name in enumerate(names)}

    def _found(self, x, names: Sequence[str] | None) -> list[tuple[Text, str, object]]:
        """Return the declared column, the name and the values of each column of an input."""
        x = single_column(plain(x))
        # Of texts alone, a dict further down is a row that is no text.
        looked_at = x[:1] if self._least == 1 and isinstance(x, list) else x
        if isinstance(x, list) and any(isinstance(row, Mapping) for row in looked_at):
            x = self._table_of_rows(x, names)
        if isinstance(x, Mapping):
            found = self.names_in(list(x), names)
            columns = {name: x[name] for name in found}
            if names is None and len(columns) > 1:
                check_text_columns(columns, list(found.values()), BY_NAME if self._named else None)
            names, x = list(columns), tuple(columns.values())
        elif isinstance(x, list | np.ndarray) and not len(x):
            names, x = None, tuple([] for _ in range(self._least))
        else:
            names, x = None, self._tuple_of(x)
        if len(x) > 1 and self._columns[-1].repeated and _holds_rows(x[-1]):
            x = (*x[:-1], *_transposed(x[-1], "the last column"))
        if not self._least <= len(x) <= self._most:
            raise ValueError(self._expected(f"{len(x)} columns"))
        columns = [*self._columns, *[self._columns[-1]] * len(x)][: len(x)]
        names = [*(names or ()), *(column.name for column in columns[len(names or ()) :])]
        return list(zip(columns, names, x, strict=True))

    def _tuple_of(self, x) -> tuple:
        """Return the columns of a tuple, of rows, or of texts alone."""
        if isinstance(x, tuple):
            return x
        if _holds_rows(x) and (self._least > 1 or len(x[0]) != 1):
            return tuple(_transposed(x, "x"))
        if self._least > 1:
            raise ValueError(self._expected(with_type(x)))
        return (x,)

    def _expected(self, received: str) -> str:
        return (
            f"Expected {self}, a list of such rows, or a table of these columns. Received: "
            f"{received:.100}."
        )

    def _table_of_rows(self, rows: list, names: Sequence[str] | None) -> dict[str, list]:
        """Return {name: values} of rows that are dicts, with those columns that are needed."""
        for i, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise invalid(f"Row {i}", row, "a dict, as other rows are")
        every = list(dict.fromkeys(name for row in rows for name in row))
        names = list(self.names_in(every, names))
        for i, row in enumerate(rows):
            for name in names:
                if name not in row:
                    raise ValueError(f"Row {i} has no {name!r}. It has {sorted(map(str, row))}.")
        return {name: [row[name] for row in rows] for name in names}


def _holds_rows(x) -> bool:
    return isinstance(x, list | np.ndarray) and len(x) > 0 and isinstance(x[0], ROWS)


def _transposed(rows, name: str) -> list[list]:
    """Return the columns of rows that are equally long."""
    for i, row in enumerate(rows):
        if not isinstance(row, ROWS):
            raise invalid(f"Row {i} of {name}", row, "a list or tuple, as in row 0")
        if len(row) != len(rows[0]):
            raise ValueError(
                f"Row {i} of {name} has {len(row)} entries, row 0 has {len(rows[0])}. Expected as "
                "many in every row."
            )
    return [list(column) for column in zip(*rows, strict=True)]


def are_lists(texts) -> bool:
    """Return whether there is a list of texts for each example, and not one text.

    Args:
        texts: a column, or its specification in a dataset.

    Example:
        >>> are_lists([["a", "b"], ["c"]]), are_lists(["a", "c"])
        (True, False)
    """
    if isinstance(texts, list | tuple):
        return len(texts) > 0 and isinstance(texts[0], ROWS)
    if isinstance(texts, np.ndarray) and texts.dtype == object and texts.ndim == 1 and len(texts):
        return isinstance(texts[0], ROWS)
    shape = getattr(texts, "shape", None)
    return shape is not None and len(shape) > 1


def as_column(x, name: str = "texts") -> array_ops.Tensor:
    """Return a checked (N,) string tensor from a list, array, column or tensor of texts.

    Raises:
        ValueError: If the texts are not a list, array or tensor.
    """
    from encoder_zoo.encoders.tokenizers.text.text_input import as_text_tensor

    texts = as_text_tensor(single_column(plain(x)), name)
    if len(texts.shape) == 0:
        raise invalid(name, x, "a list, array or tensor of texts")
    return texts


def check_filled(texts: array_ops.Tensor, name: str) -> array_ops.Tensor:
    """Return texts (N,), or raise an error for one without any character but white space.

    Raises:
        ValueError: If a text is empty or only white space.

    Example:
        >>> import tensorflow as tf
        >>> check_filled(tf.constant(["a", " "]), "texts")
        Traceback (most recent call last):
        ValueError: Row 1 of texts is empty. Expected some text: leave it out, or put a ...
    """
    if current_trace().serves:
        return texts
    return check_each(texts, has_text(texts), f" of {name} is empty. {ADVICE}")


def as_text_lists(lists, name: str, owner: str) -> array_ops.RaggedTensor:
    """Return lists of texts as ragged strings (N, None), checked.

    Args:
        lists: a list, array, tensor or column of lists of texts.
        name: of the lists, for errors.
        owner: that each list belongs to, such as "question", for errors.

    Raises:
        ValueError: If a row is not a list of texts, or is empty, or has an empty text.

    Example:
        >>> as_text_lists([["a"], []], "choices", "question")
        Traceback (most recent call last):
        ValueError: Row 1 of choices has no text. Expected one or more for each question.
    """
    check_no_iterator(lists, name)
    lists = plain(lists)
    if not isinstance(lists, array_ops.RaggedTensor):
        is_tensor = array_ops.is_tensor(lists)
        lists = (
            array_ops.RaggedTensor.from_tensor(lists) if is_tensor else _ragged(lists, name, owner)
        )
    if current_trace().serves:
        return lists
    expected = f" of {name} has no text. Expected one or more for each {owner}."
    lists = check_each(lists, lists.row_lengths() > 0, expected)
    right, row = has_text(lists.values), lists.value_rowids()  # (T,)
    return check_each(lists, right, f" of {name} has an empty text. {ADVICE}", index=row)


def _ragged(rows, name: str, owner: str) -> array_ops.RaggedTensor:
    if isinstance(rows, str | bytes):
        raise invalid(name, rows, f"a list of texts for each {owner}")
    for i, row in enumerate(rows):
        is_list = isinstance(row, ROWS)
        wrong = [v for v in row if not isinstance(v, str | bytes)] if is_list else [row]
        if wrong:
            raise ValueError(
                f"Row {i} of {name} {'has' if is_list else 'is'} "
                f"{with_type(wrong[0]):.{MAX_SHOWN}}. Expected a list of texts for each {owner}."
            )
    values = [text for row in rows for text in row]
    values = as_column(values, name) if values else array_ops.constant([], array_ops.string)
    return array_ops.RaggedTensor.from_row_lengths(values, [len(row) for row in rows])
