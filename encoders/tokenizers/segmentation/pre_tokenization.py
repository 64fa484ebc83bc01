"""Pre-tokenizers to split texts into words, for GPT-2 (byte level), Llama 3 and BERT."""

import functools
import operator

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import (
    NUM_CODE_POINTS,
    Characters,
    mark_members,
)
from encoder_zoo.encoders.tokenizers.text.normalization import FIRST_ALONE, FIRST_SPACE
from encoder_zoo.encoders.tokenizers.text.ragged import make_index_mask, shift_left, shift_right

OTHER, LETTER, NUMBER, SPACE = range(4)


def make_byte_level_classes() -> np.ndarray:
    """Return the character class (letter, number, space or other) of each Unicode code point.

    The GPT-2 pattern splits texts by these classes. The array has the shape (code points,).
    """
    kinds = np.full(NUM_CODE_POINTS, OTHER)
    kinds[mark_members("bpe_letter")] = LETTER
    kinds[mark_members("bpe_number")] = NUMBER
    kinds[mark_members("bpe_space")] = SPACE
    return kinds


def find_byte_level_words(codes: tf.Tensor, kinds: tf.Tensor, row_starts: tf.Tensor) -> tf.Tensor:
    r"""Find the words of texts, as defined by the GPT-2 pattern.

    The pattern 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ only
    depends on a few adjacent characters. Consecutive characters with the same kind form a word.
    A single space before these characters is included. Any remaining spaces form another word.

    Args:
        codes, kinds: int32 tensors of shape (N,). The code points and character kinds.
        row_starts: Boolean tensor of shape (N,). True for the first character in each text.

    Returns:
        int32 tensor of shape (W,). The index of the first character in each word.

    Source: Radford et al. (2019), with the encoder released for GPT-2.

    Example:
        >>> codes = tf.constant([ord(c) for c in "I'll  go"])
        >>> kinds = tf.gather(tf.constant(make_byte_level_classes()), codes)
        >>> find_byte_level_words(codes, kinds, tf.range(8) == 0).numpy().tolist()
        [0, 1, 4, 5]
    """
    last_kind = tf.where(row_starts, -1, shift_right(kinds, 1, -1))
    after_blank = shift_right(codes == ord(" "), 1, False) & ~row_starts
    is_space = kinds == SPACE
    before_solid = ~shift_left(is_space, 1, True) & ~shift_left(row_starts, 1, True)
    space_starts = (last_kind != SPACE) | before_solid

    may_open = (last_kind != OTHER) & ~after_blank
    contracted, after_contraction = find_contractions(codes, may_open, row_starts)
    run_starts = (last_kind != kinds) & ~after_blank & ~shift_right(contracted, 1, False)
    starts = tf.where(is_space, space_starts, run_starts | after_contraction)
    return tf.cast(tf.where(starts | row_starts)[:, 0], tf.int32)


def find_contractions(
    codes: tf.Tensor, may_open: tf.Tensor, row_starts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Find the contractions 's 't 'm 'd 're 've 'll.

    Args:
        codes: int32 tensor of shape (N,). The code points.
        may_open: Boolean tensor of shape (N,). Whether a contraction may start at a character.
        row_starts: Boolean tensor of shape (N,). True for the first character in each text.

    Returns:
        Two boolean tensors of shape (N,). The first is True for the apostrophes of contractions,
        and the second is True for the first character after each contraction.

    Example:
        >>> codes = tf.constant([ord(c) for c in "I'll'x"])
        >>> masks = find_contractions(codes, tf.fill([6], True), tf.range(6) == 0)
        >>> [tf.where(mask)[:, 0].numpy().tolist() for mask in masks]
        [[1], [4]]
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
    positions, two = tf.boolean_mask(positions, one | two), tf.boolean_mask(two, one | two)
    after, size = positions + 2 + tf.cast(two, tf.int32), tf.size(row_starts)
    return make_index_mask(positions, size), make_index_mask(after, size)


def find_llama_words(codes: tf.Tensor, kinds: tf.Tensor, row_starts: tf.Tensor) -> tf.Tensor:
    r"""Find the words of texts, as defined by the Llama 3 pattern `LLAMA_WORDS`.

    Consecutive characters with the same kind form a word, with at most three digits. A word of
    letters includes one preceding character: white space except for line breaks, or a single
    character of the kind OTHER that does not follow a space. A word of the kind OTHER includes a
    preceding space and all line breaks that follow.

    Args:
        codes, kinds: int32 tensors of shape (N,). The code points and character kinds, see
            `make_byte_level_classes`.
        row_starts: Boolean tensor of shape (N,). True for the first character in each text.

    Returns:
        int32 tensor of shape (W,). The index of the first character in each word.

    Source: Dubey et al. 2024, The Llama 3 Herd of Models, released tokenizer.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.segmentation import pre_tokenization
        >>> text = "I'll  go, 12345\n\n !"
        >>> codes = tf.constant([ord(c) for c in text])
        >>> kinds = tf.gather(pre_tokenization.make_byte_level_classes(), codes)
        >>> starts = find_llama_words(codes, kinds, tf.range(len(text)) == 0).numpy().tolist()
        >>> [text[i:j] for i, j in zip(starts, [*starts[1:], len(text)])]
        ['I', "'ll", ' ', ' go', ',', ' ', '123', '45', '\n\n', ' !']
    """
    last_kind = tf.where(row_starts, -1, shift_right(kinds, 1, -1))
    first = last_kind != kinds  # first character in a run
    is_end = shift_left(row_starts, 1, True)
    next_kind = tf.where(is_end, -1, shift_left(kinds, 1, -1))

    after_blank = shift_right(codes == ord(" "), 1, False) & ~row_starts
    others = (kinds == OTHER) & first & ~after_blank
    joins_letters = others & (next_kind == LETTER)
    lower = tf.where((codes >= ord("A")) & (codes <= ord("Z")), codes + 32, codes)
    lower = tf.where(codes == ord("ſ"), ord("s"), lower)  # as in Unicode case folding
    contracted, after_contraction = find_contractions(lower, joins_letters, row_starts)
    joins_letters |= (kinds == SPACE) & ~_is_line_break(codes)
    letters = (kinds == LETTER) & first & ~(shift_right(joins_letters, 1, False) & ~row_starts)
    letters |= (kinds == LETTER) & after_contraction
    letters &= ~shift_right(contracted, 1, False)

    numbers = (kinds == NUMBER) & (_compute_run_positions(first) % 3 == 0)
    spaces = _find_space_starts(codes, kinds, first, last_kind, is_end)
    starts = others | letters | numbers | spaces | row_starts
    return tf.cast(tf.where(starts)[:, 0], tf.int32)


def _is_line_break(codes):
    return (codes == ord("\n")) | (codes == ord("\r"))


def _compute_run_positions(first):
    """Return the position of each character in its run, with shape (N,)."""
    starts = tf.cast(tf.where(first)[:, 0], tf.int32)
    positions = tf.range(tf.size(first))
    return positions - tf.gather(starts, tf.cumsum(tf.cast(first, tf.int32)) - 1)


def _find_space_starts(codes, kinds, first, last_kind, is_end):
    """Return a mask (N,) for words that start in a run of white space.

    Line breaks at the start of a run belong to a word of the kind OTHER before the run. The
    remaining white space is split into a word that ends with the last line break, a word with all
    following characters except for the last character, and the last character, which starts a new
    word.
    """
    is_space, breaks = kinds == SPACE, _is_line_break(codes)
    size = tf.size(codes)
    run = tf.cumsum(tf.cast(first, tf.int32)) - 1
    opens = is_space & first & breaks & (last_kind == OTHER)
    # Split runs at line breaks, and find the parts that belong to other characters.
    part = tf.cumsum(tf.cast(first | (breaks != shift_right(breaks, 1, False)), tf.int32)) - 1
    taken = tf.gather(tf.math.unsorted_segment_max(tf.cast(opens, tf.int32), part, size + 1), part)
    left = is_space & (taken == 0)
    # Find the last line break in each run.
    positions = tf.range(size)
    last_break = tf.math.unsorted_segment_max(tf.where(breaks & left, positions, -1), run, size + 1)
    behind = left & (positions > tf.gather(last_break, run))
    until = left & ~behind
    until_first = until & (first | ~shift_right(until, 1, False))
    behind_first = behind & (first | ~shift_right(behind, 1, False))
    behind_last = behind & ~is_end & (shift_left(run, 1, -1) != run)
    return until_first | behind_first | behind_last


def find_bert_words(chars: Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the start and end indices (W,) of BERT's words.

    A word is a run of WORD characters or a single ALONE character.
    """
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
