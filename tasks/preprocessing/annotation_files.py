"""Reading of annotations from files and folders."""

from __future__ import annotations

import itertools
import json
import logging
import os
import pathlib
import re
from typing import Annotated, Any

from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.common.validation import Rule, validate_arguments
from encoder_zoo.tasks.preprocessing.annotation_rows import (
    EXPECTED,
    KINDS,
    Annotations,
    Kind,
    annotations_of,
    checked_spans,
)
from encoder_zoo.tasks.preprocessing.columns import table_columns
from encoder_zoo.tasks.preprocessing.conll import read_conll

logger = logging.getLogger("encoder_zoo")

spacy = LazyModule("spacy", ".spacy files need the package spacy: `pip install spacy`.")

CONLL = (".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes", ".bmes", ".tsv", ".txt")
TABLE = (
    " Read it with pandas, and pass its columns to fit; or its rows to read_annotations, "
    'table.to_dict("records"), as of the CSV of Label Studio.'
)
Key = Annotated[
    str, Rule(lambda v: isinstance(v, str) and v != "", "a key of the rows, such as 'text'")
]
# Lines of brat's files: relations, events, attributes, normalizations, notes, equivalences.
OF_NO_SPAN = re.compile(r"[REAMN#]\S*\t|\*\t")
TABLES = (".csv", ".parquet", ".xlsx", ".feather", ".arrow")


@validate_arguments
def read_annotations(
    source: object, kind: Kind | None = None, text_key: Key | None = None
) -> Annotations:
    """Read the annotations of a file or folder, or of rows, of any tool that is known.

    Offsets are of characters, and are checked against the text. Rows that an annotator has rejected
    or skipped are left out, which one line of the log counts; a row without an annotation is an
    error, and an empty list of spans is an annotation. Of several annotators of one text there must
    be one annotation, or a ground truth.

    | tool | what is read |
    |---|---|
    | doccano | JSON and JSONL, "label" or "labels" or "entities" |
    | Label Studio | JSON, JSON-MIN, rows of its CSV: labels of spans and choices; of several \
annotators' the ground truth, or what all of them have; no predictions |
    | Prodigy | JSONL, "spans", "label" or "accept" of rows that were accepted |
    | brat | a folder, or a .txt or .ann file that has the other beside it; T lines |
    | spaCy | .spacy files, `Doc`, `Example`, `(text, {"entities": [...]})` |
    | Hugging Face | a dataset or its rows, tokens and tags or text and label; names of classes \
are read from its features |
    | CoNLL | files with a word in each line, as `read_conll` |

    Args:
        source: a path; or rows, a list, or a dataset.
        kind: "spans", "tags" of words or "labels" of texts; None for those that there are.
        text_key: the key of the text in each row, where it is not known.

    Returns:
        `(x, y)`, which `fit`, `evaluate` and `validation_data` take, also as one: texts and lists
        of `{"start", "end", "label"}`, words and tags, or texts and labels.

    Raises:
        ValueError: "Row 3 has no annotation that is understood. It has the keys 'text', 'meta'.
            ...", "Row 3: the span from 7 to 40 is outside of the text, ...", "Row 3: the span from
            4 to 8 is 'nce ', but its text is 'Nice'. ...", "Row 3 has 2 annotations that differ.
            ...", "Rows 3 and 7 are of one text, ...", "The rows may be read for spans or labels.
            ...", and as of `read_conll`.
        ImportError: for .spacy files without spaCy.

    Example:
        >>> texts, spans = read_annotations([{"text": "In Rome", "label": [[3, 7, "LOC"]]}])
        >>> texts, spans
        (['In Rome'], [[{'start': 3, 'end': 7, 'label': 'LOC'}]])
    """
    kinds = KINDS if kind is None else (kind,)
    if not isinstance(source, str | os.PathLike):
        if table_columns(source) is not None and not hasattr(source, "features"):
            raise ValueError(
                f"The table has the columns {', '.join(map(repr, table_columns(source)))}. Pass "
                "those of texts and labels to fit, fit(table[...], table[...]); or its rows: "
                'read_annotations(table.to_dict("records")).'
            )
        return annotations_of(source, kinds, text_key=text_key)
    path = pathlib.Path(source)
    if not path.exists():
        raise FileNotFoundError(f"There is no {path}.")
    suffix = path.suffix.lower()
    if path.is_dir() or path.with_suffix(".ann").is_file():
        return _read_brat(path, kinds)
    if suffix == ".spacy":
        return annotations_of(_read_docs(path), kinds)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return annotations_of(_read_json(path), kinds, text_key=text_key)
    if suffix in CONLL:
        return Annotations(*read_conll(path))
    advice = TABLE if suffix in TABLES else ""
    raise ValueError(
        f"{path.name} is of a kind that is not known.{advice} Expected .json, .jsonl, .spacy, "
        f".ann or {', '.join(CONLL)}; or a folder of .ann and .txt files."
    )


def _read_json(path: pathlib.Path) -> list[Any]:
    """Return the rows of a JSON file, or of one with a JSON value in each line."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as whole:
        rows = []
        for number, line in enumerate(text.split("\n"), 1):
            try:
                rows += [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as error:
                error = error if rows else whole
                raise ValueError(f"{path.name}, line {number}: {error}.") from None
    if isinstance(rows, dict):
        if isinstance(rows.get("data"), list) and "paragraphs" in (rows["data"] or [{}])[0]:
            raise ValueError(f"{path.name} holds questions: read_squad reads it, for SpanQA.")
        # Of the annotator of spaCy's format, {"classes": [...], "annotations": [[text, {...}]]}.
        listed = "classes" in rows and isinstance(rows.get("annotations"), list)
        rows = [row for row in rows["annotations"] if row] if listed else [rows]
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path.name} holds no rows. {EXPECTED}")
    return rows


def _read_docs(path: pathlib.Path) -> list:
    """Return the documents of a `DocBin`."""
    return list(spacy.tokens.DocBin().from_disk(path).get_docs(spacy.vocab.Vocab()))


# -- brat --------------------------------------------------------------------------------------


def _read_brat(path: pathlib.Path, kinds: tuple[Kind, ...]) -> Annotations:
    """Return the texts and spans of a pair of files, or of all of a folder and those in it."""
    if "spans" not in kinds:
        raise ValueError(f"{path.name} holds brat's spans. Received: kind={kinds[0]!r}.")
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path.with_suffix(".txt")]
    if path.is_dir() and not any(file.with_suffix(".ann").is_file() for file in files):
        found = ", ".join(sorted(file.name for file in path.iterdir())[:5])
        raise ValueError(
            f"{path} is a folder without .ann and .txt files of brat: {found or 'it is empty'}. "
            "Name the file to read; a dataset's folder is opened by datasets.load_from_disk."
        )
    texts, spans, others = [], [], 0
    for file in files:
        if not file.is_file() or not file.with_suffix(".ann").is_file():
            missing = file if not file.is_file() else file.with_suffix(".ann")
            raise ValueError(f"There is no {missing.name} beside {file.stem}'s other file.")
        text = _read_text(file)
        found, left_out = _spans_of_brat(file.with_suffix(".ann"), text)
        texts.append(text)
        spans.append(found)
        others += left_out
    if others:
        logger.warning("%d lines of relations, events, attributes or notes are not read.", others)
    return Annotations(texts, spans)


def _read_text(path: pathlib.Path) -> str:
    with path.open(encoding="utf-8", newline="") as file:  # offsets count each "\r"
        return file.read()


def _spans_of_brat(path: pathlib.Path, text: str) -> tuple[list[dict], int]:
    """Return the spans of a .ann file, and how many lines are no spans."""
    spans, others = [], 0
    for number, line in enumerate(_read_text(path).removeprefix("\ufeff").split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or OF_NO_SPAN.match(line):
            others += bool(line.strip())
            continue
        where = f"{path.name}, line {number}"
        match = re.fullmatch(r"T\S*\t(\S+) (\d+ \d+(?:;\d+ \d+)*)\t(.*)", line)
        if match is None:
            raise ValueError(
                f"{where} is {line!r:.60}. Expected an identifier, a type with start "
                "and end, and the text, between tabs."
            )
        label, bounds, quoted = match.groups()
        parts = [tuple(map(int, part.split())) for part in bounds.split(";")]
        # brat ends a part at each line break.
        if any(text[a[1] : b[0]].strip() for a, b in itertools.pairwise(parts)):
            raise ValueError(
                f"{where}: {quoted!r:.60} is of {len(parts)} parts, {bounds}. A span has one start "
                "and one end: annotate its parts as spans of their own, or leave it out."
            )
        span = {"start": parts[0][0], "end": parts[-1][1], "label": label, "text": quoted}
        spans += checked_spans([span], text, where)
    return spans, others
