"""Write predictions to Parquet files, or add predictions to batches of columns."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.missing import is_missing
from encoder_zoo.common.progress import Progress
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.extras.bulk.columns import make_array_column, make_null_table, pa
from encoder_zoo.extras.bulk.rows import Paths, find_files, parquet, read_rows
from encoder_zoo.extras.bulk.run import Run
from encoder_zoo.extras.bulk.task_method import Columns, MethodName, TaskMethod, has_text
from encoder_zoo.presets.files.atomic import replace_file
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain
from encoder_zoo.tasks.preprocessing.preprocessor import log_truncation_once

if TYPE_CHECKING:
    import pyarrow

    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")

SHARD_ROWS = 100_000
# Size limits for chunks, to bound the memory. The first limit that is reached ends a chunk.
CHUNK_ROWS = 8192
CHUNK_CHARACTERS = 2**24
FOOTER_KEY = b"encoder_zoo"  # key in the footer for the run and the range of rows
LOCATION_COLUMNS = ("file", "row")  # columns in every output file


def _list_names(keep: str | Sequence[str]) -> list[str]:
    return [keep] if isinstance(keep, str) else list(keep)


Kept = Annotated[
    str | Sequence[str],
    validation.Rule(
        lambda v: all(
            isinstance(n, str) and n and n not in LOCATION_COLUMNS for n in _list_names(v)
        ),
        "the name of a column, or a list of names, other than 'file' and 'row'",
    ),
]


class FileRow(NamedTuple):
    """Row of an input file, with the values of the text columns and of the copied columns."""

    file: str
    number: int
    texts: Sequence
    kept: Sequence
    has_text: bool


@validation.validate_arguments
@lock_weights
def answer_files(
    task: Task,
    paths: Paths,
    folder: str | os.PathLike[str],
    columns: Columns = "text",
    method: MethodName | None = None,
    *,
    keep: Kept = (),
    shard_rows: validation.PositiveInt = SHARD_ROWS,
    verbose: validation.Verbosity = "auto",
    **options: Any,
) -> list[pathlib.Path]:
    """Compute predictions for text files of any size, and write Parquet files.

    Rows are processed in chunks, so memory usage does not depend on file sizes. All rows are
    validated before the first prediction. Output files (shards) are written atomically. To continue
    an interrupted run with the first missing shard, call this function again with the same
    arguments.

    Output files contain the columns "file" and "row" (from 0), the columns in `keep`, and the
    prediction columns. If predictions are dicts, there is one column per key, such as "label".
    Vectors are stored in "embedding", and entities in "entities". For rows without text (null or
    blank), predictions are null. To load the folder as a single table, use
    `pandas.read_parquet(folder)` or another Parquet reader. This function requires pyarrow.

    Args:
        task: Task with predictions for raw texts, or `ZeroShotClassifier`.
        paths: Path, pattern such as "texts/*.jsonl" or "texts/**/*.jsonl", or list of paths and
            patterns. Duplicate files are only processed once. Supported formats are `.txt` (one
            text per line, in a column named "text"), `.csv`, `.tsv` (tabs, no quotes), `.jsonl` and
            `.parquet`. Text files must be encoded as UTF-8 and can be compressed (`.csv.gz`).
        folder: Path. The output folder, which should not contain other files. File names such as
            "answers.parquet" raise an error.
        columns: String, list or dict. Name of the text column, list of names for pairs of texts, or
            dict mapping method arguments to column names, such as `{"question": "q", "context":
            "page"}`. Defaults to "text".
        method: Optional string. The task method to call, such as "predict_proba". If None, the
            default prediction method will be used.
        keep: String or list of strings. Columns to copy, such as "id". Defaults to ().
        shard_rows: Integer. The number of rows per output file. After an interruption, at most one
            output file is lost. Defaults to 100_000.
        verbose: Set to 0 to disable the output. Defaults to "auto", which prints progress and
            speed.
        **options: Additional method arguments, such as `batch_size=64` or `top_k=3`.

    Returns:
        A list of paths to the output files, in order.

    Raises:
        ValueError: If a row cannot be processed, if the folder contains predictions from a
            different run, or if input files change during the run.
        FileNotFoundError: If no file matches a path.

    Example:
        >>> import pytest
        >>> _ = pytest.importorskip("pyarrow")
        >>> import pathlib, tempfile
        >>> import encoder_zoo as ez
        >>> classifier = ez.Classifier.from_preset("bert_nano_en_uncased", labels=["bad", "good"])
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "texts.txt").write_text("A great movie!\\nBoring.\\n")
        >>> paths = folder / "texts.txt", folder / "answers"
        >>> shards = ez.answer_files(classifier, *paths, verbose=0)
        >>> [path.name for path in shards]
        ['00000.parquet']
    """
    folder = validation.check_path(folder, "folder")
    if folder.suffix in (".parquet", ".jsonl", ".csv"):
        raise ValueError(
            f"`folder` is {os.fspath(folder)!r}. Expected the name of a folder for several files, "
            f"such as {folder.stem!r}. pandas.read_parquet(folder) opens the files as one table."
        )
    task_method = TaskMethod(task, columns, method, options)
    run = Run.open_or_create(folder, task_method, find_files(paths), _list_names(keep), shard_rows)
    shards = [AnswerShard.create(run, number) for number in range(-(-run.rows // shard_rows))]
    left = [shard for shard in shards if not shard.is_finished()]
    if left:
        progress = AnswerProgress(run.rows, sum(shard.count for shard in left)) if verbose else None
        rows = _read_file_rows(run)
        with log_truncation_once():
            for shard in shards[: left[-1].number + 1]:
                mine = itertools.islice(rows, shard.count)
                if shard in left:
                    shard.write(mine, progress)
                else:
                    collections.deque(mine, maxlen=0)
            if left[-1] is shards[-1] and next(rows, None) is not None:
                raise ValueError(
                    f"The input files have more rows than the run in {run.folder}, which has "
                    f"{run.rows} rows. Write to a different folder."
                )
        if progress:
            progress.show()
    return [shard.path for shard in shards]


class AnswerShard(NamedTuple):
    """Output file for a range of rows.

    Attributes:
        run: The `Run` that creates the file.
        number: Integer. The index of the file.
        first: Integer. The index of the first row.
        count: Integer. The number of rows.
    """

    run: Run
    number: int
    first: int
    count: int

    @classmethod
    def create(cls, run: Run, number: int) -> AnswerShard:
        """Create the shard with a given index."""
        first = number * run.shard_rows
        return cls(run, number, first, min(run.shard_rows, run.rows - first))

    @property
    def path(self) -> pathlib.Path:
        return self.run.folder / f"{self.number:05d}.parquet"

    @property
    def _mark(self) -> bytes:
        return f"{self.run.sha256} rows {self.first} to {self.first + self.count}".encode()

    def is_finished(self) -> bool:
        """Return whether the file belongs to this run and contains all rows of the shard."""
        if self.path.is_symlink() or not self.path.is_file():
            return False
        try:
            with parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                metadata = file.schema_arrow.metadata or {}
                if file.metadata.num_rows != self.count or metadata.get(FOOTER_KEY) != self._mark:
                    return False
                return sum(map(len, file.iter_batches())) == self.count  # reads every page
        except (OSError, pa.ArrowInvalid):
            return False

    def write(self, rows: Iterator[FileRow], progress: AnswerProgress | None) -> None:
        """Process the rows, and write the file atomically."""
        schema = self.run.schema.with_metadata({FOOTER_KEY: self._mark})
        written = 0
        with replace_file(self.path, _is_truncated) as new, contextlib.ExitStack() as stack:
            file = stack.enter_context(
                parquet.ParquetWriter(new, schema, write_page_checksum=True, compression="zstd")
            )
            for chunk in _split_into_chunks(rows):
                file.write_table(_process_rows(self.run, chunk).cast(schema))
                written += len(chunk)
                if progress:
                    progress.count(len(chunk))
            if written != self.count:
                raise ValueError(
                    "The input files were changed during the run. The first difference is after "
                    f"row {self.first + written}. Write to another folder."
                )
            self.run.files.check_unchanged()


def _is_truncated(path: pathlib.Path) -> bool:
    """Return whether a Parquet file is damaged, for example because the disk was full."""
    with open(path, "rb") as file:
        begins = file.read(4) == b"PAR1"
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            collections.deque(file.iter_batches(), maxlen=0)
    except (OSError, pa.ArrowInvalid):
        if begins:
            logger.warning("%s is damaged and will be written again.", path)
        return begins
    return False


def _read_file_rows(run: Run) -> Iterator[FileRow]:
    """Yield all rows from all files."""
    names = run.task_method.names
    for path in run.files.paths:
        rows = read_rows(path, [*names, *run.keep])
        for number, (location, values) in enumerate(rows):
            texts, kept = values[: len(names)], values[len(names) :]
            yield FileRow(str(path), number, texts, kept, has_text(texts, names, location))


def _split_into_chunks(rows: Iterator[FileRow]) -> Iterator[list[FileRow]]:
    """Yield chunks of rows within the size limits."""
    chunk, size = [], 0
    for row in rows:
        chunk.append(row)
        size += sum(map(_count_characters, row.texts))
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _count_characters(value) -> int:
    if is_missing(value):
        return 0
    return sum(map(len, value)) if isinstance(value, list) else len(value)


def _process_rows(run: Run, rows: list[FileRow]) -> pyarrow.Table:
    """Compute predictions for rows, and return a table."""
    fields = run.schema
    columns = {"file": [row.file for row in rows], "row": [row.number for row in rows]}
    kept = zip(*(row.kept for row in rows), strict=True)
    columns |= dict(zip(run.keep, kept, strict=True))
    schema = pa.schema([fields.field(name) for name in columns])
    table = pa.table({n: list(values) for n, values in columns.items()}, schema=schema)
    texts = list(zip(*(row.texts for row in rows), strict=True))
    answers = run.task_method.compute_answers(texts, [row.has_text for row in rows])
    if answers is None:
        rest = [field for field in fields if field.name not in columns]
        answers = make_null_table(pa.schema(rest), len(rows))
    return join_tables(table, answers)


class AnswerProgress(Progress):
    """Print the number of processed rows, the speed and the remaining time.

    Args:
        rows: Integer. The total number of rows.
        left: Integer. The number of remaining rows.
    """

    def __init__(self, rows: int, left: int):
        super().__init__(rows - left)
        self._rows = rows

    def show(self, state: str = "") -> None:
        left = (self._rows - self.done) / max(self.rate, 1e-9)
        rest = f", {_format_duration(left)} left" if self.done < self._rows else ""
        done = f"{self.done:,} of {self._rows:,} rows"
        print(f"Answers: {done}, {self.rate:,.0f} rows/s{rest}{state}", flush=True)


def _format_duration(seconds: float) -> str:
    """Format a duration with a suitable unit.

    Example:
        >>> _format_duration(50), _format_duration(600), _format_duration(36_000)
        ('50 s', '10 min', '10.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class BatchAnswers:
    """Add predictions to batches of columns, for Ray Data, Spark and similar frameworks.

        opened = functools.partial(ez.Classifier.from_preset, "my_preset")
        ray.data.read_json("texts").map_batches(
            ez.BatchAnswers, fn_constructor_args=[opened], batch_size=1024, compute=...)

    For rows without text (None or blank), predictions are null. This class requires pyarrow.

    Args:
        task: Task, or function without arguments that loads a task. The function is called once in
            the process that computes the predictions.
        columns: String, list or dict. Name of the text column, list of names for pairs of texts, or
            dict mapping method arguments to column names, such as `{"question": "q", "context":
            "page"}`. Defaults to "text".
        method: Optional string. The task method to call, such as "classify". If None, the default
            prediction method will be used.
        **options: Additional method arguments, such as `batch_size=64` or `top_k=3`.

    Call arguments:
        batch: Dict mapping column names to NumPy arrays, Arrow table or pandas table with N rows.

    Returns:
        An Arrow table with N rows, which contains the batch columns and the prediction columns. If
        predictions are dicts, there is one column per key. Vectors are stored in "embedding", and
        entities in "entities".

    Raises:
        ValueError: If `method` does not support the arguments, if a row is not text, or if a
            prediction column and a batch column have the same name.

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

    @validation.validate_arguments
    def __init__(
        self,
        task: Task | Callable[[], Task],
        columns: Columns = "text",
        method: MethodName | None = None,
        **options: Any,
    ):
        self._task_method = TaskMethod(task, columns, method, options)
        self._schema = None  # prediction schema, known after the first batch with text

    def __call__(self, batch) -> pyarrow.Table:
        table, names = _convert_to_table(batch), self._task_method.names
        values = [convert_to_plain(table[name]) for name in names]
        rows = enumerate(zip(*values, strict=True))
        present = [has_text(row, names, f"Row {number}") for number, row in rows]
        answers = self._task_method.compute_answers(values, present)
        if answers is None:  # frameworks require the same schema for all batches
            answers = make_null_table(self._schema or self._learn_schema(table), len(present))
        self._schema = answers.schema
        return self._join_answers(table, answers)

    def _learn_schema(self, table: pyarrow.Table) -> pyarrow.Schema:
        types = [table.schema.field(name).type for name in self._task_method.names]
        return self._task_method.sample(list(map(pa.types.is_nested, types))).schema

    def _join_answers(self, table: pyarrow.Table, answers: pyarrow.Table) -> pyarrow.Table:
        again = [name for name in answers.column_names if name in table.column_names]
        if again:
            raise ValueError(
                f"The batch already has a column {again[0]!r}, but {self._task_method.method} adds "
                f"the columns {', '.join(answers.column_names)}. Rename or drop the column in the "
                "batch."
            )
        return join_tables(table, answers)


def join_tables(table: pyarrow.Table, answers: pyarrow.Table) -> pyarrow.Table:
    """Combine the columns of two tables. The names of all columns must be different."""
    for name in answers.column_names:
        table = table.append_column(name, answers[name])
    return table


def _convert_to_table(batch) -> pyarrow.Table:
    if isinstance(batch, Mapping):
        return pa.table({name: _convert_to_column(values) for name, values in batch.items()})
    if hasattr(batch, "to_numpy"):  # pandas
        return pa.Table.from_pandas(batch, preserve_index=False)
    return batch


def _convert_to_column(values) -> pyarrow.Array:
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return make_array_column(values)
    return pa.array(values)
