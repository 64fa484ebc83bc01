"""Find missing and suspicious labels.

Labels are checked before they are converted to arrays or strings, because the conversion would hide
missing labels. For example, `np.asarray(["good", float("nan")])` contains a label "nan".
"""

from __future__ import annotations

import collections
import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.missing import is_blank, is_masked_array, is_missing, quote_missing
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.tasks.preprocessing.checks import check_each, check_no_iterator, convert_numbers
from encoder_zoo.tasks.preprocessing.columns import (
    convert_to_plain,
    list_table_columns,
    materialize,
)

logger = logging.getLogger("encoder_zoo")

# Fields of an annotation that must have a value. The first tuple with an existing field is used.
SPAN_FIELDS = (("answer_start", "text"), ("start", "end", "label"), ("entities",), ("spans",))
MISSING_CODE = -1  # missing value in pandas codes and in columns of `datasets`
MARKS = ("nan", "none", "null", "na", "<na>", "n/a", "#n/a", "nat")  # names of missing values
MAX_LOGGED = 5  # maximum number of labels in a log message


class LabelValues(Protocol):
    """Protocol for the kinds of labels that the preprocessor of a task can declare.

    Attributes:
        name: String. Name of a label in error messages.
        expected: String. Description of `y` in error messages.
    """

    @property
    def name(self) -> str: ...
    @property
    def expected(self) -> str: ...
    def convert(self, y, counts: xp.Tensor | None = None) -> xp.Tensor: ...


class Labels(NamedTuple):
    """Labels that the preprocessor converts itself, in `encode` or `encode_labels`.

    Attributes:
        expected, name: See `LabelValues`.
        none_is_answer: Boolean. Whether to allow None as a label.
        are_in: Function that returns whether the inputs already contain the labels.
    """

    expected: str
    name: str = "label"
    none_is_answer: bool = False
    are_in: Callable[[object], bool] = lambda x: False

    def convert(self, y, counts: xp.Tensor | None = None) -> xp.Tensor:
        """Convert labels to a tensor without changing their values."""
        return xp.convert_to_tensor(y)


class Numbers(NamedTuple):
    """Labels that are numbers, with one number per text.

    Attributes:
        name: String. Name of a number in error messages.
        of: String. Name of an example in error messages.
        finite: Boolean. Whether to reject infinite numbers.

    Example:
        >>> Numbers().convert([0.5, float("inf")])
        Traceback (most recent call last):
        ValueError: Row 1 has the label inf. Expected a finite number.
    """

    name: str = "label"
    of: str = "text"
    finite: bool = True

    @property
    def expected(self) -> str:
        return f"one {self.name} per {self.of}, as a number"

    def convert(self, y, counts: xp.Tensor | None = None) -> xp.Tensor:
        """Check numbers, and convert them to float32 (N,).

        Args:
            y: Numbers with shape (N,) or (N, 1).
            counts: Not used.

        Raises:
            ValueError: If `y` does not contain one finite number per text.
        """
        values = convert_numbers(check_not_missing(y), "y", f"numbers as {self.name}s")
        if len(values.shape) == 2 and values.shape[1] == 1:
            values = values[:, 0]
        if len(values.shape) != 1:
            raise invalid("The shape of `y`", values.shape, f"one {self.name} for each {self.of}")
        if not self.finite:
            return values
        right = xp.math.is_finite(values)
        return check_each(
            values, right, f" has the {self.name} ", values, ". Expected a finite number."
        )


class CandidateIndex(NamedTuple):
    """Labels that are candidate indices, with one index per example.

    Attributes:
        among: String. Name of a candidate in error messages.
        of: String. Name of an example in error messages.
        name: String. Name of an index in error messages.

    Example:
        >>> import tensorflow as tf
        >>> CandidateIndex("choice", "question").convert([0, 2], tf.constant([2, 2], tf.int64))
        Traceback (most recent call last):
        ValueError: Row 1 has the label 2, but 2 choices. Labels must be indices, starting from 0.
    """

    among: str
    of: str
    name: str = "label"

    @property
    def expected(self) -> str:
        return f"the index of the correct {self.among} for each {self.of}"

    def convert(self, y, counts: xp.Tensor) -> xp.Tensor:
        """Check indices, and convert them to int32 (N,).

        Args:
            y: Integers with shape (N,) or (N, 1).
            counts: Int64 tensor of shape (N,). Number of candidates per example.

        Raises:
            ValueError: If `y` does not contain one valid index per example.
        """
        check_no_iterator(y, "y")
        labels = xp.convert_to_tensor(convert_to_plain(check_not_missing(y)))
        if not xp.as_dtype(labels.dtype).is_integer:
            expected = f"integers: {self.expected}, starting from 0"
            raise invalid("The dtype of `y`", labels.dtype.name, expected)
        rank = xp.TensorShape(labels.shape).rank
        if rank == 2 and labels.shape[1] == 1:
            labels, rank = labels[:, 0], 1
        if rank not in (1, None):
            expected = f"one label for each {self.of}"
            raise invalid("The shape of `y`", tuple(labels.shape), expected)
        sizes = labels.shape[0], counts.shape[0]
        if None not in sizes and sizes[0] != sizes[1]:
            raise ValueError(
                f"y has {sizes[0]} labels for {sizes[1]} {self.of}s. Expected one label per "
                f"{self.of}."
            )
        labels = xp.cast(labels, xp.int64)
        right = (labels >= 0) & (labels < counts)
        expected = f" {self.among}s. Labels must be indices, starting from 0."
        labels = check_each(labels, right, " has the label ", labels, ", but ", counts, expected)
        return xp.cast(labels, xp.int32)


def check_not_missing(y, x=None, none_is_answer: bool = False, cure: str | None = None):
    """Check that no label is missing, and return the labels.

    Args:
        y: Optional labels of any task, in any container except a set. Inside a graph, a tensor.
        x: Optional inputs that belong to the labels. The error message contains code that filters
            inputs and labels.
        none_is_answer: Boolean. Whether to allow None and blank strings as labels, for example for
            questions without an answer. Defaults to False.
        cure: Optional string. Code that filters the data, for the error message. If None, the code
            is created for `x` and `y`.

    Raises:
        ValueError: If a label in `y` is missing, or if `y` is a set.
        tf.errors.InvalidArgumentError: If a label is missing inside `tf.data`.

    Example:
        >>> check_not_missing(["good", None, "bad"])
        Traceback (most recent call last):
        ValueError: Row 1 has no label: it is None (1 of 3 rows). Drop such rows: x, y = ...
    """
    if _is_symbolic(y):
        return _check_in_graph(y)
    given, y = y, materialize(y)
    if isinstance(y, set | frozenset):
        raise ValueError(f"y is {quote(y)}, but a set has no order. Pass a list of labels.")
    if y is None or isinstance(y, str | bytes | Iterator) or hasattr(y, "element_spec"):
        return y  # tasks reject these labels or read them in graphs
    rows = _list_rows(y)
    missing = {
        row: found
        for row, value in _find_suspects(rows)
        if not (none_is_answer and value is None)
        and (found := _find_missing_value(value, not none_is_answer)) is not None
    }
    if missing:
        cure = cure or _suggest_filter(given if isinstance(y, np.ndarray) else y, x, rows, missing)
        row, (path, value) = next(iter(missing.items()))
        place = "".join(f"[{key!r}]" for key in path)
        place = f", at y[{row}]{place}" if path else ""
        raise ValueError(
            f"Row {row} has no label: it is {quote_missing(value)}{place} "
            f"({len(missing)} of {len(rows)} rows). Drop such rows: {cure}"
        )
    return y


def check_not_missing_in_dataset(y: np.ndarray | list, single: bool) -> None:
    """Raise an error for the first missing label in a dataset.

    Args:
        y: Labels of all elements.
        single: Boolean. True if the dataset contains single examples, False for batches.

    Raises:
        ValueError: If a label in `y` is missing.
    """
    of_texts = np.asarray(y).dtype.kind in "OSU"
    check_not_missing(y, cure=_make_dataset_filter(of_texts, single))


def _make_dataset_filter(of_texts: bool, single: bool = True) -> str:
    there = 'tf.strings.strip(y) != ""' if of_texts else "tf.math.is_finite(y)"
    unbatch, batch = ("", "") if single else (".unbatch()", ".batch(32)")
    return f"dataset{unbatch}.filter(lambda x, y, *_: tf.reduce_all({there})){batch}"


def _is_symbolic(y) -> bool:
    return xp.is_symbolic_tensor(getattr(y, "flat_values", y))


def _check_in_graph(y: xp.Tensor) -> xp.Tensor:
    """Add a check to a graph, which fails if a label is NaN or blank. Return the labels."""
    of_texts = y.dtype == xp.string
    rank = xp.TensorShape(y.shape).rank
    of_lists = isinstance(y, xp.RaggedTensor)
    if not (of_texts or xp.as_dtype(y.dtype).is_floating) or rank is None or rank > 2:
        return y
    values = y.flat_values if of_lists else y
    there = xp.strings.length(xp.strings.strip(values)) > 0 if of_texts else ~xp.math.is_nan(values)
    index = y.value_rowids() if of_lists else None
    if rank == 2 and not of_lists:
        there = xp.reduce_all(there, axis=1)
    cure = f". Drop such rows before they are batched: {_make_dataset_filter(of_texts)}"
    return check_each(y, there, " has no label: it is ", values, cure, index=index)


def _list_rows(y) -> list | np.ndarray:
    """Convert labels to a list with one item per row. Return arrays of numbers unchanged."""
    if isinstance(y, xp.RaggedTensor):
        return y.to_list()
    if not isinstance(y, list | np.ndarray):
        y = convert_to_plain(y)
    if xp.is_tensor(y):
        y = np.asarray(y)
    if isinstance(y, dict):
        columns = [_list_rows(column) for column in y.values() if hasattr(column, "__len__")]
        if len(columns) == 1:
            return columns[0]
        same = len(set(map(len, columns))) == 1
        return list(zip(*columns, strict=True)) if same else []
    if isinstance(y, np.ndarray):
        y = y[None] if y.ndim == 0 else y
        numbers = y.dtype.kind not in "OSUVT" and not is_masked_array(y)
        return y if numbers else y.tolist()  # masked values become None
    return list(y) if isinstance(y, Iterable) else []


def _find_suspects(rows: list | np.ndarray) -> Iterator[tuple[int, object]]:
    """Yield (index, labels) of rows that may be missing: NaN in arrays of numbers, or all rows."""
    if isinstance(rows, list):
        yield from enumerate(rows)
    elif rows.dtype.kind in "fcmM":
        wrong = np.isnat(rows) if rows.dtype.kind in "mM" else np.isnan(rows)
        wrong = wrong.reshape(len(rows), -1).any(axis=1)
        yield from ((int(row), rows[row]) for row in np.flatnonzero(wrong))


def _find_missing_value(value, blanks: bool) -> tuple[tuple, object] | None:
    """Find the first missing value in the labels of a row. Return its path and the value."""
    if isinstance(value, str | bytes):
        return ((), value) if blanks and is_blank(value) else None
    if isinstance(value, dict):
        fields = next((f for f in SPAN_FIELDS if f[0] in value or f[-1] in value), ())
        items = [(field, value[field]) for field in fields if field in value]
    elif isinstance(value, list | tuple | set | frozenset):
        items = enumerate(value)
    elif isinstance(value, np.ndarray) or xp.is_tensor(value):
        items = (
            enumerate(_list_rows(value)) if len(value.shape) else [(0, np.asarray(value).item())]
        )
    else:
        return ((), value) if is_missing(value) else None
    for key, inner in items:
        found = _find_missing_value(inner, blanks)
        if found:
            return (key, *found[0]), found[1]
    return None


def _suggest_filter(y, x, rows, missing: dict) -> str:
    """Return Python code that removes rows with missing labels, using the library of the labels."""
    columns = list_table_columns(y)
    name = getattr(y, "name", None) or getattr(y, "column_name", None)
    names = columns or ([name] if isinstance(name, str) else [])
    if columns or not any(path for path, _ in missing.values()):
        steps = _make_table_steps(y, names, [value for _, value in missing.values()])
        if steps:
            return "; ".join(steps)
    return _make_row_filter(y, x, rows, missing)


def _make_table_steps(y, names: list, values: list) -> list[str]:
    """Return code to drop the rows with missing labels from a table, as a list of statements.

    The list is empty if the library is not supported.
    """
    library, blank = type(y).__module__.partition(".")[0], any(map(is_blank, values))
    null = not all(map(is_blank, values))
    of_nulls, of_blanks = {
        "pandas": (
            'table = table.dropna(subset=["{}"])',
            'table = table[table["{}"].astype(str).str.strip() != ""]',
        ),
        "polars": (
            'table = table.fill_nan(None).drop_nulls("{}")',
            'table = table.filter(pl.col("{}").cast(pl.String).str.strip_chars() != "")',
        ),
        "pyarrow": (
            'table = table.filter(~pc.field("{}").is_null(nan_is_null=True))',
            'table = table.filter(pc.utf8_trim_whitespace(pc.field("{}")) != "")',
        ),
        "datasets": (
            'dataset = dataset.filter(lambda row: row["{0}"] is not None and row["{0}"] == '
            'row["{0}"])',
            'dataset = dataset.filter(lambda row: str(row["{}"]).strip())',
        ),
    }.get(library, ("", ""))
    if not of_nulls:
        return []
    templates = [of_nulls] * null + [of_blanks] * blank
    return [template.format(name) for template in templates for name in names]


def _make_row_filter(y, x, rows: list | np.ndarray, missing: dict) -> str:
    """Return code to drop rows from inputs and labels in lists, arrays or columns."""
    whole = [value for path, value in missing.values() if not path]
    inner = [value for path, value in missing.values() if path]
    labels = "labels" if inner else "label"
    there = [_format_condition(whole, labels)] * bool(whole)
    each, row = f"(*texts, {labels})", f"*texts, {labels}"
    if isinstance(x, tuple) and len(x) > 1:
        target, source, end = "*x, y", f"zip(*x, {_format_iterable(y, 'y')})", "; x = tuple(x)"
    else:
        target, source, end = (
            "x, y",
            f"zip({_format_iterable(x, 'x')}, {_format_iterable(y, 'y')})",
            "",
        )
        each, row = f"(text, {labels})", f"text, {labels}"
    of_lists = any(isinstance(row, list | tuple | dict | np.ndarray) for row in rows)
    blank_rows = of_lists and any(map(is_blank, whole))
    of_values = all(
        len(path) < 2 and not any(isinstance(key, str) for key in path)
        for path, _ in missing.values()
    )
    if not blank_rows and of_values:
        there += [f"all({_format_condition(inner, 'label')} for label in labels)"] * bool(inner)
    else:  # annotations have many formats
        row, source = f"row, ({row})", f"enumerate({source})"
        there = [f"row not in {[*missing]}"]
    chosen = f"[{each} for {row} in {source} if {' and '.join(there)}]"
    return f"{target} = map(list, zip(*{chosen})){end}"


def _format_condition(missing: list, name: str) -> str:
    """Return code for an expression that is True unless a label is missing."""
    others = [v for v in missing if not is_blank(v) and v is not None]
    is_na = [type(value).__name__ == "NAType" for value in others]
    blanks = tuple(dict.fromkeys(value for value in missing if is_blank(value)))
    parts = {
        f"{name} is not None": any(value is None for value in missing),
        f"{name} is not pd.NA": any(is_na),
        f"{name} == {name}": not all(is_na),
        f"{name} not in {blanks}": bool(blanks),
    }
    return " and ".join(part for part, needed in parts.items() if needed)


def _format_iterable(values, name: str) -> str:
    """Return code for an expression that converts rows to Python objects."""
    columns = list_table_columns(values) if not isinstance(values, dict) else None
    if columns is not None:
        return f"zip(*({name}[column] for column in {columns}))"
    if isinstance(values, dict):
        return f"zip(*{name}.values())"
    if isinstance(values, xp.RaggedTensor):
        return name
    for method in ("to_pylist", "to_list", "tolist"):  # Arrow, pandas, and NumPy's masked arrays
        if hasattr(values, method):
            return f"{name}.{method}()"
    return f"{name}.numpy().tolist()" if hasattr(values, "numpy") else name


def get_class_name(label: object) -> str:
    """Convert a string or number to a class name. The numbers 1.0 and 1 both become "1".

    Example:
        >>> [get_class_name(label) for label in ("up", b"up", 1.0, True)]
        ['up', 'up', '1', 'True']
    """
    if isinstance(label, bytes):
        return label.decode()
    if isinstance(label, str):  # for a member of a string enumeration, str() would not be its value
        return str.__str__(label)
    is_whole = isinstance(label, float | np.floating) and float(label).is_integer()
    return str(int(label) if is_whole else label)


def log_suspicious_labels(y) -> None:
    """Log a warning for every kind of suspicious labels.

    The following labels are suspicious: names of missing values such as "nan", -1 among class
    indices, names that start or end with whitespace, names that only differ in case or Unicode
    form, values of several types, and floats or booleans instead of class indices.

    Args:
        y: Classes, lists of classes, tags or spans, in any container.
    """
    if y is None or _is_symbolic(y) or isinstance(y, str | bytes | Iterator):
        return
    rows = _list_rows(y)
    if not isinstance(rows, list) and (rows.ndim > 1 or rows.dtype.kind in "iu"):
        if rows.ndim == 1 and rows.size and rows.dtype.kind == "i":
            values, firsts, times = np.unique(rows, return_index=True, return_counts=True)
            first = dict(zip(((int, value) for value in values.tolist()), firsts, strict=True))
            line = _describe_missing_codes(first, dict(zip(first, times, strict=True)))
            if line:
                logger.warning(line)
        return
    # Maps each label to its first row. The type is part of the key, because 1 == True == 1.0.
    first: dict[tuple[type, object], int] = {}
    counts: collections.Counter = collections.Counter()
    for row, given in enumerate(rows if isinstance(rows, list) else rows.tolist()):
        for value in _find_names(given):
            key = type(value), value
            counts[key] += 1
            first.setdefault(key, row)
    names = [value for kind, value in first if kind is str]
    for line in (
        _describe_missing_marks(first, counts),
        _describe_missing_codes(first, counts),
        _describe_blank_ends(names),
        _describe_similar_labels(names),
        _describe_types(first),
        _describe_integers(first),
    ):
        if line:
            logger.warning(line)


def _find_names(value) -> Iterator:
    """Yield the names in the labels of a row. Rows of numbers contain no names."""
    if isinstance(value, dict):
        fields = value.get("entities", value.get("spans", [value.get("label")]))
        yield from (name for field in fields or () for name in _find_names(field))
    elif isinstance(value, list | tuple | set | frozenset | np.ndarray):
        values = value[2:] if _is_span(value) else value
        found = [name for inner in values for name in _find_names(inner)]
        yield from found if any(isinstance(name, str) for name in found) else ()
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")
    elif isinstance(value, np.generic):
        yield value.item()
    elif isinstance(value, str | int | float):
        yield value


def _is_span(value) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 3
        and [isinstance(part, str | bytes) for part in value] == [False, False, True]
    )


def _describe_missing_marks(first: dict, counts: collections.Counter) -> str:
    found = [key for key in first if key[0] is str and key[1].strip().lower() in MARKS]
    if not found:
        return ""
    shown_names = ", ".join(
        f"{key[1]!r} ({counts[key]} times, first in row {first[key]})" for key in found
    )
    return (
        f"Some labels look like missing values, but are used as classes: {shown_names}. If these "
        "labels are missing, drop the rows."
    )


def _describe_missing_codes(first: dict, counts: Mapping) -> str:
    """Create the warning about -1 among class indices. Return "" if all labels are -1 or 1."""
    numbers = {key[1] for key in first if key[0] in (int, float)}
    names = {key[1] for key in first if key[0] is str}
    code = next((key for key in first if key[1] in (MISSING_CODE, str(MISSING_CODE))), None)
    if code is None or {str(value) for value in numbers | names} <= {"-1", "1", "-1.0", "1.0"}:
        return ""
    return (
        f"The label {code[1]!r} ({counts[code]} times, first in row {first[code]}) is used as a "
        "class. In pandas, -1 means a missing label (`cat.codes`, `factorize`). If these labels "
        "are missing, drop the rows."
    )


def _describe_blank_ends(names: list[str]) -> str:
    found = [name for name in names if name != name.strip()]
    if not found:
        return ""
    known = set(names)
    beside = [name.strip() for name in found if name.strip() in known]
    return (
        f"Labels start or end with spaces: {_format_values(found)}. They are used as separate "
        "classes"
        + (f" in addition to {_format_values(beside)}" if beside else "")
        + ". If this is not intended, strip the labels."
    )


def _describe_similar_labels(names: list[str]) -> str:
    groups: dict[str, set[str]] = {}
    for name in names:
        name = name.strip()
        folded = unicodedata.normalize("NFKC", name).casefold()
        groups.setdefault(unicodedata.normalize("NFKC", folded), set()).add(name)
    found = [name for group in groups.values() if len(group) > 1 for name in sorted(group)]
    if not found:
        return ""
    forms = [f"{ascii(name) if not name.isascii() else repr(name)}" for name in found]
    return (
        "Labels that only differ in case or Unicode form are used as separate classes: "
        f"{', '.join(forms[:MAX_LOGGED])}."
    )


def _describe_types(first: dict) -> str:
    examples = dict(reversed(first))
    if len(examples) < 2:
        return ""
    given = ", ".join(f"{value!r} ({kind.__name__})" for kind, value in reversed(examples.items()))
    same: dict[str, list] = {}
    for _, value in first:
        same.setdefault(get_class_name(value), []).append(value)
    merged = [
        f"{_format_values(values)} are one class" for values in same.values() if len(values) > 1
    ]
    if bool in examples and str not in examples:
        merged.append("True is 1 and False 0")
    reading = "Numbers are class indices, unless the name of a class is an integer"
    reading = (
        f" {reading} or the labels are learned from the data. In these cases, numbers are names."
    )
    return (
        f"Labels have several types: {given}"
        + "".join(f"; {words}" for words in merged[:MAX_LOGGED])
        + "."
        + reading * (str in examples)
    )


def _describe_integers(first: dict) -> str:
    kinds, values = {kind for kind, _ in first}, [value for _, value in first]
    if kinds == {bool}:
        return f"Labels are booleans: {_format_values(values)}. The classes are False and True."
    if kinds != {float} or not all(value.is_integer() for value in values):
        return ""
    whole = ", ".join(map(get_class_name, values[:MAX_LOGGED]))
    return (
        f"Labels are floats without decimals: {_format_values(values)}. They are converted to the "
        f"integers {whole}."
    )


def _format_values(values: list) -> str:
    return ", ".join(map(repr, values[:MAX_LOGGED])) + ", ..." * (len(values) > MAX_LOGGED)
