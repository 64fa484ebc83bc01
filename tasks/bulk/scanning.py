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
                if value is not None and type(value) not in kinds[name]:
                    _check_plain(value, name, location, path)
                    kinds[name].add(type(value))
        counts.append(count)
        schemas.append(_types(path, kinds))
    if sample is None:
        raise ValueError(f"There is no text in {', '.join(map(str, paths))}.")
    try:
        kept = pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise ValueError(f"The files have other types for one column: {error}.") from None
    return Scan(counts, without_text, sample, kept)


def _check_plain(value, name: str, location: str, path: pathlib.Path) -> None:
    if not is_parquet(path) and type(value) not in (str, int, float, bool):
        raise ValueError(
            f"{location} of {name!r} is {with_type(value)}. Expected texts, numbers or True and "
            "False in a column to keep."
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
