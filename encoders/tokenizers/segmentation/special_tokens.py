"""Finds special tokens that are written in texts."""

from collections.abc import Sequence

import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.ragged import in_any_span, shift_left
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members


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
