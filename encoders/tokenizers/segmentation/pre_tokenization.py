"""Pre-tokenizers: the split of texts into words, of GPT-2 (byte level) and of BERT."""

import functools
import operator

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import SPECIALS, Characters, members
from encoder_zoo.encoders.tokenizers.text.normalization import FIRST_ALONE, FIRST_SPACE
from encoder_zoo.encoders.tokenizers.text.ragged import shift_left, shift_right

OTHER, LETTER, NUMBER, SPACE, SPECIAL = range(5)


def byte_level_character_kinds() -> np.ndarray:
    """Return the kind of every code point for GPT-2's pattern: int32 (code points,)."""
    kinds = np.full(SPECIALS.stop, OTHER)
    kinds[members("bpe_letter")] = LETTER
    kinds[members("bpe_number")] = NUMBER
    kinds[members("bpe_space")] = SPACE
    kinds[SPECIALS.start :] = SPECIAL
    return kinds


def byte_level_word_starts(codes: tf.Tensor, kinds: tf.Tensor, row_starts: tf.Tensor) -> tf.Tensor:
    r"""Return the first characters (W,) of the words that GPT-2's pattern finds.

    The pattern 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ depends
    on a few neighbours only: runs of one kind are words; a space directly before a run belongs to
    it; the other spaces of a run are a word.

    Args:
        codes, kinds: int32 (N,), code points and their kinds.
        row_starts: boolean (N,), the first character of each text.

    Source: Radford et al. (2019), the encoder released with GPT-2.

    Example:
        >>> codes = tf.constant([ord(c) for c in "I'll  go"])
        >>> kinds = tf.gather(tf.constant(byte_level_character_kinds()), codes)
        >>> byte_level_word_starts(codes, kinds, tf.range(8) == 0).numpy().tolist()
        [0, 1, 4, 5]
    """
    special = kinds == SPECIAL
    row_starts |= special | shift_right(special, 1, False)  # split at special tokens
    last_kind = tf.where(row_starts, -1, shift_right(kinds, 1, -1))
    after_blank = shift_right(codes == ord(" "), 1, False) & ~row_starts
    is_space = kinds == SPACE
    before_solid = ~shift_left(is_space, 1, True) & ~shift_left(row_starts, 1, True)
    space_starts = (last_kind != SPACE) | before_solid

    positions, letters = find_contractions(codes, (last_kind != OTHER) & ~after_blank, row_starts)
    run_starts = tf.pad((last_kind != kinds) & ~after_blank, [[0, 4]])
    for i, starts in ((1, letters < 1), (2, letters < 2), (3, letters == 2)):
        known = tf.boolean_mask(positions + i, letters >= i - 1)[:, None]
        starts = tf.boolean_mask(starts, letters >= i - 1)
        run_starts = tf.tensor_scatter_nd_update(run_starts, known, starts)
    starts = tf.where(is_space, space_starts, run_starts[: tf.size(codes)])
    return tf.cast(tf.where(starts | row_starts)[:, 0], tf.int32)


def find_contractions(
    codes: tf.Tensor, may_open: tf.Tensor, row_starts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return apostrophes (A,) of 's 't 'm 'd 're 've 'll, and their numbers of letters (A,).

    Args:
        codes: int32 (N,), code points.
        may_open: boolean (N,), where a contraction may begin.
        row_starts: boolean (N,), the first character of each text.

    Example:
        >>> codes = tf.constant([ord(c) for c in "I'll'x"])
        >>> positions, letters = find_contractions(codes, tf.fill([6], True), tf.range(6) == 0)
        >>> positions.numpy().tolist(), letters.numpy().tolist()
        ([1], [2])
    """
    positions = tf.cast(tf.where((codes == ord("'")) & may_open)[:, 0], tf.int32)
    codes = tf.concat([codes, [-1, -1]], 0)
    ends = tf.concat([row_starts, [True, True]], 0)
    first = tf.where(tf.gather(ends, positions + 1), -1, tf.gather(codes, positions + 1))
    second = tf.where(tf.gather(ends, positions + 2), -1, tf.gather(codes, positions + 2))

    def follows(letters: str) -> tf.Tensor:
        found = first == ord(letters[0])
        return found & (second == ord(letters[1])) if len(letters) == 2 else found

    one, two = (
        functools.reduce(operator.or_, map(follows, suffixes))
        for suffixes in ("stmd", ("re", "ve", "ll"))
    )
    letters = tf.where(one, 1, tf.where(two, 2, 0))
    return tf.boolean_mask(positions, letters > 0), tf.boolean_mask(letters, letters > 0)


def bert_word_bounds(chars: Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Return starts and ends (W,) of BERT's words: runs of WORD, and single ALONE characters."""
    is_word = chars.codes < FIRST_ALONE
    follows = tf.concat([[False], is_word], 0)
    row_starts = chars.row_splits[:-1, None]
    follows = tf.tensor_scatter_nd_update(
        follows, row_starts, tf.zeros_like(row_starts[:, 0], bool)
    )
    goes_on = is_word & follows[:-1]
    in_word = chars.codes < FIRST_SPACE
    starts = tf.where(in_word & ~goes_on)[:, 0]
    lasts = tf.where(in_word & ~shift_left(goes_on, 1, False))[:, 0]
    return tf.cast(starts, tf.int32), tf.cast(lasts, tf.int32) + 1
