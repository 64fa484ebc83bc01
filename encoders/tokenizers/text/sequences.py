"""Many words as one long row of symbols: as 30,000 lists they would keep Python's memory busy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Spellings(NamedTuple):
    """Words (W,), one after the other.

    Attributes:
        symbols: int64 (S,), of all words.
        lengths: int64 (W,), how many symbols each word has.

    Example:
        >>> words = Spellings.of_texts(["cat", "", "do"])
        >>> words.symbols.tolist(), words.starts.tolist()
        ([99, 97, 116, 100, 111], [0, 3, 3])
        >>> words.where(words.lengths < 3).followed_by(Spellings.of([[7]]))
        Spellings(symbols=array([100, 111,   7]), lengths=array([0, 2, 1]))
    """

    symbols: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, words: Sequence[Sequence[int]]) -> Spellings:
        """Of words as sequences of symbols, or as bytes."""
        symbols = np.fromiter(itertools.chain.from_iterable(words), np.int64)
        return cls(symbols, np.array([len(word) for word in words], np.int64))

    @classmethod
    def of_texts(cls, words: Sequence[str]) -> Spellings:
        """Of words as strings: their symbols are code points."""
        encoded = "".join(words).encode("utf-32-le", "surrogatepass")
        lengths = np.array([len(word) for word in words], np.int64)
        return cls(np.frombuffer(encoded, "<u4").astype(np.int64), lengths)

    @property
    def starts(self) -> np.ndarray:
        """Where each word starts: int64 (W,)."""
        return np.cumsum(self.lengths) - self.lengths

    def where(self, keep: np.ndarray) -> Spellings:
        """The words for which `keep`, boolean (W,), is true."""
        return Spellings(self.symbols[np.repeat(keep, self.lengths)], self.lengths[keep])

    def followed_by(self, other: Spellings) -> Spellings:
        """These words, and then other ones."""
        return Spellings(*map(np.concatenate, zip(self, other, strict=True)))
