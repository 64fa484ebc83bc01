"""Tokens of texts and of words, as tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import index_mask, shift_right


class Tokens(NamedTuple):
    """Holds the tokens of a batch of texts, in order.

    Attributes:
        ids: int32 (T,), token ids.
        starts, ends: int32 (T,), spans of the original characters, counted over the batch.
        row_splits: int32 (B + 1,), where the tokens of each text start.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor


class WordTokens(NamedTuple):
    """Holds the tokens of words, in order.

    Attributes:
        ids: int32 (T,), token ids.
        starts: int32 (T,), offset of a token's first symbol in its word.
        splits: int32 (W + 1,), where the tokens of each word start.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    splits: tf.Tensor

    def fuse(self, token_id: int) -> WordTokens:
        """Replace neighbouring tokens with this id in the same word by one of them.

        Example:
            >>> tokens = [tf.constant(part) for part in ([0, 0, 5, 0], [0, 1, 2, 0], [0, 3, 4])]
            >>> [part.numpy().tolist() for part in WordTokens(*tokens).fuse(0)]
            [[0, 5, 0], [0, 2, 0], [0, 2, 3]]
        """
        is_same = self.ids == token_id
        first = index_mask(self.splits[:-1], tf.size(self.ids))
        keep = ~(is_same & shift_right(is_same, 1, False)) | first
        splits = tf.concat([[0], tf.cumsum(tf.cast(keep, tf.int32))], 0)
        ids, starts = tf.boolean_mask(self.ids, keep), tf.boolean_mask(self.starts, keep)
        return WordTokens(ids, starts, tf.gather(splits, self.splits))


def are_single_tokens(
    encode: Callable[..., WordTokens], words: PackedWords, ids: np.ndarray
) -> np.ndarray:
    """Return which words, boolean (W,), a model makes one token.

    Args:
        encode: the model's, called eagerly, since a trace would take longer.
        words: none of them empty.
        ids: (W,), the expected id of each word.
    """
    starts = words.starts.astype(np.int32)
    ends = starts + words.lengths.astype(np.int32)
    made = encode(tf.constant(words.symbols, tf.int32), starts, ends)
    first = np.append(made.ids.numpy(), -1)[made.splits[:-1]]
    return (np.diff(made.splits) == 1) & (first == ids)
