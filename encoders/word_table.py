"""Looks up many words at once, each a stretch of one long row of symbols."""

from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf


class WordTable(tf.Module):
    """Words with an id each, found by a fingerprint and then compared symbol by symbol.

    A fingerprint is the sum of the symbols, each times a random 64-bit number for its place. In a
    row of symbols this takes a fixed number of passes, however many words there are. Of two words
    with one fingerprint only the first is kept; the caller's slow path finds the other.

    Args:
        entries: (symbols, id) per word; symbols are code points or bytes, at least one.

    Example:
        >>> table = WordTable([([7, 8], 40), ([9], 41)])
        >>> table.look_up(tf.constant([7, 8, 0, 9, 7]), tf.constant([0, 3]), tf.constant([2, 5]))
        <tf.Tensor: shape=(2,), dtype=int32, numpy=array([40, -1], dtype=int32)>
    """

    def __init__(self, entries: Iterable[tuple[Sequence[int], int]]):
        super().__init__()
        words, ids = zip(*entries, strict=True)
        lengths = np.array([len(word) for word in words])
        starts = np.cumsum(lengths) - lengths
        symbols = np.array([symbol for word in words for symbol in word], np.int64)
        places = np.arange(len(symbols)) - np.repeat(starts, lengths)
        # the last factor, zero, is for places behind the longest word
        factors = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, lengths.max() + 1)
        factors[-1] = 0
        prints = np.add.reduceat(symbols * factors[places], starts)
        prints, first = np.unique(prints, return_index=True)
        self._factors = tf.constant(factors)
        self._symbols = tf.constant(symbols, tf.int32)
        self._words = tf.constant(np.stack([starts, lengths, ids], 1)[first], tf.int32)
        self._rows = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(prints, np.arange(len(first))), default_value=-1
        )

    def look_up(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """The ids (W,) of the words that lie at starts (W,) ... ends (W,) in the symbols (S,).

        Args:
            symbols, starts, ends: int32; the words are in order and do not overlap.

        Returns:
            int32 (W,), -1 for a word that is not in the table.
        """
        num = tf.size(symbols)
        begins = tf.scatter_nd(starts[:, None], tf.ones_like(starts), [num])
        word = tf.cumsum(begins)  # (S,), from 1 on; what stands before any word is in 0
        place = tf.range(num) - tf.gather(tf.concat([[0], starts], 0), word)
        inside = place < tf.gather(tf.concat([[0], ends - starts], 0), word)

        factor = tf.gather(self._factors, tf.minimum(place, tf.size(self._factors) - 1))
        factor = tf.where(inside, factor, 0)
        prints = tf.math.segment_sum(tf.cast(symbols, tf.int64) * factor, word)[1:]
        row = self._rows.lookup(prints)
        begin, length, found = tf.unstack(tf.gather(self._words, tf.maximum(row, 0)), num=3, axis=1)

        # the words may be longer than the one found, or only share its fingerprint
        expected = tf.gather(tf.concat([[0], begin], 0), word) + place
        expected = tf.gather(self._symbols, tf.minimum(expected, tf.size(self._symbols) - 1))
        differs = tf.cast(inside & (symbols != expected), tf.int32)
        differences = tf.math.segment_max(differs, word)[1:]
        same = (row >= 0) & (length == ends - starts) & (differences == 0)
        return tf.where(same, found, -1)
