"""Normalizers of ALBERT and DeBERTa beside the model's charsmap."""

import functools

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.precompiled import is_special_token
from encoder_zoo.encoders.tokenizers.text.ragged import every_other, shift_left, shift_right
from encoder_zoo.encoders.tokenizers.text.unicode_tables import (
    compatible_decompositions,
    members,
    unicode_data,
)


@functools.cache
def folding_map(lowercase: bool, keep_accents: bool) -> dict[int, list[int]]:
    """Return {code point: code points} of ALBERT's accent stripping and lower-casing.

    Example:
        >>> [chr(c) for c in folding_map(lowercase=True, keep_accents=False)[ord("Ǽ")]]
        ['æ']
    """
    decomposed = {} if keep_accents else compatible_decompositions()
    lower = {int(c): codes for c, codes in unicode_data()["lowercase"].items()} if lowercase else {}
    marks = set() if keep_accents else set(np.flatnonzero(members("any_mark")).tolist())
    return {
        code: [
            small
            for part in decomposed.get(code, [code])
            if part not in marks
            for small in lower.get(part, [part])
        ]
        for code in {*decomposed, *lower, *marks}
    }


def fold_text(text: str, lowercase: bool, keep_accents: bool) -> str:
    """Apply ALBERT's quotation marks, accent stripping and lower-casing to a text.

    Example:
        >>> fold_text("``Ça''", lowercase=True, keep_accents=False)
        '"ca"'
    """
    table = folding_map(lowercase, keep_accents)
    codes = map(ord, text.replace("``", '"').replace("''", '"'))
    return "".join(chr(c) for code in codes for c in table.get(code, [code]))


def normalize_white_space(chars: Characters) -> Characters:
    """Replace line breaks, tabs, and white space beside white space or at the end by spaces.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> chars = characters(tf.constant(["a\\u00a0b \\u00a0c\\t"]))
        >>> "".join(map(chr, normalize_white_space(chars).codes)).replace("\\u00a0", "_")
        'a_b  c '
    """
    spaces = tf.constant(np.flatnonzero(members("white_space")), tf.int32)
    white = tf.reduce_any(chars.codes[:, None] == spaces, axis=1)
    starts = chars.row_starts() | is_special_token(chars.codes)
    last = shift_left(starts, 1, True)
    beside = (shift_right(white, 1, False) & ~starts) | (shift_left(white, 1, False) & ~last) | last
    breaks = tf.reduce_any(chars.codes[:, None] == [ord(c) for c in "\n\r\t"], axis=1)
    codes = tf.where(white & (beside | breaks), ord(" "), chars.codes)
    return chars._replace(codes=codes)


def normalize_quotation_marks(chars: Characters) -> Characters:
    """Replace two backticks or apostrophes by a quotation mark with the span of the second.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> "".join(map(chr, normalize_quotation_marks(characters(tf.constant(["``a'''"]))).codes))
        '"a"\\''
    """
    followed = shift_left(~chars.row_starts(), 1, False)  # by a character of the same text
    pairs = tf.zeros_like(followed)
    for quote in "`'":
        is_quote = chars.codes == ord(quote)
        pairs |= every_other(is_quote & shift_left(is_quote, 1, False) & followed)
    codes = tf.where(shift_right(pairs, 1, False), ord('"'), chars.codes)
    return tf.cond(
        tf.reduce_any(pairs), lambda: chars._replace(codes=codes).where(~pairs), lambda: chars
    )
