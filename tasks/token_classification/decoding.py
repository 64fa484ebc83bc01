"""Find the most probable sequence of tags among those that can be.

Comment letters: U units (tokens or words) of all texts, N texts, L longest text, C tags.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.tokenized_texts import following, previous
from encoder_zoo.tasks.token_classification.tags import BEGIN, END, INSIDE, SINGLE, TagSet

FORBIDDEN = -1e9  # added to the score of a sequence that cannot be
LEAST = 1e-30  # probability that stands for 0, whose logarithm is not finite


class Transitions(NamedTuple):
    """The tags that may begin a text, follow each other, and end a text.

    Attributes:
        first: (C,) bool.
        between: (C, C) bool; whether the second tag may follow the first.
        last: (C,) bool.
    """

    first: np.ndarray
    between: np.ndarray
    last: np.ndarray


def transitions(tags: TagSet) -> Transitions:
    """Return which tags may follow each other.

    A tag I or E continues an entity of its type, where the type has a tag B. Where there are tags
    E and S (or L and U), an entity that was begun is also ended. All else is allowed.

    Args:
        tags: the C tags, taken apart.

    Source: Ratinov and Roth 2009, Design Challenges and Misconceptions in Named Entity Recognition,
    section 3.2, for the schemes.

    Example:
        >>> from encoder_zoo.tasks.token_classification.tags import parse_tags
        >>> allowed = transitions(parse_tags(["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]))
        >>> allowed.between.astype(int).tolist()[1]  # after B-LOC
        [1, 1, 1, 1, 0]
        >>> allowed.first.astype(int).tolist()
        [1, 1, 0, 1, 0]
    """
    prefixes, types = tags.prefixes, tags.types
    has_begin, has_end = (np.isin(types, types[prefixes == p]) for p in (BEGIN, END))
    is_open = np.isin(prefixes, (BEGIN, INSIDE))
    continues = np.isin(prefixes, (INSIDE, END)) & has_begin
    must_end = np.any(prefixes == END) & np.any(prefixes == SINGLE) & is_open & has_end
    same = types[:, None] == types
    goes_on = same & is_open[:, None] & np.isin(prefixes, (INSIDE, END))
    between = (goes_on | ~continues) & (goes_on | ~must_end[:, None])
    return Transitions(~continues, between, ~must_end)


def is_possible(labels: np.ndarray, row: np.ndarray, allowed: Transitions) -> bool:
    """Return whether tags (U,) of words, with the text of each, are sequences that can be."""
    return bool(tf.reduce_all(_fits(tf.constant(labels), tf.constant(row), allowed)))


def best_tags(probabilities: tf.Tensor, row: tf.Tensor, allowed: Transitions | None) -> tf.Tensor:
    """Return the tags whose product of probabilities is the largest, text by text.

    Args:
        probabilities: (U, C) float.
        row: (U,) int64, the text of each unit, ascending.
        allowed: which tags may follow each other; None: any.

    Returns:
        (U,) int32.

    Source: Forney 1973, The Viterbi Algorithm.

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo.tasks.token_classification.tags import parse_tags
        >>> allowed = transitions(parse_tags(["O", "B-LOC", "I-LOC"]))
        >>> probabilities = tf.constant([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
        >>> best_tags(probabilities, tf.constant([0, 0], tf.int64), None).numpy().tolist()
        [0, 2]
        >>> best_tags(probabilities, tf.constant([0, 0], tf.int64), allowed).numpy().tolist()
        [1, 2]
    """
    best = tf.argmax(probabilities, axis=1, output_type=tf.int32)
    if allowed is None or allowed.between.all():
        return best
    # The most probable tags of a text are the answer, unless they cannot be.
    number = tf.cumsum(tf.cast(row != previous(row, -1), tf.int64)) - 1
    wrong = tf.math.segment_max(tf.cast(~_fits(best, row, allowed), tf.int32), number) > 0
    chosen = tf.gather(wrong, number)  # (U,)
    row = tf.boolean_mask(row, chosen)
    number = tf.cumsum(tf.cast(row != previous(row, -1), tf.int64)) - 1
    scores = tf.cast(tf.boolean_mask(probabilities, chosen), tf.float32)
    scores = tf.math.log(tf.maximum(scores, LEAST))
    scores = tf.RaggedTensor.from_value_rowids(scores, number)
    lengths = scores.row_lengths()
    found = tf.RaggedTensor.from_tensor(_viterbi(scores.to_tensor(), lengths, allowed), lengths)
    return tf.tensor_scatter_nd_update(best, tf.where(chosen), found.flat_values)


def _fits(labels: tf.Tensor, row: tf.Tensor, allowed: Transitions) -> tf.Tensor:
    """Return (U,) bool: whether each tag may stand behind the one before, or begin its text; and
    at its end."""
    begins = row != previous(row, -1)
    ends = following(begins, True)
    pairs = tf.stack([previous(labels, 0), labels], axis=1)
    right = tf.where(begins, tf.gather(allowed.first, labels), tf.gather_nd(allowed.between, pairs))
    return right & (tf.gather(allowed.last, labels) | ~ends)


def _viterbi(scores: tf.Tensor, lengths: tf.Tensor, allowed: Transitions) -> tf.Tensor:
    """Return the tags (N, L + 1) of the sequences with the largest sums of scores (N, L, C)."""
    first, between, last = (tf.where(a, 0.0, tf.constant(FORBIDDEN)) for a in allowed)
    scores = tf.pad(scores, [[0, 0], [0, 1], [0, 0]])  # loops have a step also where L is 0
    shape = tf.shape(scores)
    scores, same = tf.transpose(scores, (1, 0, 2)), tf.range(shape[2])  # (L, N, C)
    stay = tf.where(same[:, None] == same, 0.0, tf.constant(FORBIDDEN))

    def forward(i, total, pointers):
        """Add the unit i: (N, C) the best sum that ends with each tag, and the tag before it."""
        inside = (i < tf.cast(lengths, tf.int32))[:, None]
        sums = total[:, :, None] + tf.where(i == 0, stay, between)  # (N, C, C)
        pointer = tf.where(inside, tf.argmax(sums, axis=1, output_type=tf.int32), same)
        total = tf.where(inside, tf.reduce_max(sums, axis=1) + scores[i], total)
        return i + 1, total, pointers.write(i, pointer)

    def backward(i, tag, tags):
        before = tf.gather(pointers.read(i), tag, batch_dims=1)
        return i - 1, before, tags.write(i, tag)

    total = tf.broadcast_to(first, (shape[0], shape[2]))
    pointers, tags = (tf.TensorArray(tf.int32, shape[1], clear_after_read=False) for _ in range(2))
    loop = (0, total, pointers)
    _, total, pointers = tf.while_loop(lambda i, *_: i < shape[1], forward, loop)
    tag = tf.argmax(total + last, axis=1, output_type=tf.int32)
    _, _, tags = tf.while_loop(lambda i, *_: i >= 0, backward, (shape[1] - 1, tag, tags))
    return tf.transpose(tf.reshape(tags.stack(), (shape[1], shape[0])))
