"""Answers of tasks as columns of Apache Arrow, whose types are the same for all batches.

Comment letters: N answers, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_type_hints

import numpy as np

from encoder_zoo.common.lazy import LazyModule

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow", "This needs the package pyarrow: `pip install pyarrow`.")

# Columns of answers that are not dicts, by method.
NAMES = {
    "embed": "embedding",
    "extract_entities": "entities",
    "predict": "output",
    "predict_proba": "probabilities",
    "score": "score",
}


def answer_columns(answers, method: str, kind: type | None = None) -> pa.Table:
    """Return answers (N,) as columns: one for each key of a dict, or one of arrays or lists.

    Args:
        answers: of a task's method, at least one: an array (N, ...), a sparse matrix (N, D), a list
            of dicts, or a list of arrays or lists.
        method: name of the method, which names the column of answers that are not dicts.
        kind: the TypedDict of the elements, where answers are lists of dicts; it types the column
            of a batch whose lists are all empty.

    Example:
        >>> import pytest
        >>> _ = pytest.importorskip("pyarrow")
        >>> answer_columns([{"label": "up", "score": 0.5}], "classify").to_pylist()
        [{'label': 'up', 'score': 0.5}]
        >>> answer_columns(np.float32([[1, 2]]), "embed").schema.field("embedding").type
        FixedSizeListType(fixed_size_list<item: float>[2])
    """
    name = NAMES.get(method, "answer")
    if hasattr(answers, "indptr"):
        return pa.table({name: _sparse_rows(answers.tocsr())})
    if isinstance(answers, np.ndarray):
        return pa.table({name: array_column(answers)})
    answers = list(answers)
    if isinstance(answers[0], dict):
        return pa.table({key: [answer[key] for answer in answers] for key in answers[0]})
    if isinstance(answers[0], np.ndarray):
        return pa.table({name: _arrays(answers)})
    column = pa.array(answers)
    if kind is not None and column.type == pa.list_(pa.null()):
        column = pa.array(answers, _type_of_lists(kind))
    return pa.table({name: column})


def check_installed() -> None:
    """Raise an ImportError where pyarrow is not installed, before any work."""
    pa.default_memory_pool()


def spread(table: pa.Table, present: Sequence[bool]) -> pa.Table:
    """Return a table with a row for each flag: the next of the table's, or nulls where it is False.

    Example:
        >>> import pytest
        >>> pa = pytest.importorskip("pyarrow")
        >>> spread(pa.table({"score": [1, 2]}), [True, False, True])["score"].to_pylist()
        [1, None, 2]
    """
    present = np.asarray(present)
    rows = np.where(present, np.cumsum(present) - 1, 0)
    return table.take(pa.array(rows, mask=~present))


def nulls(schema: pa.Schema, count: int) -> pa.Table:
    """Return a table of a schema with a number of rows, all of them null.

    Example:
        >>> import pytest
        >>> pa = pytest.importorskip("pyarrow")
        >>> nulls(pa.schema([("score", pa.float32())]), 2)["score"].to_pylist()
        [None, None]
    """
    return pa.table([pa.nulls(count, field.type) for field in schema], schema=schema)


def array_column(values: np.ndarray) -> pa.Array:
    """Return an array (N, ...) as a column of numbers or of lists of a fixed size."""
    column = pa.array(np.ascontiguousarray(values).ravel())
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _arrays(values: list[np.ndarray]) -> pa.Array:
    """Return arrays of different lengths, (..., D) or (...), as a column of lists."""
    offsets = np.cumsum([0, *map(len, values)], dtype="int32")
    return pa.ListArray.from_arrays(offsets, array_column(np.concatenate(values)))


def _sparse_rows(matrix) -> pa.Array:
    """Return the rows of a sparse matrix (N, D), as lists of `{"index", "weight"}`."""
    entries = pa.StructArray.from_arrays(
        [pa.array(matrix.indices.astype("int32")), pa.array(matrix.data)], ["index", "weight"]
    )
    return pa.ListArray.from_arrays(matrix.indptr.astype("int32"), entries)


def _type_of_lists(kind: type) -> pa.DataType:
    """Return the type of lists of a TypedDict."""
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    return pa.list_(pa.struct([(k, types[t]) for k, t in get_type_hints(kind).items()]))
