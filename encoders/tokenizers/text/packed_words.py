"""Many words as one array of symbols, which takes less memory than lists; tables of hashes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import SPECIALS


class HashTable(tf.lookup.StaticHashTable):
    """Maps keys to values like `tf.lookup.StaticHashTable`, but is freed with its last reference.

    TensorFlow keeps named tables until the process ends, 5 MB for a `BertTokenizer` of 30,000
    tokens. A table made eagerly is anonymous here; in graphs, as in a SavedModel, it has a name.

    Args:
        keys: (N,), strings or int64, at least one.
        values: (N,), int32 or int64.
        default_value: value of other keys.

    Example:
        >>> table = HashTable(["cat", "dog"], [7, 8], default_value=-1)
        >>> table.lookup(tf.constant(["dog", "bird"])).numpy().tolist()
        [8, -1]
    """

    def __init__(
        self, keys: np.ndarray | tf.Tensor, values: np.ndarray | tf.Tensor, default_value: int
    ):
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        super().__init__(initializer, default_value=default_value)

    def _create_resource(self) -> tf.Tensor:
        if not tf.executing_eagerly():
            return super()._create_resource()
        return tf.raw_ops.AnonymousHashTable(key_dtype=self.key_dtype, value_dtype=self.value_dtype)


MAX_SYMBOL = 2**16 - 1
UNKNOWN_SYMBOL = 1  # the number of all characters without a token


class PackedWords(NamedTuple):
    """Holds words (W,), concatenated.

    Attributes:
        symbols: int64 (S,), symbols of all words.
        lengths: int64 (W,), number of symbols of each word.

    Example:
        >>> words = PackedWords.from_texts(["cat", "", "do"])
        >>> words.symbols.tolist(), words.starts.tolist()
        ([99, 97, 116, 100, 111], [0, 3, 3])
        >>> words.where(words.lengths < 3).concatenate(PackedWords.from_symbols([[7]]))
        PackedWords(symbols=array([100, 111,   7]), lengths=array([0, 2, 1]))
    """

    symbols: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_symbols(cls, words: Sequence[Sequence[int]]) -> PackedWords:
        """Pack words given as sequences of symbols, or as bytes."""
        symbols = np.fromiter(itertools.chain.from_iterable(words), np.int64)
        return cls(symbols, np.array([len(word) for word in words], np.int64))

    @classmethod
    def from_texts(cls, words: Sequence[str]) -> PackedWords:
        """Pack words given as strings, with code points as symbols."""
        encoded = "".join(words).encode("utf-32-le", "surrogatepass")
        lengths = np.array([len(word) for word in words], np.int64)
        return cls(np.frombuffer(encoded, "<u4").astype(np.int64), lengths)

    @property
    def starts(self) -> np.ndarray:
        """int64 (W,), where each word starts."""
        return np.cumsum(self.lengths) - self.lengths

    def where(self, keep: np.ndarray) -> PackedWords:
        """Return the words where `keep`, boolean (W,), is true."""
        return PackedWords(self.symbols[np.repeat(keep, self.lengths)], self.lengths[keep])

    def concatenate(self, other: PackedWords) -> PackedWords:
        """Return these words followed by others."""
        return PackedWords(*map(np.concatenate, zip(self, other, strict=True)))


def character_numbers(words: PackedWords) -> np.ndarray:
    """Number the characters of words, given as code points: int32 (code points,), from 2 on.

    Raises:
        ValueError: If the words have too many different characters.
    """
    alphabet = np.unique(words.symbols)
    if len(alphabet) >= MAX_SYMBOL:
        raise ValueError(
            f"The vocabulary has {len(alphabet)} different characters. Expected at most "
            f"{MAX_SYMBOL - 1}."
        )
    numbers = np.full(SPECIALS.stop, UNKNOWN_SYMBOL, np.int32)
    numbers[alphabet] = np.arange(len(alphabet)) + UNKNOWN_SYMBOL + 1
    return numbers
