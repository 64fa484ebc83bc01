"""Batches of NumPy arrays that can be used as a Keras dataset."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np

from encoder_zoo.common.ragged_array import make_array


class ArrayBatches(keras.utils.PyDataset):
    """Dataset of NumPy batches that are created on demand, with method names from `tf.data`.

    Args:
        make: Function that creates the batch with a given number.
        numbers: Sequence of integers. Batch numbers, in the order of the dataset.

    Example:
        >>> batches = ArrayBatches(lambda number: {"x": np.full(2, number)}, range(5))
        >>> len(batches.skip(1).take(3)), batches.skip(1)[0]["x"].tolist()
        (3, [1, 1])
    """

    def __init__(self, make: Callable[[int], object], numbers: Sequence[int]):
        super().__init__()
        self._make = make
        self._numbers = numbers
        self._counted = True

    @property
    def num_batches(self) -> int | None:
        """Return the number of batches, or None to make Keras treat the dataset as infinite."""
        return len(self) if self._counted else None

    def make_endless(self) -> ArrayBatches:
        """Return an infinite dataset, which repeats the batches in the same order."""
        batches = copy.copy(self)
        batches._counted = False
        return batches

    def repeat_forever(self) -> Iterator:
        """Yield the batches forever, because Keras can stop reading in the middle of an epoch."""
        for number in itertools.count():
            yield self[number]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int):
        number = self._numbers[index % len(self)]
        return keras.tree.map_structure(np.asarray, self._make(number))

    def __iter__(self):
        # Tasks need the arrays from `make_array`. Keras uses the plain arrays from `__getitem__`.
        return (keras.tree.map_structure(make_array, self._make(n)) for n in self._numbers)

    def take(self, count: int) -> ArrayBatches:
        """Return the first `count` batches."""
        return ArrayBatches(self._make, self._numbers[:count])

    def skip(self, count: int) -> ArrayBatches:
        """Return the batches after the first `count` batches."""
        return ArrayBatches(self._make, self._numbers[count:])

    def map(self, function: Callable) -> ArrayBatches:
        """Apply a function to each batch. Tuples are unpacked into positional arguments."""

        def make(number: int):
            batch = self._make(number)
            return function(*batch) if isinstance(batch, tuple) else function(batch)

        return ArrayBatches(make, self._numbers)
