"""The order of examples in an epoch: neighbours have like lengths.

Comment letters: N examples, B batch.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing.packed_examples import packed_epoch_order

# Examples are sorted by length inside megabatches of so many batches: enough to leave hardly any
# padding, few enough to keep the order random.
MEGABATCH = 50


def example_lengths(examples: dict) -> tf.Tensor:
    """Return the tokens of every example, (N,) int64, those of all its texts added up.

    Example:
        >>> import tensorflow as tf
        >>> first = tf.ragged.constant([[2, 7, 3], [2, 3]])
        >>> others = tf.ragged.constant([[[2, 3], [2, 5, 3]], [[2, 3], [2, 3]]])
        >>> examples = {"token_ids": first, "candidate_token_ids": others}
        >>> example_lengths(examples).numpy().tolist()
        [8, 6]
    """
    lengths = examples["token_ids"].row_lengths()
    if (others := f"{CANDIDATE}token_ids") in examples:
        lengths += tf.reduce_sum(examples[others].row_lengths(axis=2), axis=1)
    return lengths


def epoch_order(
    lengths: tf.Tensor,
    batch_size: int,
    seed: tf.Tensor,
    group_lengths: bool = True,
    mixed: bool = False,
) -> tf.Tensor:
    """Return a random order in which neighbours have like lengths, for batches of little padding.

    Args:
        lengths: (N,) int, tokens of every example.
        batch_size: B.
        seed: (2,) int; the same seed gives the same order.
        group_lengths: whether neighbours have like lengths.
        mixed: whether, in place of that, every batch has short and long examples, and about as
            many tokens as the others.

    Returns:
        (N,) int64, every example exactly once. Shuffled, then sorted by length inside megabatches of
        `MEGABATCH` batches, then the batches shuffled. A last, smaller batch has examples of any
        length: sorted with the others, it would always have the longest.
    """
    count = tf.size(lengths, tf.int64)
    full = count // batch_size * batch_size
    order = tf.random.experimental.stateless_shuffle(tf.range(count), seed)
    if not group_lengths:
        return order
    order, rest = order[:full], order[full:]
    megabatch = tf.range(full) // (batch_size * MEGABATCH)
    shuffled = tf.cast(tf.gather(lengths, order), tf.int64)
    key = megabatch * (tf.reduce_max(shuffled) + 1) + shuffled
    order = tf.gather(order, tf.argsort(key, stable=True))
    if mixed:
        ranks = tf.range(full) - megabatch * batch_size * MEGABATCH
        batches = tf.minimum(
            full // batch_size - megabatch * MEGABATCH, MEGABATCH
        )  # of each's megabatch
        order = tf.gather(order, tf.argsort(megabatch * MEGABATCH + ranks % batches, stable=True))

    batches = tf.reshape(order, (-1, batch_size))
    batches = tf.random.experimental.stateless_shuffle(batches, seed + 1)
    return tf.concat([tf.reshape(batches, (-1,)), rest], axis=0)


def order_of_epoch(
    lengths: tf.Tensor,
    packing: tuple,
    batch_size: int,
    seed: tf.Tensor,
    shuffle: bool,
    group_lengths: bool,
    mixed: bool = False,
) -> tf.Tensor | tf.RaggedTensor:
    """Return the order of the examples, or of packed sequences of them, in an epoch.

    Args:
        lengths: (N,) int32, tokens of every example.
        packing: the plan of `pack_examples`, or nothing.
        batch_size: B.
        seed: (2,) int, of the epoch.
        shuffle, group_lengths: see `Plan`.
        mixed: see `epoch_order`.
    """
    if packing:
        return packed_epoch_order(lengths, *packing, seed)
    if shuffle:
        return epoch_order(lengths, batch_size, seed, group_lengths, mixed)
    return tf.range(tf.size(lengths, tf.int64))


def round_robin(order: np.ndarray, batch_size: int) -> np.ndarray:
    """Return sorted examples in the order of batches that take turns, with about as many tokens.

    Args:
        order: (N,) int, sorted by length.
        batch_size: B.

    Example:
        >>> round_robin(np.arange(6), 2).tolist()
        [0, 3, 1, 4, 2, 5]
    """
    steps = -(-len(order) // batch_size)
    return order[np.argsort(np.arange(len(order)) % steps, kind="stable")]
