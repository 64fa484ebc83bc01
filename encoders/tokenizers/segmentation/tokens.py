"""Tokens of texts and of words, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import (
    SPECIALS,
    Characters,
    CodePointTable,
    members,
)
from encoder_zoo.encoders.tokenizers.text.packed_words import PackedWords
from encoder_zoo.encoders.tokenizers.text.ragged import (
    in_any_span,
    index_mask,
    shift_left,
    shift_right,
)


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


class SpecialTokenFinder(tf.Module):
    """Replaces special tokens in texts by code points of their own, `SPECIALS`.

    Args:
        tokens: the special tokens, numbered in this order, none of which overlap.
        lstrip: a token that takes in the white space before it, or None.
    """

    def __init__(self, tokens: Sequence[str], lstrip: str | None):
        super().__init__()
        # Longer tokens overwrite shorter ones.
        by_length = sorted(enumerate(tokens), key=lambda item: len(item[1]))
        self._lines = "\n".join(f"{i} {token}" for i, token in by_length)
        self._lstrip = lstrip
        self._spaces = CodePointTable(members("bpe_space").astype("int32"))

    def __call__(self, chars: Characters) -> Characters:
        """Return the characters, with one code point for each special token."""
        text = tf.cumsum(tf.cast(chars.row_starts(), tf.int32))
        codes, lengths = chars.codes, tf.ones_like(chars.codes)
        for line in self._lines.split("\n"):
            number, token = line.split(" ", 1)
            found = text == shift_left(text, len(token) - 1, -1)  # it must end in the same text
            for i, letter in enumerate(token):
                found &= shift_left(chars.codes, i, -1) == ord(letter)
            codes = tf.where(found, SPECIALS.start + int(number), codes)
            lengths = tf.where(found, len(token), lengths)
            if token == self._lstrip:
                mask = SPECIALS.start + int(number)
        first = tf.range(tf.size(codes))
        last = tf.minimum(first + lengths, tf.size(codes)) - 1
        inner = in_any_span(first + 1, last + 1, lengths > 1)
        found_all = chars._replace(codes=codes, ends=tf.gather(chars.ends, last)).where(~inner)
        return found_all if self._lstrip is None else self._strip_before(found_all, mask)

    def _strip_before(self, chars: Characters, mask: int) -> Characters:
        """Remove the white space directly before a mask."""
        is_space = self._spaces(chars.codes) > 0
        solid = tf.concat([tf.where(~is_space)[:, 0], [tf.size(is_space, tf.int64)]], 0)
        following = tf.gather(solid, tf.searchsorted(solid, tf.range(tf.size(is_space, tf.int64))))
        text = tf.concat([tf.cumsum(tf.cast(chars.row_starts(), tf.int32)), [-1]], 0)
        before_mask = tf.gather(tf.concat([chars.codes, [-1]], 0), following) == mask
        before_mask &= tf.gather(text, following) == text[:-1]
        return chars.where(~(is_space & before_mask))
