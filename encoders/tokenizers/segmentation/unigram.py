"""The most probable pieces of many words at once."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.trie import NOWHERE, Trie
from encoder_zoo.encoders.tokenizers.segmentation.word_table import WordPieces
from encoder_zoo.encoders.tokenizers.text.characters import laid_out, marked, row_numbers
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings

UNKNOWN_PENALTY = 10.0  # an unknown character scores so much less than the rarest piece
LONG = 64  # symbols; longer words are divided where no piece goes across


class Unigram(tf.Module):
    """Splits words into the pieces whose scores add up to most.

    Sums are those of `tokenizers`: in 64 bits, from the left; of equal ones the longest last piece
    counts. A word of more than `LONG` symbols is divided, so that its sums start anew; they still
    compare alike, as scores of 32 bits add up in 64 without rounding.

    Args:
        words: the pieces; their symbols count from 1.
        ids: (W,), of the pieces.
        scores: of every id, logarithms of probabilities.
        unknown_id: of symbols without a piece of their own.

    Source: Kudo, "Subword Regularization: Improving Neural Network Translation Models with Multiple
        Subword Candidates" (2018), section 3.2; Viterbi, "Error bounds for convolutional codes"
        (1967).

    Example:
        >>> words, scores = Spellings.of([[7], [8], [7, 8]]), [0.0, -2.0, -2.0, -3.0]
        >>> unigram = Unigram(words, [1, 2, 3], scores, unknown_id=0)
        >>> symbols = tf.constant([7, 8, 7, 9, 9])
        >>> unigram.encode(symbols, tf.constant([0]), tf.constant([5])).ids.numpy().tolist()
        [3, 1, 0, 0]
    """

    def __init__(
        self, words: Spellings, ids: Sequence[int], scores: Sequence[float], unknown_id: int
    ):
        super().__init__()
        self._trie = Trie(np.ones(len(ids), np.int64), words, ids)
        table = np.array([*scores, -np.inf])
        self._nothing = len(scores)  # the id of no piece, of a score that never counts
        table[unknown_id] = min(scores) - UNKNOWN_PENALTY
        self._scores = tf.constant(table, tf.float64)
        self._unknown_id = unknown_id

    def encode(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordPieces:
        """The pieces of words that lie at starts (W,) ... ends (W,) in the symbols (S,)."""
        places, word, splits = laid_out(starts, ends + 1)  # (P,), (P,), (W + 1,)
        codes = tf.gather(symbols, tf.minimum(places, tf.size(symbols) - 1))
        codes = tf.tensor_scatter_nd_update(codes, splits[1:, None] - 1, tf.zeros_like(starts))
        begins = splits[:-1]  # every word stands there now, and a zero behind it

        arrivals, reach = self._arrivals(codes)
        starts, ends = segments(begins, splits[1:] - 1, reach)
        lengths = self._best_lengths(arrivals, starts, ends)
        ids = self._followed_back(arrivals, lengths, starts, ends)

        found = tf.cast(tf.where(ids >= 0)[:, 0], tf.int32)
        within = found - tf.gather(begins, tf.gather(word, found))
        return WordPieces(tf.gather(ids, found), within, tf.searchsorted(found, splits))

    def _arrivals(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The pieces that end before each place, and how far the longest reaches that starts there.

        Returns:
            arrivals: int32 (P, K), the ids of pieces of K, ..., 1 symbols.
            reach: int32 (P,), symbols.
        """
        num = tf.size(codes)

        def step(length, origin, node, columns, reach):  # one symbol on, from all places at once
            node = self._trie.step(node, tf.gather(codes, origin + length))
            alive = tf.where(node != NOWHERE)[:, 0]
            origin, node = tf.gather(origin, alive), tf.gather(node, alive)
            value = self._trie.value(node)
            matching = tf.where(value >= 0)[:, 0]
            place, value = tf.gather(origin, matching)[:, None], tf.gather(value, matching)
            column = tf.tensor_scatter_nd_update(
                tf.fill([num], self._nothing), place + length + 1, value
            )
            columns = columns.write(length, column)
            longest = tf.fill(tf.shape(value), length + 1)
            reach = tf.tensor_scatter_nd_update(reach, place, longest)
            return length + 1, origin, node, columns, reach

        columns = tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None])
        start = [0, tf.range(num), tf.ones([num], tf.int64), columns, tf.zeros_like(codes)]
        *_, columns, reach = tf.while_loop(
            lambda length, origin, *_: (tf.size(origin) > 0) | (length == 0),
            step,
            start,
            shape_invariants=[
                tf.TensorShape([]),
                *[tf.TensorShape([None])] * 2,
                tf.TensorShape(None),
                tf.TensorShape([None]),
            ],
            parallel_iterations=1,
        )
        arrivals = columns.stack()  # (K, P)
        lacks = (arrivals[0] == self._nothing) & (tf.concat([[0], codes[:-1]], 0) != 0)
        single = tf.where(lacks, self._unknown_id, arrivals[0])
        arrivals = tf.concat([single[None], arrivals[1:]], 0)
        return tf.transpose(tf.reverse(arrivals, [0])), reach

    def _best_lengths(self, arrivals: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """The last piece of the best way from its segment's start to each place: symbols (P,)."""
        num_lengths = tf.shape(arrivals)[1]
        order = tf.argsort(starts - ends, stable=True)  # the longest first: those that last
        starts, lengths = tf.gather(starts, order), tf.gather(ends - starts, order)
        steps = tf.reduce_max(tf.concat([lengths, [0]], 0))
        upwards = tf.reverse(lengths, [0])
        active = tf.size(lengths) - tf.searchsorted(upwards, tf.range(1, steps + 1))  # (steps,)

        def step(i, window, columns):  # window: the best scores of the K places before, (A, K)
            num = active[i]
            window = window[:num]
            pieces = tf.gather(arrivals, starts[:num] + i + 1)
            sums = window + tf.gather(self._scores, pieces)
            columns = columns.write(i, tf.argmax(sums, 1, tf.int32))
            window = tf.concat([window[:, 1:], tf.reduce_max(sums, 1)[:, None]], 1)
            return i + 1, window, columns

        zero = tf.zeros([tf.size(starts), 1], tf.float64)
        window = tf.pad(zero, [[0, 0], [num_lengths - 1, 0]], constant_values=-np.inf)
        columns = tf.TensorArray(tf.int32, steps, element_shape=[None], infer_shape=False)
        *_, columns = tf.while_loop(
            lambda i, *_: i < steps,
            step,
            [0, window, columns],
            shape_invariants=[
                tf.TensorShape([]),
                tf.TensorShape([None, None]),
                tf.TensorShape(None),
            ],
            parallel_iterations=1,
        )
        splits = tf.concat([[0], tf.cumsum(active)], 0)
        row = row_numbers(splits, splits[-1])
        places = tf.gather(starts, tf.range(splits[-1]) - tf.gather(splits, row)) + row + 1
        best = num_lengths - columns.concat()
        return tf.scatter_nd(places[:, None], best, tf.shape(arrivals)[:1])

    def _followed_back(
        self, arrivals: tf.Tensor, lengths: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Ids (P,) of the pieces on the best ways, where they start; -1 elsewhere."""
        num_lengths = tf.shape(arrivals)[1]

        def step(i, current, first, places, pieces):
            length = tf.gather(lengths, current)
            piece = tf.gather_nd(arrivals, tf.stack([current, num_lengths - length], 1))
            current -= length
            on = current > first
            places, pieces = places.write(i, current), pieces.write(i, piece)
            return i + 1, *(tf.boolean_mask(part, on) for part in (current, first)), places, pieces

        on = ends > starts
        found = [
            tf.TensorArray(tf.int32, 0, dynamic_size=True, element_shape=[None], infer_shape=False)
            for _ in ("places", "pieces")
        ]
        *_, places, pieces = tf.while_loop(
            lambda i, current, *_: tf.size(current) > 0,
            step,
            [0, tf.boolean_mask(ends, on), tf.boolean_mask(starts, on), *found],
            shape_invariants=[
                tf.TensorShape([]),
                *[tf.TensorShape([None])] * 2,
                *[tf.TensorShape(None)] * 2,
            ],
            parallel_iterations=1,
        )
        ids = tf.fill(tf.shape(lengths), -1)
        return tf.tensor_scatter_nd_update(ids, places.concat()[:, None], pieces.concat())


def segments(begins: tf.Tensor, ends: tf.Tensor, reach: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Divides long words where no piece goes across: starts and ends (G,).

    Args:
        begins, ends: int32 (W,), of the words.
        reach: int32 (P,), how many symbols the longest piece has that starts at each place.

    Example:
        >>> short = segments(tf.constant([0]), tf.constant([3]), tf.constant([2, 1, 1, 0]))
        >>> [part.numpy().tolist() for part in short]
        [[0], [3]]
    """

    def divided() -> tuple[tf.Tensor, tf.Tensor]:
        num = tf.size(reach)
        place = tf.range(num)
        crossing = reach > 1
        change = tf.where(crossing, 1, 0)
        delta = tf.scatter_nd(place[:, None] + 1, change, [num + 1])
        delta -= tf.scatter_nd((place + tf.maximum(reach, 1))[:, None], change, [num + 1])
        within, _, _ = laid_out(
            tf.boolean_mask(begins, ends - begins > LONG),
            tf.boolean_mask(ends, ends - begins > LONG),
        )
        cut = tf.boolean_mask(within, tf.gather(tf.cumsum(delta), within) == 0)
        start = marked(cut, num) | marked(begins, num)
        starts = tf.cast(tf.where(start)[:, 0], tf.int32)
        word_ends = tf.cast(tf.where(marked(ends, num) | start)[:, 0], tf.int32)
        behind = tf.searchsorted(word_ends, starts, side="right")
        return starts, tf.gather(word_ends, behind)

    return tf.cond(tf.reduce_any(ends - begins > LONG), divided, lambda: (begins, ends))
