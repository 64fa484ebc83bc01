"""Reading of files of the CoNLL shared tasks."""

from __future__ import annotations

import os
import pathlib
import re

DOCUMENT = "-DOCSTART-"
# CoNLL-U's, such as "# text = Rome shines"; the word "#" is followed by tags, not by "=".
COMMENT = re.compile(r"# ?[\w.]+ ?=")
# CoNLL-U's numbers of rows that are no words: "1-2" of what is written together, such as "don't",
# before its words "do" and "n't"; "3.1" of a word that the text leaves out.
NO_WORD = re.compile(r"\d+[-.]\d+")


def read_conll(
    path: str | os.PathLike[str], column: int = -1, word_column: int = 0
) -> tuple[list[list[str]], list[list[str]]]:
    """Read the sentences of a file with a word in each line and blank lines between sentences.

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
            "train.conll holds no words."

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
    in_tabs = _are_in_tabs(lines)
    sentences: list[list[tuple[str, str]]] = [[]]
    for number, line in enumerate(lines, 1):
        # Words may hold no-break and other spaces of Unicode, at which `split()` would split them.
        cells = line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))
        is_comment = COMMENT.match(line) or (in_tabs and line[:1] == "#" and "\t" not in line)
        if not line.strip() or cells[0] == DOCUMENT:
            sentences.append([])
        elif is_comment or (word_column == 1 and "\t" in line and NO_WORD.fullmatch(cells[0])):
            continue
        else:
            sentences[-1].append(_word_and_tag(f"{path.name}, line {number}", cells, columns))
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise ValueError(f"{path.name} holds no words.")
    words, tags = ([[row[i] for row in sentence] for sentence in found] for i in (0, 1))
    return words, tags


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
