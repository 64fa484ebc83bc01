"""Documents of an index, with texts, ids and fields for filters.

Fields are filtered with NumPy arrays instead of Arrow tables. Filters in Arrow are not faster,
importing pyarrow takes longer than a whole search, and Arrow does not support integers with more
than 64 bits. Arrow would only save a few lines in `Documents.where`, because lists, rows and tables
from other libraries have to be read and checked in any case.

Comments use these letters for shapes: N documents.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.missing import is_missing
from encoder_zoo.common.wording import (
    find_close_names,
    invalid,
    quote,
    quote_with_type,
    suggest_names,
)
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain
from encoder_zoo.tasks.retrieval.ranking import check_texts

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

Id = str | int
Where = Mapping[str, object] | Callable[[Mapping[str, Any]], bool]
SCALARS = (str, int, float, bool)
MAX_SHOWN = 60  # maximum length of a value in an error message
MAX_INTEGER_BITS = 256  # maximum size of an integer: a checksum with 32 bytes
CHUNKING_BATCH_SIZE = 1000  # documents
MIN_FLOAT32_DIGITS = 14  # A float32 such as 0.10000000149011612 has more digits than people write.


# Functions that return a mask of the values that meet a condition. "$ne" and "$nin" are negated
# later.
OPERATORS = {
    **dict.fromkeys(
        ("$eq", "$ne", "$in", "$nin"), lambda values, wanted: map(set(wanted).__contains__, values)
    ),
    "$gt": lambda values, wanted: values > wanted[0],
    "$gte": lambda values, wanted: values >= wanted[0],
    "$lt": lambda values, wanted: values < wanted[0],
    "$lte": lambda values, wanted: values <= wanted[0],
}


class Contexts(NamedTuple):
    """The documents that were split into chunks, for late chunking.

    Late chunking embeds a whole document, and then averages the token vectors of each chunk.

    Attributes:
        texts: List of document texts.
        index: Int64 array of shape (N,). Index of the text that each chunk belongs to, in ascending
            order.
        spans: Int64 array of shape (N, 2). Start and end offset of each chunk in its text, in
            characters.
    """

    texts: list[str]
    index: np.ndarray
    spans: np.ndarray


@dataclasses.dataclass(eq=False)
class Column:
    """The values of a field in all documents. Each item of a list is a separate value.

    Attributes:
        rows: Integer array of shape (M,). Index of the document of each value, in ascending order.
        values: Object array of shape (M,).
    """

    rows: np.ndarray
    values: np.ndarray

    @functools.cached_property
    def is_single(self) -> bool:
        """Return whether the values come from a float32 column.

        This is assumed if float32 can represent all values, and some values have more digits than
        people would write.
        """
        if _get_kind(self.values[0]) is not float:
            return False
        found = self.values.astype("float64")
        with np.errstate(over="ignore"):
            fits = bool((found == found.astype("float32")).all())
        return fits and any(len(repr(value)) >= MIN_FLOAT32_DIGITS for value in found.tolist())

    def convert_values(self, name: str, given: list) -> list:
        """Check the values in a condition, and convert them to the type of the column.

        Args:
            name: String. Name of the field for error messages.
            given: List of values to convert.
        """
        kind, values = _get_kind(self.values[0]), []
        for value in given:
            if is_missing(value):
                cure = "a value. To find missing values, use lambda fields: NAME not in fields"
                raise invalid(name, value, cure)
            value = _convert_scalar(value)
            if _get_kind(value) is not kind:
                raise invalid(name, value, f"{kind.__name__}, as in the documents")
            if isinstance(value, int):
                _check_storable(value, name)
            values.append(value)
        if self.is_single:  # as NumPy and pandas compare a float32 column with Python floats
            with np.errstate(over="ignore"):
                return [float(np.float32(value)) for value in values]
        return values


@dataclasses.dataclass(eq=False, repr=False)
class Documents:
    """Texts, ids and fields for N documents.

    Args:
        texts: Optional list of N strings.
        ids: Optional list of N unique ids.
        metadata: Optional list of N dicts with the fields of each document. Values can be strings,
            numbers, booleans or lists. All values of a field must have the same type.
        contexts: Optional `Contexts`, if the texts are chunks for late chunking.

    Attributes:
        texts, ids, metadata, contexts: See the arguments.

    Example:
        >>> years = [{"year": 1990}, {"year": 2024}, {}]
        >>> documents = Documents.create(["a", "b", "c"], ids=["x", "y", "z"], metadata=years)
        >>> documents.where({"year": [2023, 2024]}).tolist(), documents.find_indices(["z"])
        ([1], [2])
        >>> documents.describe_document(1)
        {'id': 'y', 'text': 'b', 'metadata': {'year': 2024}}
    """

    texts: list[str] | None
    ids: list[Id] | None = None
    metadata: list[dict[str, Any]] | None = None
    contexts: Contexts | None = None

    def convert_fields(self) -> Documents:
        """Check the ids and fields, and convert them to plain Python values.

        Raises:
            ValueError: If an id is not unique, or if the values of a field have different types.
        """
        ids = None if self.ids is None else _convert_ids(self.ids)
        metadata = None if self.metadata is None else _check_metadata(self.metadata)
        return Documents(self.texts, ids, metadata)

    @classmethod
    def create(
        cls,
        documents: object,
        ids: object = None,
        metadata: object = None,
        text_column: str | None = None,
    ) -> Documents:
        """Create documents from texts, a table or a list of dicts.

        Args:
            documents: List, array or column of texts. For a table or a list of dicts, the column
                "id" is used for the ids, and all other columns for fields. The BEIR format {id:
                text} or {id: {"title", "text"}} is also supported. Titles are added as fields, and
                prepended to the texts.
            ids: Optional list of strings or integers. Document ids. For a table, also the name of a
                column.
            metadata: Optional list of dicts with the fields of each document, or a table. If
                `documents` is a table, also a list of column names. By default, all other columns
                are fields.
            text_column: String. Name of the text column, for tables. Defaults to "text".

        Raises:
            ValueError: If `text_column` does not exist, or if `documents`, `ids` and `metadata`
                differ in length.
        """
        if isinstance(documents, Documents):
            given = {"ids": ids, "metadata": metadata, "text_column": text_column}
            for name in (name for name, value in given.items() if value is not None):
                raise ValueError(
                    f"The documents already contain {name}. Remove the argument `{name}`."
                )
            return documents
        if isinstance(documents, os.PathLike | str):
            cure = "a list of strings or a table. To load a saved index, use load_index(folder)"
            raise invalid("documents", documents, cure)
        documents = convert_to_plain(documents)
        if _is_beir(documents, text_column):
            documents = [_read_beir_row(*item, text_column) for item in documents.items()]
        if isinstance(documents, list | tuple) and documents and isinstance(documents[0], Mapping):
            documents = _make_table(documents)
        if isinstance(documents, Mapping):
            documents, ids, metadata = _read_table(documents, ids, metadata, text_column)
        elif text_column is not None:
            raise ValueError(
                f"text_column={text_column!r} requires a table, but `documents` is a "
                f"{type(documents).__name__}. Pass a table, or remove `text_column`."
            )
        texts = check_texts(documents, "documents")
        return cls.from_columns(texts, ids, metadata, len(texts), "documents")

    @classmethod
    def from_columns(
        cls, texts: list[str] | None, ids: object, metadata: object, count: int, name: str
    ) -> Documents:
        """Create documents from columns with one value per document.

        Args:
            texts: Optional list of N checked texts.
            ids, metadata: See `create`. Can be None.
            count: Integer. The number of documents, N.
            name: String. What is counted, for error messages, such as "vectors".

        Raises:
            ValueError: If a column does not have N values.
        """
        ids, metadata = convert_to_plain(ids), convert_to_plain(metadata)
        if isinstance(metadata, Mapping):
            metadata = _convert_to_rows(metadata)
        for column, values in (("texts", texts), ("ids", ids), ("metadata", metadata)):
            if isinstance(values, str):
                raise ValueError(
                    f"{column} is {quote(values)}, but {name} is not a table. Expected a list with "
                    "one value per document."
                )
            if values is not None and len(_check_ordered(values, column)) != count:
                plural = "metadata rows" if column == "metadata" else column
                raise ValueError(
                    f"Received {len(values)} {plural} for {count} {name}. Expected the same number."
                )
        return cls(texts, ids, metadata).convert_fields()

    def __len__(self) -> int:
        return next((len(column) for column in self.columns if column is not None), 0)

    @property
    def columns(self) -> tuple[list | None, ...]:
        """Return the texts, the ids and the fields."""
        return self.texts, self.ids, self.metadata

    def describe_document(self, index: int) -> dict[str, Any]:
        """Return a document as a dict with "text" and, if available, "id" and "metadata"."""
        found = {} if self.ids is None else {"id": self.ids[index]}
        found["text"] = None if self.texts is None else self.texts[index]
        if self.metadata is not None:
            found["metadata"] = _copy_fields(self.metadata[index])
        return found

    def drop_texts(self) -> Documents:
        """Return a copy without texts, for an index that does not keep texts."""
        return Documents(None, self.ids, self.metadata)

    def join(self, others: Documents) -> Documents:
        """Return a copy with more documents at the end.

        Raises:
            ValueError: If only one of the two collections has ids or metadata, if an id is not
                unique, or if the values of a field have different types.
        """
        for name in ("ids", "metadata"):
            own, further = getattr(self, name), getattr(others, name)
            if (own is None) != (further is None):
                have, lack = ("have", "have none") if further is None else ("have no", "have some")
                raise ValueError(
                    f"The documents of the index {have} {name}, but the new documents {lack}. "
                    f"Pass `{name}` for all documents or for no document."
                )
        pairs = zip(self.columns, others.columns, strict=True)
        columns = (None if own is None else [*own, *(further or [])] for own, further in pairs)
        joined = Documents(*columns)
        _check_ids(joined.ids or [])
        _check_types(joined.metadata or [])
        return joined

    def match_columns(self, others: Documents) -> Documents:
        """Return a copy without the columns (ids or fields) that are missing in `others`."""
        ids = None if others.ids is None else self.ids
        metadata = None if others.metadata is None else self.metadata
        return Documents(self.texts, ids, metadata, self.contexts)

    def take(self, indices: Iterable[int]) -> Documents:
        """Select documents by index, in the given order."""
        indices = list(indices)
        return Documents(*(None if c is None else [c[i] for i in indices] for c in self.columns))

    def replace_documents(self, indices: Sequence[int], others: Documents) -> Documents:
        """Replace documents by index. The fields are kept if `others` has no metadata."""
        texts = None if self.texts is None else list(self.texts)
        metadata = None if self.metadata is None else list(self.metadata)
        if others.metadata is not None and metadata is None:
            raise ValueError(
                "The documents of the index have no metadata, but the new documents have "
                "metadata. Pass `metadata` for all documents or for no document."
            )
        for number, i in enumerate(indices):
            if texts is not None:
                texts[i] = others.texts[number]
            if others.metadata is not None:
                metadata[i] = others.metadata[number]
        if others.metadata is not None:
            _check_types(metadata)
        return Documents(texts, self.ids, metadata)

    def find_indices(self, ids: object, chunks: bool = False) -> list[int]:
        """Look up document indices by id, in the given order.

        Args:
            ids: The id or ids to look up.
            chunks: Boolean. Whether the id of a chunked document selects all of its chunks.
                Defaults to False.

        Raises:
            ValueError: If an id is unknown, or if the documents have no ids.
        """
        if self.ids is None:
            raise ValueError("The documents of this index have no ids. Build it with ids=[...].")
        kind, found = type(self.ids[0]), []
        for one in map(_convert_scalar, _wrap_in_list(ids, "ids")):
            parts = self.chunk_indices.get(one) if type(one) in (str, int) else None
            if type(one) is kind and one in self._index_by_id:  # True is not the id 1
                found.append(self._index_by_id[one])
            elif parts and chunks:
                found += parts
            else:
                raise ValueError(
                    f"The index has no document with the id {quote(one)}."
                    f"{self._suggest_ids(one, parts)}"
                )
        return found

    def _suggest_ids(self, one: object, parts: list[int] | None) -> str:
        """Return a hint for the error message about an unknown id."""
        kind = type(self.ids[0])
        if parts:
            return (
                f" This document has {len(parts)} chunks. Pass all of them with "
                "index.update(embedder.chunks(documents))."
            )
        if type(one) is not kind:
            return f" The ids have the type {kind.__name__}, such as {self.ids[0]!r:.40}."
        return suggest_names(find_close_names(one, self.ids)) if kind is str else ""

    @functools.cached_property
    def _index_by_id(self) -> dict[Id, int]:
        return {one: i for i, one in enumerate(self.ids)}

    @functools.cached_property
    def chunk_indices(self) -> dict[Id, list[int]]:
        """Map the id of each chunked document to the indices of its chunks."""
        found: dict[Id, list[int]] = {}
        for i, (one, fields) in enumerate(zip(self.ids or (), self.metadata or (), strict=False)):
            owner = fields.get("document")
            if type(owner) in (str, int) and str(one).startswith(f"{owner}#"):
                found.setdefault(owner, []).append(i)
        return found

    def remove_and_append(self, indices: Sequence[int], others: Documents) -> Documents:
        """Remove documents by index, and add other documents at the end."""
        kept = np.delete(np.arange(len(self)), indices)
        if not len(kept):
            return others if self.texts is not None else others.drop_texts()
        return self.take(kept).join(others)

    def where(self, condition: Where) -> np.ndarray:
        """Return the indices of the documents that match a condition, as an int64 array.

        Args:
            condition: Dict or function. A dict maps each field to a value, a list of values, a dict
                with comparisons such as {"$gt": 300, "$lte": 500}, or a function of the value.
                `OPERATORS` lists the comparisons. A document matches if all conditions are true. If
                the value in a document is a list, the condition must be true for at least one item,
                or for all items if the operator is "$ne" or "$nin". A document without the field
                does not match. If `condition` is a function, it is called with a copy of the
                document's fields.

        Raises:
            ValueError: If a field is unknown, or if the type of a value does not match the field.
        """
        if self.metadata is None:
            raise ValueError(
                "`where` requires fields, but the documents have no fields. Build the index with "
                "metadata=[{...}, ...], or from a table."
            )
        if callable(condition):
            met = [bool(condition(_copy_fields(fields))) for fields in self.metadata]
            return np.flatnonzero(met)
        if not isinstance(condition, Mapping) or not condition:
            raise invalid(
                "where",
                condition,
                "a dict {field: value or values}, or a function of a document's fields",
            )
        found = np.ones(len(self), bool)
        for field, wanted in condition.items():
            found &= self._mark_matches(field, wanted)
        return np.flatnonzero(found)

    def _mark_matches(self, field: str, wanted: object) -> np.ndarray:
        """Return a mask (N,) of the documents that match the condition on a field."""
        if field not in self._fields:
            cure = ""
            if str(field).startswith("$"):
                cure = " For other logic, pass a function of a document's fields instead of a dict."
            hint = suggest_names(find_close_names(str(field), self._fields))
            raise ValueError(
                f"`where`: the documents have no field {field!r:.{MAX_SHOWN}}.{hint} "
                f"Their fields are {', '.join(self._fields)}.{cure}"
            )
        column = self._fields[field]
        if callable(wanted):
            return self._mark_values(column, (bool(wanted(value)) for value in column.values))
        if not isinstance(wanted, Mapping):
            wanted = {"$in": _list_values(wanted)}
        elif not wanted or wanted.keys() - set(OPERATORS):
            known = f"operators from {', '.join(OPERATORS)}, such as {{'$gt': 300}}, or a function"
            raise invalid(f"`where`: the condition for the field {field!r}", wanted, known)
        met = np.ones(len(self), bool)
        for operator, value in wanted.items():
            several = operator in ("$in", "$nin")
            if several != _is_list(value):
                expected = "a list of values" if several else "one value"
                raise invalid(
                    f"`where`: the operand of {operator} for the field {field!r}", value, expected
                )
            values = column.convert_values(f"where: {field!r}", _list_values(value))
            found = self._mark_values(column, OPERATORS[operator](column.values, values))
            if operator in ("$ne", "$nin"):
                found = self._mark_values(column, np.ones(len(column.rows))) & ~found
            met &= found
        return met

    def _mark_values(self, column: Column, met: Iterable[object]) -> np.ndarray:
        """Return a mask (N,) of the documents with at least one value that matches."""
        found = np.zeros(len(self), bool)
        found[column.rows[np.fromiter(met, bool, len(column.rows))]] = True
        return found

    @functools.cached_property
    def _fields(self) -> dict[str, Column]:
        """Map the name of each field to its column."""
        columns: dict[str, tuple[list[int], list]] = {}
        for i, row in enumerate(self.metadata or ()):
            for field, value in row.items():
                rows, values = columns.setdefault(field, ([], []))
                for one in value if isinstance(value, list) else [value]:
                    rows.append(i)
                    values.append(one)
        return {
            field: Column(np.array(rows), np.array(values, object))
            for field, (rows, values) in columns.items()
            if rows
        }

    def get_group_values(self, field: str, among: np.ndarray | None = None) -> list:
        """Return a field's value for each document, for `group_by`.

        Args:
            field: String. Name of the field.
            among: Optional integer array. Indices of the documents to search. If None, all
                documents are searched.

        Raises:
            ValueError: If `field` is unknown, or if a document does not have exactly one value.
        """
        if field not in self._group_cache:
            rows = self.metadata or [{}] * len(self)
            values = [row.get(field) for row in rows]
            if not any(value is not None for value in values):
                known = list(dict.fromkeys(name for row in rows for name in row))
                raise ValueError(
                    "`group_by`: the documents have no field "
                    f"{field!r:.{MAX_SHOWN}}.{suggest_names(find_close_names(field, known))}"
                )
            without = np.flatnonzero([isinstance(value, list | None) for value in values])
            self._group_cache[field] = values, without
        values, without = self._group_cache[field]
        lacking = without if among is None else np.intersect1d(without, among)
        for i in lacking.tolist():
            raise invalid(f"`group_by`: {field!r} of document {i}", values[i], "one value")
        return values

    def find_group_starts(self, field: str) -> dict[Any, int]:
        """Map each value of a field to the index of its first document."""
        values = self.get_group_values(field)
        return dict(zip(reversed(values), reversed(range(len(values))), strict=True))

    def find_group_indices(self, field: str, values: object) -> list[int]:
        """Return the index of the first document with each value.

        Raises:
            ValueError: If a value does not occur in any document, or if `field` is invalid. See
                `get_group_values`.
        """
        firsts = self.find_group_starts(field)
        values = [_convert_scalar(value) for value in _wrap_in_list(values, field)]
        for value in values:
            if value not in firsts:
                known = firsts if isinstance(value, str) else ()
                near = suggest_names(find_close_names(str(value), known))
                raise ValueError(
                    f"The index has no document with {field}={value!r:.{MAX_SHOWN}}.{near}"
                )
        return [firsts[value] for value in values]

    @functools.cached_property
    def _group_cache(self) -> dict[str, tuple[list, np.ndarray]]:
        """Map a field to its values, and the indices of documents without exactly one value."""
        return {}

    def split_into_chunks(
        self, tokenizer: Tokenizer, length: int, overlap: int = 0, late: bool = False
    ) -> Documents:
        """Split the documents into chunks of at most `length` tokens, between words.

        Args:
            tokenizer: A tokenizer of this package.
            length: Integer. Maximum number of tokens per chunk.
            overlap: Integer. Maximum overlap between adjacent chunks, in tokens. The overlap starts
                at a word's beginning. Defaults to 0.
            late: Boolean. Whether to add `contexts` for late chunking. Defaults to False.

        Returns:
            `Documents` with one entry per chunk. A chunk has the fields of its document, and three
            additional fields: "document" is the id or index of the document, and "start" and "end"
            are character offsets in its text. If the documents have ids, the chunks have ids such
            as "a17#0".

        Raises:
            ValueError: If the metadata already has a field "document", "start" or "end".

        Example:
            >>> from encoder_zoo import BertTokenizer
            >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "c"]
            >>> documents = Documents.create(["a c ab c"])
            >>> chunks = documents.split_into_chunks(BertTokenizer(words), 3, overlap=1)
            >>> chunks.texts
            ['a c', 'c ab', 'c']
            >>> chunks.metadata[1]
            {'document': 0, 'start': 2, 'end': 6}
        """
        for field in sorted({"document", "start", "end"} & set(self._fields)):
            raise ValueError(
                f"`metadata` has the field {field!r}, but chunks need a field with this name. "
                "Rename the field."
            )
        texts, ids, metadata, index = [], [], [], []
        for first in range(0, len(self), CHUNKING_BATCH_SIZE):
            some = self.texts[first : first + CHUNKING_BATCH_SIZE]
            _, starts, ends = tokenizer.tokenize_with_offsets(some)
            rows = zip(some, starts.to_list(), ends.to_list(), strict=True)
            for i, (text, begins, stops) in enumerate(rows, first):
                cuts = list(_find_chunk_spans(begins, stops, length, overlap)) if begins else []
                cuts = [(start, end) for start, end in cuts if text[start:end].strip()]
                cuts = cuts or [(0, len(text))]  # the tokenizer returns no tokens
                owner = i if self.ids is None else self.ids[i]
                fields = {} if self.metadata is None else self.metadata[i]
                for number, (start, end) in enumerate(cuts):
                    texts.append(text[start:end])
                    ids.append(f"{owner}#{number}")
                    index.append(i)
                    metadata.append({**fields, "document": owner, "start": start, "end": end})
        spans = np.array([(fields["start"], fields["end"]) for fields in metadata])
        contexts = Contexts(self.texts, np.array(index), spans) if late else None
        return Documents(texts, None if self.ids is None else ids, metadata, contexts)

    # -- files ---------------------------------------------------------------------------------

    def make_json_lines(self) -> list[str] | None:
        """Return a JSON line per document, or None if there are neither ids nor fields."""
        columns = {"id": self.ids, "metadata": self.metadata}
        columns = {name: column for name, column in columns.items() if column is not None}
        rows = zip(*columns.values(), strict=True)
        lines = [json.dumps(dict(zip(columns, r, strict=True)), ensure_ascii=False) for r in rows]
        return lines if columns else None

    @classmethod
    def from_lines(
        cls, lines: Iterable[bytes] | None, texts: list[str] | None, path: object
    ) -> Documents:
        """Create documents from a file's lines.

        Args:
            lines: Optional iterable of bytes. JSON lines, as created by `make_json_lines`.
            texts: Optional list of N strings.
            path: Path of the file, for error messages.

        Raises:
            ValueError: If `lines` is empty, or if a line is not a valid document.
        """
        if lines is None:
            return cls(texts)
        rows: list[dict] = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict) or not row or row.keys() - {"id", "metadata"}:
                expected = "an object with 'id', 'metadata' or both, and no other fields"
                raise invalid(f"{path}: line {number}", line, expected)
            if rows and row.keys() != rows[0].keys():
                raise ValueError(
                    f"{path}: line {number} has {sorted(row)}. Expected {sorted(rows[0])}, as in "
                    "line 1."
                )
            rows.append(row)
        if not rows:
            raise ValueError(f"{path} is empty. Expected one document per line.")
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        try:
            return cls(texts, columns.get("id"), columns.get("metadata")).convert_fields()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _find_chunk_spans(
    starts: list[int], ends: list[int], length: int, overlap: int
) -> Iterator[tuple[int, int]]:
    """Yield the start and the end offset of each chunk.

    Args:
        starts, ends: Lists of integers. Character offsets of the tokens.
        length: Integer. Maximum number of tokens per chunk.
        overlap: Integer. Maximum overlap between adjacent chunks, in tokens.
    """
    count = len(starts)
    gaps = [1, *(start - end for start, end in zip(starts[1:], ends, strict=False))]

    def find_chunk_end(begin: int) -> int:
        """Return the end index (exclusive) of the chunk that starts at token `begin`."""
        stop = min(begin + length, count)
        if stop == count:
            return count
        # A word longer than a chunk is split between characters. A character can be several tokens.
        for least in (1, 0):
            for i in range(stop, begin, -1):
                if gaps[i] >= least:
                    return i
        return next((i for i in range(stop, count) if gaps[i] >= 0), count)

    begin, end = 0, find_chunk_end(0)
    while True:
        yield starts[begin], ends[end - 1]
        if end == count:
            return
        shared = range(max(begin + 1, end - overlap), end)
        # Before a long word, a chunk that starts in the overlap may not reach beyond the previous
        # chunk.
        begin = next((i for i in shared if gaps[i] > 0 and find_chunk_end(i) > end), end)
        end = find_chunk_end(begin)


def join_title_and_text(document: str | Mapping[str, str]) -> str:
    """Join the title and the text of a document in the BEIR format.

    Example:
        >>> documents = {"title": "Cats", "text": "They sleep."}, {"text": "Tax."}
        >>> tuple(map(join_title_and_text, documents))
        ('Cats They sleep.', 'Tax.')
    """
    if not isinstance(document, Mapping):
        return document
    return " ".join(part for part in (document.get("title"), document.get("text")) if part)


def _is_beir(documents: object, text_column: str | None) -> bool:
    """Return whether a dict is in the BEIR format, with ids as keys, and not a table."""
    if not isinstance(documents, Mapping):
        return False
    if isinstance(documents.get(text_column or "text"), str):
        raise invalid("documents", documents, "a list of rows, [row]")
    rows = Mapping if text_column else str | Mapping
    return any(isinstance(row, rows) for row in documents.values())


def _read_beir_row(key: Id, row: str | Mapping, text_column: str | None) -> dict:
    fields = row if isinstance(row, Mapping) else {}
    return (
        {**fields, "id": key}
        if text_column
        else {**fields, "id": key, "text": join_title_and_text(row)}
    )


def _read_table(table: Mapping, ids: object, metadata: object, text_column: str | None) -> tuple:
    """Split a table into texts, ids and metadata."""
    if not table:
        raise ValueError("`documents` is empty. Expected one or more texts.")
    name = "text" if text_column is None else text_column
    if name not in table:
        raise invalid(
            "text_column", text_column, f"one of the columns, {', '.join(map(repr, table))}"
        )
    of_ids = "id" if ids is None and "id" in table else ids if isinstance(ids, str) else None
    others = [column for column in table if column not in (name, of_ids)]
    metadata = convert_to_plain(metadata)
    if isinstance(metadata, str):
        raise invalid("metadata", metadata, f"a list of names, [{metadata!r}]")
    is_list = isinstance(metadata, list | tuple | np.ndarray)
    if is_list and all(isinstance(column, str) for column in metadata):
        metadata, others = None, list(metadata)
    for column in [*others, *([of_ids] if of_ids else [])]:
        if column not in table:
            raise ValueError(
                f"Unknown column {column!r}. The columns are {', '.join(map(repr, table))}."
            )
    if metadata is None and others:
        metadata = _convert_to_rows({column: table[column] for column in others})
    return table[name], table[of_ids] if of_ids else ids, metadata


def _convert_to_rows(columns: Mapping) -> list[dict]:
    """Convert a table to a list of dicts."""
    lists = {
        str(name): _check_ordered(convert_to_plain(values), f"The column {name!r}")
        for name, values in columns.items()
    }
    count = len(next(iter(lists.values()), []))
    for name, values in lists.items():
        if len(values) != count:
            raise ValueError(
                f"The column {name!r} has {len(values)} rows, but other columns have {count}."
            )
    return [{name: values[i] for name, values in lists.items()} for i in range(count)]


def _check_ordered(values: Any, name: str) -> Sequence:
    """Return a column unchanged. Raise a ValueError for unordered values, such as a set."""
    if isinstance(values, str | bytes | set | frozenset) or not hasattr(values, "__len__"):
        raise invalid(name, values, "a list with one value per document")
    return values


def _make_table(rows: Sequence) -> dict[str, list]:
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise invalid(f"documents[{i}]", row, "a dict, like the other documents")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _convert_ids(ids: Sequence) -> list[Id]:
    """Convert ids to strings or integers, and check that they are unique and have the same type."""
    found = []
    for i, one in enumerate(convert_to_plain(ids)):
        one = _convert_scalar(one)
        if not isinstance(one, Id) or isinstance(one, bool):
            raise invalid(f"ids[{i}]", one, "a string or an integer")
        _check_storable(one, f"ids[{i}]")
        found.append(one)
    _check_ids(found)
    return found


def _check_ids(ids: list[Id]) -> None:
    """Raise a ValueError if the ids are not unique or have different types."""
    first: dict[Id, int] = {}
    for i, one in enumerate(ids):
        if type(one) is not type(ids[0]):
            raise ValueError(
                f"ids[{i}] is {quote_with_type(one):.{MAX_SHOWN}}, but ids[0] is "
                f"{quote_with_type(ids[0]):.{MAX_SHOWN}}. Expected ids of the same type."
            )
        if first.setdefault(one, i) != i:
            raise ValueError(
                f"ids[{i}] is {one!r:.{MAX_SHOWN}}, the same as ids[{first[one]}]. Expected "
                "unique ids."
            )


def _check_metadata(metadata: Sequence) -> list[dict[str, Any]]:
    """Convert fields to plain values. Missing values (None, NaN) are dropped."""
    rows = []
    for i, row in enumerate(metadata):
        if not isinstance(row, Mapping):
            raise invalid(f"metadata[{i}]", row, "a dict of fields")
        plain_row = {}
        for field, value in row.items():
            if not isinstance(field, str):
                raise ValueError(
                    f"metadata[{i}] has the field {field!r}. Expected strings as field names."
                )
            check_encodable(field, f"metadata[{i}]: the field {field!a}")
            value = _convert_value(value, f"metadata[{i}]: the field {field!r}")
            if value is not None:
                plain_row[field] = value
        rows.append(plain_row)
    _check_types(rows)
    return rows


def _check_types(rows: list[dict[str, Any]]) -> None:
    """Raise a ValueError if a field's values have different types."""
    kinds: dict[str, tuple[int, type]] = {}
    for i, row in enumerate(rows):
        for field, value in row.items():
            for one in value if isinstance(value, list) else [value]:
                first, kind = kinds.setdefault(field, (i, _get_kind(one)))
                if _get_kind(one) is not kind:
                    raise ValueError(
                        f"metadata[{i}]: the field {field!r} is "
                        f"{quote_with_type(one):.{MAX_SHOWN}}, but in metadata[{first}] it is "
                        f"{kind.__name__}. Expected values of the same type."
                    )


def _convert_value(value: object, name: str):
    """Convert a value to a JSON type, or to None for missing values."""
    if isinstance(value, np.ndarray):
        value = value.tolist()  # an array without axes is a scalar
    if isinstance(value, tuple | set | frozenset):
        value = list(value)
    if isinstance(value, list):
        values = [_convert_value(one, name) for one in value]
        if any(isinstance(one, list | None) for one in values):
            raise invalid(name, value, "a list without nested lists or missing values")
        return values
    if is_missing(value):
        return None
    value = _convert_scalar(value)
    if not isinstance(value, SCALARS):
        raise invalid(
            name,
            value,
            "a string, number or bool, or a list of such values. Use str(...) to convert the value",
        )
    if isinstance(value, float) and math.isinf(value):
        raise invalid(name, value, "a finite number")
    _check_storable(value, name)
    return value


def _check_storable(value: object, name: str) -> None:
    """Raise a ValueError if a string or an integer cannot be stored in the JSON file."""
    if isinstance(value, str):
        check_encodable(value, name)
    elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise invalid(
            name, value, f"at most {MAX_INTEGER_BITS} bits. Use a string for larger numbers"
        )


def _convert_scalar(value: Any):
    """Convert a scalar to a plain Python value.

    NumPy scalars and subclasses of `str` and `int` are converted. Dates become strings in the ISO
    8601 format, which can be sorted by time.
    """
    if isinstance(value, np.datetime64):
        # A datetime64 in nanoseconds would become an integer.
        value = value.astype("datetime64[us]").item()
    elif isinstance(value, np.generic) and not isinstance(value, np.timedelta64):
        value = value.item()
    if isinstance(value, datetime.date):
        return _format_date(value)
    if isinstance(value, str):
        return str.__str__(value)  # str() would return the name of an enum member
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _format_date(value: datetime.date) -> str:
    """Format a date or a datetime in the ISO 8601 format.

    A datetime with a time zone is converted to UTC. If the time is midnight, it is omitted.

    Example:
        >>> dates = datetime.datetime(2024, 5, 1, 12, 30), datetime.date(2024, 5, 1)
        >>> tuple(map(_format_date, dates))
        ('2024-05-01T12:30:00', '2024-05-01')
    """
    if not isinstance(value, datetime.datetime):
        return value.isoformat()
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value.isoformat().removesuffix("T00:00:00")


def _copy_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a document's fields, including lists."""
    return {
        name: list(value) if isinstance(value, list) else value for name, value in fields.items()
    }


def _wrap_in_list(values: object, name: str) -> Iterable:
    """Return an iterable of values. A single value is wrapped in a list."""
    values = [values] if isinstance(values, Id | bytes | np.generic) else convert_to_plain(values)
    if not isinstance(values, Iterable):
        raise invalid(name, values, "a single value or a list")
    return values


def _is_list(wanted: object) -> bool:
    """Return whether a condition lists several values, instead of a single value."""
    if isinstance(wanted, np.ndarray):
        return wanted.ndim > 0
    return isinstance(wanted, Iterable) and not isinstance(wanted, str | bytes | Mapping)


def _list_values(wanted: object) -> list:
    """Return the values in a condition as a list."""
    if not _is_list(wanted):
        return [wanted[()] if isinstance(wanted, np.ndarray) else wanted]
    return list(wanted if isinstance(wanted, np.ndarray) else convert_to_plain(wanted))


def _get_kind(value: object) -> type:
    """Return the type of a value. All numbers have the type float, because 1 and 1.0 are equal."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)
