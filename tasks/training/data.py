"""The data of `fit` and `evaluate`: one interface to texts in memory, datasets, corpora and arrays.

`sources.training_data` makes it from any input that a task accepts.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.preprocessing.batch_shapes import real_examples
from encoder_zoo.tasks.preprocessing.batching import Plan
from encoder_zoo.tasks.training.divergence import stopping_at_divergence
from encoder_zoo.tasks.training.resuming import resuming_fit_arguments


class TrainingData:
    """Base of the data that a task is trained or evaluated on.

    Args:
        task: with the preprocessor and the graphs that make batches.
        plan: how the data are read.

    Attributes:
        steps: batches of one pass, or of an epoch where only that is known.
        window_sizes: plain data that grows with reading and finds a late batch quickly; a backup
            keeps it.
        class_weights: of every class, or None.
        done: batches of the first epoch that a backup has behind it.
    """

    def __init__(self, task, plan: Plan):
        self.task = task
        self.plan = plan
        self.window_sizes: list = []
        self.class_weights: list | None = None
        self.done = 0
        self._changes: list[Callable] = []

    steps: int

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches of an epoch."""
        return self.plan.steps_per_epoch or self.steps

    @property
    def total_steps(self) -> int:
        """Return the number of batches of all epochs."""
        return len(self.plan.epochs) * self.steps_per_epoch

    def count_examples(self) -> int:
        """Return the number of examples of one pass."""
        return self.steps * self.plan.batch_size

    def check(self) -> None:
        """Raise an error if `fit` cannot take these data, and log their costs."""

    def batches(self, seed: int, done: int = 0) -> tf.data.Dataset:
        """Return the batches of all epochs without the first `done`, which are never made.

        Args:
            seed: of order and masking.
            done: how many batches to leave out.
        """
        batches = self._batches(seed, done)
        for change in self._changes:
            batches = batches.map(change)
        return batches

    def _batches(self, seed: int, done: int) -> tf.data.Dataset:
        raise NotImplementedError

    def one_pass(self) -> tf.data.Dataset:
        """Return the batches of one pass, to count labels in."""
        return self.batches(0).take(self.steps).map(real_examples)

    def in_order(self):
        """Return the data for Keras's `evaluate`: batches of one pass, or a tuple of arrays."""
        raise NotImplementedError

    def describe(self) -> dict:
        """Return plain data that identifies these data."""
        raise NotImplementedError

    def split(self, share: float, batch_size: int) -> tuple:
        """Return the data without the share at their end, and that share to evaluate on.

        Args:
            share: of the examples, between 0 and 1.
            batch_size: of the evaluation.
        """
        check_dataset_alone(validation_split=share)

    def weighted(self, weigh: Callable, weights: np.ndarray) -> TrainingData:
        """Return the same data with other sample weights.

        Args:
            weigh: from `(x, y)` or `(x, y, sample_weight)`, and `weights=`, to `(x, y,
                sample_weight)`.
            weights: of the classes.
        """
        data = copy.copy(self)
        data._changes = [*self._changes, functools.partial(weigh, weights=weights)]
        data.class_weights = weights.tolist()
        return data

    def fit_arguments(self, callbacks: list | None, verbose: int | str) -> dict:
        """Return the arguments of Keras's `fit`, from where a backup left the training.

        Args:
            callbacks: of the user.
            verbose: as in Keras.
        """
        return resuming_fit_arguments(self, stopping_at_divergence(callbacks), verbose)


def uncounted(batches):
    """Return batches that Keras does not know the number of.

    It counts full executions of several steps, also where the last of an epoch is shorter, and
    would begin with the first batch again before it has seen the last.

    Args:
        batches: a `tf.data.Dataset` or `ArrayBatches`; anything else is returned as it is.
    """
    if isinstance(batches, ArrayBatches):
        return batches.uncounted()
    return batches.filter(lambda *_: True) if hasattr(batches, "filter") else batches


def check_dataset_alone(y=None, sample_weight=None, validation_split: float = 0.0) -> None:
    """Raise a ValueError if something that belongs into a dataset is passed with one."""
    given = {"y": y, "sample_weight": sample_weight, "validation_split": validation_split or None}
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise ValueError(
            f"Received {', '.join(names)} with a dataset. Put labels and weights into its "
            "elements, (x, y) or (x, y, sample_weight), and pass held-out examples as "
            "`validation_data`."
        )
