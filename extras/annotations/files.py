"""Read annotations from files and folders, and read and write CoNLL files."""

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
from encoder_zoo.common.reading import convert_read_errors, parse_json, read_text, split_lines
from encoder_zoo.common.validation import FilePath, Rule, validate_arguments
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.extras.annotations.rows import (
    ANNOTATION_KINDS,
    EXPECTED_ROWS,
    Annotations,
    Kind,
    check_spans,
    extract_annotations,
)
from encoder_zoo.presets.files.atomic import replace_file
from encoder_zoo.tasks.preprocessing.columns import list_table_columns
from encoder_zoo.tasks.preprocessing.tokenized_texts import is_list

logger = logging.getLogger("encoder_zoo")

spacy = LazyModule("spacy", ".spacy files need the package spacy: `pip install spacy`.")

CONLL = (".conll", ".conllu", ".bio", ".iob", ".iob2", ".bioes", ".bmes", ".tsv", ".txt")
TABLE_ADVICE = (
    " Read the table with pandas and pass its columns to fit. For a CSV export of Label Studio, "
    'pass the rows: read_annotations(table.to_dict("records")).'
)
Key = Annotated[
    str, Rule(lambda v: isinstance(v, str) and v != "", "a key of the rows, such as 'text'")
]
Rows = Annotated[Sequence[Sequence[str]], Rule(is_list, "a list of lists of strings")]
ColumnNumber = Annotated[
    int, Rule(lambda v: type(v) is int, "a column index. Negative indices count from the end")
]
# Lines in brat files for relations, events, attributes, normalizations, notes and equivalences.
OTHER_LINE = re.compile(r"[REAMN#]\S*\t|\*\t")
TABLES = (".csv", ".parquet", ".xlsx", ".feather", ".arrow")
# Maximum size of unpacked .spacy files, in bytes and relative to the packed size. The larger limit
# applies. English documents unpack to 5 to 15 times the packed size.
MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO = 2**28, 50


@validate_arguments
def read_annotations(
    source: object, kind: Kind | None = None, text_key: Key | None = None
) -> Annotations:
    """Read annotations from files, datasets, or rows from annotation tools.

    Offsets count characters, and all spans are validated. Rows that annotators rejected, skipped
    or did not annotate are dropped with a warning. Rows without an annotation field raise an error,
    but an empty list of spans is a valid annotation. If several annotators worked on the same text,
    all annotations must be equal, or one annotation must be marked as ground truth.

    | tool | supported data |
    |---|---|
    | doccano | JSON and JSONL files with "label", "labels" or "entities" |
    | Label Studio | JSON, JSON-MIN and the rows of a CSV export, with span labels or choices. \
Predictions are ignored. |
    | Prodigy | accepted rows of JSONL files with "spans", "label" or "accept" |
    | brat | a folder, or a pair of .txt and .ann files. Only text-bound annotations (T lines) are \
read. |
    | spaCy | .spacy files, `Doc`, `Example`, `(text, {"entities": [...]})` |
    | Hugging Face | a dataset or its rows, with tokens and tags, or with text and label. Class \
names are read from the features of the dataset. |
    | CoNLL | files with one word per line. See `read_conll` |

    Args:
        source: The path to a file or folder, list of rows, or dataset.
        kind: Optional string. "spans", "tags" (for words) or "labels" (for texts). If None, the
            kind is inferred from the rows.
        text_key: Optional string. Key of the text in each row. If None, common keys such as "text"
            are tried.

    Returns:
        A tuple `(x, y)`, which can also be passed to `fit`, `evaluate` and `validation_data` as a
        single argument. For spans, `y` contains lists of `{"start", "end", "label"}`. For tags, `x`
        contains lists of words.

    Raises:
        ValueError: If a file is damaged or has an unknown format, if a row has no known annotation,
            if a span does not match the text, if annotations for the same text differ, or if
            annotations are ambiguous.
        FileNotFoundError: If `source` is a path that does not exist.
        ImportError: If `source` is a .spacy file and spaCy is not installed.

    Example:
        >>> texts, spans = read_annotations([{"text": "In Rome", "label": [[3, 7, "LOC"]]}])
        >>> texts, spans
        (['In Rome'], [[{'start': 3, 'end': 7, 'label': 'LOC'}]])
    """
    kinds = ANNOTATION_KINDS if kind is None else (kind,)
    if not isinstance(source, str | os.PathLike):
        if isinstance(source, Mapping):  # a row, columns, splits, or an object that contains rows
            holds = [k for k, v in source.items() if isinstance(v, list) or hasattr(v, "features")]
            there = ", ".join(f"source[{key!r}]" for key in holds)
            raise ValueError(
                f"`source` is a single object with the keys {', '.join(map(repr, source))}. "
                "Expected a list of rows or a dataset. "
                + (f"Try {there}." if there else "For a single row, pass [source].")
            )
        if list_table_columns(source) is not None and not hasattr(source, "features"):
            rows = next((m for m in ("to_dicts", "to_pylist") if hasattr(source, m)), None)
            rows = f"{rows}()" if rows else 'to_dict("records")'  # polars, Arrow; pandas
            raise ValueError(
                "`source` is a table with the columns "
                f"{', '.join(map(repr, list_table_columns(source)))}. "
                f"To train on two columns, pass the "
                "columns to fit: fit(table[text], table[label]). To read annotations from rows, "
                f"use read_annotations(table.{rows})."
            )
        return extract_annotations(source, kinds, text_key=text_key)
    path = pathlib.Path(source)
    with convert_read_errors(path.name):
        return _read_file(path, kinds, text_key)


def _read_file(path: pathlib.Path, kinds: tuple[Kind, ...], text_key: str | None) -> Annotations:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    suffix = path.suffix.lower()
    if path.is_dir() or path.with_suffix(".ann").is_file():
        return _read_brat(path, kinds)
    if suffix == ".spacy":
        return extract_annotations(_read_docs(path), kinds)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return extract_annotations(_read_json(path), kinds, text_key=text_key)
    if suffix in CONLL:
        return Annotations(*read_conll(path))
    advice = TABLE_ADVICE if suffix in TABLES else ""
    raise ValueError(
        f"{path.name} has an unknown format.{advice} Expected .json, .jsonl, .spacy, .ann or "
        f"{', '.join(CONLL)}, or a folder with .ann and .txt files."
    )


def _read_json(path: pathlib.Path) -> list[Any]:
    """Read rows from a JSON or JSON Lines file."""
    text = read_text(path)
    try:
        rows = parse_json(text, path.name)
    except ValueError as whole:
        rows = []
        for number, line in enumerate(split_lines(text), 1):
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
            raise ValueError(
                f"{path.name} contains questions and answers. To train SpanQA, read "
                "the file with read_squad."
            )
        # NER annotator for spaCy: {"classes": [...], "annotations": [[text, {...}]]}.
        listed = "classes" in rows and isinstance(rows.get("annotations"), list)
        rows = [row for row in rows["annotations"] if row] if listed else [rows]
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path.name} contains no rows. {EXPECTED_ROWS}")
    return rows


def _read_docs(path: pathlib.Path) -> list:
    """Read all documents from a spaCy `DocBin` file."""
    tokens, vocab = spacy.tokens, spacy.vocab.Vocab()  # fails early if spaCy is not installed
    content = path.read_bytes()
    _check_unpacked(content, path.name)
    return list(tokens.DocBin().from_bytes(content).get_docs(vocab))


def _check_unpacked(content: bytes, name: str) -> None:
    """Raise a ValueError if the unpacked data would need too much memory."""
    most, size, left = max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * len(content)), 0, content
    unpacking = zlib.decompressobj()
    while left and not unpacking.eof:
        size += len(unpacking.decompress(left, 2**20))
        left = unpacking.unconsumed_tail
        if size > most:
            raise ValueError(
                f"{name} has {len(content)} bytes and would need more than {most} bytes of memory. "
                "Split the data into several .spacy files."
            )


# -- brat --------------------------------------------------------------------------------------


def _read_brat(path: pathlib.Path, kinds: tuple[Kind, ...]) -> Annotations:
    """Read texts and spans from two files, or from all file pairs in a folder and subfolders."""
    if "spans" not in kinds:
        raise invalid("kind", kinds[0], f"'spans' for the brat annotations in {path.name}")
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path.with_suffix(".txt")]
    if path.is_dir() and not any(file.with_suffix(".ann").is_file() for file in files):
        found = ", ".join(sorted(file.name for file in path.iterdir())[:5])
        raise ValueError(
            f"{path} does not contain .ann and .txt files. Found: {found or 'no files'}. Pass the "
            "path of a single file. If the folder contains a saved dataset, load it with "
            "datasets.load_from_disk and pass the dataset."
        )
    texts, spans, others = [], [], 0
    for file in files:
        if not file.is_file() or not file.with_suffix(".ann").is_file():
            missing = file if not file.is_file() else file.with_suffix(".ann")
            raise ValueError(
                f"{missing} does not exist. Brat annotations need a .txt and an .ann file."
            )
        text = read_text(file)
        found, left_out = _read_ann(file.with_suffix(".ann"), text)
        texts.append(text)
        spans.append(found)
        others += left_out
    if others:
        logger.warning(
            "Ignored %d lines with relations, events, attributes or notes. Only entities are read.",
            others,
        )
    return Annotations(texts, spans)


def _read_ann(path: pathlib.Path, text: str) -> tuple[list[dict], int]:
    """Read spans from an .ann file, and count the lines with other annotations."""
    spans, others = [], 0
    for number, line in enumerate(split_lines(read_text(path)), 1):
        if not line.strip() or OTHER_LINE.match(line):
            others += bool(line.strip())
            continue
        where = f"{path.name}, line {number}"
        match = re.fullmatch(r"T\S*\t(\S+) (\d{1,9} \d{1,9}(?:;\d{1,9} \d{1,9})*)\t(.*)", line)
        if match is None:
            raise ValueError(
                f"{where} is {quote(line)}. Expected an identifier, a type with start and end, and "
                "the annotated text, separated by tabs."
            )
        label, bounds, quoted = match.groups()
        parts = [tuple(map(int, part.split())) for part in bounds.split(";")]
        # brat splits spans at line breaks. Other discontinuous spans are not supported.
        if any(text[a[1] : b[0]].strip() for a, b in itertools.pairwise(parts)):
            raise ValueError(
                f"{where}: {quoted!r:.60} is a span with {len(parts)} separate parts ({bounds}), "
                "which is not supported. Annotate each part as a separate span, or delete the "
                "annotation."
            )
        span = {"start": parts[0][0], "end": parts[-1][1], "label": label, "text": quoted}
        spans += check_spans([span], text, where)
    return spans, others


# Valid content of a tab-separated cell. UTF-8 cannot encode lone surrogates.
CELL = re.compile(r"(?! )[^\t\r\n\ud800-\udfff]+(?<! )")
TAG = re.compile(r"[BIESLUM][-_]\S+")
DOCUMENT_START = "-DOCSTART-"
# Comments of CoNLL-U, such as "# text = Rome shines". A word "#" is followed by tags, not by "=".
# A hashtag with a tag, such as "#a=b O", is not a comment.
COMMENT = re.compile(r"# [\w.]+ ?=|#[\w.]+ =|#[\w.]+=\S*$")
# First columns to skip in CoNLL-U rows: "1-2" for contractions like "don't", followed by rows for
# "do" and "n't", and "3.1" for omitted words. In GermEval files, "#" in this column starts a
# comment.
NOT_A_WORD = re.compile(r"\d+[-.]\d+|#")


@validate_arguments
def read_conll(
    path: FilePath, column: ColumnNumber = -1, word_column: ColumnNumber = 0
) -> tuple[list[list[str]], list[list[str]]]:
    """Read words and tags from a CoNLL file.

    Each line contains one word, and blank lines separate sentences. All lines must have the same
    number of columns. If `column` is 0 or more, this is only required inside each sentence.
    Comments such as "# text = ..." and "-DOCSTART-" lines (CoNLL-2003) are skipped. In
    tab-separated files, lines that start with "#" and contain no tabs are also skipped, for example
    "# newpar" in CoNLL-U. With `word_column=1`, multiword tokens ("1-2") and empty nodes ("3.1") in
    CoNLL-U are skipped, too.

    Args:
        path: The path to a UTF-8 file with columns separated by tabs or spaces.
        column: Integer. Index of the tag column. Negative indices count from the end. Defaults to
            -1.
        word_column: Integer. Index of the word column. Use 1 for CoNLL-U. Defaults to 0.

    Returns:
        A tuple of words and tags that can be passed to `TokenClassifier.fit`.

    Raises:
        ValueError: If the file contains no words, if lines have different numbers of columns, or if
            `word_column` or `column` does not contain words or tags.

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
    lines = split_lines(read_text(path))
    if lines[0].startswith("#FORMAT=WebAnno"):
        raise ValueError(
            f"{path.name} is in the WebAnno format of INCEpTION, which is not supported. Export "
            "the data again as CoNLL 2002."
        )
    in_tabs, before = _has_tabs(lines), None
    sentences: list[list[tuple[str, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        cells = _split_cells(line)
        is_comment = COMMENT.match(line) or (in_tabs and line[:1] == "#" and "\t" not in line)
        if not line.strip() or cells[0] == DOCUMENT_START:
            sentences.append([])
            before = before if column < 0 else None
        elif is_comment or (word_column == 1 and "\t" in line and NOT_A_WORD.fullmatch(cells[0])):
            continue
        else:
            sentences[-1].append(
                _select_word_and_tag(f"{path.name}, line {number}", cells, columns)
            )
            before = before or (number, len(cells))
            if len(cells) != before[1]:
                raise ValueError(
                    f"{path.name}, line {number} has {len(cells)} columns, but line {before[0]} "
                    f"has {before[1]}. If words contain spaces, separate columns with tabs. If "
                    "sentences have different numbers of columns, pass 0 or more as `column`."
                )
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise ValueError(f"{path.name} contains no words.")
    words, tags = ([[row[i] for row in sentence] for sentence in found] for i in (0, 1))
    _check_columns(path.name, words, tags, columns)
    return words, tags


@validate_arguments
def write_conll(path: FilePath, words: Rows, tags: Rows) -> None:
    """Write words and tags to a CoNLL file.

    Each line contains a word and a tag, separated by a tab. Blank lines separate sentences.
    Existing files are replaced atomically.

    Args:
        path: The path to write to.
        words: List of sentences. Each sentence is a list of words.
        tags: List of lists of strings. The tag of each word.

    Raises:
        ValueError: If a sentence does not have one tag per word, or if a word or tag cannot be
            stored. Words and tags must not be empty or "-DOCSTART-", contain tabs, line breaks or
            lone surrogates, or start or end with a space.

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
            f"`words` has {len(words)} sentences, but `tags` has {len(tags)} lists. Expected one "
            "list of tags per sentence."
        )
    blocks = []
    for i, (sentence, row) in enumerate(zip(words, tags, strict=True)):
        if not is_list(sentence) or not is_list(row) or not 0 < len(sentence) == len(row):
            raise ValueError(
                f"words[{i}] is {quote(sentence)} and tags[{i}] is {quote(row)}. Expected a list "
                "of words and a list with the same number of tags."
            )
        for j, cells in enumerate(zip(sentence, row, strict=True)):
            for name, cell in zip(("words", "tags"), cells, strict=True):
                if not isinstance(cell, str) or not CELL.fullmatch(cell) or cell == DOCUMENT_START:
                    expected = (
                        "a string that is not empty or '-DOCSTART-', does not contain tabs, line "
                        "breaks or lone surrogates, and does not start or end with a space"
                    )
                    raise invalid(f"{name}[{i}][{j}]", cell, expected)
        blocks.append("".join(f"{word}\t{tag}\n" for word, tag in zip(sentence, row, strict=True)))
    with replace_file(path, lambda path: True) as new:
        new.write_text("\n".join(blocks), encoding="utf-8", newline="\n")


def _check_columns(
    file: str, words: list[list[str]], tags: list[list[str]], columns: tuple[int, int]
) -> None:
    """Raise a ValueError if the columns do not contain words and tags."""
    seen, given = {tag for row in tags for tag in row}, {word for row in words for word in row}
    advice = "Pass word_column=... and column=..., counted from 0, to read_conll"
    if any(len(row) > 1 for row in words) and all(map(_is_numbered, words)):
        raise ValueError(
            f"{file}: column {columns[0]} contains word indices such as {words[0][0]!r} instead of "
            f"words. {advice}. For CoNLL-U, use word_column=1, column=3."
        )
    if seen <= {"_", "-", "*", ""} or "" in seen:
        what = "blank cells" if "" in seen else f"only {min(seen)!r}"
        raise ValueError(f"{file}: column {columns[1]} contains {what}. {advice}.")
    if given != {"O"} and all(word == "O" or TAG.fullmatch(word) for word in given):
        raise ValueError(f"{file}: column {columns[0]} contains tags instead of words. {advice}.")
    if given and all("|" in cell.strip("|") for cell in given | seen):
        raise ValueError(
            f"{file} contains words that are joined with tags, such as {min(given)!r:.40}. "
            "Expected one word per line, with the tag in a separate column."
        )
    if 2 * sum(" " in word for word in given) > len(given):
        text = next(word for row in words for word in row if " " in word)
        raise ValueError(
            f"{file}: column {columns[0]} contains whole texts such as {text!r:.40}. Read this "
            "file with pandas, and pass the columns to fit."
        )


def _is_numbered(words: list[str]) -> bool:
    """Return whether words are consecutive integers from 0 or 1, as in index columns."""
    numbers = [word for word in words if not NOT_A_WORD.fullmatch(word)]
    return bool(numbers) and any(
        numbers == [str(i) for i in range(first, first + len(numbers))] for first in (0, 1)
    )


def _has_tabs(lines: list[str]) -> bool:
    """Return whether all lines with words contain tabs.

    If so, columns are separated by tabs. If not, "#" at the start of a line can be a word, as in
    "# NN O".

    Example:
        >>> _has_tabs(["# newpar", "Rome\\tO"]), _has_tabs(["# NN O", "Rome\\tO", "is O"])
        (True, False)
    """
    words = [s for s in lines if s.strip() and not s.startswith(("#", DOCUMENT_START))]
    return bool(words) and all("\t" in s for s in words)


def _split_cells(line: str) -> list[str]:
    r"""Split a line at tabs. Lines without tabs are split at spaces.

    `split()` would also split on no-break spaces and other Unicode spaces, which words may contain.

    Example:
        >>> _split_cells("New York \t B-LOC"), _split_cells("Rome  B-LOC ")
        (['New York', 'B-LOC'], ['Rome', 'B-LOC'])
    """
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    return list(filter(None, line.split(" ")))


def _select_word_and_tag(line: str, cells: list[str], columns: tuple[int, int]) -> tuple[str, str]:
    for column in columns:
        if not -len(cells) <= column < len(cells):
            raise ValueError(
                f"{line} has no column {column}: {quote(cells)}. Expected words and tags, "
                "separated by tabs or spaces. Pass the tag column index as `column`."
            )
    word, tag = (column % len(cells) for column in columns)
    if word == tag:
        raise ValueError(
            f"{line} has no tag: {quote(cells)}. Expected a word and a tag in each line."
        )
    return cells[word], cells[tag]
