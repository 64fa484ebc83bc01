"""WordPiece: greedy longest match first, of many words at once."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.tokens import WordTokens
from encoder_zoo.encoders.tokenizers.segmentation.unigram import Trie
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import index_mask, span_indices

MAX_WORD_CHARACTERS = 100
START, CONTINUATION = 1, 2  # roots of the trie


class WordPiece(tf.Module):
    """Splits words into the longest tokens of a vocabulary, from left to right.

    Args:
        tokens: as symbols that count from 1, without "##".
        continues: boolean (W,), whether each token continues a word.
        ids: (W,), of the tokens.
        unknown_id: of words that cannot be split, or have more than `MAX_WORD_CHARACTERS`.

    Source: Wu et al., "Google's Neural Machine Translation System" (2016), section 4.1.

    Example:
        >>> tokens = PackedWords.from_symbols([[7, 8], [7], [9]])
        >>> model = WordPiece(tokens, np.array([False, False, True]), [4, 5, 6], unknown_id=0)
        >>> symbols = tf.constant([7, 8, 9, 9, 7])
        >>> model.encode(symbols, tf.constant([0, 3]), tf.constant([3, 5])).ids.numpy().tolist()
        [4, 6, 0]
    """

    def __init__(
        self, tokens: PackedWords, continues: np.ndarray, ids: Sequence[int], unknown_id: int
    ):
        super().__init__()
        self._trie = Trie(np.where(continues, CONTINUATION, START), tokens, ids, num_roots=2)
        self._unknown_id = unknown_id

    def encode(self, symbols: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> WordTokens:
        """Return the tokens of the words at starts (W,) ... ends (W,) of the symbols (S,)."""
        too_long = ends - starts > MAX_WORD_CHARACTERS
        ends = tf.where(too_long, starts, ends)
        indices, word, splits = span_indices(starts, ends + 1)  # (P,), (P,), (W + 1,)
        symbols = tf.gather(symbols, tf.minimum(indices, tf.size(symbols) - 1))
        symbols = tf.tensor_scatter_nd_update(symbols, splits[1:, None] - 1, tf.zeros_like(starts))
        begins = splits[:-1]  # the symbols are now all words in turn, with a zero behind each

        roots = tf.where(index_mask(begins, tf.size(symbols)), START, CONTINUATION)
        ids, lengths = self._trie.longest_matches(
            tf.cast(roots, tf.int64), lambda index, offset: tf.gather(symbols, index + offset)
        )
        reached = reachable_positions(begins, lengths)
        stuck = tf.boolean_mask(word, reached & (lengths == 0) & (symbols != 0))
        failed = too_long | index_mask(stuck, tf.size(starts))  # then the whole word is unknown
        ids = tf.where(tf.gather(failed, word), self._unknown_id, ids)
        is_token = tf.where(
            tf.gather(failed, word), index_mask(begins, tf.size(symbols)), reached & (lengths > 0)
        )
        found = tf.cast(tf.where(is_token)[:, 0], tf.int32)
        within = found - tf.gather(begins, tf.gather(word, found))
        return WordTokens(tf.gather(ids, found), within, tf.searchsorted(found, splits))


def reachable_positions(begins: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Return which positions (P,) are reached by consecutive tokens from the begins.

    Args:
        begins: int32 (W,), the first positions.
        lengths: int32 (P,), length of the token at each position; 0 if there is none.

    Example:
        >>> reachable_positions(tf.constant([0, 4]), tf.constant([2, 1, 1, 0, 0])).numpy().tolist()
        [True, False, True, True, True]
    """

    def follow(current, reached):
        ones = tf.ones_like(current)
        reached = tf.tensor_scatter_nd_update(reached, current[:, None], ones)
        length = tf.gather(lengths, current)
        return tf.boolean_mask(current + length, length > 0), reached

    _, reached = tf.while_loop(
        lambda current, _: tf.size(current) > 0,
        follow,
        [begins, tf.zeros_like(lengths)],
        shape_invariants=[tf.TensorShape([None])] * 2,
        parallel_iterations=1,
    )
    return reached > 0
