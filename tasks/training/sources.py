"""Texts in memory, datasets and prepared inputs as `TrainingData`, by one adapter.

A source of another kind, such as a `PretrainingCorpus`, has a method `training_data(task, plan)`
that returns its own `TrainingData`.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping

import keras
import numpy as np

from encoder_zoo.common.lazy import array_ops, tf
from encoder_zoo.common.wording import invalid, shown
from encoder_zoo.tasks.preprocessing.batch_shapes import filled_batch
from encoder_zoo.tasks.preprocessing.batching import (
    NOT_RANDOM,
    LengthGroupedBatcher,
    Plan,
    grouped_batches,
    megabatch_size,
)
from encoder_zoo.tasks.preprocessing.columns import columns_advice, materialize, table_columns
from encoder_zoo.tasks.preprocessing.preprocessor import logged_once, reported_by_datasets
from encoder_zoo.tasks.training.data import TrainingData, check_dataset_alone
from encoder_zoo.tasks.training.distribution import (
    check_divisible,
    count_batches,
    count_to_end,
    data_parallel_devices,
)
from encoder_zoo.tasks.training.divergence import stopping_at_divergence
from encoder_zoo.tasks.training.prepared import (
    checked_arrays,
    checked_dataset,
    inputs_of,
    is_prepared,
)
from encoder_zoo.tasks.training.resuming import check_no_backup, checksum_of_examples
from encoder_zoo.tasks.training.streams import Stream, StreamBatches, as_stream


class PreparedArrays(TrainingData):
    """Prepared inputs in memory, which Keras cuts into batches and shuffles.

    Args:
        x: checked inputs `{"token_ids": (N, L), ...}`.
        y: labels, or None.
        sample_weight: or None.
    """

    def __init__(self, task, plan: Plan, x: dict, y, sample_weight):
        super().__init__(task, plan)
        self.arrays = x, y, sample_weight

    @property
    def steps(self) -> int:
        return -(-self.count_examples() // self.plan.batch_size)

    def count_examples(self) -> int:
        return len(self.arrays[0]["token_ids"])

    def one_pass(self) -> tf.data.Dataset:
        _, y, sample_weight = self.arrays
        return tf.data.Dataset.from_tensors(keras.utils.pack_x_y_sample_weight(0, y, sample_weight))

    def in_order(self) -> tuple:
        check_divisible(self.arrays[0], self.plan.batch_size)
        return self.arrays

    def split(self, share: float, batch_size: int) -> tuple:
        # Not left to Keras, which would weigh the classes of what it holds out, too.
        first = first_count(len(self.arrays[0]["token_ids"]), share)
        data = copy.copy(self)
        data.arrays = _rows(self.arrays, slice(first))
        return data, _rows(self.arrays, slice(first, None))

    def weighted(self, weigh: Callable, weights: np.ndarray) -> PreparedArrays:
        data, x = copy.copy(self), self.arrays[0]
        [(_, y, sample_weight)] = self.one_pass().map(functools.partial(weigh, weights=weights))
        data.arrays = x, y.numpy(), sample_weight.numpy()
        return data

    def fit_arguments(self, callbacks: list | None, verbose: int | str) -> dict:
        callbacks, plan = stopping_at_divergence(callbacks), self.plan
        check_no_backup(callbacks)
        check_divisible(self.arrays[0], plan.batch_size)
        self.task.distribution.check_arrays(plan.shuffle)
        return {
            **dict(zip(("x", "y", "sample_weight"), self.arrays, strict=True)),
            "batch_size": plan.batch_size,
            "shuffle": plan.shuffle,
            "steps_per_epoch": plan.steps_per_epoch,
            "callbacks": callbacks,
            "initial_epoch": plan.epochs.start,
            "epochs": plan.epochs.stop,
            "verbose": verbose,
        }


class EncodedTexts(TrainingData):
    """Texts in memory, tokenized once; batches are of examples of like length.

    Args:
        examples: encoded.
    """

    def __init__(self, task, plan: Plan, examples: dict):
        super().__init__(task, plan)
        self._examples = examples

    @functools.cached_property
    def _training(self) -> tuple[int, Callable]:
        capacity = self.task.preprocessor.packed_length
        batcher = self._batcher(capacity is None)
        return batcher.training(self._examples, self.plan, capacity)

    def _batcher(self, may_fill: bool) -> LengthGroupedBatcher:
        graphs = self.task.graphs
        fills = may_fill and graphs.fills()
        if not fills:
            check_divisible(self._examples, self.plan.batch_size)
        return graphs.batcher(self._examples, self.plan.batch_size, fills)

    @property
    def steps(self) -> int:
        return self._training[0]

    def count_examples(self) -> int:
        return int(self._examples["token_ids"].shape[0])

    def check(self) -> None:
        self.task.graphs.report_compiling(self._examples, self.plan.batch_size)

    def _batches(self, seed: int, done: int) -> tf.data.Dataset:
        return self._training[1](seed, done)

    def in_order(self) -> tf.data.Dataset:
        return self._batcher(True).ordered(self._examples, self.plan.batch_size).dataset

    def describe(self) -> dict:
        order = {"batch_size": self.plan.batch_size, "shuffle": self.plan.shuffle}
        return {**checksum_of_examples(self._examples), **order}

    def split(self, share: float, batch_size: int) -> tuple:
        first, held_out = split(self._examples, share)
        self.task._warn_unseen_classes(first, held_out)
        held_out = EncodedTexts(self.task, Plan(batch_size), held_out)
        return EncodedTexts(self.task, self.plan, first), held_out.in_order()


class DatasetBatches(TrainingData):
    """A `tf.data.Dataset` of raw inputs, single or in batches, or of prepared batches.

    Args:
        dataset: elements `x`, `(x, y)` or `(x, y, sample_weight)`.
    """

    def __init__(self, task, plan: Plan, dataset: tf.data.Dataset):
        super().__init__(task, plan)
        check_preprocessor(task, dataset)
        self._is_prepared = is_prepared(inputs_of(dataset.element_spec))
        checked = self._is_prepared and isinstance(dataset, tf.data.Dataset)
        self._dataset = checked_dataset(task, dataset) if checked else dataset
        self._batched = self._in_batches(plan.batch_size)

    def _in_batches(self, batch_size: int) -> tf.data.Dataset:
        if self._is_prepared:
            return self._dataset
        return self.task.preprocessor.batched(self._dataset, batch_size)

    @property
    def _is_single(self) -> bool:
        return self._batched is not self._dataset

    @functools.cached_property
    def steps(self) -> int:
        return self.plan.steps_per_epoch or count_batches(self._batched)

    def count_examples(self) -> int:
        """Return the number of examples of a pass, or at least that of `steps_per_epoch` batches.

        Batches of unknown sizes are read for it, but no more than `fit` reads.
        """
        steps, batched = self.plan.steps_per_epoch, self._batched
        if steps and self._is_single:
            return steps * self.plan.batch_size
        sizes = batched.map(lambda *data: array_ops.shape(keras.tree.flatten(data)[0])[0])
        if steps:
            sizes = sizes.repeat().take(steps * max(len(self.plan.epochs), 1))
            return steps * int(sizes.reduce(0, array_ops.maximum))
        if sizes.cardinality() == tf.data.INFINITE_CARDINALITY:
            return self._rows()  # Keras says what is missing
        return count_to_end(map(int, sizes), "The dataset")

    def check(self) -> None:
        preprocessor = self.task.preprocessor
        if preprocessor is not None and preprocessor.packed_length:
            raise ValueError("pack_texts needs all texts in memory. Pass lists, not a dataset.")

    def _batches(self, seed: int, done: int) -> tf.data.Dataset:
        plan = self.plan
        passes = None if plan.steps_per_epoch else len(plan.epochs)
        raw = self._batched.repeat(passes)
        if plan.shuffle and self._is_single:
            megabatches = self._in_batches(megabatch_size(plan.batch_size))
            megabatches = megabatches.repeat(passes)
            raw = grouped_batches(megabatches, plan.batch_size, seed, plan.group_lengths)
        return self._preprocessed(raw, seed, done)

    def in_order(self, fills: bool = True) -> tf.data.Dataset:
        return self._preprocessed(self._batched, NOT_RANDOM, fills=fills)

    def _preprocessed(
        self, batched, seed: int = 0, done: int = 0, fills: bool = True
    ) -> tf.data.Dataset:
        """Return batches of raw inputs preprocessed, without the first that are done."""
        if self._is_prepared:
            return batched.skip(done) if done else batched
        preprocessor, collate = self.task.preprocessor, self.task.graphs.collate()
        multiple = data_parallel_devices() if fills and self.task.graphs.fills() else None
        rows = self._rows() if multiple else 0

        def prepare(data, number):
            examples = preprocessor.encode(*keras.utils.unpack_x_y_sample_weight(data))
            seeds = array_ops.stack([array_ops.cast(seed, array_ops.int64), number])
            return filled_batch(collate, examples, seeds, rows, multiple)

        numbered = tf.data.Dataset.zip(batched, tf.data.Dataset.counter()).skip(done)
        with reported_by_datasets():
            prepared = numbered.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
        return prepared.prefetch(tf.data.AUTOTUNE)

    def _rows(self) -> int:
        """Return the number of raw inputs of a batch, of a dataset of batches that of its first."""
        if self._is_single:
            return self.plan.batch_size
        first = next(iter(self._batched.map(lambda *data: keras.tree.flatten(inputs_of(data))[0])))
        return int(first.shape[0])

    def describe(self) -> dict:
        order = {"batch_size": self.plan.batch_size, "shuffle": self.plan.shuffle}
        return {"dataset": str(self._batched.element_spec), **(order if self._is_single else {})}


def training_data(task, x, y=None, sample_weight=None, plan: Plan | None = None) -> TrainingData:
    """Return the data of a `fit` or `evaluate`, checked, from any input that these accept.

    Args:
        task: a `TextModel`.
        x: raw inputs, a dataset, prepared inputs, or a source with a method `training_data`.
        y: labels; none with a dataset.
        sample_weight: one number per example; none with a dataset.
        plan: how the data are read.
    """
    plan = plan or Plan()
    if is_prepared(x):
        return PreparedArrays(task, plan, checked_arrays(task, x), y, sample_weight)
    own = getattr(x, "training_data", None)
    own = own if callable(own) else None  # a table may have a column of that name
    if own is None and not is_dataset(x):
        check_not_empty(x)
        with logged_once():
            return EncodedTexts(task, plan, task.preprocess(x, y, sample_weight))
    check_dataset_alone(y, sample_weight)
    if isinstance(x, Stream):
        check_preprocessor(task, x)
        return StreamBatches(task, plan, x)
    if own:
        return own(task, plan)
    check_has_elements(x)
    return DatasetBatches(task, plan, x)


def evaluation_data(task, x, y, sample_weight, batch_size: int, steps: int | None = None):
    """Return the data for Keras's `evaluate`: a dataset, or arrays `(x, y, sample_weight)`."""
    x, y = separated(task, x, y)
    data = training_data(task, x, y, sample_weight, Plan(batch_size, steps_per_epoch=steps))
    task._reserve_examples(data)
    return data.in_order()


def separated(task, x, y) -> tuple:
    """Return the inputs and labels that `fit` or `evaluate` are given, checked."""
    x, y = as_stream(materialize(x), task), materialize(y)
    check_inputs(task, x, y)
    task._check_given(y, x)
    if not isinstance(x, Stream):  # which does so with each batch
        x, y = task._separate(x, y)
    task._check_labels(x, y)
    return x, y


def as_tuple(data, y):
    """Return `validation_data` of `[x, y]` as `(x, y)`, as Keras takes it; others unchanged.

    Args:
        data: of `fit`.
        y: labels of `fit`; without any, a list has texts.

    Example:
        >>> as_tuple([["a", "b"], [0, 1]], [1, 1, 0])
        (['a', 'b'], [0, 1])
    """
    is_list = isinstance(data, list) and len(data) in (2, 3) and y is not None
    return tuple(data) if is_list and not isinstance(data[0], str | bytes | Mapping) else data


def check_validation(task, data) -> None:
    """Raise a ValueError for labels of `validation_data` that are missing, before `fit` learns."""
    if isinstance(data, tuple) and len(data) > 1:
        task._check_given(data[1], data[0])


def validation_data_of(task, data, batch_size: int, steps: int | None = None):
    """Return the data for Keras's `evaluate`, from `(x, y)`, `(x, y, sample_weight)`, a dataset or
    None."""
    if data is None:
        return None
    data = data if isinstance(data, tuple) else (data,)
    if isinstance(data[0], Iterator):
        raise invalid(
            "validation_data",
            data[0],
            "what every epoch can read: lists, a keras.utils.PyDataset or a DataLoader",
        )
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return evaluation_data(task, x, y, sample_weight, batch_size, steps)


def check_preprocessor(task, x) -> None:
    """Raise a ValueError for raw inputs of a task without a preprocessor."""
    if task.preprocessor is not None or is_prepared(x):
        return
    if is_dataset(x) and is_prepared(inputs_of(x.element_spec)):
        return
    raise invalid(
        "x",
        x,
        "prepared inputs, {'token_ids': ..., 'padding_mask': ...}, as this "
        f"{type(task).__name__} has no preprocessor",
    )


def check_inputs(task, x, y) -> None:
    """Raise a ValueError for a path or splits as x, and a name as y."""
    if isinstance(x, str | bytes | os.PathLike):
        raise ValueError(
            f"x is {str(x)!r:.60}. Expected texts, not the name of a file or a single text. "
            f"{task.record.file_advice.format(str(x))}"
        )
    if isinstance(x, Mapping) and any(table_columns(v) is not None for v in x.values()):
        splits = ", ".join(map(repr, x))
        raise ValueError(f"x has the splits {splits}. Pass one of them: fit(x[{next(iter(x))!r}]).")
    if isinstance(y, str | bytes):
        raise ValueError(
            f"y is {y!r:.60}. Expected labels, not the name of their column.{columns_advice(x)}"
        )


def is_dataset(x) -> bool:
    """Return whether an input is a `tf.data.Dataset`, or a `Stream`."""
    return hasattr(x, "element_spec")


def check_has_elements(dataset) -> None:
    """Raise a ValueError for a `tf.data.Dataset` without elements."""
    if not isinstance(dataset, tf.data.Dataset):
        return
    count = int(dataset.cardinality())
    if count > 0 or next(iter(dataset.take(count != 0)), None) is not None:
        return
    raise ValueError(
        f"The dataset is empty: {shown(dataset)}. Expected at least one text. drop_remainder=True "
        "leaves out a smaller last batch."
    )


def check_not_empty(x) -> None:
    """Raise a ValueError if there are no texts to train or evaluate on."""
    first = x[0] if isinstance(x, tuple) and x else x
    sized = hasattr(first, "__len__") and not hasattr(first, "nnz")  # of scipy.sparse, which raise
    if sized and not len(first):
        raise invalid("x", x, "at least one text")


def split(examples: dict, share: float) -> tuple[dict, dict]:
    """Return the first examples and, the share from the end, the last.

    Raises:
        ValueError: As for `first_count`.
    """
    if "text_index" in examples:  # in order, and perhaps with several examples each
        count = int(array_ops.reduce_max(examples["text_index"])) + 1
        first = int(np.searchsorted(examples["text_index"], first_count(count, share)))
    else:
        first = first_count(examples["token_ids"].shape[0], share)
    return {k: v[:first] for k, v in examples.items()}, {k: v[first:] for k, v in examples.items()}


def first_count(count: int, share: float) -> int:
    """Return how many examples are left to train on, without the share from the end.

    Raises:
        ValueError: If the share is not between 0 and 1, or leaves no example to train on.

    Example:
        >>> first_count(10, 0.2)
        8
    """
    if not 0 < share < 1:
        raise invalid("validation_split", share, "a share of the examples between 0 and 1")
    first = int(count * (1 - share))
    if not first:
        raise invalid(
            "validation_split", share, "a smaller share or more examples: none is left to train on"
        )
    return first


def _rows(values, rows: slice):
    """Return rows of an array, a column or None, or of all those in a dict or tuple."""
    if isinstance(values, Mapping):
        return {name: _rows(inner, rows) for name, inner in values.items()}
    if isinstance(values, tuple):
        return tuple(_rows(inner, rows) for inner in values)
    return None if values is None else getattr(values, "iloc", values)[rows]
