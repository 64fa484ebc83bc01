"""Convert predictions to Apache Arrow columns that have the same types in all batches.

Comments use these letters for shapes: N predictions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_type_hints

import numpy as np

from encoder_zoo.common.lazy import LazyModule

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = LazyModule("pyarrow", "An Arrow table needs the package pyarrow: `pip install pyarrow`.")

# {method: column name} for predictions that are not dicts.
OUTPUT_COLUMNS = {
    "embed": "embedding",
    "extract_entities": "entities",
    "predict": "output",
    "predict_proba": "probabilities",
    "score": "score",
}


def make_answer_columns(answers, method: str, kind: type | None = None) -> pa.Table:
    """Convert predictions to table columns, with one column per key for dicts.

    Args:
        answers: Predictions for at least one text: array (N, ...), sparse matrix (N, D), list of
            dicts, or list of arrays or lists.
        method: String. Method name, which determines the column name for predictions that are not
            dicts.
        kind: Optional TypedDict. The type of the dicts if each prediction is a list of dicts. It
            determines the column type if all lists are empty.

    Example:
        >>> import pytest
        >>> _ = pytest.importorskip("pyarrow")
        >>> make_answer_columns([{"label": "up", "score": 0.5}], "classify").to_pylist()
        [{'label': 'up', 'score': 0.5}]
        >>> make_answer_columns(np.float32([[1, 2]]), "embed").schema.field("embedding").type
        FixedSizeListType(fixed_size_list<item: float>[2])
    """
    name = OUTPUT_COLUMNS.get(method, "answer")
    if hasattr(answers, "indptr"):
        return pa.table({name: _convert_sparse_rows(answers.tocsr())})
    if isinstance(answers, np.ndarray):
        return pa.table({name: make_array_column(answers)})
    answers = list(answers)
    if isinstance(answers[0], dict):
        return pa.table({key: [answer[key] for answer in answers] for key in answers[0]})
    if isinstance(answers[0], np.ndarray):
        offsets = np.cumsum([0, *map(len, answers)], dtype="int32")
        values = make_array_column(np.concatenate(answers))
        return pa.table({name: pa.ListArray.from_arrays(offsets, values)})
    column = pa.array(answers)
    if kind is not None and column.type == pa.list_(pa.null()):
        column = pa.array(answers, _make_list_type(kind))
    return pa.table({name: column})


def insert_null_rows(table: pa.Table, present: Sequence[bool]) -> pa.Table:
    """Insert a null row into a table for each False in `present`.

    Example:
        >>> import pytest
        >>> pa = pytest.importorskip("pyarrow")
        >>> insert_null_rows(pa.table({"score": [1, 2]}), [True, False, True])["score"].to_pylist()
        [1, None, 2]
    """
    present = np.asarray(present)
    rows = np.where(present, np.cumsum(present) - 1, 0)
    return table.take(pa.array(rows, mask=~present))


def make_null_table(schema: pa.Schema, count: int) -> pa.Table:
    """Create a table with the given schema and number of rows, filled with nulls.

    Example:
        >>> import pytest
        >>> pa = pytest.importorskip("pyarrow")
        >>> make_null_table(pa.schema([("score", pa.float32())]), 2)["score"].to_pylist()
        [None, None]
    """
    return pa.table([pa.nulls(count, field.type) for field in schema], schema=schema)


def make_array_column(values: np.ndarray) -> pa.Array:
    """Convert an array (N, ...) to a column of scalars or fixed-size lists."""
    column = pa.array(np.ascontiguousarray(values).ravel())
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _convert_sparse_rows(matrix) -> pa.Array:
    """Convert sparse rows (N, D) to lists of `{"index", "weight"}`."""
    entries = pa.StructArray.from_arrays(
        [pa.array(matrix.indices.astype("int32")), pa.array(matrix.data)], ["index", "weight"]
    )
    return pa.ListArray.from_arrays(matrix.indptr.astype("int32"), entries)


def _make_list_type(kind: type) -> pa.DataType:
    """Create the Arrow type for lists of dicts with the fields of a TypedDict."""
    types = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    return pa.list_(pa.struct([(k, types[t]) for k, t in get_type_hints(kind).items()]))
