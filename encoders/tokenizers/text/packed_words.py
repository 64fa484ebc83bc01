"""Store many words in a single array to save memory, and look up values in hash tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import NUM_CODE_POINTS


class HashTable(tf.lookup.StaticHashTable):
    """Works like `tf.lookup.StaticHashTable`, but is freed when it is no longer used.

    TensorFlow keeps named tables until the process ends, which takes 5 MB for a `BertTokenizer`
    with 30,000 tokens. Tables created here in eager mode are anonymous. In graphs, such as for a
    SavedModel, tables are named.

    Args:
        keys: Array with shape (N,), with at least one string or int64 value.
        values: int32 or int64 array of shape (N,).
        default_value: Integer. The value to return for missing keys.

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
UNKNOWN_SYMBOL = 1  # used for all characters without a token


class PackedWords(NamedTuple):
    """Several words in a single array.

    Attributes:
        symbols: int64 array of shape (S,). The symbols in all words.
        lengths: int64 array of shape (W,). The number of symbols per word.

    Example:
        >>> words = PackedWords.from_texts(["cat", "", "do"])
        >>> words.symbols.tolist(), words.starts.tolist()
        ([99, 97, 116, 100, 111], [0, 3, 3])
        >>> words.select(words.lengths < 3).concatenate(PackedWords.from_symbols([[7]]))
        PackedWords(symbols=array([100, 111,   7]), lengths=array([0, 2, 1]))
    """

    symbols: np.ndarray
    lengths: np.ndarray

    @classmethod
    def from_symbols(cls, words: Sequence[Sequence[int]]) -> PackedWords:
        """Create words from sequences of symbols, or from bytes."""
        symbols = np.fromiter(itertools.chain.from_iterable(words), np.int64)
        return cls(symbols, np.array([len(word) for word in words], np.int64))

    @classmethod
    def from_texts(cls, words: Sequence[str]) -> PackedWords:
        """Create words from strings. Code points are used as symbols."""
        encoded = "".join(words).encode("utf-32-le", "surrogatepass")
        lengths = np.array([len(word) for word in words], np.int64)
        return cls(np.frombuffer(encoded, "<u4").astype(np.int64), lengths)

    @property
    def starts(self) -> np.ndarray:
        """int64 array of shape (W,). Start index for each word."""
        return np.cumsum(self.lengths) - self.lengths

    def select(self, keep: np.ndarray) -> PackedWords:
        """Select words with a boolean array of shape (W,)."""
        return PackedWords(self.symbols[np.repeat(keep, self.lengths)], self.lengths[keep])

    def concatenate(self, other: PackedWords) -> PackedWords:
        """Append other words."""
        return PackedWords(*map(np.concatenate, zip(self, other, strict=True)))


def number_characters(words: PackedWords) -> np.ndarray:
    """Assign a number to each character in the words, starting with 2.

    Words must contain code points. The returned int32 array can be indexed by code point.

    Raises:
        ValueError: If there are too many different characters.
    """
    alphabet = np.unique(words.symbols)
    if len(alphabet) >= MAX_SYMBOL:
        raise ValueError(
            f"The vocabulary has {len(alphabet)} different characters. Expected at most "
            f"{MAX_SYMBOL - 1}."
        )
    numbers = np.full(NUM_CODE_POINTS, UNKNOWN_SYMBOL, np.int32)
    numbers[alphabet] = np.arange(len(alphabet)) + UNKNOWN_SYMBOL + 1
    return numbers
