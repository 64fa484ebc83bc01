"""Align tokens of a student and of a teacher with different tokenizers.

Comment letters: B batch, L sequence, T tokens of all texts.
"""

from __future__ import annotations

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.tokenizers.text.chunks import in_chunks
from encoder_zoo.tasks.preprocessing.packing import kept_tokens, pack
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.preprocessing.tokenized_texts import keys

NOWHERE = -1


def positions_in_examples(
    texts: list[tf.Tensor], student: Preprocessor, teacher: Preprocessor
) -> tf.RaggedTensor:
    """Return for every token of the student's examples its position in the teacher's.

    Args:
        texts: one or two (B,) string tensors.
        student: whose `encode` makes examples with special tokens around the texts.
        teacher: likewise.

    Returns:
        Ragged (B, None) int32. The start token corresponds to the start token; -1 for end tokens
        and for tokens that are truncated in the teacher's example.
    """

    def of_chunk(examples: tf.RaggedTensor) -> tuple[tf.RaggedTensor]:
        parts = tf.unstack(examples.to_tensor(shape=(None, len(texts))), axis=1)
        return (_positions_of_chunk(parts, student, teacher),)

    examples = tf.RaggedTensor.from_tensor(tf.stack(texts, axis=1))  # (B, 1 or 2)
    [positions] = in_chunks(of_chunk, examples)
    return positions


def _positions_of_chunk(
    texts: list[tf.Tensor], student: Preprocessor, teacher: Preprocessor
) -> tf.RaggedTensor:
    """Compute `positions_in_examples` with the offsets of all tokens in memory."""
    tokens = [teacher.tokenizer.tokenize_with_offsets(text) for text in texts]
    separators, longest = teacher.tokenizer.pair_separators, teacher.max_sequence_length
    side = teacher.tokenizer.truncation_side
    kept = kept_tokens([ids for ids, _, _ in tokens], separators, longest, side)
    column, first_count = teacher.tokenizer.first_column, kept[0][1]
    begins = [column * tf.ones_like(first_count), column + first_count + separators]
    positions = []
    for text, (_, starts, ends), (skipped, count), begin in zip(
        texts, tokens, kept, begins, strict=False
    ):
        found = corresponding(student.tokenizer.tokenize_with_offsets(text), starts, ends)
        row = found.value_rowids()
        number = found.values - tf.gather(skipped, row)  # among the tokens that are kept
        inside = (found.values >= 0) & (number >= 0) & (number < tf.gather(count, row))
        position = tf.where(inside, number + tf.gather(begin, row), NOWHERE)
        positions.append(found.with_values(position))
    own = student.tokenizer
    start = 0 if column else NOWHERE
    layout = own.pair_separators, student.max_sequence_length, own.first_column
    return pack(positions, start, NOWHERE, *layout, own.truncation_side)[0]


def corresponding(tokens: tuple, starts: tf.RaggedTensor, ends: tf.RaggedTensor):
    """Return which of other tokens of the same texts holds the last character of each token.

    The last, since some tokenizers count the space before a word to it.

    Args:
        tokens: ids, starts and ends, ragged (B, None), as `tokenize_with_offsets` gives them.
        starts: of the other tokens.
        ends: of the other tokens.

    Returns:
        Ragged (B, None) int32 numbers in a text, like ids; -1 where there is no such token.

    Example:
        >>> import tensorflow as tf
        >>> spans = [tf.ragged.constant([x]) for x in ([5, 6, 7], [0, 3, 8], [3, 7, 9])]
        >>> starts, ends = tf.ragged.constant([[0, 4]]), tf.ragged.constant([[2, 7]])
        >>> corresponding(spans, starts, ends).to_list()  # "mel|odra" and "me", "odra"
        [[-1, 1, -1]]
    """
    ids, _, own_ends = tokens
    last = keys(own_ends) - 1  # (T,)
    found = tf.searchsorted(keys(starts), last, side="right", out_type=tf.int64) - 1
    row_starts = tf.gather(starts.row_starts(), ids.value_rowids())
    none_before = found < row_starts
    all_ends = tf.concat([keys(ends), [0]], 0)  # of no token at all, one more
    holds = tf.gather(all_ends, tf.maximum(found, 0)) > last
    number = tf.where(none_before | ~holds, tf.cast(NOWHERE, tf.int64), found - row_starts)
    return ids.with_values(tf.cast(number, tf.int32))
