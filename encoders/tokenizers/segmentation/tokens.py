"""Tokens in texts and in words, represented as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text import ragged
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords


class Tokens(NamedTuple):
    """The tokens of a batch of texts.

    Attributes:
        ids: int32 tensor of shape (T,). The token ids.
        starts, ends: int32 tensors of shape (T,). The span of each token, as character indices in
            the concatenation of all original texts.
        row_splits: int32 tensor of shape (B + 1,). The index of the first token in each text,
            followed by T.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor


class WordTokens(NamedTuple):
    """The tokens of a list of words.

    Attributes:
        ids: int32 tensor of shape (T,). The token ids.
        starts: int32 tensor of shape (T,). The position in the word where each token starts, in
            symbols.
        splits: int32 tensor of shape (W + 1,). The index of the first token in each word,
            followed by T.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    splits: tf.Tensor

    def fuse(self, token_id: int) -> WordTokens:
        """Fuse consecutive tokens with the given id if they are in the same word.

        Example:
            >>> tokens = [tf.constant(part) for part in ([0, 0, 5, 0], [0, 1, 2, 0], [0, 3, 4])]
            >>> [part.numpy().tolist() for part in WordTokens(*tokens).fuse(0)]
            [[0, 5, 0], [0, 2, 0], [0, 2, 3]]
        """
        is_same = self.ids == token_id
        first = ragged.make_index_mask(self.splits[:-1], tf.size(self.ids))
        return self._keep(self.ids, ~(is_same & ragged.shift_right(is_same, 1, False)) | first)

    def replace_words(self, ids: tf.Tensor) -> WordTokens:
        """Replace all tokens in a word by a single token.

        Args:
            ids: int32 tensor of shape (W,). The new id for each word, or -1 to keep its tokens.

        Example:
            >>> tokens = [tf.constant(part) for part in ([4, 5, 6], [0, 1, 0], [0, 2, 3])]
            >>> replaced = WordTokens(*tokens).replace_words(tf.constant([7, -1]))
            >>> [part.numpy().tolist() for part in replaced]
            [[7, 6], [0, 0], [0, 1, 2]]
        """
        whole = tf.gather(ids, ragged.compute_row_ids(self.splits, tf.size(self.ids)))  # (T,)
        return self._keep(tf.where(whole < 0, self.ids, whole), (whole < 0) | (self.starts == 0))

    def _keep(self, ids: tf.Tensor, kept: tf.Tensor) -> WordTokens:
        """Set new ids, and select tokens with a boolean tensor (T,)."""
        splits = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int32))], 0)
        ids, starts = tf.boolean_mask(ids, kept), tf.boolean_mask(self.starts, kept)
        return WordTokens(ids, starts, tf.gather(splits, self.splits))


def are_single_tokens(
    encode: Callable[..., WordTokens], words: PackedWords, ids: np.ndarray
) -> np.ndarray:
    """Check for each word whether the model returns only the expected token.

    Args:
        encode: Callable. Takes symbols, starts and ends, and returns `WordTokens`. It is called in
            eager mode, since tracing would take longer.
        words: `PackedWords` without empty words.
        ids: Integer array of shape (W,). The expected id for each word.

    Returns:
        Boolean array of shape (W,).
    """
    starts = words.starts.astype(np.int32)
    ends = starts + words.lengths.astype(np.int32)
    made = encode(tf.constant(words.symbols, tf.int32), starts, ends)
    first = np.append(made.ids.numpy(), -1)[made.splits[:-1]]
    return (np.diff(made.splits) == 1) & (first == ids)
