"""Processes of JAX that train as one, under `keras.distribution`.

Each reads all batches in the same order, and gives its own part of each.
"""

from __future__ import annotations

import contextlib

import keras

from encoder_zoo.common.lazy import tf


def shard_of_process() -> tuple[int, int]:
    """Return which part of a batch this process of JAX gives, and how many parts there are.

    Example:
        >>> shard_of_process()
        (0, 1)
    """
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.num_processes == 1:
        return 0, 1
    count = min(distribution.num_processes, distribution.num_model_replicas)
    return distribution.data_shard_id, count


def part_of_process(dataset):
    """Return a dataset of this process's part of every batch, where JAX runs in several.

    Raises:
        ValueError: "Several processes take parts of batches of texts or of a dataset. ..."
    """
    number, count = shard_of_process()
    if dataset is None or count == 1:
        return dataset
    if not hasattr(dataset, "map"):
        raise ValueError(
            "Several processes take parts of batches of texts or of a dataset. Received: arrays of "
            "prepared inputs. Pass tf.data.Dataset.from_tensor_slices((x, y)).batch(32)."
        )

    def part(*batch):
        return part_of_batch(batch if batch[1:] else batch[0], number, count)

    return dataset.map(part)


@contextlib.contextmanager
def unsharded():
    """Have `keras.distribution` take the batches of a process as they are."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        yield
        return
    before, distribution.auto_shard_dataset = distribution.auto_shard_dataset, False
    try:
        yield
    finally:
        distribution.auto_shard_dataset = before


@contextlib.contextmanager
def whole_batches():
    """Have every process of JAX compute whole batches, so that each has all outputs."""
    distribution = keras.distribution.distribution()
    if shard_of_process()[1] == 1:
        yield
        return

    def replicated(shape):
        return keras.distribution.TensorLayout([None] * len(shape), distribution.device_mesh)

    distribution.get_data_layout = replicated
    try:
        yield
    finally:
        del distribution.get_data_layout


def part_of_batch(batch, number, count: int):
    """Return the rows of one of `count` replicas: equally many, give or take one, or none.

    Example:
        >>> import numpy as np
        >>> [part_of_batch(np.array([1, 2, 3]), i, 2).tolist() for i in range(2)]
        [[1], [2, 3]]
    """

    def part(rows):
        size = len(rows) if not tf.is_symbolic_tensor(rows) else tf.shape(rows, tf.int64)[0]
        return rows[size * number // count : size * (number + 1) // count]

    return keras.tree.map_structure(part, batch)
