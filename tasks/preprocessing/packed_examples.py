"""Several examples in one sequence, in place of padding.

Comment letters: N examples, R sequences.
"""

from __future__ import annotations

import bisect
import collections

import numpy as np

from encoder_zoo.common.lazy import tf


def pack_examples(lengths: np.ndarray, capacity: int) -> tf.RaggedTensor:
    """Return the examples to pack into each sequence, so that little of it is padding.

    Every example goes, in turn, where it leaves the least room. With the longest first this is
    the best-fit heuristic for bin packing.

    Args:
        lengths: (N,) int, tokens of every example, the longest first, none above the capacity.
        capacity: tokens of a sequence.

    Returns:
        Ragged (R, None) int64: the examples in each sequence, every one exactly once.

    Source: Krell et al. 2021, Efficient Sequence Packing without Cross-contamination, section 3.

    Example:
        >>> pack_examples(np.array([7, 5, 4, 2, 1]), capacity=10).to_list()
        [[0, 3, 4], [1, 2]]
    """
    members, rows_with_room, rooms = [], collections.defaultdict(list), []
    for example, length in enumerate(lengths.tolist()):
        index = bisect.bisect_left(rooms, length)
        if index == len(rooms):
            row, room = len(members), capacity
            members.append([])
        else:
            room = rooms[index]
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                rooms.pop(index)
        members[row].append(example)
        if not rows_with_room[room - length]:
            bisect.insort(rooms, room - length)
        rows_with_room[room - length].append(row)
    sizes = np.array([len(row) for row in members], np.int64)
    flat = np.array([example for row in members for example in row], np.int64)
    return tf.RaggedTensor.from_row_lengths(flat, sizes)


def packed_epoch_order(
    lengths: tf.Tensor, plan: tf.RaggedTensor, seed: tf.Tensor
) -> tf.RaggedTensor:
    """Return a random order of packed sequences, with a random choice of the examples in each.

    Args:
        lengths: (N,) int, tokens of every example.
        plan: ragged (R, None), from `pack_examples` of the sorted lengths.
        seed: (2,) int; the same seed gives the same order.

    Returns:
        Ragged (R, None) int64, every example exactly once.
    """
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(lengths, tf.int64)), seed)
    order = tf.gather(order, tf.argsort(-tf.gather(lengths, order), stable=True))
    examples = tf.random.experimental.stateless_shuffle(tf.range(plan.nrows()), seed + 1)
    return tf.gather(plan.with_values(tf.gather(order, plan.values)), examples)
