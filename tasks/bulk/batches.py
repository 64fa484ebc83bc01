"""A task's answers to batches of columns, for programs that call a function with tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.tasks.bulk.columns import array_column, nulls, pa
from encoder_zoo.tasks.bulk.task_method import Columns, MethodName, TaskMethod, has_text
from encoder_zoo.tasks.preprocessing.columns import plain

if TYPE_CHECKING:
    import pyarrow

    from encoder_zoo.tasks.base.task import Task


class BatchAnswers:
    """Add a task's answers to batches of columns: a function of tables, for Ray Data, Spark and
    others that call one with each part of the data.

        opened = functools.partial(ez.Classifier.from_preset, "my_preset")
        ray.data.read_json("texts").map_batches(
            ez.BatchAnswers, fn_constructor_args=[opened], batch_size=1024, compute=...)

    A row without text, None or blank, has null for its answers. It needs the package pyarrow.

    Args:
        task: that answers; or a function without arguments that opens it, called once, in the
            process that answers.
        columns: of the texts: the name of one; a list of names for pairs; or {argument of the
            method: name of its column}, such as `{"question": "q", "context": "page"}`.
        method: of the task; None is the one that answers to texts, such as "classify".
        **options: further arguments of the method, such as `batch_size=64` or `top_k=3`.

    Call arguments:
        batch: `{name: column}` of NumPy, a table of Arrow or of pandas, of N rows.

    Returns:
        An Arrow table of N rows: the columns of the batch, then those of the answers: of dicts one
        for each key, of vectors "embedding", of entities "entities".

    Raises:
        ValueError: "classify cannot be called like that: ...", "Row 3 of 'text' is 7 (int). ...",
            "The batch has a column 'label', ..."

    Example:
        >>> import pytest
        >>> _ = pytest.importorskip("pyarrow")
        >>> import numpy as np
        >>> from encoder_zoo import Classifier
        >>> classifier = Classifier.from_preset("bert_nano_en_uncased", labels=["down", "up"])
        >>> answers = BatchAnswers(classifier)
        >>> answers({"id": np.array([1, 2]), "text": np.array(["Good!", " "])}).column_names
        ['id', 'text', 'label', 'score']
    """

    @validate_arguments
    def __init__(
        self,
        task: Task | Callable[[], Task],
        columns: Columns = "text",
        method: MethodName | None = None,
        **options: Any,
    ):
        self._task_method = TaskMethod(task, columns, method, options)
        self._schema = None  # of the answers, once there were some

    def __call__(self, batch) -> pyarrow.Table:
        table, names = _as_table(batch), self._task_method.names
        values = [plain(table[name]) for name in names]
        rows = enumerate(zip(*values, strict=True))
        present = [has_text(row, names, f"Row {number}") for number, row in rows]
        answers = self._task_method.answers(values, present)
        if answers is None:  # engines want one schema of all batches
            answers = nulls(self._schema or self._learned_schema(table), len(present))
        self._schema = answers.schema
        return self._joined(table, answers)

    def _learned_schema(self, table: pyarrow.Table) -> pyarrow.Schema:
        types = [table.schema.field(name).type for name in self._task_method.names]
        return self._task_method.sample(list(map(pa.types.is_nested, types))).schema

    def _joined(self, table: pyarrow.Table, answers: pyarrow.Table) -> pyarrow.Table:
        again = [name for name in answers.column_names if name in table.column_names]
        if again:
            raise ValueError(
                f"The batch has a column {again[0]!r}, and {self._task_method.method} answers with "
                f"the columns {', '.join(answers.column_names)}. Rename or drop that of the batch."
            )
        return joined(table, answers)


def joined(table: pyarrow.Table, answers: pyarrow.Table) -> pyarrow.Table:
    """Return the columns of both, whose names differ."""
    for name in answers.column_names:
        table = table.append_column(name, answers[name])
    return table


def _as_table(batch) -> pyarrow.Table:
    if isinstance(batch, Mapping):
        return pa.table({name: _as_column(values) for name, values in batch.items()})
    if hasattr(batch, "to_numpy"):  # of pandas
        return pa.Table.from_pandas(batch, preserve_index=False)
    return batch


def _as_column(values) -> pyarrow.Array:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return array_column(values)
    return pa.array(values)
