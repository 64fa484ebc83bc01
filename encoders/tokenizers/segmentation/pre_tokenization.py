"""GPT-2's split of a text into words, decided character by character from the neighbours."""

import functools
import operator

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import after, before, row_numbers
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, members

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
    special = kinds == SPECIAL
    row_starts |= special | before(special, 1, False)  # a special token is apart
    last_kind = tf.where(row_starts, -1, before(kinds, 1, -1))
    after_blank = before(codes == ord(" "), 1, False) & ~row_starts
    is_space = kinds == SPACE
    before_solid = ~after(is_space, 1, True) & ~after(row_starts, 1, True)
    space_starts = (last_kind != SPACE) | before_solid

    places, letters = contractions(codes, (last_kind != OTHER) & ~after_blank, row_starts)
    run_starts = tf.pad((last_kind != kinds) & ~after_blank, [[0, 4]])
    for i, starts in ((1, letters < 1), (2, letters < 2), (3, letters == 2)):
        known = tf.boolean_mask(places + i, letters >= i - 1)[:, None]
        starts = tf.boolean_mask(starts, letters >= i - 1)
        run_starts = tf.tensor_scatter_nd_update(run_starts, known, starts)
    starts = tf.where(is_space, space_starts, run_starts[: tf.size(codes)])
    return tf.cast(tf.where(starts | row_starts)[:, 0], tf.int32)


def contractions(
    codes: tf.Tensor, may_open: tf.Tensor, row_starts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Apostrophes (A,) that open 's 't 'm 'd or 're 've 'll, and how many letters they have, (A,).

    Args:
        codes: int32 (N,), code points.
        may_open: boolean (N,), whether a contraction may begin here.
        row_starts: boolean (N,), the first character of each text.

    Example:
        >>> codes = tf.constant([ord(c) for c in "I'll'x"])
        >>> places, letters = contractions(codes, tf.fill([6], True), tf.range(6) == 0)
        >>> places.numpy().tolist(), letters.numpy().tolist()
        ([1], [2])
    """
    places = tf.cast(tf.where((codes == ord("'")) & may_open)[:, 0], tf.int32)
    codes = tf.concat([codes, [-1, -1]], 0)
    ends = tf.concat([row_starts, [True, True]], 0)
    first = tf.where(tf.gather(ends, places + 1), -1, tf.gather(codes, places + 1))
    second = tf.where(tf.gather(ends, places + 2), -1, tf.gather(codes, places + 2))

    def follows(letters: str) -> tf.Tensor:
        found = first == ord(letters[0])
        return found & (second == ord(letters[1])) if len(letters) == 2 else found

    one, two = (
        functools.reduce(operator.or_, map(follows, suffixes))
        for suffixes in ("stmd", ("re", "ve", "ll"))
    )
    letters = tf.where(one, 1, tf.where(two, 2, 0))
    return tf.boolean_mask(places, letters > 0), tf.boolean_mask(letters, letters > 0)


def utf8_symbols(codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """UTF-8 bytes of characters; a special token is one symbol from 256 on.

    Args:
        codes: int32 (N,), code points.

    Returns:
        symbols: int32 (S,).
        splits: int32 (N + 1,), where each character starts in the symbols.
        owners: int32 (S,), the character of each symbol.

    Example:
        >>> utf8_symbols(tf.constant([ord("a"), ord("½")]))[0].numpy().tolist()
        [97, 194, 189]
    """

    def encoded() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        long = tf.cast(tf.where(codes >= 0x80)[:, 0], tf.int32)  # most characters of most texts
        code = tf.gather(codes, long)  # are one byte, which is the code point
        special = code >= SPECIALS.start
        length = 2 + tf.cast(code >= 0x800, tf.int32) + tf.cast(code >= 0x10000, tf.int32)
        length = tf.where(special, 1, length)
        lengths = tf.tensor_scatter_nd_update(tf.ones_like(codes), long[:, None], length)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        owners = row_numbers(splits, splits[-1])

        leading = tf.bitwise.right_shift(code, 6 * (length - 1))
        leading += tf.gather([0, 0, 0xC0, 0xE0, 0xF0], length)
        leading = tf.where(special, code - SPECIALS.start + 256, leading)
        places = tf.gather(splits, long)
        symbols = tf.gather(codes, owners)
        symbols = tf.tensor_scatter_nd_update(symbols, places[:, None], leading)
        for i in (1, 2, 3):
            longer = tf.where(length > i)[:, 0]
            shift = 6 * (tf.gather(length, longer) - 1 - i)
            low = tf.bitwise.right_shift(tf.gather(code, longer), shift)
            byte = tf.bitwise.bitwise_and(low, 0x3F) + 0x80
            place = tf.gather(places, longer) + i
            symbols = tf.tensor_scatter_nd_update(symbols, place[:, None], byte)
        return symbols, splits, owners

    def ascii() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        splits = tf.range(tf.size(codes) + 1)
        return codes, splits, splits[:-1]

    return tf.cond(tf.reduce_max(codes) < 0x80, ascii, encoded)
