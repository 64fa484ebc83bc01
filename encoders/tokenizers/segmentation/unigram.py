"""Find the most probable tokens for many words in parallel, with a trie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.tokens import WordTokens
from encoder_zoo.encoders.tokenizers.text import ragged
from encoder_zoo.encoders.tokenizers.text.packed_words import HashTable, PackedWords

SYMBOL_BITS = 16
NOWHERE = 0  # node without edges


class Trie(tf.Module):
    """Maps symbol sequences to values. A single hash table maps (node, symbol) to the next node.

    Args:
        roots: Integer array of shape (W,). The root node for each sequence. Root nodes are numbered
            from 1. With several roots, a trie can store several sets of sequences.
        words: `PackedWords` with symbol sequences. Symbols must be between 1 and 2**16 - 1.
        values: Integer array of shape (W,). Non-negative values. For duplicate sequences, the
            last value is used.
        num_roots: Integer. The number of roots. Defaults to 1.

    Example:
        >>> trie = Trie([1], PackedWords.from_symbols([[7, 8]]), [42])
        >>> one = tf.constant([1, 1], tf.int64)
        >>> node = trie.step(trie.step(one, tf.constant([7, 9])), tf.constant(8))
        >>> node.numpy().tolist(), trie.get_values(node).numpy().tolist()
        ([3, 0], [42, -1])
    """

    def __init__(
        self, roots: Sequence[int], words: PackedWords, values: Sequence[int], num_roots: int = 1
    ):
        super().__init__()
        starts, nodes = words.starts, np.array(roots, np.int64)  # current node per word
        edges, num_nodes = [np.zeros(0, np.int64)], 1 + num_roots
        for depth in range(words.lengths.max(initial=0)):  # add a symbol to all words
            walks = words.lengths > depth
            edge = nodes[walks] << SYMBOL_BITS | words.symbols[starts[walks] + depth]
            new, number = np.unique(edge, return_inverse=True)
            nodes[walks] = num_nodes + number
            edges.append(new)
            num_nodes += len(new)
        of_nodes = np.full(num_nodes, -1, np.int32)
        of_nodes[nodes] = values  # NumPy keeps the last value
        keys = np.concatenate(edges)
        reached = np.arange(1 + num_roots, num_nodes)
        self._edges = HashTable(keys, reached, default_value=NOWHERE)
        self._values = tf.constant(of_nodes)

    def step(self, nodes: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """Follow the edge for a symbol from each node. Return NOWHERE for missing edges."""
        shifted = tf.bitwise.left_shift(nodes, SYMBOL_BITS)
        return self._edges.lookup(shifted + tf.cast(symbols, tf.int64))

    def get_values(self, nodes: tf.Tensor) -> tf.Tensor:
        """Return values (int32) for sequences that end at `nodes`, or -1 for other nodes."""
        return tf.gather(self._values, nodes)

    def find_longest_matches(
        self, roots: tf.Tensor, symbol_at: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Find the longest matching sequence for each position.

        Args:
            roots: int64 tensor of shape (K,). The root node for each position.
            symbol_at: Callable. Takes position indices (A,) and an offset, and returns the symbols
                (A,) at this offset. It can return 0 to stop a search.

        Returns:
            Values and lengths, as int32 tensors of shape (K,). Both are 0 if there is no match.
        """

        def step(length, searching, node, values, lengths):
            node = self.step(node, symbol_at(searching, length))
            alive = tf.where(node != NOWHERE)[:, 0]
            searching, node = tf.gather(searching, alive), tf.gather(node, alive)
            length += 1
            value = self.get_values(node)
            matching = tf.where(value >= 0)[:, 0]
            index = tf.gather(searching, matching)[:, None]
            values = tf.tensor_scatter_nd_update(values, index, tf.gather(value, matching))
            longest = tf.fill(tf.shape(matching), length)
            lengths = tf.tensor_scatter_nd_update(lengths, index, longest)
            return length, searching, node, values, lengths

        nothing = tf.zeros_like(roots, tf.int32)
        *_, values, lengths = tf.while_loop(
            lambda length, searching, *_: tf.size(searching) > 0,
            step,
            [0, tf.range(tf.size(roots)), roots, nothing, nothing],
            shape_invariants=[tf.TensorShape([]), *[tf.TensorShape([None])] * 4],
            parallel_iterations=1,
        )
        return values, lengths


SCALAR, VECTOR, ANY = tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape(None)
UNKNOWN_PENALTY = 10.0  # for unknown characters, subtracted from the lowest score
LONG = 64  # in symbols; longer words are split at positions that are not inside a token
EMPTY = np.zeros([0], "int32")  # TensorFlow cannot concatenate empty lists in eager mode


class Unigram(tf.Module):
    """Splits words into tokens with the highest sum of scores.

    Sums are computed as in `tokenizers`: in float64 and from left to right. For equal sums, the
    longest last token is used. Words with more than `LONG` symbols are split, so sums restart at 0.
    This does not affect comparisons, since float32 scores are added in float64 without rounding.

    Args:
        words: `PackedWords` with all tokens. Symbols are numbered from 1.
        ids: Integer array of shape (W,). The id for each token.
        scores: List of floats. The log probability for each id.
        unknown_id: Integer. The id for symbols without a token.

    Source: Kudo, "Subword Regularization: Improving Neural Network Translation Models with Multiple
        Subword Candidates" (2018), section 3.2; Viterbi, "Error bounds for convolutional codes"
        (1967).

    Example:
        >>> words, scores = PackedWords.from_symbols([[7], [8], [7, 8]]), [0.0, -2.0, -2.0, -3.0]
        >>> unigram = Unigram(words, [1, 2, 3], scores, unknown_id=0)
        >>> symbols = tf.constant([7, 8, 7, 9, 9])
        >>> unigram.encode(symbols, tf.constant([0]), tf.constant([5])).ids.numpy().tolist()
        [3, 1, 0, 0]
    """

    def __init__(
        self, words: PackedWords, ids: Sequence[int], scores: Sequence[float], unknown_id: int
    ):
        super().__init__()
        self._trie = Trie(np.ones(len(ids), np.int64), words, ids)
        table = np.array([*scores, -np.inf])
        self._nothing = len(scores)  # id used if there is no token, with a score of -inf
        table[unknown_id] = min(scores) - UNKNOWN_PENALTY
        self._scores = tf.constant(table, tf.float64)
        self._unknown_id = unknown_id

    def encode(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Tokenize words, given as start and end indices (W,) in `symbols` (S,)."""
        positions, word, splits = ragged.expand_spans(starts, ends + 1)  # (P,), (P,), (W + 1,)
        codes = tf.gather(symbols, tf.minimum(positions, tf.size(symbols) - 1))
        codes = tf.tensor_scatter_nd_update(codes, splits[1:, None] - 1, tf.zeros_like(starts))
        begins = splits[:-1]  # symbols now contain all words, separated by zeros

        arrivals, reach = self._find_tokens_by_end(codes)
        starts, ends = split_long_words(begins, splits[1:] - 1, reach)
        lengths = self._find_best_lengths(arrivals, starts, ends)
        ids = self._backtrack(arrivals, lengths, starts, ends)

        found = tf.cast(tf.where(ids >= 0)[:, 0], tf.int32)
        within = found - tf.gather(begins, tf.gather(word, found))
        return WordTokens(tf.gather(ids, found), within, tf.searchsorted(found, splits))

    def _find_tokens_by_end(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Find the tokens that end at each position, and the longest token that starts there.

        Returns:
            arrivals: int32 tensor of shape (P, K). The ids of the tokens with K, ..., 1 symbols
                that end before each position. For unknown symbols, the token with one symbol is
                the unknown token. Other missing tokens have the id `len(scores)`.
            reach: int32 tensor of shape (P,). The number of symbols in the longest token that
                starts at each position.
        """
        num = tf.size(codes)

        def step(length, origin, node, columns, reach):  # add a symbol
            node = self._trie.step(node, tf.gather(codes, origin + length))
            alive = tf.where(node != NOWHERE)[:, 0]
            origin, node = tf.gather(origin, alive), tf.gather(node, alive)
            value = self._trie.get_values(node)
            matching = tf.where(value >= 0)[:, 0]
            position, value = tf.gather(origin, matching)[:, None], tf.gather(value, matching)
            column = tf.tensor_scatter_nd_update(
                tf.fill([num], self._nothing), position + length + 1, value
            )
            columns = columns.write(length, column)
            longest = tf.fill(tf.shape(value), length + 1)
            reach = tf.tensor_scatter_nd_update(reach, position, longest)
            return length + 1, origin, node, columns, reach

        columns = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None])
        *_, columns, reach = tf.while_loop(
            lambda length, origin, *_: (tf.size(origin) > 0) | (length == 0),
            step,
            [0, tf.range(num), tf.ones([num], tf.int64), columns, tf.zeros_like(codes)],
            shape_invariants=[SCALAR, VECTOR, VECTOR, ANY, VECTOR],
            parallel_iterations=1,
        )
        arrivals = columns.stack()  # (K, P)
        lacks = (arrivals[0] == self._nothing) & (tf.concat([[0], codes[:-1]], 0) != 0)
        single = tf.where(lacks, self._unknown_id, arrivals[0])
        arrivals = tf.concat([single[None], arrivals[1:]], 0)
        return tf.transpose(tf.reverse(arrivals, [0])), reach

    def _find_best_lengths(
        self, arrivals: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Return the length (P,) of the last token in the best path to each position."""
        num_lengths = tf.shape(arrivals)[1]
        order = tf.argsort(starts - ends, stable=True)  # longest first
        starts, lengths = tf.gather(starts, order), tf.gather(ends - starts, order)
        steps = tf.reduce_max(tf.concat([lengths, [0]], 0))
        upwards = tf.reverse(lengths, [0])
        active = tf.size(lengths) - tf.searchsorted(upwards, tf.range(1, steps + 1))  # (steps,)

        def step(i, window, columns):  # window: best scores for the previous K positions, (A, K)
            num = active[i]
            window = window[:num]
            tokens = tf.gather(arrivals, starts[:num] + i + 1)
            sums = window + tf.gather(self._scores, tokens)
            columns = columns.write(i, tf.argmax(sums, 1, tf.int32))
            window = tf.concat([window[:, 1:], tf.reduce_max(sums, 1)[:, None]], 1)
            return i + 1, window, columns

        zero = tf.zeros([tf.size(starts), 1], tf.float64)
        window = tf.pad(zero, [[0, 0], [num_lengths - 1, 0]], constant_values=-np.inf)
        columns = tf.TensorArray(tf.int32, steps + 1, element_shape=[None], infer_shape=False)
        columns = columns.write(steps, EMPTY)
        *_, columns = tf.while_loop(
            lambda i, *_: i < steps,
            step,
            [0, window, columns],
            shape_invariants=[SCALAR, tf.TensorShape([None, None]), ANY],
            parallel_iterations=1,
        )
        splits = tf.concat([[0], tf.cumsum(active)], 0)
        row = ragged.compute_row_ids(splits, splits[-1])
        positions = tf.gather(starts, tf.range(splits[-1]) - tf.gather(splits, row)) + row + 1
        best = num_lengths - columns.concat()
        return tf.scatter_nd(positions[:, None], best, tf.shape(arrivals)[:1])

    def _backtrack(
        self, arrivals: tf.Tensor, lengths: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Return the token id (P,) at the start of each token in the best paths, -1 elsewhere."""
        num_lengths = tf.shape(arrivals)[1]

        def step(i, current, first, positions, tokens):
            length = tf.gather(lengths, current)
            token = tf.gather_nd(arrivals, tf.stack([current, num_lengths - length], 1))
            current -= length
            positions, tokens = positions.write(i, current), tokens.write(i, token)
            on = current > first
            current, first = tf.boolean_mask(current, on), tf.boolean_mask(first, on)
            return i + 1, current, first, positions, tokens

        on = ends > starts
        found = [
            tf.TensorArray(
                tf.int32, 0, dynamic_size=True, element_shape=[None], infer_shape=False
            ).write(0, EMPTY)
            for _ in ("positions", "tokens")
        ]
        *_, positions, tokens = tf.while_loop(
            lambda i, current, *_: tf.size(current) > 0,
            step,
            [1, tf.boolean_mask(ends, on), tf.boolean_mask(starts, on), *found],  # after EMPTY
            shape_invariants=[SCALAR, VECTOR, VECTOR, ANY, ANY],
            parallel_iterations=1,
        )
        ids = tf.fill(tf.shape(lengths), -1)
        return tf.tensor_scatter_nd_update(ids, positions.concat()[:, None], tokens.concat())


def split_long_words(
    begins: tf.Tensor, ends: tf.Tensor, reach: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Split long words at positions that are not inside a token.

    Args:
        begins, ends: int32 tensors of shape (W,). The start and end for each word.
        reach: int32 tensor of shape (P,). The number of symbols in the longest token that starts
            at each position.

    Returns:
        Two int32 tensors of shape (G,) with the start and the end of each part.

    Example:
        >>> short = split_long_words(tf.constant([0]), tf.constant([3]), tf.constant([2, 1, 1, 0]))
        >>> [part.numpy().tolist() for part in short]
        [[0], [3]]
    """

    def split_words() -> tuple[tf.Tensor, tf.Tensor]:
        num = tf.size(reach)
        position = tf.range(num)
        crossed = ragged.is_in_span(position + 1, position + tf.maximum(reach, 1), reach > 1)
        within, _, _ = ragged.expand_spans(
            tf.boolean_mask(begins, ends - begins > LONG),
            tf.boolean_mask(ends, ends - begins > LONG),
        )
        cut = tf.boolean_mask(within, ~tf.gather(crossed, within))
        start = ragged.make_index_mask(cut, num) | ragged.make_index_mask(begins, num)
        starts = tf.cast(tf.where(start)[:, 0], tf.int32)
        word_ends = tf.cast(tf.where(ragged.make_index_mask(ends, num) | start)[:, 0], tf.int32)
        behind = tf.searchsorted(word_ends, starts, side="right")
        return starts, tf.gather(word_ends, behind)

    return tf.cond(tf.reduce_any(ends - begins > LONG), split_words, lambda: (begins, ends))
