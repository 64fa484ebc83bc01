"""A first pass over files: every row is read and checked, before anything is answered."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from encoder_zoo.common.wording import with_type
from encoder_zoo.tasks.bulk.columns import pa
from encoder_zoo.tasks.bulk.rows import is_parquet, parquet, rows_of
from encoder_zoo.tasks.bulk.task_method import has_text

if TYPE_CHECKING:
    import pyarrow

EXACT = 2**53  # up to which every integer is a float of 64 bits
INTEGERS = range(-(2**63), 2**63)  # of 64 bits


class Scan(NamedTuple):
    """Findings of the first pass over files.

    Attributes:
        rows: of each file.
        without_text: number of rows that have no text.
        sample: the values of the first row that has.
        kept: types of the kept columns.
    """

    rows: list[int]
    without_text: int
    sample: Sequence
    kept: pyarrow.Schema


def scan(paths: Sequence[pathlib.Path], names: Sequence[str], keep: Sequence[str]) -> Scan:
    """Read files once, and raise an error for the first row that cannot be answered.

    Args:
        paths: of the files.
        names: of the columns with texts.
        keep: of the columns that are copied.

    Raises:
        ValueError: "a.jsonl, row 3 (line 4) of 'text' is 7 (int). ...", "There is no text ..."
    """
    counts, without_text, sample, schemas = [], 0, None, []
    largest = {}  # column: (integer, its location)
    for path in paths:
        count, kinds = 0, {name: set() for name in keep}
        for location, values in rows_of(path, [*names, *keep]):
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
                if type(value) is int and abs(value) > abs(largest.get(name, (EXACT,))[0]):
                    largest[name] = value, location
        counts.append(count)
        schemas.append(_types(path, kinds))
    if sample is None:
        raise ValueError(f"There is no text in {', '.join(map(str, paths))}.")
    try:
        kept = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise ValueError(f"The files have other types for one column: {error}.") from None
    for name, (value, location) in largest.items():
        _check_fits(value, name, location, kept.field(name).type)
    return Scan(counts, without_text, sample, kept)


def _check_plain(value, name: str, location: str) -> None:
    if type(value) not in (str, int, float, bool):
        raise ValueError(
            f"{location} of {name!r} is {with_type(value)}. Expected texts, numbers or True and "
            "False in a column to keep."
        )
    if type(value) is int and value not in INTEGERS:
        raise ValueError(
            f"{location} of {name!r} is {value}. Expected an integer of 64 bits in a column to "
            "keep. Write larger ones as texts."
        )


def _check_fits(value: int, name: str, location: str, kind: pyarrow.DataType) -> None:
    """Raise an error if a column, whose type all rows and files decide, cannot hold an integer."""
    if pa.types.is_floating(kind) or (pa.types.is_int64(kind) and value not in INTEGERS):
        raise ValueError(
            f"{location} of {name!r} is {value}, which {kind} of the whole column cannot hold. "
            "Expected integers up to 2**53 beside floats, and up to 2**63 beside integers. Write "
            "the column as texts."
        )


def _types(path: pathlib.Path, kinds: dict[str, set]) -> pyarrow.Schema:
    """Return the types of the kept columns of a file."""
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
            raise ValueError(f"{path}: {name!r} holds {words}. Expected one type.")
    return pa.schema([(name, types[frozenset(found)]) for name, found in kinds.items()])
