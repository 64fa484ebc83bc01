"""An index of words: BM25, by the package bm25s.

Comment letters: N documents.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import unicodedata
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import LazyModule, require
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.presets.files.manifest import NAME, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.tasks.retrieval.base_index import PlainIndex
from encoder_zoo.tasks.retrieval.index_checks import checked_texts
from encoder_zoo.tasks.retrieval.index_files import (
    TEXTS,
    checked_manifest,
    read_texts,
    replacing_index,
    write_texts,
)

if TYPE_CHECKING:
    from typing import Self

bm25s = LazyModule("bm25s", "BM25 needs the package bm25s: `pip install bm25s`.")
KIND = "bm25_index"  # where the manifest of a preset names its task
# Han and Hiragana, which are written without spaces.
UNSPACED = "\u3041-\u3096\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"


class BM25Index(PlainIndex):
    """Find the documents that share the rarest words with a text, without any model.

        words = ez.BM25Index(documents)
        words.search("How do I reset it?", top_k=3)  # [{"index", "score", "text"}, ...]

    Words are runs of letters, their accents and vowel signs, digits and `_`, in lower case and
    Unicode's form NFC; of Chinese and Japanese, each Han or Hiragana character is one. Documents
    that share none with a query are not found. Needs the package bm25s.

    Args:
        documents: a list, array or column of texts.

    Attributes:
        texts: the documents.

    Raises:
        ValueError: "documents is empty. ...", "documents[3] is empty. ..."
        ImportError: "BM25 needs the package bm25s: ..."

    Source: Robertson and Zaragoza 2009, The Probabilistic Relevance Framework: BM25 and Beyond,
    section 3. Words: as in Unicode Standard Annex 29, section 4, but for Katakana and Hangul, whose
    runs are words, and text of Thai and its like, which would need a dictionary.
    """

    def __init__(self, documents: object):
        require(bm25s)
        self._set(checked_texts(documents, "documents"))

    def _set(self, texts: list[str]) -> None:
        words, bm25 = [words_of(text) for text in texts], bm25s.BM25()
        if any(words):
            bm25.index(words, show_progress=False)
        self.texts, self._bm25 = texts, bm25 if any(words) else None

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"<BM25Index: {len(self):,} texts>"

    def _find(self, queries: list[str], top_k: int):
        return [self._best(query, top_k) for query in queries]

    def _best(self, query: str, top_k: int) -> tuple[np.ndarray, np.ndarray]:
        ids = self._bm25.get_tokens_ids(words_of(query)) if self._bm25 else []
        if not ids:
            return np.zeros(0, "int64"), np.zeros(0, "float32")
        scores = self._bm25.get_scores_from_ids(ids)
        least = max(np.partition(scores, -top_k)[-top_k], np.finfo("float32").tiny)
        found = np.flatnonzero(scores >= least)
        found = found[np.argsort(-scores[found], kind="stable")[:top_k]]
        return found, scores[found]

    def add(self, documents: object) -> None:
        """Add documents behind those that are there. All words are counted again.

        Args:
            documents: a list, array or column of texts.

        Raises:
            ValueError: as the class.
        """
        self._set([*self.texts, *checked_texts(documents, "documents")])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the texts into a folder of their own, replaced atomically; see `load`.

        Args:
            folder: to write.
        """
        with replacing_index(folder) as new:
            write_texts(new / TEXTS, self.texts)
            write_manifest(new, {"task": KIND})

    @classmethod
    @validate_arguments
    def load(cls, folder: str | os.PathLike[str], verify: bool = True) -> Self:
        """Return an index of the texts that `save` wrote, whose words are counted again.

        Args:
            folder: written by `save`.
            verify: whether to verify the checksums of the files.

        Raises:
            FileNotFoundError: if there is no such folder.
            ValueError: "... holds no index: ...", "... is damaged or changed: ..."
        """
        with OpenFolder(folder, [NAME, TEXTS]) as files:
            checked_manifest(files, KIND, verify)
            return cls(read_texts(files) or [])


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case.

    Example:
        >>> words_of("It's naïve, No. 5!")
        ['it', 's', 'naïve', 'no', '5']
        >>> words_of("हिन्दी 東京タワー")
        ['हिन्दी', '東', '京', 'タワー']
    """
    return word_pattern().findall(unicodedata.normalize("NFC", text.lower()))


@functools.cache
def word_pattern() -> re.Pattern[str]:
    """Return the pattern of a word. Marks, such as vowel signs, are no letters to `\\w`."""
    characters = map(chr, range(sys.maxunicode + 1))
    marks = "".join(c for c in characters if unicodedata.category(c) in ("Mn", "Mc"))
    return re.compile(rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[{marks}])+")
