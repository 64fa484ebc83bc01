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


def llama_word_starts(codes: tf.Tensor, kinds: tf.Tensor, row_starts: tf.Tensor) -> tf.Tensor:
    r"""Return the first characters (W,) of the words that Llama 3's pattern finds, `LLAMA_WORDS`.

    It depends on runs of one kind alone. A run of letters takes in one character before it, which
    is no line break, unless that belongs to a longer run of others or follows a space. A run of
    others takes in the space before it and the line breaks after it.

    Args:
        codes, kinds: int32 (N,), code points and their kinds, see `byte_level_character_kinds`.
        row_starts: boolean (N,), the first character of each text.

    Source: Dubey et al. 2024, The Llama 3 Herd of Models, released tokenizer.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.segmentation import pre_tokenization
        >>> text = "I'll  go, 12345\n\n !"
        >>> codes = tf.constant([ord(c) for c in text])
        >>> kinds = tf.gather(pre_tokenization.byte_level_character_kinds(), codes)
        >>> starts = llama_word_starts(codes, kinds, tf.range(len(text)) == 0).numpy().tolist()
        >>> [text[i:j] for i, j in zip(starts, [*starts[1:], len(text)])]
        ['I', "'ll", ' ', ' go', ',', ' ', '123', '45', '\n\n', ' !']
    """
    special = kinds == SPECIAL
    row_starts |= special | shift_right(special, 1, False)  # split at special tokens
    last_kind = tf.where(row_starts, -1, shift_right(kinds, 1, -1))
    first = last_kind != kinds  # of a run
    is_end = shift_left(row_starts, 1, True)
    next_kind = tf.where(is_end, -1, shift_left(kinds, 1, -1))

    after_blank = shift_right(codes == ord(" "), 1, False) & ~row_starts
    others = (kinds == OTHER) & first & ~after_blank
    joins_letters = others & (next_kind == LETTER)
    contracted, contraction_ends = _contractions(codes, joins_letters, row_starts)
    joins_letters |= (kinds == SPACE) & ~_is_line_break(codes)
    letters = (kinds == LETTER) & first & ~(shift_right(joins_letters, 1, False) & ~row_starts)
    letters |= (kinds == LETTER) & contraction_ends
    letters &= ~shift_right(contracted, 1, False)

    numbers = (kinds == NUMBER) & (_index_in_run(first) % 3 == 0)
    spaces = _space_starts(codes, kinds, first, last_kind, is_end)
    starts = others | letters | numbers | spaces | row_starts
    return tf.cast(tf.where(starts)[:, 0], tf.int32)


def _is_line_break(codes):
    return (codes == ord("\n")) | (codes == ord("\r"))


def _index_in_run(first):
    """Return how far each character is from the start of its run, (N,)."""
    starts = tf.cast(tf.where(first)[:, 0], tf.int32)
    positions = tf.range(tf.size(first))
    return positions - tf.gather(starts, tf.cumsum(tf.cast(first, tf.int32)) - 1)


def _contractions(codes, may_open, row_starts):
    """Return masks (N,): the apostrophes of contractions, and the characters behind these."""
    lower = tf.where((codes >= ord("A")) & (codes <= ord("Z")), codes + 32, codes)
    lower = tf.where(codes == ord("ſ"), ord("s"), lower)  # by Unicode's case folding
    positions, letters = find_contractions(lower, may_open, row_starts)
    size = tf.size(codes)
    ones = tf.ones_like(positions)
    contracted = tf.scatter_nd(positions[:, None], ones, [size]) > 0
    ends = tf.scatter_nd((positions + letters + 1)[:, None], ones, [size + 1])[:size] > 0
    return contracted, ends


def _space_starts(codes, kinds, first, last_kind, is_end):
    """Return where words begin in runs of white space, (N,).

    Line breaks at the start of a run belong to others before it. Then a word reaches to the last
    line break, another is the rest but for its last character, and that one begins a word itself.
    """
    is_space, breaks = kinds == SPACE, _is_line_break(codes)
    size = tf.size(codes)
    run = tf.cumsum(tf.cast(first, tf.int32)) - 1
    opens = is_space & first & breaks & (last_kind == OTHER)
    # Runs of line breaks and of all else, and those of them that others take in.
    part = tf.cumsum(tf.cast(first | (breaks != shift_right(breaks, 1, False)), tf.int32)) - 1
    taken = tf.gather(tf.math.unsorted_segment_max(tf.cast(opens, tf.int32), part, size + 1), part)
    left = is_space & (taken == 0)
    # Where the last line break of each run is.
    positions = tf.range(size)
    last_break = tf.math.unsorted_segment_max(tf.where(breaks & left, positions, -1), run, size + 1)
    behind = left & (positions > tf.gather(last_break, run))
    until = left & ~behind
    until_first = until & (first | ~shift_right(until, 1, False))
    behind_first = behind & (first | ~shift_right(behind, 1, False))
    behind_last = behind & ~is_end & (shift_left(run, 1, -1) != run)
    return until_first | behind_first | behind_last


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
