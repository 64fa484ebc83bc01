"""Tokens in texts and in words, represented as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import make_index_mask, shift_right


class Tokens(NamedTuple):
    """The tokens of a batch of texts.

    Attributes:
        ids: int32 tensor of shape (T,). The token ids.
        starts, ends: int32 tensors of shape (T,). The spans in original characters, counted over
            the whole batch.
        row_splits: int32 tensor of shape (B + 1,). The start position for each text in the
            tokens.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor


class WordTokens(NamedTuple):
    """The tokens of a list of words.

    Attributes:
        ids: int32 tensor of shape (T,). The token ids.
        starts: int32 tensor of shape (T,). The offset in the word for the first symbol in each
            token.
        splits: int32 tensor of shape (W + 1,). The start position for each word in the tokens.
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
        first = make_index_mask(self.splits[:-1], tf.size(self.ids))
        keep = ~(is_same & shift_right(is_same, 1, False)) | first
        splits = tf.concat([[0], tf.cumsum(tf.cast(keep, tf.int32))], 0)
        ids, starts = tf.boolean_mask(self.ids, keep), tf.boolean_mask(self.starts, keep)
        return WordTokens(ids, starts, tf.gather(splits, self.splits))


def are_single_tokens(
    encode: Callable[..., WordTokens], words: PackedWords, ids: np.ndarray
) -> np.ndarray:
    """Return whether the model splits each word into a single token, shape (W,).

    Args:
        encode: Callable to encode words. It is called in eager mode, since tracing would take
            longer.
        words: `PackedWords` without empty words.
        ids: Integer array of shape (W,). The expected id for each word.
    """
    starts = words.starts.astype(np.int32)
    ends = starts + words.lengths.astype(np.int32)
    made = encode(tf.constant(words.symbols, tf.int32), starts, ends)
    first = np.append(made.ids.numpy(), -1)[made.splits[:-1]]
    return (np.diff(made.splits) == 1) & (first == ids)
