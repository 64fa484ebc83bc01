"""Reading of files of the CoNLL shared tasks."""

from __future__ import annotations

import os
import pathlib
import re

DOCUMENT = "-DOCSTART-"
# CoNLL-U's, such as "# text = Rome shines"; the word "#" is followed by tags, not by "=".
COMMENT = re.compile(r"# ?[\w.]+ ?=")


def read_conll(
    path: str | os.PathLike[str], column: int = -1, word_column: int = 0
) -> tuple[list[list[str]], list[list[str]]]:
    """Read the sentences of a file with a word in each line and blank lines between sentences.

    Comments as "# text = ..." and CoNLL-2003's -DOCSTART- are left out.

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
    sentences: list[list[tuple[str, str]]] = [[]]
    # Not `splitlines`, which also splits at characters inside of words, such as U+0085.
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        line = line.rstrip("\r")
        cells = line.split("\t") if "\t" in line else line.split()
        if not line.strip() or cells[0] == DOCUMENT:
            sentences.append([])
        elif not COMMENT.match(line):
            sentences[-1].append(_word_and_tag(f"{path.name}, line {number}", cells, columns))
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise ValueError(f"{path.name} holds no words.")
    words, tags = ([[row[i] for row in sentence] for sentence in found] for i in (0, 1))
    return words, tags


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
