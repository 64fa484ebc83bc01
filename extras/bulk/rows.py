"""Read rows from text files (one row per line), CSV, JSON Lines and Parquet files."""

from __future__ import annotations

import csv
import glob
import gzip
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.common.reading import parse_json
from encoder_zoo.common.validation import Rule
from encoder_zoo.common.wording import quote
from encoder_zoo.extras.bulk.columns import pa

parquet = LazyModule("pyarrow.parquet", "Parquet needs the package pyarrow: `pip install pyarrow`.")
PARQUET_BATCH_ROWS = 1024  # number of Parquet rows to read at a time


def _has_paths(value) -> bool:
    one = (str, os.PathLike)
    return isinstance(value, one) or (len(value) > 0 and all(isinstance(v, one) for v in value))


Paths = Annotated[
    str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    Rule(_has_paths, "a path, a pattern such as 'texts/*.txt', or a list of paths and patterns"),
]


def find_files(paths: str | os.PathLike | Sequence) -> list[pathlib.Path]:
    """Find all files that match paths or patterns, without duplicates.

    For each pattern, files are sorted by name. `**` matches any number of folders.

    Raises:
        FileNotFoundError: If no file matches a path, or if a path matches a folder.
        ValueError: If a file has an unknown type.
    """
    found = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        is_pattern = not os.path.exists(path) and glob.has_magic(os.fspath(path))
        files = _find_matching_files(os.fspath(path)) if is_pattern else [os.fspath(path)]
        files = [pathlib.Path(file) for file in files]
        for file in files or [pathlib.Path(path)]:
            if not file.is_file():
                wrong = "is not a file" if file.exists() else "does not exist"
                raise FileNotFoundError(f"{file} {wrong}. Expected file paths or patterns.")
        found += files
    for file in found:
        _get_reader(file)
    return list(dict.fromkeys(found))


def _find_matching_files(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    if "**" in pattern:  # also matches folders
        found = [path for path in found if not os.path.isdir(path)]
    return found


def read_rows(path: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[str, Sequence]]:
    """Yield the values of the requested columns for each row of a file.

    Args:
        path: The path to a `.txt` file (one row per line, in a column named "text"), a `.csv` file
            (with column names in the first line), a `.tsv` file (with tabs and without quotes), a
            `.jsonl` file (one object per line) or a `.parquet` file. All types except `.parquet`
            can be compressed, such as `.jsonl.gz`.
        names: List of strings. The column names.

    Yields:
        Tuples (location, values). Error messages contain the location.

    Raises:
        ValueError: If a row cannot be read, or if one of the columns in `names` is missing.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "texts.csv"
        >>> _ = path.write_text('id,text\\n1,"Good, really"\\n2,Bad\\n')
        >>> [values for _, values in read_rows(path, ["text"])]
        [['Good, really'], ['Bad']]
    """
    return _get_reader(path)(path, names)


def is_parquet(path: pathlib.Path) -> bool:
    """Return whether a file is a Parquet file. Unlike in text files, its columns have types."""
    return path.suffix.lower() == ".parquet"


def _get_kind(path: pathlib.Path) -> str:
    """Return the suffix of a file name without .gz."""
    return (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()


def _get_reader(path: pathlib.Path) -> Callable:
    packed = path.suffix.lower() == ".gz"
    if _get_kind(path) not in FILE_READERS or (packed and is_parquet(path.with_suffix(""))):
        raise ValueError(
            f"{path} has an unknown file type. Expected {', '.join(FILE_READERS)}. All types "
            "except .parquet can be compressed (.gz)."
        )
    return FILE_READERS[_get_kind(path)]


def _read_lines(path: pathlib.Path) -> Iterator[str]:
    """Yield all lines of a UTF-8 text file, including line endings."""
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    number = 0
    with opener(path, "rb") as file:
        try:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: line {number} is not encoded as UTF-8: {error}.") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path} is damaged or truncated after line {number}: {error}"
            ) from None


def _read_text_rows(path: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[str, Sequence]]:
    _find_positions(path, names, ["text"])
    for row, line in enumerate(_read_lines(path)):
        yield f"{path}, row {row} (line {row + 1})", [line.rstrip("\r\n")] * len(names)


def _read_csv_rows(path: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[str, Sequence]]:
    csv.field_size_limit(2**31 - 1)  # for long texts
    is_tsv = _get_kind(path) == ".tsv"
    form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if is_tsv else {"strict": True}
    reader, row = csv.reader(_read_lines(path), **form), -1
    try:
        header = next(reader, [])
        positions = _find_positions(path, names, header)
        for row, values in enumerate(filter(None, reader)):  # without blank lines
            location = f"{path}, row {row} (line {reader.line_num})"
            if len(values) != len(header):
                raise ValueError(
                    f"{location} has {len(values)} fields. Expected {len(header)}, as in the first "
                    "line."
                )
            yield location, [values[position] for position in positions]
    except csv.Error as error:
        location = f"{path}, row {row + 1} (line {reader.line_num})"
        raise ValueError(f"{location} cannot be read as CSV: {error}.") from None


def _read_json_rows(path: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[str, Sequence]]:
    row = 0
    for number, line in enumerate(_read_lines(path), 1):
        if not line.strip():
            continue
        location = f"{path}, row {row} (line {number})"
        record = parse_json(line, location)
        if not isinstance(record, dict):
            raise ValueError(f"{location} is {quote(record)}. Expected a JSON object on each line.")
        missing = [name for name in names if name not in record]
        if missing:
            raise ValueError(
                f"{location} has no {missing[0]!r}, only {', '.join(record)}. Expected this key in "
                "every row."
            )
        for name in names:
            if isinstance(record[name], str):
                check_encodable(record[name], f"{location}: {name!r}")
        yield location, [record[name] for name in names]
        row += 1


def _read_parquet_rows(path: pathlib.Path, names: Sequence[str]) -> Iterator[tuple[str, Sequence]]:
    wanted, row = list(dict.fromkeys(names)), 0
    try:
        with parquet.ParquetFile(path, buffer_size=2**20) as file:
            _find_positions(path, names, file.schema_arrow.names)
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=wanted):
                for values in zip(*(batch[name].to_pylist() for name in names), strict=True):
                    yield f"{path}, row {row}", values
                    row += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: row {row} cannot be read as Parquet: {error}") from None


FILE_READERS = {
    ".txt": _read_text_rows,
    ".csv": _read_csv_rows,
    ".tsv": _read_csv_rows,
    ".jsonl": _read_json_rows,
    ".parquet": _read_parquet_rows,
}


def _find_positions(path: pathlib.Path, names: Sequence[str], header: list[str]) -> list[int]:
    """Return the positions of the requested columns in the header of a file."""
    for name in names:
        if name not in header:
            raise ValueError(
                f"{path} has no column {name!r}. The columns are {', '.join(map(str, header))}."
            )
    return [header.index(name) for name in names]
