"""Byte pair encoding for many words in parallel."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.tokens import WordTokens
from encoder_zoo.encoders.tokenizers.text import ragged
from encoder_zoo.encoders.tokenizers.text.packed_words import HashTable

NO_RANK = 2**31 - 1
HALF_WINDOW = 128  # in symbols; longer than almost all tokens


class BPE(tf.Module):
    """Tokenize words with byte pair encoding.

    Adjacent symbols are merged in the order in which the merges were learned.

    Args:
        symbol_ids: List of integers. The token id for each symbol (byte or character).
        merges: List of "a b" pairs, in the order in which they were learned. The concatenation of
            each pair must be a token. See `files.reading.check_merges`.
        ids: Dict mapping tokens to ids.

    Source: Sennrich, Haddow & Birch, "Neural Machine Translation of Rare Words with Subword
        Units" (2016), section 3.2.
    """

    def __init__(self, symbol_ids: Sequence[int], merges: Sequence[str], ids: Mapping[str, int]):
        super().__init__()
        ranks = {}
        merged = []
        for i, merge in enumerate(merges):
            left, _, right = merge.partition(" ")
            ranks[ids[left] << 32 | ids[right]] = i
            merged.append(ids[left + right])
        self._symbol_ids = tf.constant(symbol_ids, tf.int32)
        self._merged = tf.constant([*merged, 0], tf.int32)
        keys = np.array([-1, *ranks.keys()], np.int64)  # TensorFlow does not allow empty tables
        values = np.array([NO_RANK, *ranks.values()], np.int64)
        self._ranks = HashTable(keys, values, default_value=NO_RANK)
        safe = are_safe_in_parallel(ranks, merged)
        self._all_safe = bool(safe.all())
        self._safe = tf.constant([*safe, True])

    def encode(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Tokenize words, given as start and end indices (W,) in `symbols` (S,)."""
        positions, word, splits = ragged.expand_spans(starts, ends)  # (P,), (P,), (W + 1,)
        nothing = tf.zeros([tf.size(positions), 2], tf.int32)
        entries = self._encode(tf.gather(symbols, positions), splits[:-1], splits[1:], nothing)
        ids, begins, _ = collect_tokens(entries)
        within = begins - tf.gather(splits, tf.gather(word, begins))
        return WordTokens(ids, within, tf.searchsorted(begins, splits))

    def _encode(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, entries: tf.Tensor
    ) -> tf.Tensor:
        """Tokenize words, given as start and end indices (W,) in `symbols` (S,).

        Each token is written to `entries` (S, 2) at the index of its first symbol.

        To merge a word with N symbols, up to N steps over all symbols are needed. To avoid
        quadratic time, long words are encoded in windows that overlap by half. This works because a
        list of tokens is the encoding of a word if and only if each pair of adjacent tokens is the
        encoding of the pair's text. If two windows share a token, the encoding can therefore switch
        from the first to the second window. If two windows of a word share no token, the word is
        encoded as a whole.
        """
        is_long = ends - starts > 2 * HALF_WINDOW
        any_long = tf.reduce_any(is_long)
        long = tf.boolean_mask(starts, is_long), tf.boolean_mask(ends, is_long)
        even, odd = split_windows(*long, 0), split_windows(*long, HALF_WINDOW)
        num = tf.size(symbols)

        def append_copy(values: tf.Tensor) -> tf.Tensor:  # needed for odd windows
            return tf.cond(any_long, lambda: tf.concat([values, values], 0), lambda: values)

        entries = self._merge_words(
            append_copy(symbols),
            tf.concat([tf.boolean_mask(starts, ~is_long), even[0], odd[0] + num], 0),
            tf.concat([tf.boolean_mask(ends, ~is_long), even[1], odd[1] + num], 0),
            append_copy(entries),
        )
        return tf.cond(
            any_long, lambda: self._join_long_words(symbols, *long, entries), lambda: entries
        )

    def _join_long_words(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, entries: tf.Tensor
    ) -> tf.Tensor:
        """Join the windows of long words.

        Even windows are stored in entries[:S], and odd windows in entries[S:].
        """
        num = tf.size(symbols)
        even, odd = entries[:num], entries[num:] - [0, num]
        positions, joined, failed = join_windows(even, odd, starts, ends)
        entries = tf.tensor_scatter_nd_update(even, positions[:, None], joined)
        starts, ends = tf.boolean_mask(starts, failed), tf.boolean_mask(ends, failed)
        return self._merge_words(symbols, starts, ends, entries)

    def _merge_words(
        self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, entries: tf.Tensor
    ) -> tf.Tensor:
        """Encode words without windows. The number of steps depends on the longest word."""
        positions, word, splits = ragged.expand_spans(starts, ends)  # (P,), (P,), (W + 1,)
        ids = tf.gather(self._symbol_ids, tf.gather(symbols, positions))
        _, found = tf.while_loop(
            lambda state, found: tf.shape(state)[1] > 0,
            self._merge_once,
            [tf.stack([ids, word, tf.range(tf.size(ids))]), tf.zeros_like(ids)],
            shape_invariants=[tf.TensorShape([3, None]), tf.TensorShape([None])],
            parallel_iterations=1,
        )
        starts = tf.cast(tf.where(found > 0)[:, 0], tf.int32)
        ends = ragged.shift_left(starts, 1, splits[-1])  # tokens are adjacent
        made = tf.stack([tf.gather(found, starts), tf.gather(positions, ends - 1) + 1], 1)
        return tf.tensor_scatter_nd_update(entries, tf.gather(positions, starts)[:, None], made)

    def _merge_once(self, state: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Merge the pair with the lowest rank in each word, and finish words without a pair.

        The state has shape (3, tokens in active words), with token ids, word indices and start
        positions. `found` contains id + 1 at the start of each token in a finished word.
        """
        ids, word, position = tf.unstack(state, num=3)
        following = tf.cast(ragged.shift_left(ids, 1, 0), tf.int64)
        pairs = tf.bitwise.left_shift(tf.cast(ids, tf.int64), 32) + following
        rank = tf.cast(self._ranks.lookup(pairs), tf.int32)
        rank = tf.where(word == ragged.shift_left(word, 1, -1), rank, NO_RANK)
        lowest = tf.gather(tf.math.segment_min(rank, word), word)
        done = lowest == NO_RANK
        merges = self._select_pairs((rank == lowest) & ~done, rank, word)

        final = tf.where(done)[:, 0]
        found = tf.tensor_scatter_nd_update(
            found, tf.gather(position, final)[:, None], tf.gather(ids, final) + 1
        )
        ids = tf.where(merges, tf.gather(self._merged, tf.where(merges, rank, 0)), ids)
        active = tf.where(~ragged.shift_right(merges, 1, False) & ~done)[:, 0]
        return tf.gather(tf.stack([ids, word, position]), active, axis=1), found

    def _select_pairs(self, merges: tf.Tensor, rank: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
        """Select the pairs with the lowest rank to merge in this step, starting from the left."""
        overlapping = tf.reduce_any(merges & ragged.shift_right(merges, 1, False))  # as in "aaa"
        merges = tf.cond(overlapping, lambda: ragged.keep_every_other(merges), lambda: merges)
        if self._all_safe:
            return merges
        index = tf.range(tf.size(word))
        first = tf.math.segment_min(tf.where(merges, index, NO_RANK), word)
        safe = tf.gather(self._safe, tf.where(merges, rank, 0))
        return merges & (safe | (index == tf.gather(first, word)))


def collect_tokens(entries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return ids, starts and ends with shape (T,) for the tokens in entries (N, 2).

    The entry at the start of a token contains id + 1 and the end of the token. The first value of
    all other entries is 0.
    """
    starts = tf.cast(tf.where(entries[:, 0] > 0)[:, 0], tf.int32)
    ids, ends = tf.unstack(tf.gather(entries, starts), num=2, axis=1)
    return ids - 1, starts, ends


def are_safe_in_parallel(ranks: Mapping[int, int], merged: Sequence[int]) -> np.ndarray:
    """Return a boolean for each merge: whether all its occurrences can be merged in one step.

    A merge is not safe if the new token is part of a pair with a lower rank, because this pair must
    be merged before the next occurrence.

    Args:
        ranks: Dict mapping pairs to ranks. A pair is an integer: the id of the left
            token in the upper 32 bits, and the id of the right token in the lower 32 bits.
        merged: List of integers. The id of the new token for each merge.
    """
    earliest = dict.fromkeys(merged, NO_RANK)  # rank of the first pair with this token
    for pair, rank in ranks.items():
        for token in (pair >> 32, pair & 0xFFFFFFFF):
            earliest[token] = min(earliest.get(token, NO_RANK), rank)
    return np.array([earliest[token] > rank for rank, token in enumerate(merged)], bool)


def split_windows(starts: tf.Tensor, ends: tf.Tensor, offset: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Split words (W,) into adjacent windows, and return the starts and ends of the windows.

    The first window starts `offset` symbols after the start of the word. Up to HALF_WINDOW symbols
    at the end of a word are omitted, because they are part of the windows with the other offset.
    """
    starts += offset
    num = tf.maximum(0, (ends - HALF_WINDOW - starts - 1) // (2 * HALF_WINDOW) + 1)
    within, word, _ = ragged.expand_spans(tf.zeros_like(num), num)
    begins = tf.gather(starts, word) + 2 * HALF_WINDOW * within
    return begins, tf.minimum(begins + 2 * HALF_WINDOW, tf.gather(ends, word))


def join_windows(
    even: tf.Tensor, odd: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Join entries (S, 2) from overlapping windows for words (W,).

    Window i covers the blocks i and i + 1 in a word. Each block has HALF_WINDOW symbols.

    Returns:
        Tuple (positions, entries, failed). `positions` has shape (P,) and contains the indices of
        all symbols in words. `entries` has shape (P, 2) and contains their entries. `failed` has
        shape (W,) and is True for words with overlapping windows that share no token. The entries
        of these words are 0.
    """
    positions, word, _ = ragged.expand_spans(starts, ends)  # (symbols of long words,)
    block = (positions - tf.gather(starts, word)) // HALF_WINDOW
    num_blocks = (ends - starts - 1) // HALF_WINDOW + 1
    overlap = (block > 0) & (block < tf.gather(num_blocks, word) - 1)

    even, odd = tf.gather(even, positions), tf.gather(odd, positions)
    common = overlap & (even[:, 1] > 0) & (even[:, 1] == odd[:, 1])
    blocks_before = tf.gather(tf.cumsum(num_blocks, exclusive=True), word)
    candidates = tf.where(common, positions, NO_RANK)
    switch = tf.math.segment_min(candidates, blocks_before + block)  # (blocks,)
    switch = tf.gather(switch, blocks_before + block)

    window = tf.where(overlap & (positions >= switch), block, tf.maximum(block - 1, 0))
    chosen = tf.where((window % 2 == 0)[:, None], even, odd)
    lacking = tf.cast(overlap & (switch == NO_RANK), tf.int32)
    failed = tf.math.segment_max(lacking, word) > 0
    joined = tf.where(tf.gather(failed, word)[:, None], 0, chosen)
    return positions, joined, failed
