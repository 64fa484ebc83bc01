"""Looks up many words at once, each a stretch of one long row of symbols."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.characters import laid_out

SYMBOLS_PER_KEY = 4  # 16 bits each
KEYS = 3
LONGEST = SYMBOLS_PER_KEY * KEYS  # symbols of a word in the table
MAX_SYMBOL = 2**16 - 1


class Pieces(NamedTuple):
    """Tokens of some words, in order.

    Attributes:
        ids: int32 (T,), token ids.
        starts: int32 (T,), the place of a token's first symbol in its word.
        splits: int32 (W + 1,), where the tokens of each word start.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    splits: tf.Tensor


class WordTable(tf.Module):
    """Words with an id each, found by three numbers that are the word.

    Four symbols of 16 bits side by side are an int64, a key; three keys hold a word of up to twelve
    symbols. Longer words are left to the caller's slow path, as are all that are not in the table.

    Args:
        entries: (symbols, id) per word; symbols count from 1 to `MAX_SYMBOL`.

    Example:
        >>> table = WordTable([([7, 8], 40), ([9], 41)])
        >>> symbols = tf.constant([7, 8, 0, 9, 7])
        >>> table.look_up(word_keys(symbols, tf.constant([0, 3]), tf.constant([2, 5])))
        <tf.Tensor: shape=(2,), dtype=int32, numpy=array([40, -1], dtype=int32)>
    """

    def __init__(self, entries: Iterable[tuple[Sequence[int], int]]):
        super().__init__()
        short = [(word, i) for word, i in entries if len(word) <= LONGEST]
        padded = np.array([[*w, *[0] * (LONGEST - len(w))] for w, _ in short], np.uint16)
        keys = padded.reshape(-1, LONGEST).view(np.int64)  # (words, KEYS)
        prints, rows = np.unique((keys * FACTORS).sum(1), return_index=True)
        self._keys = tf.constant(np.concatenate([keys, np.zeros([1, KEYS], np.int64)]))
        self._ids = tf.constant([i for _, i in short] + [-1], tf.int32)
        self._rows = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(prints, rows), default_value=len(short)
        )

    def look_up(self, keys: tf.Tensor) -> tf.Tensor:
        """The ids (W,) int32 of words, given their keys (W, KEYS); -1 for what is not here."""
        row = self._rows.lookup(fingerprints(keys))
        same = tf.reduce_all(tf.gather(self._keys, row) == keys, 1)
        return tf.where(same, tf.gather(self._ids, row), -1)

    def tokens(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, slow: Callable
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The tokens of words, each of which has one or more.

        Args:
            symbols: int32 (S,).
            starts, ends: int32 (W,), where the words lie in the symbols.
            slow: gives the `Pieces` of words that are not in the table, called with symbols, starts
                and ends; every word once.

        Returns:
            ids, starts and ends (T,) of the tokens, in order, and splits (W + 1,), where the tokens
            of each word start.
        """
        keys = word_keys(symbols, starts, ends)
        ids = self.look_up(keys)
        missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
        chosen, alike = distinct(tf.gather(keys, missed))
        chosen = tf.gather(missed, chosen)
        pieces = slow(symbols, tf.gather(starts, chosen), tf.gather(ends, chosen))

        # a word's tokens: itself, or a stretch of the pieces, which stand behind all words
        num = tf.size(starts)
        first = tf.gather(pieces.splits, alike) + num
        last = tf.gather(pieces.splits, alike + 1) + num
        first = tf.tensor_scatter_nd_update(tf.range(num), missed[:, None], first)
        last = tf.tensor_scatter_nd_update(tf.range(1, num + 1), missed[:, None], last)
        places, word, splits = laid_out(first, last)  # (T,), (T,), (W + 1,)
        ids = tf.gather(tf.concat([ids, pieces.ids], 0), places)
        within = tf.gather(tf.concat([tf.zeros_like(starts), pieces.starts], 0), places)
        begins = tf.gather(starts, word) + within
        next_begins = tf.concat([begins[1:], ends[-1:]], 0)
        return ids, begins, tf.minimum(next_begins, tf.gather(ends, word)), splits


FACTORS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, KEYS) | 1
# what of its keys belongs to a word of each length; nothing where it is longer than its keys
MASKS = np.where(np.arange(LONGEST) < np.arange(LONGEST + 2)[:, None], MAX_SYMBOL, 0)
MASKS[-1] = 0
MASKS = MASKS.astype(np.uint16).view(np.int64)  # (LONGEST + 2, KEYS)


def fingerprints(keys: tf.Tensor) -> tf.Tensor:
    """Numbers (W,) that are equal for equal keys (W, KEYS), and hardly ever for others."""
    return tf.reduce_sum(keys * FACTORS, 1)


def word_keys(symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """The keys (W, KEYS) of words that lie at starts (W,) ... ends (W,) in the symbols (S,).

    They are the symbols themselves, and zero for a word of more than `LONGEST` symbols.
    """
    narrow = tf.pad(tf.cast(symbols, tf.uint16), [[0, LONGEST]])
    windows = [narrow[i : tf.size(narrow) - SYMBOLS_PER_KEY + i] for i in range(SYMBOLS_PER_KEY)]
    windows = tf.bitcast(tf.stack(windows, 1), tf.int64)  # the four symbols from each place on
    keys = tf.gather(windows, starts[:, None] + range(0, LONGEST, SYMBOLS_PER_KEY))
    return tf.bitwise.bitwise_and(keys, tf.gather(MASKS, tf.minimum(ends - starts, LONGEST + 1)))


def distinct(keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """One of each of many words, which keys (W, KEYS) tell apart; too long ones are all kept.

    Returns:
        chosen (D,), words of which no two are equal, and for every word (W,) its like among these.

    Example:
        >>> keys = tf.constant([[7, 0, 0], [8, 0, 0], [7, 0, 0], [0, 0, 0], [0, 0, 0]], tf.int64)
        >>> [part.numpy().tolist() for part in distinct(keys)]
        [[0, 1, 3, 4], [0, 1, 0, 2, 3]]
    """
    unique, group = tf.unique(fingerprints(keys))
    index = tf.range(tf.size(group))
    first = tf.gather(tf.math.unsorted_segment_min(index, group, tf.size(unique)), group)
    same = tf.reduce_all(tf.gather(keys, first) == keys, 1) & (keys[:, 0] != 0)
    first = tf.where(same, first, index)
    chosen = first == index
    number = tf.cumsum(tf.cast(chosen, tf.int32)) - 1
    return tf.cast(tf.where(chosen)[:, 0], tf.int32), tf.gather(number, first)
