"""Reading of annotations from files and folders, CoNLL's among them."""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.common.reading import parse_json, read_text, reading
from encoder_zoo.common.validation import FilePath, Rule, validate_arguments
from encoder_zoo.common.wording import invalid, shown
from encoder_zoo.extras.annotations.rows import (
    EXPECTED,
    KINDS,
    Annotations,
    Kind,
    annotations_of,
    checked_spans,
)
from encoder_zoo.presets.files.atomic import replacing_file
from encoder_zoo.tasks.preprocessing.columns import table_columns

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
ColumnNumber = Annotated[
    int, Rule(lambda v: type(v) is int, "the number of a column, counted from 0 or, below, the end")
]
# Lines of brat's files: relations, events, attributes, normalizations, notes, equivalences.
OF_NO_SPAN = re.compile(r"[REAMN#]\S*\t|\*\t")
TABLES = (".csv", ".parquet", ".xlsx", ".feather", ".arrow")
# Bytes that a packed .spacy file may have when it is unpacked: so many, or so many times its own.
# Documents in English take 5 to 15 times the size of their file.
UNPACKED, UNPACKED_RATIO = 2**28, 50


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
        ValueError: If a file is damaged or of an unknown kind, a row has no annotation that is
            understood, a span does not fit its text, a text has several annotations that differ,
            or the kind of annotations is not clear.
        ImportError: If the source is a .spacy file and spaCy is not installed.

    Example:
        >>> texts, spans = read_annotations([{"text": "In Rome", "label": [[3, 7, "LOC"]]}])
        >>> texts, spans
        (['In Rome'], [[{'start': 3, 'end': 7, 'label': 'LOC'}]])
    """
    kinds = KINDS if kind is None else (kind,)
    if not isinstance(source, str | os.PathLike):
        if isinstance(source, Mapping):  # a row, columns, splits, or what holds rows under a key
            holds = [k for k, v in source.items() if isinstance(v, list) or hasattr(v, "features")]
            there = ", ".join(f"source[{key!r}]" for key in holds)
            raise ValueError(
                f"The source is one object, with the keys {', '.join(map(repr, source))}. Expected "
                "a list of rows, or a dataset"
                + (f"; {there} may be that." if there else "; of one row, [source].")
            )
        if table_columns(source) is not None and not hasattr(source, "features"):
            rows = next((m for m in ("to_dicts", "to_pylist") if hasattr(source, m)), None)
            rows = f"{rows}()" if rows else 'to_dict("records")'  # polars, Arrow; pandas
            raise ValueError(
                f"The table has the columns {', '.join(map(repr, table_columns(source)))}. Pass "
                "those of texts and labels to fit, fit(table[...], table[...]); or its rows: "
                f"read_annotations(table.{rows})."
            )
        return annotations_of(source, kinds, text_key=text_key)
    path = pathlib.Path(source)
    with reading(path.name):
        return _read_file(path, kinds, text_key)


def _read_file(path: pathlib.Path, kinds: tuple[Kind, ...], text_key: str | None) -> Annotations:
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
    text = read_text(path)
    try:
        rows = parse_json(text, path.name)
    except ValueError as whole:
        rows = []
        for number, line in enumerate(text.split("\n"), 1):
            try:
                rows += [parse_json(line, f"{path.name}, line {number}")] if line.strip() else []
            except ValueError:
                if rows:
                    raise
                raise whole from None
    if isinstance(rows, dict):
        data = rows.get("data")
        if (
            isinstance(data, list)
            and data
            and isinstance(data[0], dict)
            and "paragraphs" in data[0]
        ):
            raise ValueError(f"{path.name} holds questions: read_squad reads it, for SpanQA.")
        # Of the annotator of spaCy's format, {"classes": [...], "annotations": [[text, {...}]]}.
        listed = "classes" in rows and isinstance(rows.get("annotations"), list)
        rows = [row for row in rows["annotations"] if row] if listed else [rows]
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path.name} holds no rows. {EXPECTED}")
    return rows


def _read_docs(path: pathlib.Path) -> list:
    """Return the documents of a `DocBin`."""
    tokens, vocab = spacy.tokens, spacy.vocab.Vocab()  # imported before any file is read
    content = path.read_bytes()
    _check_unpacked(content, path.name)
    return list(tokens.DocBin().from_bytes(content).get_docs(vocab))


def _check_unpacked(content: bytes, name: str) -> None:
    """Raise an error for packed bytes that take too much memory, before they are unpacked whole."""
    most, size, left = max(UNPACKED, UNPACKED_RATIO * len(content)), 0, content
    unpacking = zlib.decompressobj()
    while left and not unpacking.eof:
        size += len(unpacking.decompress(left, 2**20))
        left = unpacking.unconsumed_tail
        if size > most:
            raise ValueError(
                f"{name} has {len(content)} bytes, and more than {most} when it is unpacked. "
                "Divide a large file of spaCy into several."
            )


# -- brat --------------------------------------------------------------------------------------


def _read_brat(path: pathlib.Path, kinds: tuple[Kind, ...]) -> Annotations:
    """Return the texts and spans of a pair of files, or of all of a folder and those in it."""
    if "spans" not in kinds:
        raise invalid("kind", kinds[0], f"'spans', which {path.name} of brat holds")
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
        text = read_text(file)
        found, left_out = _spans_of_brat(file.with_suffix(".ann"), text)
        texts.append(text)
        spans.append(found)
        others += left_out
    if others:
        logger.warning("%d lines of relations, events, attributes or notes are not read.", others)
    return Annotations(texts, spans)


def _spans_of_brat(path: pathlib.Path, text: str) -> tuple[list[dict], int]:
    """Return the spans of a .ann file, and how many lines are no spans."""
    spans, others = [], 0
    for number, line in enumerate(read_text(path).split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or OF_NO_SPAN.match(line):
            others += bool(line.strip())
            continue
        where = f"{path.name}, line {number}"
        match = re.fullmatch(r"T\S*\t(\S+) (\d{1,9} \d{1,9}(?:;\d{1,9} \d{1,9})*)\t(.*)", line)
        if match is None:
            raise invalid(
                where, line, "an identifier, a type with start and end, and the text, between tabs"
            )
        label, bounds, quoted = match.groups()
        parts = [tuple(map(int, part.split())) for part in bounds.split(";")]
        # brat ends a part at each line break.
        if any(text[a[1] : b[0]].strip() for a, b in itertools.pairwise(parts)):
            raise ValueError(
                f"{where}: {quoted!r:.60} has {len(parts)} parts, {bounds}. Annotate its parts as "
                "spans of their own, or leave it out."
            )
        span = {"start": parts[0][0], "end": parts[-1][1], "label": label, "text": quoted}
        spans += checked_spans([span], text, where)
    return spans, others


TAG = re.compile(r"[BIESLUM][-_]\S+")
DOCUMENT = "-DOCSTART-"
# CoNLL-U's, such as "# text = Rome shines"; the word "#" is followed by tags, not by "=".
COMMENT = re.compile(r"# ?[\w.]+ ?=")
# CoNLL-U's numbers of rows that are no words: "1-2" of what is written together, such as "don't",
# before its words "do" and "n't"; "3.1" of a word that the text leaves out.
# And "#", which stands in this column before comments of GermEval's files.
NO_WORD = re.compile(r"\d+[-.]\d+|#")


@validate_arguments
def read_conll(
    path: FilePath, column: ColumnNumber = -1, word_column: ColumnNumber = 0
) -> tuple[list[list[str]], list[list[str]]]:
    """Read the sentences of a file with a word in each line and blank lines between sentences.

    Lines have as many columns all through the file or, of a column that is counted from 0, all
    through a sentence.
    Comments as "# text = ..." and CoNLL-2003's -DOCSTART- are left out. Where all words are between
    tabs, a line that begins with "#" and has none is a comment too, such as CoNLL-U's "# newpar".
    With `word_column=1`, CoNLL-U's rows of several words ("1-2") and empty nodes ("3.1") are left
    out, which are no words of its sentences.

    Args:
        path: of the file, UTF-8; its columns are separated by tabs, or else by spaces.
        column: of the tags, counted from 0, or from the end: -1 is the last.
        word_column: of the words; 1 in CoNLL-U.

    Returns:
        Words and tags, which `TokenClassifier.fit` takes.

    Raises:
        ValueError: If the file has no words, a line lacks a column or has more columns than the
            line before, or the columns do not hold words and tags.

    Source: Tjong Kim Sang and De Meulder 2003, section 2.1.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "train.conll"
        ...     _ = path.write_text("Rome NNP B-LOC\\nshines VBZ O\\n\\nHm UH O\\n")
        ...     read_conll(path)
        ([['Rome', 'shines'], ['Hm']], [['B-LOC', 'O'], ['O']])
    """
    path, columns = pathlib.Path(path), (word_column, column)
    # Not `splitlines`, which also splits at characters inside of words, such as U+0085.
    lines = [s.rstrip("\r") for s in read_text(path).split("\n")]
    if lines[0].startswith("#FORMAT=WebAnno"):
        raise ValueError(
            f"{path.name} is in the format of WebAnno and INCEpTION. Export it as CoNLL 2002 there."
        )
    in_tabs, before = _are_in_tabs(lines), None
    sentences: list[list[tuple[str, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        # Words may hold no-break and other spaces of Unicode, at which `split()` would split them.
        cells = line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))
        is_comment = COMMENT.match(line) or (in_tabs and line[:1] == "#" and "\t" not in line)
        if not line.strip() or cells[0] == DOCUMENT:
            sentences.append([])
            before = before if column < 0 else None
        elif is_comment or (word_column == 1 and "\t" in line and NO_WORD.fullmatch(cells[0])):
            continue
        else:
            sentences[-1].append(_word_and_tag(f"{path.name}, line {number}", cells, columns))
            before = before or (number, len(cells))
            if len(cells) != before[1]:
                raise ValueError(
                    f"{path.name}, line {number} has {len(cells)} columns, line {before[0]} has "
                    f"{before[1]}. Put tabs between columns if words have spaces. If the number "
                    "differs between sentences, count column=... from 0."
                )
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise ValueError(f"{path.name} holds no words.")
    words, tags = ([[row[i] for row in sentence] for sentence in found] for i in (0, 1))
    _check_columns(path.name, words, tags, columns)
    return words, tags


def write_conll(
    path: str | os.PathLike[str], words: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]
) -> None:
    """Write sentences as a file that `read_conll` and other libraries read.

    Each line holds a word and its tag, between them a tab. Blank lines separate sentences. An older
    file is replaced atomically.

    Args:
        path: String or path of the file.
        words: List of sentences, each a list of words.
        tags: List of the same form, with a tag for each word.

    Raises:
        ValueError: If the numbers of sentences or of words and tags differ, or if a word or tag is
            empty or holds white space that separates columns or lines.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "train.conll"
        ...     write_conll(path, [["Rome", "shines"], ["Hm"]], [["B-LOC", "O"], ["O"]])
        ...     read_conll(path)
        ([['Rome', 'shines'], ['Hm']], [['B-LOC', 'O'], ['O']])
    """
    if len(words) != len(tags):
        raise ValueError(
            f"words has {len(words)} sentences, tags has {len(tags)} lists. Expected one list of "
            "tags for each sentence."
        )
    blocks = []
    for i, (sentence, row) in enumerate(zip(words, tags, strict=True)):
        if len(sentence) != len(row) or isinstance(sentence, str) or not len(sentence):
            raise invalid(f"words[{i}]", sentence, f"a list of {len(row)} words, one for each tag")
        for j, cells in enumerate(zip(sentence, row, strict=True)):
            for name, cell in zip(("words", "tags"), cells, strict=True):
                if not isinstance(cell, str) or not cell or re.search(r"[\t\r\n]|^ *$", cell):
                    raise invalid(
                        f"{name}[{i}][{j}]", cell, "a string without tabs and line breaks"
                    )
        blocks.append("".join(f"{word}\t{tag}\n" for word, tag in zip(sentence, row, strict=True)))
    with replacing_file(path, lambda path: True) as new:
        new.write_text("\n".join(blocks), encoding="utf-8", newline="\n")


def _check_columns(
    file: str, words: list[list[str]], tags: list[list[str]], columns: tuple[int, int]
) -> None:
    """Raise a ValueError if what is read as words and tags is something else."""
    seen, given = {tag for row in tags for tag in row}, {word for row in words for word in row}
    advice = "Pass word_column=... and column=..., counted from 0, to read_conll"
    if any(len(row) > 1 for row in words) and all(map(_are_numbers, words)):
        raise ValueError(
            f"{file}: column {columns[0]} holds numbers of words, such as {words[0][0]!r}. "
            f"{advice}, in CoNLL-U word_column=1, column=3."
        )
    if seen <= {"_", "-", "*", ""} or "" in seen:
        what = "blank cells" if "" in seen else f"{min(seen)!r} alone"
        raise ValueError(f"{file}: column {columns[1]} holds {what}, no tags. {advice}.")
    if given != {"O"} and all(word == "O" or TAG.fullmatch(word) for word in given):
        raise ValueError(f"{file}: column {columns[0]} holds tags, no words. {advice}.")
    if 2 * sum(" " in word for word in given) > len(given):
        text = next(word for row in words for word in row if " " in word)
        raise ValueError(
            f"{file}: column {columns[0]} holds texts, such as {text!r:.40}. Read a table with "
            "pandas and pass its columns to fit."
        )


def _are_numbers(words: list[str]) -> bool:
    """Return whether words are numbers that count up, from 0 or 1."""
    numbers = [word for word in words if not NO_WORD.fullmatch(word)]
    return bool(numbers) and any(
        numbers == [str(i) for i in range(first, first + len(numbers))] for first in (0, 1)
    )


def _are_in_tabs(lines: list[str]) -> bool:
    """Return whether all words are between tabs; "# NN O" is a word in a file that has spaces too.

    Example:
        >>> _are_in_tabs(["# newpar", "Rome\\tO"]), _are_in_tabs(["# NN O", "Rome\\tO", "is O"])
        (True, False)
    """
    words = [s for s in lines if s.strip() and not s.startswith(("#", DOCUMENT))]
    return bool(words) and all("\t" in s for s in words)


def _word_and_tag(line: str, cells: list[str], columns: tuple[int, int]) -> tuple[str, str]:
    for column in columns:
        if not -len(cells) <= column < len(cells):
            raise ValueError(
                f"{line} has no column {column}: {shown(cells)}. Expected words and tags between "
                "tabs or spaces; column=... says which of them is the tag."
            )
    word, tag = (column % len(cells) for column in columns)
    if word == tag:
        raise ValueError(f"{line} has no tag: {shown(cells)}. Expected a word and a tag.")
    return cells[word], cells[tag]
