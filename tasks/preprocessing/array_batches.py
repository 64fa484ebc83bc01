"""Batches of texts in memory without TensorFlow, for JAX and PyTorch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.keras_private import adapter_that_calls
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.ragged_array import as_array
from encoder_zoo.tasks.preprocessing.epoch_order import example_lengths, order_of_epoch
from encoder_zoo.tasks.preprocessing.examples import take_examples

if TYPE_CHECKING:
    from encoder_zoo.tasks.preprocessing.batching import Plan


class ArrayBatches(keras.utils.PyDataset):
    """Batches in NumPy, each made when it is needed, with the methods of datasets that tasks use.

    Args:
        make: makes the batch of a number.
        numbers: of the batches, in their order.

    Example:
        >>> batches = ArrayBatches(lambda number: {"x": np.full(2, number)}, range(5))
        >>> len(batches.skip(1).take(3)), batches.skip(1)[0]["x"].tolist()
        (3, [1, 1])
    """

    def __init__(self, make: Callable[[int], object], numbers: Sequence[int]):
        super().__init__()
        self._make = make
        self._numbers = numbers
        self._adapter = None
        self._mapped_from: ArrayBatches | None = None
        self._counted = True

    @property
    def num_batches(self) -> int | None:
        """Return the number of batches, or None if Keras shall take them for endless."""
        return len(self) if self._counted else None

    def uncounted(self) -> ArrayBatches:
        """Return the batches as endless ones: after the last comes the first."""
        batches = copy.copy(self)
        batches._counted = False
        return batches

    def on_epoch_begin(self):
        self._adapter = adapter_that_calls()
        if self._mapped_from is not None:  # which a callback may hold
            self._mapped_from._adapter = self._adapter

    def end_epoch(self) -> None:
        """Tell Keras that an epoch is over, which a callback ended before its last step."""
        self._adapter.on_epoch_end()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int):
        number = self._numbers[index % len(self)]
        return keras.tree.map_structure(np.asarray, self._make(number))

    def __iter__(self):
        # Tasks read these, Keras the ordinary arrays of `__getitem__`.
        return (keras.tree.map_structure(as_array, self._make(n)) for n in self._numbers)

    def take(self, count: int) -> ArrayBatches:
        """Return the first batches."""
        return ArrayBatches(self._make, self._numbers[:count])

    def skip(self, count: int) -> ArrayBatches:
        """Return the batches without the first."""
        return ArrayBatches(self._make, self._numbers[count:])

    def map(self, function: Callable) -> ArrayBatches:
        """Return what a function makes of each batch; the parts of a tuple are its arguments."""

        def make(number: int):
            batch = self._make(number)
            return function(*batch) if isinstance(batch, tuple) else function(batch)

        mapped = ArrayBatches(make, self._numbers)
        mapped._mapped_from = self
        return mapped


def array_batches(
    collate: Callable, examples: dict, order: np.ndarray, batch_size: int
) -> ArrayBatches:
    """Return one pass over encoded examples in an order.

    Args:
        collate: makes a batch of some examples, called with `(examples, seed)`.
        examples: encoded, with N examples.
        order: (N,) int.
        batch_size: B.
    """

    def make(number: int):
        rows = order[number * batch_size : (number + 1) * batch_size]
        return collate(take_examples(examples, rows), np.array([0, number]))

    return ArrayBatches(make, range(-(-len(order) // batch_size)))


def epochs_of_arrays(
    collate: Callable,
    examples: dict,
    packing: tuple,
    plan: Plan,
    numbers: tuple,
    mixed: bool = False,
) -> ArrayBatches:
    """Return the batches of all epochs without the first that are done.

    Args:
        collate, examples: as for `array_batches`.
        packing: the plan of `pack_examples`, or nothing.
        plan: how the examples are read.
        numbers: the seed, the batches of a pass, of those that are done and of all.
        mixed: see `epoch_order`, where batches are shuffled and grouped by length.
    """
    seed, steps, done, total = numbers
    lengths, size = tf.cast(example_lengths(examples), tf.int32), plan.batch_size

    @functools.lru_cache(maxsize=1)
    def order_of(epoch: int):
        of_epoch = np.array([seed, epoch if plan.shuffle else 0])
        settings = plan.shuffle, plan.group_lengths, mixed
        return order_of_epoch(lengths, packing, size, of_epoch, *settings)

    def make(number: int):
        step = number % steps
        rows = order_of(number // steps)[step * size : (step + 1) * size]
        return collate(take_examples(examples, rows), np.array([seed, number]))

    first = plan.epochs.start * steps
    return ArrayBatches(make, range(first + done, first + total))
