"""Convert rows from annotation tools and datasets to texts with spans, tags or labels.

The tool is inferred from the row keys. Rows without an annotation field raise an error, because a
missing annotation is different from an empty annotation.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from encoder_zoo.common.missing import is_missing
from encoder_zoo.common.reading import convert_read_errors, read_field
from encoder_zoo.common.wording import invalid, quote, quote_with_type
from encoder_zoo.tasks.preprocessing.columns import (
    convert_spans,
    convert_to_plain,
    get_reference,
    is_doc,
    is_span,
    list_table_columns,
    name_classes,
    remove_format,
)

logger = logging.getLogger("encoder_zoo")

Kind = Literal["spans", "tags", "labels"]
ANNOTATION_KINDS: tuple[Kind, ...] = ("spans", "tags", "labels")

TEXT_KEYS = ("text", "data", "sentence", "content")
WORD_KEYS = ("tokens", "words")
TAGS = ("ner_tags", "tags", "ner", "labels", "label")  # the first key with one tag per word is used
SPANS = ("spans", "entities", "label", "labels", "annotations", "ner")
LABEL_KEYS = ("label", "labels", "accept", "cats", "category", "categories")
# Field names in spans.
START_KEYS, END_KEYS = ("start", "start_offset", "begin"), ("end", "end_offset")
LABEL = ("label", "labels", "type", "tag", "entity", "entity_group", "hypertextlabels")
# Answers in Prodigy for which a row is dropped.
DROPPED_ANSWERS = {"reject": "rejected", "ignore": "ignored"}
# Prodigy interfaces that omit "spans" for texts without spans.
SPANS_OF_PRODIGY = ("ner", "ner_manual", "spans", "spans_manual")

EXPECTED_ROWS = (
    "Expected rows of doccano, Label Studio, Prodigy or spaCy, or a dataset with tokens and tags "
    "or with text and label. For other formats, pass texts and annotations separately: "
    "fit(texts, [[(start, end, label), ...], ...]), fit(words, tags) or fit(texts, labels)."
)


NO_TEXT = " If one of the keys contains the text, pass it: read_annotations(..., text_key=...)."


class Annotations(NamedTuple):
    """Texts and annotations, which can be passed to `fit`, `evaluate` and `validation_data`.

    Attributes:
        x: List of texts, or list of lists of words for tags.
        y: List with one annotation per text. Each annotation is a list of `{"start", "end",
            "label"}`, a list of tags, a label, or a list of labels.
    """

    x: list
    y: list


class Row(NamedTuple):
    """The text and the annotations of a row. Missing values are None.

    Attributes:
        text: Optional string.
        words: Optional list of words.
        spans: Optional list of `{"start", "end", "label"}`.
        tags: Optional list with one tag per word.
        labels: Optional list of text labels.
        keys: Dict mapping attributes to row keys, such as `{"text": "sentence"}`.
        related: Boolean. Whether the row also contains relations between spans.
    """

    text: str | None = None
    words: list[str] | None = None
    spans: list[dict] | None = None
    tags: list | None = None
    labels: list | None = None
    keys: Mapping[str, str] = {}
    related: bool = False


class NotAnnotated(NamedTuple):
    """A row that is dropped, for example because an annotator skipped the text.

    Attributes:
        why: String. The reason, which is shown in a log message, such as "skipped".
    """

    why: str


def is_annotated(x: object) -> bool:
    """Return whether an object is `Annotations`, a dataset or a list of annotated rows.

    Example:
        >>> [is_annotated(x) for x in ([{"text": "Hm", "label": []}], ["Hm"], [("a", "b")])]
        [True, False, False]
    """
    if isinstance(x, Annotations) or (hasattr(x, "features") and list_table_columns(x) is not None):
        return True
    if not isinstance(x, list) or not x:
        return False
    first = get_reference(x[0])
    return is_doc(first) or isinstance(first, dict) or _is_pair(first)


def _is_pair(row: object) -> bool:
    """Return whether a value is a pair in spaCy 2 format, (text, {"entities": [...]})."""
    is_pair = isinstance(row, tuple | list) and len(row) == 2
    return is_pair and isinstance(row[0], str) and isinstance(row[1], dict)


def read_rows(
    x: object, kinds: Sequence[Kind], classes: Sequence[str] | None, several: bool | None = None
) -> Annotations | None:
    """Extract the annotations if `x` contains annotated rows. Otherwise, return None."""
    return extract_annotations(x, kinds, classes, several) if is_annotated(x) else None


def extract_annotations(
    rows: object,
    kinds: Sequence[Kind] = ANNOTATION_KINDS,
    classes: Sequence[str] | None = None,
    several: bool | None = None,
    text_key: str | None = None,
) -> Annotations:
    """Extract the annotations from rows.

    Args:
        rows: List of rows, or dataset. See `read_annotations`.
        kinds: Tuple of strings. The annotation kinds to look for. Defaults to all kinds.
        classes: Optional list of strings. The class names of the task. If a dataset has different
            names but the same number of classes, the class ids are used.
        several: Optional boolean. Whether to return a list of labels for each text. If None, lists
            will be returned unless all texts have exactly one label.
        text_key: Optional string. Key of the text in each row. If None, common keys such as "text"
            are tried.

    Raises:
        ValueError: If annotations are missing or invalid. See `read_annotations`.
    """
    if isinstance(rows, Annotations):
        return rows
    read, left_out, of_tasks = [], [], {}
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise ValueError(f"`rows` is {quote_with_type(rows)}. {EXPECTED_ROWS}")
    for number, row in enumerate(_convert_to_records(rows, classes)):
        with convert_read_errors(f"Row {number}", EXPECTED_ROWS):
            found = _parse_row(row, number, text_key)
        if isinstance(found, Row) and (task := _get_task_id(row)):
            found = _drop_repeated(found, number, of_tasks.setdefault(task, (number, found)))
        (left_out if isinstance(found, NotAnnotated) else read).append((number, found))
    _report_dropped(left_out, len(read))
    related = [number for number, found in read if found.related]
    if related:
        logger.warning(
            "Ignored relations between spans in %d rows. The first is row %d.",
            len(related),
            related[0],
        )
    if not read and not left_out:
        raise ValueError(f"`rows` is empty. {EXPECTED_ROWS}")
    if not read:
        raise ValueError(
            f"None of the {len(left_out)} rows has a usable annotation. {EXPECTED_ROWS}"
        )
    kind = _find_kind(read, rows, kinds)
    _report_repeated(read, kind)
    inputs = "words" if kind == "tags" else "text"
    y = [(number, getattr(found, kind)) for number, found in read]
    values = _convert_labels(y, several) if kind == "labels" else [value for _, value in y]
    keys = read[0][1].keys
    if keys:
        level = logging.INFO if isinstance(rows, list) else logging.WARNING
        roles = f"{inputs} {keys.get(inputs)!r}, {kind} {keys.get(kind)!r}"
        logger.log(level, "Columns of the rows: %s.", roles)
    return Annotations([getattr(found, inputs) for _, found in read], values)


def _convert_to_records(rows: object, classes: Sequence[str] | None) -> Sequence:
    """Convert a dataset to a list of dicts with class names instead of class ids.

    Other rows are returned unchanged.
    """
    if getattr(rows, "features", None) is None:
        return rows
    if not hasattr(rows, "__len__"):
        raise ValueError(
            f"{type(rows).__name__} streams its rows, which is not supported. Load the data into "
            "memory first: Dataset.from_list(list(dataset), features=dataset.features)."
        )
    rows = remove_format(rows)
    columns = {name: name_classes(rows[name], classes) for name in list_table_columns(rows)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _get_task_id(row: object) -> tuple | None:
    """Return (key, id) of the text in a Label Studio or Prodigy row, or None for other rows."""
    if isinstance(row, Mapping):
        for name, key in (("annotation_id", "id"), ("_input_hash", "_input_hash")):
            if name in row and key in row:
                return key, repr(row[key])
    return None


def _drop_repeated(row: Row, number: int, first: tuple[int, Row]) -> Row | NotAnnotated:
    """Replace a row by `NotAnnotated` if it repeats the annotations of an earlier row.

    `first` is the first row with the same text, as (row index, `Row`).

    Raises:
        ValueError: If `row` and `first` have different annotations.
    """
    if first[0] == number:
        return row
    for found in ANNOTATION_KINDS:
        theirs, own = getattr(first[1], found), getattr(row, found)
        own, theirs = (v if v is None else sorted(map(str, v)) for v in (own, theirs))
        if own != theirs:
            raise ValueError(
                f"Rows {first[0]} and {number} have the same text, {row.text or row.words!r:.60}, "
                "but different annotations. Keep one row for each text."
            )
    return NotAnnotated("repeated")


def _report_dropped(left_out: list[tuple[int, NotAnnotated]], read: int) -> None:
    if left_out:
        counts: dict[str, int] = {}
        for _, row in left_out:
            counts[row.why] = counts.get(row.why, 0) + 1
        logger.warning(
            "Dropped %d of %d rows: %s. The first is row %d.",
            len(left_out),
            len(left_out) + read,
            ", ".join(f"{count} {why}" for why, count in counts.items()),
            left_out[0][0],
        )


def _report_repeated(read: list[tuple[int, Row]], kind: Kind) -> None:
    """Log a warning if rows with the same text have different annotations."""
    first: dict[str, tuple[int, str]] = {}
    pairs = []
    for number, row in read:
        value = repr(getattr(row, kind))
        other, known = first.setdefault(row.text or repr(row.words), (number, value))
        pairs += [(other, number)] if known != value else []
    if pairs:
        logger.warning(
            "%d rows have the same text as another row, but different annotations. The first are "
            "rows %d and %d.",
            len(pairs),
            *pairs[0],
        )


def _find_kind(read: list[tuple[int, Row]], rows: object, kinds: Sequence[Kind]) -> Kind:
    """Infer the annotation kind from all rows."""
    found = [kind for kind in kinds if all(getattr(row, kind) is not None for _, row in read)]
    # An empty list can be a list of spans or labels. Rows with annotations determine the kind.
    filled = [k for k in found if any(len(getattr(row, k)) for _, row in read)]
    if len(filled) == 1 or (not filled and len(found) == 1):
        return (filled or found)[0]
    if found:
        raise ValueError(
            f"The rows contain several kinds of annotations: {' and '.join(found)}. Choose one "
            f"kind, for example read_annotations(..., kind={found[0]!r})."
        )
    for number, row in read:
        if row.labels is not None and len(row.labels) == 1 and is_missing(row.labels[0]):
            raise ValueError(
                _describe_missing_annotation(number, row.keys.get("labels"), row.labels[0])
            )
    number, row = min(
        read, key=lambda pair: sum(getattr(pair[1], kind) is not None for kind in kinds)
    )
    for other, last in read:
        kind = next((k for k in kinds if getattr(row, k) is not None), None)
        if kind and getattr(last, kind) is None:
            has = next(k for k in ANNOTATION_KINDS if getattr(last, k) is not None)
            raise ValueError(
                f"Row {number} has {kind}, but row {other} has {has}. Expected the same kind of "
                "annotation in all rows."
            )
    seen = _describe_row(_convert_to_records(rows, None)[number])
    there = [kind for kind in ANNOTATION_KINDS if getattr(row, kind) is not None]
    there = f" The row has {' and '.join(there)}." if there else ""
    raise ValueError(
        f"Row {number} has no {' or '.join(kinds)}.{there} The row has {seen}. {EXPECTED_ROWS}"
    )


def _describe_missing_annotation(number: int, key: str | None, value: object) -> str:
    return (
        f"Row {number} has no annotation: {key!r} is {quote(value)}. Remove the row, or use an "
        "empty list if the text contains nothing to annotate."
    )


def _describe_row(row: object) -> str:
    """Describe a row for an error message about an unknown format."""
    if isinstance(row, dict):
        return "the keys " + ", ".join(map(repr, row))
    return f"the type {type(row).__name__}: {row!r:.60}"


def _convert_labels(y: list[tuple[int, list]], several: bool | None) -> list:
    """Return one label per text, or one list per text if several labels are allowed."""
    if several or (several is None and any(len(labels) != 1 for _, labels in y)):
        return [labels for _, labels in y]
    for number, labels in y:
        if len(labels) != 1:
            raise ValueError(
                f"Row {number} has {f'the labels {labels}' if labels else 'no label'}. Expected "
                'one label, or problem_type="multi_label_classification".'
            )
    return [label for _, [label] in y]


# -- one row -----------------------------------------------------------------------------------


def _parse_row(row: object, number: int, text_key: str | None) -> Row | NotAnnotated:
    """Extract the text and annotations from a row."""
    row = get_reference(row)
    if is_doc(row):
        return _parse_document(row, number)
    if _is_pair(row):
        row = {"text": row[0], **row[1]}
    if not isinstance(row, dict):
        raise ValueError(f"Row {number} has {_describe_row(row)}. {EXPECTED_ROWS}")
    row = {
        key: convert_to_plain(value)
        if key in (*TEXT_KEYS, text_key)
        else _parse_cell(convert_to_plain(value))
        for key, value in row.items()
    }
    if isinstance(row.get("data"), dict):
        return _parse_label_studio(row, number, text_key)
    answer = read_field(row, "answer", (str, type(None)), f"Row {number}", None)
    if answer in DROPPED_ANSWERS:
        return NotAnnotated(DROPPED_ANSWERS[answer])
    keys = {}

    def record_key(role: str, item: tuple[str, Any] | None):
        if item is not None:
            keys[role] = item[0]
        return None if item is None else item[1]

    words = record_key(
        "words", next(((k, row[k]) for k in WORD_KEYS if _is_list_of_strings(row.get(k))), None)
    )
    text = record_key("text", _find_text(row, number, text_key))
    spans, tags, labels = None, None, None
    if words is not None:
        tags = record_key("tags", _find_tags(row, len(words), number, text is None))
    if text is not None:
        spans = record_key("spans", _find_spans(row, text, number))
        labels = record_key("labels", _find_labels(row, number))
    if spans is None and labels is None and "annotation_id" in row and not _find_controls(row):
        spans, labels = [], []  # JSON-MIN omits controls without annotations
    if spans is None and tags is None and labels is None:
        for key in (*TAGS, *SPANS):
            if is_missing(row.get(key, "")):
                raise ValueError(_describe_missing_annotation(number, key, row[key]))
        named = "" if words or text is not None else NO_TEXT
        raise ValueError(
            f"Row {number} has no annotation in a known format. The row has "
            f"{_describe_row(row)}.{named} {EXPECTED_ROWS}"
        )
    return Row(text, words, spans, tags, labels, keys, bool(row.get("relations")))


def _parse_cell(value: object) -> object:
    """Parse a list or dict in a string, as in CSV files from Label Studio and pandas."""
    if isinstance(value, str) and value.startswith(("[{", "[[", "[(", "['", '["', "{'", '{"')):
        for decode in (json.loads, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                return decode(value)
    return value


def _is_list_of_strings(values: object) -> bool:
    return isinstance(values, list | tuple | np.ndarray) and all(
        isinstance(value, str) for value in values
    )


def _find_text(row: dict, number: int, text_key: str | None) -> tuple[str, str] | None:
    for key in TEXT_KEYS if text_key is None else (text_key,):
        if isinstance(row.get(key), str):
            return key, row[key]
        if is_missing(row.get(key, "")):
            raise invalid(f"Row {number}: {key!r}", row[key], "a string")
    return None


def _find_tags(row: dict, count: int, number: int, only: bool) -> tuple[str, list] | None:
    """Find the tags in a row with words. Return the key and the tags.

    Args:
        row: Dict. The row with words.
        count: Integer. The number of words.
        number: Integer. The row index for error messages.
        only: Boolean. Whether the row has no text, so that it can only be annotated with tags.
    """
    known = [key for key in TAGS if _is_list_of_tags(row.get(key), count)]
    others = [k for k, v in row.items() if k not in WORD_KEYS and _is_list_of_tags(v, count)]
    if not known and len(others) > 1:
        raise ValueError(
            f"Row {number} has tags in {' and '.join(map(repr, others))}. Choose one column, for "
            f"example fit(x['tokens'], x[{others[0]!r}])."
        )
    for key in (known or others)[:1]:
        return key, list(row[key])
    wrong = next((k for k in TAGS if _is_list_of_tags(row.get(k), None)), None)
    if wrong is not None and only:
        raise ValueError(
            f"Row {number} has {count} words, but {wrong!r} has {len(row[wrong])} values. Expected "
            "one value per word."
        )
    return None


def _is_list_of_tags(values: object, count: int | None) -> bool:
    return (
        isinstance(values, list | tuple | np.ndarray)
        and count in (None, len(values))
        and (len(values) > 0 or count == 0)
        and all(isinstance(v, str | int | np.integer) or is_missing(v) for v in values)
    )


def _find_spans(row: dict, text: str, number: int) -> tuple[str, list[dict]] | None:
    """Find the spans in a row that is not a Label Studio task. Return (key, spans), or None."""
    keys = [k for k in SPANS if k in row] + [k for k in row if k not in SPANS]
    none = ("spans", []) if row.get("_view_id") in SPANS_OF_PRODIGY else None
    for key in keys:
        values = row[key]
        if isinstance(values, dict) and _is_span(values):  # a dict of columns, as in `datasets`
            values = [dict(zip(values, v, strict=True)) for v in zip(*values.values(), strict=True)]
        listed = isinstance(values, list | tuple) and all(map(_is_span, values))
        # Prodigy tokens also have start and end, but no label.
        if listed and len(values) and (key in SPANS or _has_label(values[0])):
            return key, check_spans(values, text, number)
        if listed and key in SPANS and none is None:
            none = key, []  # unless another key contains spans
    return none


def _is_span(value: object) -> bool:
    """Return whether a value is a span: a dict with start and end, or (start, end, label)."""
    if is_span(value):
        return True
    if isinstance(value, dict):
        return any(k in value for k in START_KEYS) and any(k in value for k in END_KEYS)
    is_triple = isinstance(value, list | tuple) and len(value) == 3
    return is_triple and all(isinstance(bound, numbers.Integral) for bound in value[:2])


def _has_label(span: object) -> bool:
    return not isinstance(span, dict) or any(name in span for name in LABEL)


def _find_controls(row: dict) -> list[str]:
    """List the keys in a JSON-MIN row that could be names of controls in Label Studio."""
    given = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")
    is_min = "lead_time" in row or "annotation_id" in row
    return [key for key in row if is_min and key not in (*given, *TEXT_KEYS)]


def _find_labels(row: dict, number: int) -> tuple[str, list] | None:
    """Find the labels of the text in a row. Return (key, labels), or None."""
    keys = [k for k in LABEL_KEYS if k in row]
    if not keys:
        keys = _find_controls(row)
        named = [k for k in keys if _parse_classes(row[k], k) is not None]
        if len(named) > 1:
            raise ValueError(
                f"Row {number} has several keys that could contain labels: "
                f"{', '.join(map(repr, named))}. Rename the key with the labels to 'label'."
            )
    if "options" in row:  # Prodigy's choices
        keys = ["accept"] if "accept" in row else []
    found = [(key, labels) for key in keys if (labels := _parse_classes(row[key], key)) is not None]
    return next((item for item in found if item[1]), found[0] if found else None)


def _parse_classes(value: object, key: str) -> list | None:
    if isinstance(value, dict):
        if "choices" in value:
            return _parse_classes(value["choices"], key)
        if key == "cats" and all(isinstance(v, numbers.Real) for v in value.values()):
            return [name for name, score in value.items() if score >= 0.5]
        return None
    if isinstance(value, list | tuple | np.ndarray):
        return list(value) if _is_list_of_strings(value) else None
    return [value] if isinstance(value, str | numbers.Real) or is_missing(value) else None


def _parse_document(document, number: int) -> Row:
    """Extract entities and categories from a spaCy `Doc`."""
    annotated = getattr(document, "has_annotation", lambda _: True)("ENT_IOB")
    spans = convert_spans(document, document.ents) if annotated or document.ents else None
    cats = getattr(document, "cats", None)
    labels = _parse_classes(cats, "cats") if cats else None
    text = document.text
    spans = None if spans is None else check_spans(spans, text, number)
    if spans is None and labels is None:
        groups = ", ".join(getattr(document, "spans", None) or {})
        groups = f" Assign a span group ({groups}) to doc.ents." if groups else ""
        raise ValueError(
            f"Row {number} is a spaCy document without entities and categories.{groups} If the "
            "text contains no entities, set doc.ents = []."
        )
    return Row(text, spans=spans, labels=labels)


def _parse_label_studio(row: dict, number: int, text_key: str | None) -> Row | NotAnnotated:
    """Extract the annotation from a Label Studio task in JSON format.

    If exactly one annotation of a task is marked as ground truth, only this annotation is
    used. Otherwise, all annotations must be equal. Predictions are ignored.
    """
    where = f"Row {number}"
    key = "completions" if "annotations" not in row and "completions" in row else "annotations"
    if key not in row:
        raise ValueError(
            f"{where} has no annotations. The row has {_describe_row(row)}. {EXPECTED_ROWS}"
        )
    given = read_field(row, key, list, where)
    done = [a for a in given if not read_field(a, "was_cancelled", _OPTIONAL_BOOL, where, False)]
    if not done:
        return NotAnnotated("skipped" if given else "not annotated")
    truth = [a for a in done if read_field(a, "ground_truth", _OPTIONAL_BOOL, where, False)]
    done = truth if len(truth) == 1 else done
    results = [read_field(annotation, "result", list, where, []) for annotation in done]
    every = [result for of_one in results for result in of_one]
    related = any(_get_type(result, where) == "relation" for result in every)
    results = [[r for r in of_one if _get_type(r, where) != "relation"] for of_one in results]
    values = [read_field(result, "value", dict, where, {}) for result in results[0]]
    text = _get_task_text(row["data"], values, number, text_key)
    readings = [_parse_results(of_one, text, number) for of_one in results]
    if any(other != readings[0] for other in readings):
        raise ValueError(
            f"{where} has {len(done)} different annotations for the same text. Keep one "
            "annotation, or mark one annotation as ground truth."
        )
    return readings[0]._replace(related=related)


_OPTIONAL_BOOL = (bool, type(None))


def _get_type(result: object, where: str) -> str | None:
    return read_field(result, "type", (str, type(None)), where, None)


def _parse_results(results: list[dict], text: str, number: int) -> Row:
    where = f"Row {number}"
    values = [read_field(result, "value", dict, where, {}) for result in results]
    spans = [value for value in values if _is_span(value)]
    others = [value for value in values if "choices" in value and not _is_span(value)]
    choices = [read_field(value, "choices", list, where) for value in others]
    for label in (label for of_one in choices for label in of_one):
        if not isinstance(label, str):
            raise invalid(f"{where}: 'choices'", label, "class names")
    if len(spans) + len(choices) < len(values):
        kinds = sorted({str(r.get("type")) for r in results} - {"labels", "choices"})
        raise ValueError(
            f"Row {number} has results of type {', '.join(kinds)}. Expected labels for spans, or "
            "choices for texts."
        )
    found = sorted(check_spans(spans, text, number), key=lambda s: (s["start"], s["end"]))
    labels = sorted({label for of_one in choices for label in of_one})
    return Row(text, spans=found, labels=labels)


def _get_task_text(data: dict, values: list[dict], number: int, text_key: str | None) -> str:
    """Find the text in a Label Studio task. The text can have any key."""
    texts = {key: value for key, value in data.items() if isinstance(value, str)}
    if text_key is not None:
        if text_key in texts:
            return texts[text_key]
    elif len(texts) == 1:
        return next(iter(texts.values()))
    else:
        quoted = [v for v in values if _is_span(v) and isinstance(v.get("text"), str)]
        fits = [
            key
            for key, text in texts.items()
            if quoted
            and all(
                _is_same_text(_slice_text(text, v["start"], v["end"]), v["text"]) for v in quoted
            )
        ]
        chosen = fits if len(fits) == 1 else [key for key in texts if key == "text"]
        if chosen:
            return texts[chosen[0]]
    raise ValueError(
        f"Row {number} has the keys {', '.join(map(repr, data))} in 'data'. Pass the text key: "
        "read_annotations(..., text_key=...)."
    )


def _slice_text(text: str, start: object, end: object) -> str | None:
    integers = isinstance(start, numbers.Integral) and isinstance(end, numbers.Integral)
    return text[start:end] if integers else None


# -- spans -------------------------------------------------------------------------------------


def check_spans(spans: Sequence, text: str, row: int | str) -> list[dict]:
    """Validate spans, and convert all spans to `{"start", "end", "label"}`.

    Args:
        spans: List of dicts, (start, end, label) triples or spaCy `Span` objects.
        text: String. The annotated text.
        row: Integer or string. Row index, or file name with line, for error messages.

    Raises:
        ValueError: If a span is empty or outside of the text, if the quoted text does not match the
            offsets, or if a span does not have exactly one label name.

    Example:
        >>> check_spans([{"start_offset": 3, "end_offset": 7, "label": "LOC"}], "In Rome", 0)
        [{'start': 3, 'end': 7, 'label': 'LOC'}]
    """
    row = f"Row {row}" if isinstance(row, int) else row
    return [_check_span(span, text, row) for span in spans]


def _check_span(span: object, text: str, row: str) -> dict:
    if is_span(span):
        span = span.start_char, span.end_char, span.label_
    if isinstance(span, list | tuple):
        span = dict(zip(("start", "end", "label"), span, strict=True))
    start, end, label = (_get_field(span, names, row) for names in (START_KEYS, END_KEYS, LABEL))
    if isinstance(label, list | tuple) and len(label) == 1:
        [label] = label
    if not all(isinstance(v, numbers.Integral) for v in (start, end)):
        raise ValueError(
            f"{row}: a span has start={quote(start)} and end={quote(end)}. Expected integers."
        )
    where = f"{row}: the span from {quote(start)} to {quote(end)}"
    if isinstance(label, list | tuple):
        raise ValueError(f"{where} has {len(label)} labels: {quote(label)}. Expected one label.")
    if not isinstance(label, str) or not label:
        raise ValueError(
            f"{where} has the label {quote(label)}. Expected a string. Export label names instead "
            "of ids."
        )
    quoted = span.get("text")
    quoted = quoted if isinstance(quoted, str) else None
    if not 0 <= start < end <= len(text):
        raise ValueError(
            f"{where} is empty or outside of the text. Expected 0 <= start < end <= {len(text)}."
            f"{_suggest_offsets(text, start, end, quoted)}"
        )
    if quoted is not None and not _is_same_text(text[start:end], quoted):
        raise ValueError(
            f"{where} has the text {quoted!r:.60}, but at these offsets the text is "
            f"{text[start:end]!r:.60}.{_suggest_offsets(text, start, end, quoted)}"
        )
    return {"start": int(start), "end": int(end), "label": label}


def _get_field(span: Mapping, names: Sequence[str], row: str) -> Any:
    for name in names:
        if name in span:
            return span[name]
    raise ValueError(
        f"{row}: the span {quote(span)} has no {names[0]}. Expected start, end and label."
    )


def _is_same_text(text: str | None, quoted: str) -> bool:
    """Return whether two texts are equal except for whitespace and escaped line breaks."""

    def remove_whitespace(value: str) -> str:
        return re.sub(r"\s|\\n", "", value)

    return text is not None and remove_whitespace(text) == remove_whitespace(quoted)


def _suggest_offsets(text: str, start: int, end: int, quoted: str | None) -> str:
    """Create a sentence that suggests how to convert invalid offsets."""
    for encoding, unit, name in (("utf-16-le", 2, "UTF-16 units"), ("utf-8", 1, "bytes")):
        encoded = text.encode(encoding)
        part = encoded[max(start, 0) * unit : max(end, 0) * unit].decode(encoding, "replace")
        inside = 0 <= start < end and end * unit <= len(encoded)
        if inside and len(encoded) > unit * len(text) and quoted in (None, part):
            return (
                f" The offsets seem to count {name} instead of characters. Convert each offset: "
                f"len(text.encode({encoding!r})[:{f'{unit} * ' * (unit > 1)}start]"
                f".decode({encoding!r}))."
            )
    return " Offsets count characters from 0, and `end` is the offset after the last character."
