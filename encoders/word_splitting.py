"""GPT-2's split of a text into words, decided character by character from the neighbours."""

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.characters import after, before
from encoder_zoo.encoders.unicode_tables import SPECIALS, members

OTHER, LETTER, NUMBER, SPACE, SPECIAL = range(5)


def character_kinds() -> np.ndarray:
    """What each code point is to the split: int32 (code points,)."""
    kinds = np.full(SPECIALS.stop, OTHER)
    kinds[members("bpe_letter")] = LETTER
    kinds[members("bpe_number")] = NUMBER
    kinds[members("bpe_space")] = SPACE
    kinds[SPECIALS.start :] = SPECIAL
    return kinds


def word_starts(codes: tf.Tensor, kinds: tf.Tensor, row_starts: tf.Tensor) -> tf.Tensor:
    r"""First characters (W,) of the words that GPT-2's pattern finds.

    The pattern 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ can be
    decided from a few neighbours: runs of one kind are words; a space before a run belongs to it,
    and so the last of several spaces; the other spaces are a word.

    Args:
        codes, kinds: int32 (N,), code points and what they are.
        row_starts: boolean (N,), the first character of each text.

    Source: Radford et al. (2019), the encoder released with GPT-2.

    Example:
        >>> codes = tf.constant([ord(c) for c in "I'll  go"])
        >>> kinds = tf.gather(tf.constant(character_kinds()), codes)
        >>> word_starts(codes, kinds, tf.range(8) == 0).numpy().tolist()
        [0, 1, 4, 5]
    """
    row_starts |= (kinds == SPECIAL) | before(
        kinds == SPECIAL, 1, False
    )  # a special token is apart
    last_kind = tf.where(row_starts, -1, before(kinds, 1, -1))
    after_blank = before(codes == ord(" "), 1, False) & ~row_starts
    is_space = kinds == SPACE
    before_solid = ~after(is_space, 1, True) & ~after(row_starts, 1, True)
    space_starts = (last_kind != SPACE) | before_solid

    one, two = contractions(codes, last_kind, after_blank, row_starts)
    inside = before(one | two, 1, False) | before(two, 2, False)
    resumes = before(one, 2, False) | before(two, 3, False)
    run_starts = (last_kind != kinds) & ~after_blank & ~inside | resumes & ~after_blank
    starts = tf.where(is_space, space_starts, run_starts)
    return tf.cast(tf.where(starts | row_starts)[:, 0], tf.int32)


def contractions(
    codes: tf.Tensor, last_kind: tf.Tensor, after_blank: tf.Tensor, row_starts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Boolean (N,), twice: does an apostrophe open 's 't 'm 'd here, or 're 've 'll?"""
    opens = (codes == ord("'")) & (last_kind != OTHER) & ~after_blank
    ends_after = [after(row_starts, i, True) for i in (1, 2)]
    first = tf.where(ends_after[0], -1, after(codes, 1, -1))
    second = tf.where(ends_after[0] | ends_after[1], -1, after(codes, 2, -1))

    def pair(a: str, b: str) -> tf.Tensor:
        return (first == ord(a)) & (second == ord(b))

    one = opens & tf.reduce_any([first == ord(c) for c in "stmd"], 0)
    two = opens & (pair("r", "e") | pair("v", "e") | pair("l", "l"))
    return one, two


def utf8_symbols(codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """UTF-8 bytes of characters; a special token is one symbol from 256 on.

    Args:
        codes: int32 (N,), code points.

    Returns:
        symbols: int32 (S,).
        splits: int32 (N + 1,), where each character starts in the symbols.

    Example:
        >>> utf8_symbols(tf.constant([ord("a"), ord("½")]))[0].numpy().tolist()
        [97, 194, 189]
    """

    def encoded() -> tuple[tf.Tensor, tf.Tensor]:
        special = codes >= SPECIALS.start
        length = 1 + sum(tf.cast(codes >= limit, tf.int32) for limit in (0x80, 0x800, 0x10000))
        length = tf.where(special, 1, length)
        splits = tf.concat([[0], tf.cumsum(length)], 0)
        leading = tf.bitwise.right_shift(codes, 6 * (length - 1))
        leading += tf.gather([0, 0, 0xC0, 0xE0, 0xF0], length)
        leading = tf.where(special, codes - SPECIALS.start + 256, leading)
        symbols = tf.scatter_nd(splits[:-1, None], leading, [splits[-1]])
        for i in (1, 2, 3):  # the bytes that follow; most characters of most texts have none
            longer = tf.where(length > i)[:, 0]
            shift = 6 * (tf.gather(length, longer) - 1 - i)
            low = tf.bitwise.right_shift(tf.gather(codes, longer), shift)
            byte = tf.bitwise.bitwise_and(low, 0x3F) + 0x80
            place = tf.gather(splits, longer) + i
            symbols = tf.tensor_scatter_nd_update(symbols, place[:, None], byte)
        return symbols, splits

    def ascii() -> tuple[tf.Tensor, tf.Tensor]:
        return codes, tf.range(tf.size(codes) + 1)

    return tf.cond(tf.reduce_all(codes < 0x80), ascii, encoded)
