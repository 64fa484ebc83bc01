"""How ALBERT folds texts before its model's own normalisation, and DeBERTa its white space."""

import functools

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.bpe import every_other
from encoder_zoo.encoders.tokenizers.text.characters import Characters, after, before
from encoder_zoo.encoders.tokenizers.text.precompiled import is_special
from encoder_zoo.encoders.tokenizers.text.unicode_tables import (
    compatible_decompositions,
    members,
    unicode_data,
)


@functools.cache
def folding(lowercase: bool, keep_accents: bool) -> dict[int, list[int]]:
    """What ALBERT makes of single characters, where that is not themselves.

    Example:
        >>> [chr(c) for c in folding(lowercase=True, keep_accents=False)[ord("Ǽ")]]
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


def folded(text: str, lowercase: bool, keep_accents: bool) -> str:
    """A text as ALBERT folds it before its model's own normalisation.

    Example:
        >>> folded("``Ça''", lowercase=True, keep_accents=False)
        '"ca"'
    """
    table = folding(lowercase, keep_accents)
    codes = map(ord, text.replace("``", '"').replace("''", '"'))
    return "".join(chr(c) for code in codes for c in table.get(code, [code]))


def with_single_spaces(chars: Characters) -> Characters:
    """Puts a space in the place of white space beside other white space or at the end of a text, of
    the end of a line and of a tab.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> chars = characters(tf.constant(["a\\u00a0b \\u00a0c\\t"]))
        >>> "".join(map(chr, with_single_spaces(chars).codes)).replace("\\u00a0", "_")
        'a_b  c '
    """
    spaces = tf.constant(np.flatnonzero(members("white_space")), tf.int32)
    white = tf.reduce_any(chars.codes[:, None] == spaces, axis=1)
    starts = chars.row_starts() | is_special(chars.codes)  # of texts, also behind a special token
    last = after(starts, 1, True)
    beside = (before(white, 1, False) & ~starts) | (after(white, 1, False) & ~last) | last
    breaks = tf.reduce_any(chars.codes[:, None] == [ord(c) for c in "\n\r\t"], axis=1)
    codes = tf.where(white & (beside | breaks), ord(" "), chars.codes)
    return chars._replace(codes=codes)


def with_quotation_marks(chars: Characters) -> Characters:
    """Puts a quotation mark in the place of two backticks or apostrophes, with the second's span.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> "".join(map(chr, with_quotation_marks(characters(tf.constant(["``a'''"]))).codes))
        '"a"\\''
    """
    followed = after(~chars.row_starts(), 1, False)  # by a character of the same text
    pairs = tf.zeros_like(followed)
    for quote in "`'":
        is_quote = chars.codes == ord(quote)
        pairs |= every_other(is_quote & after(is_quote, 1, False) & followed)
    codes = tf.where(before(pairs, 1, False), ord('"'), chars.codes)
    return tf.cond(
        tf.reduce_any(pairs), lambda: chars._replace(codes=codes).where(~pairs), lambda: chars
    )
