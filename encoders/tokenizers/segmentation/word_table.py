"""A table of words, looked up by their symbols."""

import functools
import operator
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable
from encoder_zoo.encoders.tokenizers.text.packed_words import MAX_SYMBOL, PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import replace_by_spans

SYMBOLS_PER_KEY = 4  # 16 bits each
KEYS = 3
MAX_SYMBOLS = SYMBOLS_PER_KEY * KEYS  # symbols of a word in the table


class WordTable(tf.Module):
    """Maps words of up to twelve symbols to ids.

    Four symbols of 16 bits are an int64 key, and three keys are a word. Longer words, and all
    others that are not in the table, take the caller's slow path.

    Args:
        words: with symbols from 1 to `MAX_SYMBOL`.
        ids: (W,).

    Example:
        >>> table = WordTable(PackedWords.from_symbols([[7, 8], [9]]), [40, 41])
        >>> symbols = tf.constant([7, 8, 0, 9, 7])
        >>> table.look_up(word_keys(symbols, tf.constant([0, 3]), tf.constant([2, 5])))
        <tf.Tensor: shape=(2,), dtype=int32, numpy=array([40, -1], dtype=int32)>
    """

    def __init__(self, words: PackedWords, ids: Sequence[int]):
        super().__init__()
        is_short = words.lengths <= MAX_SYMBOLS
        words, ids = words.where(is_short), np.asarray(ids, np.int32)[is_short]
        padded = np.zeros([len(ids), MAX_SYMBOLS], np.uint16)
        padded[np.arange(MAX_SYMBOLS) < words.lengths[:, None]] = words.symbols
        keys = padded.reshape(-1, MAX_SYMBOLS).view(np.int64)  # (words, KEYS)
        prints, rows = np.unique((keys * FACTORS).sum(1), return_index=True)
        keys = np.concatenate([keys, np.zeros([1, KEYS], np.int64)])  # the last row is no word
        self._keys = [tf.constant(column) for column in keys.T]
        self._ids = tf.constant([*ids, -1], tf.int32)
        self._rows = HashTable(prints, rows, default_value=len(ids))

    def look_up(self, keys: list[tf.Tensor]) -> tf.Tensor:
        """Return ids, int32 (W,), of words given by their `KEYS` keys (W,); -1 for others."""
        row = self._rows.lookup(fingerprints(keys))
        same = all_equal([tf.gather(column, row) for column in self._keys], keys)
        return tf.where(same, tf.gather(self._ids, row), -1)

    def tokens(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, slow: Callable
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the tokens of words; words not in the table take the slow path.

        Args:
            symbols: int32 (S,).
            starts, ends: int32 (W,), of the words in the symbols.
            slow: returns the `WordTokens` of words that are not in the table, given their starts
                and ends, without duplicates.

        Returns:
            ids, starts and ends (T,) of the tokens in order, and splits (W + 1,) of the words.
        """
        keys = word_keys(symbols, starts, ends)
        ids = self.look_up(keys)
        missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
        chosen, alike = distinct([tf.gather(key, missed) for key in keys])
        chosen = tf.gather(missed, chosen)
        others = slow(tf.gather(starts, chosen), tf.gather(ends, chosen))
        positions, word, splits = replace_by_spans(tf.size(ids), missed, alike, others.splits)
        ids = tf.gather(tf.concat([ids, others.ids], 0), positions)
        within = tf.gather(tf.concat([tf.zeros_like(starts), others.starts], 0), positions)
        begins = tf.gather(starts, word) + within
        next_begins = tf.concat([begins[1:], ends[-1:]], 0)
        return ids, begins, tf.minimum(next_begins, tf.gather(ends, word)), splits


FACTORS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, KEYS) | 1
# Masks of the keys for each length of a word; 0 for words that are too long.
MASKS = np.where(np.arange(MAX_SYMBOLS) < np.arange(MAX_SYMBOLS + 2)[:, None], MAX_SYMBOL, 0)
MASKS[-1] = 0
MASKS = MASKS.astype(np.uint16).view(np.int64).T  # (KEYS, MAX_SYMBOLS + 2)


def fingerprints(keys: list[tf.Tensor]) -> tf.Tensor:
    """Return hashes (W,) of keys."""
    return tf.add_n([key * factor for key, factor in zip(keys, FACTORS.tolist(), strict=True)])


def all_equal(keys: list[tf.Tensor], others: list[tf.Tensor]) -> tf.Tensor:
    """Return a mask (W,) of the words whose keys are all equal."""
    return functools.reduce(operator.and_, map(tf.equal, keys, others))


def word_keys(symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> list[tf.Tensor]:
    """Return the `KEYS` keys (W,) of the words at starts (W,) ... ends (W,) of the symbols (S,).

    The keys of words of more than `MAX_SYMBOLS` symbols are 0.
    """
    step = SYMBOLS_PER_KEY
    narrow = tf.pad(tf.cast(symbols, tf.uint16), [[0, MAX_SYMBOLS + step]])
    num = tf.size(symbols) // step + KEYS  # of windows that start at 0, 4, 8, ...; or at 1, 5, 9
    windows = tf.concat([narrow[shift : shift + step * num] for shift in range(step)], 0)
    windows = tf.bitcast(tf.reshape(windows, [-1, step]), tf.int64)
    first = starts % step * num + starts // step
    lengths = tf.minimum(ends - starts, MAX_SYMBOLS + 1)
    return [
        tf.bitwise.bitwise_and(tf.gather(windows, first + i), tf.gather(MASKS[i], lengths))
        for i in range(KEYS)
    ]


def distinct(keys: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Remove duplicate words, given by their keys (W,); words that are too long are all kept.

    Returns:
        the indices of distinct words (D,), and for every word the index (W,) among these.

    Example:
        >>> keys = [tf.constant(key, tf.int64) for key in ([7, 8, 7, 0, 0], [0] * 5, [0] * 5)]
        >>> [part.numpy().tolist() for part in distinct(keys)]
        [[0, 1, 3, 4], [0, 1, 0, 2, 3]]
    """
    unique, group = tf.unique(fingerprints(keys))
    index = tf.range(tf.size(group))
    first = tf.gather(tf.math.unsorted_segment_min(index, group, tf.size(unique)), group)
    same = all_equal([tf.gather(key, first) for key in keys], keys) & (keys[0] != 0)
    first = tf.where(same, first, index)
    chosen = first == index
    number = tf.cumsum(tf.cast(chosen, tf.int32)) - 1
    return tf.cast(tf.where(chosen)[:, 0], tf.int32), tf.gather(number, first)
