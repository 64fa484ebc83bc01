"""Tokens in texts and in words, represented as tensors."""

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
    index_mask,
    is_in_span,
    shift_left,
    shift_right,
)


class Tokens(NamedTuple):
    """Holds all tokens for a batch of texts.

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
    """Holds all tokens for a list of words.

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
        first = index_mask(self.splits[:-1], tf.size(self.ids))
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


class SpecialTokenFinder(tf.Module):
    """Replaces special tokens in texts by dedicated code points. See `SPECIALS`.

    Args:
        tokens: List of special tokens, which must not overlap. They are numbered in this order.
        lstrip: String. The token to extend with preceding white space, or None.
    """

    def __init__(self, tokens: Sequence[str], lstrip: str | None):
        super().__init__()
        # Longer tokens overwrite shorter ones.
        by_length = sorted(enumerate(tokens), key=lambda item: len(item[1]))
        self._lines = "\n".join(f"{i} {token}" for i, token in by_length)
        self._lstrip = lstrip
        self._spaces = CodePointTable(members("bpe_space").astype("int32"))

    def __call__(self, chars: Characters) -> Characters:
        """Replace each special token by a single code point."""
        text = tf.cumsum(tf.cast(chars.row_starts(), tf.int32))
        codes, lengths = chars.codes, tf.ones_like(chars.codes)
        for line in self._lines.split("\n"):
            number, token = line.split(" ", 1)
            found = text == shift_left(text, len(token) - 1, -1)  # must end in the same text
            for i, letter in enumerate(token):
                found &= shift_left(chars.codes, i, -1) == ord(letter)
            codes = tf.where(found, SPECIALS.start + int(number), codes)
            lengths = tf.where(found, len(token), lengths)
            if token == self._lstrip:
                mask = SPECIALS.start + int(number)
        first = tf.range(tf.size(codes))
        last = tf.minimum(first + lengths, tf.size(codes)) - 1
        inner = is_in_span(first + 1, last + 1, lengths > 1)
        found_all = chars._replace(codes=codes, ends=tf.gather(chars.ends, last)).where(~inner)
        return found_all if self._lstrip is None else self._strip_spaces(found_all, mask)

    def _strip_spaces(self, chars: Characters, mask: int) -> Characters:
        """Remove white space directly before mask tokens."""
        is_space = self._spaces(chars.codes) > 0
        solid = tf.concat([tf.where(~is_space)[:, 0], [tf.size(is_space, tf.int64)]], 0)
        following = tf.gather(solid, tf.searchsorted(solid, tf.range(tf.size(is_space, tf.int64))))
        text = tf.concat([tf.cumsum(tf.cast(chars.row_starts(), tf.int32)), [-1]], 0)
        before_mask = tf.gather(tf.concat([chars.codes, [-1]], 0), following) == mask
        before_mask &= tf.gather(text, following) == text[:-1]
        return chars.where(~(is_space & before_mask))
