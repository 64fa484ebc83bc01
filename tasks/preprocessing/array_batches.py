"""Batches in NumPy, as a dataset of Keras."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np

from encoder_zoo.common.ragged_array import as_array


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

    def without_end(self) -> Iterator:
        """Yield the batches again and again: Keras leaves a generator in the middle of an epoch."""
        for number in itertools.count():
            yield self[number]

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
        """Return what a function makes of each batch; the parts in a tuple are its arguments."""

        def make(number: int):
            batch = self._make(number)
            return function(*batch) if isinstance(batch, tuple) else function(batch)

        return ArrayBatches(make, self._numbers)
