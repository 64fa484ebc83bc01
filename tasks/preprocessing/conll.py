"""Reading of files of the CoNLL shared tasks."""

from __future__ import annotations

import os
import pathlib
import re

TAG = re.compile(r"[BIESLUM][-_]\S+")
DOCUMENT = "-DOCSTART-"
# CoNLL-U's, such as "# text = Rome shines"; the word "#" is followed by tags, not by "=".
COMMENT = re.compile(r"# ?[\w.]+ ?=")
# CoNLL-U's numbers of rows that are no words: "1-2" of what is written together, such as "don't",
# before its words "do" and "n't"; "3.1" of a word that the text leaves out.
# And "#", which stands in this column before comments of GermEval's files.
NO_WORD = re.compile(r"\d+[-.]\d+|#")


def read_conll(
    path: str | os.PathLike[str], column: int = -1, word_column: int = 0
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
        ValueError: "train.conll, line 7: ['Rome'] has no tag in addition to the word.",
            "train.conll, line 9 has 3 columns, line 8 has 2. ...", "train.conll holds no words.",
            "train.conll: column 0 holds numbers of words, ..."

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
    lines = [s.rstrip("\r") for s in path.read_text(encoding="utf-8-sig").split("\n")]
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
                    f"{before[1]}. Expected as many: words with spaces need tabs between columns; "
                    "of columns that differ from sentence to sentence column=... is counted from 0."
                )
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise ValueError(f"{path.name} holds no words.")
    words, tags = ([[row[i] for row in sentence] for sentence in found] for i in (0, 1))
    _check_columns(path.name, words, tags, columns)
    return words, tags


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
                f"{line}: there is no column {column} in {cells}. Expected a word and its tags, "
                "between tabs or spaces; column=... says which of them is the tag."
            )
    word, tag = (column % len(cells) for column in columns)
    if word == tag:
        raise ValueError(f"{line}: {cells} has no tag in addition to the word.")
    return cells[word], cells[tag]
