"""Describe the model, input files and settings of a run, so that the run can be continued."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.version import __version__
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.extras.bulk.columns import pa
from encoder_zoo.extras.bulk.rows import is_parquet, parquet, read_rows
from encoder_zoo.extras.bulk.task_method import TaskMethod, has_text
from encoder_zoo.presets.files.atomic import check_folder, write_with_checksum
from encoder_zoo.presets.files.manifest import compute_checksum, compute_manifest_digest
from encoder_zoo.presets.files.open_folder import InputFiles

if TYPE_CHECKING:
    import pyarrow

    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")

LARGEST_EXACT_INTEGER = 2**53  # all smaller integers are exact in float64
INTEGERS = range(-(2**63), 2**63)  # range of int64


def scan(paths: Sequence[pathlib.Path], names: Sequence[str], keep: Sequence[str]) -> tuple:
    """Read all files once, and raise an error for the first invalid row.

    Args:
        paths: Sequence of file paths.
        names: Sequence of strings. Text column names.
        keep: Sequence of strings. The names of the columns to copy.

    Returns:
        Tuple of the number of rows per file, the number of rows without text, the values of the
        first row with text, and the Arrow schema of the copied columns.

    Raises:
        ValueError: If a row is not text, if no text is found, or if a column has several types.
    """
    counts, without_text, sample, schemas = [], 0, None, []
    largest = {}  # {column: (integer, location)}
    for path in paths:
        count, kinds = 0, {name: set() for name in keep}
        for location, values in read_rows(path, [*names, *keep]):
            count += 1
            texts = values[: len(names)]
            if not has_text(texts, names, location):
                without_text += 1
            elif sample is None:
                sample = texts
            for name, value in zip(keep, values[len(names) :], strict=True):
                if value is None:
                    continue
                if not is_parquet(path):
                    _check_plain(value, name, location)
                kinds[name].add(type(value))
                if type(value) is int and abs(value) > abs(
                    largest.get(name, (LARGEST_EXACT_INTEGER,))[0]
                ):
                    largest[name] = value, location
        counts.append(count)
        schemas.append(_find_types(path, kinds))
    if sample is None:
        raise ValueError(f"The files contain no text: {', '.join(map(str, paths))}.")
    try:
        kept = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise ValueError(f"A column has different types in different files: {error}.") from None
    for name, (value, location) in largest.items():
        _check_fits(value, name, location, kept.field(name).type)
    return counts, without_text, sample, kept


def _check_plain(value, name: str, location: str) -> None:
    if type(value) not in (str, int, float, bool):
        raise invalid(
            f"{location}: {name!r}",
            value,
            "a string, a number or a boolean in a column in `keep`",
        )
    if type(value) is int and value not in INTEGERS:
        raise ValueError(
            f"{location}: {name!r} is {quote(value)}, but integers in columns in `keep` must "
            "fit into 64 bits. Store larger integers as strings."
        )


def _check_fits(value: int, name: str, location: str, kind: pyarrow.DataType) -> None:
    """Raise a ValueError if an integer is too large for the output column type."""
    if pa.types.is_floating(kind) or (pa.types.is_int64(kind) and value not in INTEGERS):
        raise ValueError(
            f"{location}: {name!r} is {value}, which cannot be stored in a column of type "
            f"{kind}. Expected integers below 2**53 in columns that also contain floats, and below "
            "2**63 in other columns. Store larger integers as strings."
        )


def _find_types(path: pathlib.Path, kinds: dict[str, set]) -> pyarrow.Schema:
    """Find the types of all copied columns in a file."""
    if is_parquet(path):
        schema = parquet.read_schema(path)
        return pa.schema([schema.field(name) for name in kinds]).remove_metadata()
    types = {
        frozenset(): pa.null(),
        frozenset({str}): pa.string(),
        frozenset({bool}): pa.bool_(),
        frozenset({int}): pa.int64(),
        frozenset({float}): pa.float64(),
        frozenset({int, float}): pa.float64(),
    }
    for name, found in kinds.items():
        if frozenset(found) not in types:
            words = " and ".join(sorted(kind.__name__ for kind in found))
            raise ValueError(f"{path}: {name!r} contains {words}. Expected a single type.")
    return pa.schema([(name, types[frozenset(found)]) for name, found in kinds.items()])


BULK_NAME = "_answers.json"  # Parquet readers ignore names that begin with _
BULK_FORMAT = 1
PLAIN_VALUES = (str, int, float, bool, type(None))


@dataclasses.dataclass(frozen=True)
class Run:
    """A run that computes predictions for several files with one model.

    Attributes:
        folder: Path. The output folder.
        task_method: The `TaskMethod` that computes the predictions.
        files: `InputFiles`. The input files.
        keep: List of strings. The names of the columns to copy.
        shard_rows: Integer. The number of rows per shard.
        rows: Integer. The total number of rows.
        schema: Arrow schema of the output.
        sha256: String. Checksum over everything that determines the predictions.
    """

    folder: pathlib.Path
    task_method: TaskMethod
    files: InputFiles
    keep: list[str]
    shard_rows: int
    rows: int
    schema: pyarrow.Schema
    sha256: str

    @classmethod
    def open_or_create(
        cls,
        folder: pathlib.Path,
        task_method: TaskMethod,
        paths: list[pathlib.Path],
        keep: list[str],
        shard_rows: int,
    ) -> Run:
        """Open an interrupted run, or create a run in an empty folder.

        Raises:
            ValueError: If the folder contains predictions from a different run. See also `scan` and
                `InputFiles`.
        """
        files = InputFiles(paths)
        settings = {
            "format": BULK_FORMAT,
            "files": [
                [str(path), size, compute_checksum(path)]
                for path, size in zip(paths, files.sizes, strict=True)
            ],
            "task": type(task_method.task).__name__,
            "model": compute_model_checksum(task_method.task),
            "method": task_method.method,
            "columns": task_method.columns,
            "keep": keep,
            "shard_rows": shard_rows,
            "options": {name: repr(value) for name, value in task_method.options.items()},
        }
        settings = json.loads(json.dumps(settings))
        found = _read(check_folder(folder))
        if not found:
            counts, schema = _scan_files(task_method, paths, keep)
            found = {**settings, "rows": counts, "schema": schema, "encoder_zoo": __version__}
            files.check_unchanged()
            write_with_checksum(folder / BULK_NAME, found)
        _check_settings(folder, found, settings)
        schema = _check_schema(folder, found, len(paths))
        identity = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        return cls(
            folder, task_method, files, keep, shard_rows, sum(found["rows"]), schema, identity
        )


def compute_model_checksum(task: Task) -> str:
    """Compute a checksum over all weights and settings that affect predictions."""
    model = getattr(task, "classifier", task)  # for a ZeroShotClassifier
    preprocessor = model.preprocessor
    of_parts = {"task": model, "backbone": model.backbone, "preprocessor": preprocessor}
    settings = {name: _make_plain(part.get_config()) for name, part in of_parts.items()}
    settings["tokenizer"] = preprocessor.tokenizer.get_config()
    settings["for_cpu"] = getattr(model.cpu_model, "identity", None)
    found = hashlib.sha256(json.dumps(settings, sort_keys=True, default=repr).encode())
    for weight in model.weights:
        found.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight)))
    return found.hexdigest()


def _make_plain(value):
    """Remove layer names and nested objects from settings."""
    if isinstance(value, Mapping):
        kept = {str(name): _make_plain(inner) for name, inner in value.items() if name != "name"}
        return {name: inner for name, inner in kept.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_make_plain(inner) for inner in value]
    return value if type(value) in PLAIN_VALUES else None


def _scan_files(task_method: TaskMethod, paths: list[pathlib.Path], keep: list[str]) -> tuple:
    """Return the number of rows per file, and the serialized schema of the output."""
    counts, without_text, row, kept = scan(paths, task_method.names, keep)
    if without_text:
        logger.warning(
            "%d of %d rows have no text. The predictions for these rows are null.",
            without_text,
            sum(counts),
        )
    sample = task_method.compute_answers([[value] for value in row], [True])
    names = ["file", "row", *keep]
    again = [name for name in sample.column_names if name in names]
    if again or len(set(names)) < len(names):
        raise ValueError(
            f"`keep` is {keep}. Expected unique names that are different from the prediction "
            f"columns: {', '.join(sample.column_names)}."
        )
    columns = pa.schema([("file", pa.string()), ("row", pa.int64())])
    fields = [*columns, *kept, *sample.schema]
    schema = pa.schema(fields).remove_metadata()
    return counts, base64.b64encode(schema.serialize().to_pybytes()).decode()


def _read(folder: pathlib.Path) -> dict:
    """Read the run description from a folder. Return {} for a missing or empty folder."""
    path = folder / BULK_NAME
    if not os.path.lexists(path):
        if folder.exists() and any(file.name[0] != "." for file in folder.iterdir()):
            raise ValueError(
                f"{folder} contains other files. Expected an empty folder, or a path that does not "
                "exist."
            )
        return {}
    if path.is_symlink() or not path.is_file():
        raise ValueError(f"{path} is not a regular file. Write to another folder.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sound = found["sha256"] == compute_manifest_digest(found)
    except (ValueError, KeyError, TypeError):
        sound = False
    if not sound:
        raise ValueError(f"{path} is damaged. Write to another folder.")
    return found


def _check_schema(folder: pathlib.Path, found: dict, files: int) -> pyarrow.Schema:
    """Validate the row counts in a run description, and return the schema."""
    rows = found.get("rows")
    right = isinstance(rows, list) and len(rows) == files
    try:
        if right and all(type(count) is int and count >= 0 for count in rows):
            return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"])))
    except (KeyError, TypeError, ValueError, OSError):  # the schema is invalid
        pass
    raise ValueError(f"{folder / BULK_NAME} is damaged. Write to another folder.")


def _check_settings(folder: pathlib.Path, found: dict, settings: dict) -> None:
    for name, value in settings.items():
        if found.get(name) != value:
            raise ValueError(
                f"{folder} contains predictions from another run: {name} was {found.get(name)}, "
                f"but is {value} now. Write to a different folder, or delete this folder."
            )
