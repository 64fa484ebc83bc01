"""Looks up many words at once, each a stretch of one long row of symbols."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import before, laid_out, marked
from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS

SYMBOLS_PER_KEY = 4  # 16 bits each
KEYS = 3
LONGEST = SYMBOLS_PER_KEY * KEYS  # symbols of a word in the table
MAX_SYMBOL = 2**16 - 1
FOREIGN = 1  # the number of all characters that no token has


class WordPieces(NamedTuple):
    """Tokens of some words, in order.

    Attributes:
        ids: int32 (T,), token ids.
        starts: int32 (T,), the place of a token's first symbol in its word.
        splits: int32 (W + 1,), where the tokens of each word start.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    splits: tf.Tensor

    def fused(self, token_id: int) -> "WordPieces":
        """With one token in the place of neighbours of this id in the same word.

        Example:
            >>> pieces = [tf.constant(part) for part in ([0, 0, 5, 0], [0, 1, 2, 0], [0, 3, 4])]
            >>> [part.numpy().tolist() for part in WordPieces(*pieces).fused(0)]
            [[0, 5, 0], [0, 2, 0], [0, 2, 3]]
        """
        is_same = self.ids == token_id
        first = marked(self.splits[:-1], tf.size(self.ids))
        keep = ~(is_same & before(is_same, 1, False)) | first
        splits = tf.concat([[0], tf.cumsum(tf.cast(keep, tf.int32))], 0)
        ids, starts = tf.boolean_mask(self.ids, keep), tf.boolean_mask(self.starts, keep)
        return WordPieces(ids, starts, tf.gather(splits, self.splits))


class WordTable(tf.Module):
    """Words with an id each, found by three numbers that are the word.

    Four symbols of 16 bits side by side are an int64, a key; three keys hold a word of up to twelve
    symbols. Longer words are left to the caller's slow path, as are all that are not in the table.

    Args:
        words: their symbols count from 1 to `MAX_SYMBOL`.
        ids: (W,).

    Example:
        >>> table = WordTable(Spellings.of([[7, 8], [9]]), [40, 41])
        >>> symbols = tf.constant([7, 8, 0, 9, 7])
        >>> table.look_up(word_keys(symbols, tf.constant([0, 3]), tf.constant([2, 5])))
        <tf.Tensor: shape=(2,), dtype=int32, numpy=array([40, -1], dtype=int32)>
    """

    def __init__(self, words: Spellings, ids: Sequence[int]):
        super().__init__()
        is_short = words.lengths <= LONGEST
        words, ids = words.where(is_short), np.asarray(ids, np.int32)[is_short]
        padded = np.zeros([len(ids), LONGEST], np.uint16)
        padded[np.arange(LONGEST) < words.lengths[:, None]] = words.symbols
        keys = padded.reshape(-1, LONGEST).view(np.int64)  # (words, KEYS)
        prints, rows = np.unique((keys * FACTORS).sum(1), return_index=True)
        keys = np.concatenate([keys, np.zeros([1, KEYS], np.int64)])  # the last is no word
        self._keys = [tf.constant(column) for column in keys.T]
        self._ids = tf.constant([*ids, -1], tf.int32)
        self._rows = HashTable(prints, rows, default_value=len(ids))

    def look_up(self, keys: list[tf.Tensor]) -> tf.Tensor:
        """The ids (W,) int32 of words, given their `KEYS` keys (W,); -1 for what is not here."""
        row = self._rows.lookup(fingerprints(keys))
        same = all_equal([tf.gather(column, row) for column in self._keys], keys)
        return tf.where(same, tf.gather(self._ids, row), -1)

    def tokens(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, slow: Callable
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """The tokens of words, each of which has one or more.

        Args:
            symbols: int32 (S,).
            starts, ends: int32 (W,), where the words lie in the symbols.
            slow: gives the `WordPieces` of words that are not in the table, called with their
                starts and ends; of equal words there is only one.

        Returns:
            ids, starts and ends (T,) of the tokens, in order, and splits (W + 1,), where the tokens
            of each word start.
        """
        keys = word_keys(symbols, starts, ends)
        ids = self.look_up(keys)
        missed = tf.cast(tf.where(ids < 0)[:, 0], tf.int32)
        chosen, alike = distinct([tf.gather(key, missed) for key in keys])
        chosen = tf.gather(missed, chosen)
        pieces = slow(tf.gather(starts, chosen), tf.gather(ends, chosen))

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
MASKS = MASKS.astype(np.uint16).view(np.int64).T  # (KEYS, LONGEST + 2)


def fingerprints(keys: list[tf.Tensor]) -> tf.Tensor:
    """Numbers (W,) that are equal for equal keys, and hardly ever for others."""
    return tf.add_n([key * factor for key, factor in zip(keys, FACTORS.tolist(), strict=True)])


def all_equal(keys: list[tf.Tensor], others: list[tf.Tensor]) -> tf.Tensor:
    """Boolean (W,): are all keys of a word equal to the other one's?"""
    return functools.reduce(operator.and_, map(tf.equal, keys, others))


def word_keys(symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> list[tf.Tensor]:
    """The `KEYS` keys (W,) of words that lie at starts (W,) ... ends (W,) in the symbols (S,).

    They are the symbols themselves, and zero for a word of more than `LONGEST` symbols.
    """
    step = SYMBOLS_PER_KEY
    narrow = tf.pad(tf.cast(symbols, tf.uint16), [[0, LONGEST + step]])
    num = tf.size(symbols) // step + KEYS  # of windows that start at 0, 4, 8, ...; or at 1, 5, 9
    windows = tf.concat([narrow[shift : shift + step * num] for shift in range(step)], 0)
    windows = tf.bitcast(tf.reshape(windows, [-1, step]), tf.int64)
    first = starts % step * num + starts // step
    lengths = tf.minimum(ends - starts, LONGEST + 1)
    return [
        tf.bitwise.bitwise_and(tf.gather(windows, first + i), tf.gather(MASKS[i], lengths))
        for i in range(KEYS)
    ]


def distinct(keys: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """One of each of many words, which their keys (W,) tell apart; too long ones are all kept.

    Returns:
        chosen (D,), words of which no two are equal, and for every word (W,) its like among these.

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


def character_numbers(words: Spellings) -> np.ndarray:
    """Numbers the characters of words, given as code points: int32 (code points,), from 2 on.

    Raises:
        ValueError: "the vocabulary has 70000 different characters; expected at most 65534"
    """
    alphabet = np.unique(words.symbols)
    if len(alphabet) >= MAX_SYMBOL:
        raise ValueError(
            f"the vocabulary has {len(alphabet)} different characters; expected at most "
            f"{MAX_SYMBOL - 1}"
        )
    numbers = np.full(SPECIALS.stop, FOREIGN, np.int32)
    numbers[alphabet] = np.arange(len(alphabet)) + FOREIGN + 1
    return numbers
