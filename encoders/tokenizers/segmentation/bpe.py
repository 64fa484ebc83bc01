"""Byte pair encoding of many words at once."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.word_table import WordPieces
from encoder_zoo.encoders.tokenizers.text.characters import after, before, laid_out
from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable

NO_RANK = 2**31 - 1
HALF_WINDOW = 128  # symbols; longer than nearly every token


class PairMerges(tf.Module):
    """Merges neighbouring tokens of a word, the pair learned first before all others, to the end.

    Args:
        symbol_ids: the token id of every symbol (byte) that a word may hold.
        merges: pairs of tokens, "a b", in the order in which they were learned.
        ids: token to id.

    Raises:
        ValueError: "merges[0] is 'ab'; expected two tokens of the vocabulary, separated by a space,
            that together are a third"

    Source: Sennrich, Haddow & Birch, "Neural Machine Translation of Rare Words with Subword
        Units" (2016), section 3.2.
    """

    def __init__(self, symbol_ids: Sequence[int], merges: Sequence[str], ids: Mapping[str, int]):
        super().__init__()
        ranks = {}
        merged = []
        for i, merge in enumerate(merges):
            left, _, right = merge.partition(" ")
            if left not in ids or right not in ids or left + right not in ids:
                raise ValueError(
                    f"merges[{i}] is {merge!r}; expected two tokens of the vocabulary, separated "
                    "by a space, that together are a third"
                )
            ranks[ids[left] << 32 | ids[right]] = i
            merged.append(ids[left + right])
        self._symbol_ids = tf.constant(symbol_ids, tf.int32)
        self._merged = tf.constant([*merged, 0], tf.int32)
        keys = np.array([-1, *ranks.keys()], np.int64)  # TensorFlow refuses an empty table
        values = np.array([NO_RANK, *ranks.values()], np.int64)
        self._ranks = HashTable(keys, values, default_value=NO_RANK)
        safe = safe_everywhere(ranks, merged)
        self._all_safe = bool(safe.all())
        self._safe = tf.constant([*safe, True])

    def encode(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordPieces:
        """The tokens of words that lie at starts (W,) ... ends (W,) in the symbols (S,)."""
        places, word, splits = laid_out(starts, ends)  # (P,), (P,), (W + 1,)
        nothing = tf.zeros([tf.size(places), 2], tf.int32)
        pieces = self._encode(tf.gather(symbols, places), splits[:-1], splits[1:], nothing)
        ids, begins, _ = collect(pieces)
        within = begins - tf.gather(splits, tf.gather(word, begins))
        return WordPieces(ids, within, tf.searchsorted(begins, splits))

    def _encode(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, pieces: tf.Tensor
    ) -> tf.Tensor:
        """Notes the tokens of words (W,) of the symbols (S,) among the pieces (S, 2).

        Merging a word of N symbols takes up to N steps over all of it. So that this is not
        quadratic, long words are encoded in windows that overlap by half. Tokens are a word's
        encoding exactly if each two neighbours are the encoding of their own text; therefore, where
        two windows agree on a token, the encoding of the one is continued by that of the other.
        Words with an overlap without such a token are merged whole.
        """
        is_long = ends - starts > 2 * HALF_WINDOW
        any_long = tf.reduce_any(is_long)
        long = tf.boolean_mask(starts, is_long), tf.boolean_mask(ends, is_long)
        even, odd = windows(*long, 0), windows(*long, HALF_WINDOW)
        num = tf.size(symbols)

        def with_copy(values: tf.Tensor) -> tf.Tensor:  # the odd windows work on the copy
            return tf.cond(any_long, lambda: tf.concat([values, values], 0), lambda: values)

        pieces = self._merge_words(
            with_copy(symbols),
            tf.concat([tf.boolean_mask(starts, ~is_long), even[0], odd[0] + num], 0),
            tf.concat([tf.boolean_mask(ends, ~is_long), even[1], odd[1] + num], 0),
            with_copy(pieces),
        )
        return tf.cond(any_long, lambda: self._joined(symbols, *long, pieces), lambda: pieces)

    def _joined(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, pieces: tf.Tensor
    ) -> tf.Tensor:
        """Joins the windows of long words: the even among pieces[:S], the odd in pieces[S:]."""
        num = tf.size(symbols)
        even, odd = pieces[:num], pieces[num:] - [0, num]
        places, joined, failed = join_windows(even, odd, starts, ends)
        pieces = tf.tensor_scatter_nd_update(even, places[:, None], joined)
        starts, ends = tf.boolean_mask(starts, failed), tf.boolean_mask(ends, failed)
        return self._merge_words(symbols, starts, ends, pieces)

    def _merge_words(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, pieces: tf.Tensor
    ) -> tf.Tensor:
        """`_encode` without windows, in as many steps as the longest word needs."""
        places, word, splits = laid_out(starts, ends)  # (P,), (P,), (W + 1,)
        ids = tf.gather(self._symbol_ids, tf.gather(symbols, places))
        _, found = tf.while_loop(
            lambda state, found: tf.shape(state)[1] > 0,
            self._merge_once,
            [tf.stack([ids, word, tf.range(tf.size(ids))]), tf.zeros_like(ids)],
            shape_invariants=[tf.TensorShape([3, None]), tf.TensorShape([None])],
            parallel_iterations=1,
        )
        starts = tf.cast(tf.where(found > 0)[:, 0], tf.int32)
        ends = after(starts, 1, splits[-1])  # the tokens leave no gap
        entries = tf.stack([tf.gather(found, starts), tf.gather(places, ends - 1) + 1], 1)
        return tf.tensor_scatter_nd_update(pieces, tf.gather(places, starts)[:, None], entries)

    def _merge_once(self, state: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Merges the pair of lowest rank in every word; notes the words that have none left.

        The state (3, tokens of active words) is the tokens, their words, and where they start. What
        was found is id + 1 where a token starts.
        """
        ids, word, place = tf.unstack(state, num=3)
        following = tf.cast(after(ids, 1, 0), tf.int64)
        pairs = tf.bitwise.left_shift(tf.cast(ids, tf.int64), 32) + following
        rank = tf.cast(self._ranks.lookup(pairs), tf.int32)
        rank = tf.where(word == after(word, 1, -1), rank, NO_RANK)
        lowest = tf.gather(tf.math.segment_min(rank, word), word)
        done = lowest == NO_RANK
        merges = self._apart((rank == lowest) & ~done, rank, word)

        final = tf.where(done)[:, 0]
        found = tf.tensor_scatter_nd_update(
            found, tf.gather(place, final)[:, None], tf.gather(ids, final) + 1
        )
        ids = tf.where(merges, tf.gather(self._merged, tf.where(merges, rank, 0)), ids)
        active = tf.where(~before(merges, 1, False) & ~done)[:, 0]
        return tf.gather(tf.stack([ids, word, place]), active, axis=1), found

    def _apart(self, merges: tf.Tensor, rank: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
        """Of the pairs of lowest rank, those to merge in this step, going from the left."""
        overlapping = tf.reduce_any(merges & before(merges, 1, False))  # as in "aaa"
        merges = tf.cond(overlapping, lambda: every_other(merges), lambda: merges)
        if self._all_safe:
            return merges
        index = tf.range(tf.size(word))
        first = tf.math.segment_min(tf.where(merges, index, NO_RANK), word)
        safe = tf.gather(self._safe, tf.where(merges, rank, 0))
        return merges & (safe | (index == tf.gather(first, word)))


def collect(pieces: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Ids, starts and ends (T,) of the tokens entered in pieces (N, 2), in the order of the text.

    A token is entered where it starts, as id + 1 and its end.
    """
    starts = tf.cast(tf.where(pieces[:, 0] > 0)[:, 0], tf.int32)
    ids, ends = tf.unstack(tf.gather(pieces, starts), num=2, axis=1)
    return ids - 1, starts, ends


def safe_everywhere(ranks: Mapping[int, int], merged: Sequence[int]) -> np.ndarray:
    """Boolean (merges,): may a pair be merged wherever it stands in a word in one step?

    It may if no pair with the token that it makes was learned earlier; else that pair comes first.
    """
    earliest = dict.fromkeys(merged, NO_RANK)  # rank of the first pair with a token in it
    for pair, rank in ranks.items():
        for token in (pair >> 32, pair & 0xFFFFFFFF):
            earliest[token] = min(earliest.get(token, NO_RANK), rank)
    return np.array([earliest[token] > rank for rank, token in enumerate(merged)], bool)


def every_other(flags: tf.Tensor) -> tf.Tensor:
    """Keeps the first, third, ... of every run of flags.

    Example:
        >>> every_other(tf.constant([True, True, True, False, True])).numpy().tolist()
        [True, False, True, False, True]
    """
    run_starts = flags & ~before(flags, 1, False)
    first = tf.cast(tf.where(run_starts)[:, 0], tf.int32)
    run = tf.maximum(tf.cumsum(tf.cast(run_starts, tf.int32)) - 1, 0)
    place = tf.range(tf.size(flags)) - tf.gather(tf.concat([first, [0]], 0), run)
    return flags & (place % 2 == 0)


def windows(starts: tf.Tensor, ends: tf.Tensor, offset: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Windows of words (W,) side by side, as starts and ends; the last one ends with its word."""
    starts += offset
    num = tf.maximum(0, (ends - HALF_WINDOW - starts - 1) // (2 * HALF_WINDOW) + 1)
    within, word, _ = laid_out(tf.zeros_like(num), num)
    begins = tf.gather(starts, word) + 2 * HALF_WINDOW * within
    return begins, tf.minimum(begins + 2 * HALF_WINDOW, tf.gather(ends, word))


def join_windows(
    even: tf.Tensor, odd: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Joins the pieces (S, 2) of overlapping windows of words (W,).

    Window i of a word covers its blocks i and i + 1, of HALF_WINDOW symbols each.

    Returns:
        places (P,) of the words' symbols, their pieces (P, 2), and boolean (W,): has the word an
        overlap without a common token? Its pieces are left empty.
    """
    places, word, _ = laid_out(starts, ends)  # (symbols of long words,)
    block = (places - tf.gather(starts, word)) // HALF_WINDOW
    num_blocks = (ends - starts - 1) // HALF_WINDOW + 1
    overlap = (block > 0) & (block < tf.gather(num_blocks, word) - 1)

    even, odd = tf.gather(even, places), tf.gather(odd, places)
    common = overlap & (even[:, 1] > 0) & (even[:, 1] == odd[:, 1])
    blocks_before = tf.gather(tf.cumsum(num_blocks, exclusive=True), word)
    candidates = tf.where(common, places, NO_RANK)
    switch = tf.math.segment_min(candidates, blocks_before + block)  # (blocks,)
    switch = tf.gather(switch, blocks_before + block)

    window = tf.where(overlap & (places >= switch), block, tf.maximum(block - 1, 0))
    chosen = tf.where((window % 2 == 0)[:, None], even, odd)
    lacking = tf.cast(overlap & (switch == NO_RANK), tf.int32)
    failed = tf.math.segment_max(lacking, word) > 0
    joined = tf.where(tf.gather(failed, word)[:, None], 0, chosen)
    return places, joined, failed
