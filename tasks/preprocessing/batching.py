"""Batches of examples of similar length, padded to the longest of the batch.

Comment letters: N examples, B batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import keras
import numpy as np

from encoder_zoo.common.lazy import in_tensorflow, tf
from encoder_zoo.tasks.preprocessing.array_batches import array_batches, epochs_of_arrays
from encoder_zoo.tasks.preprocessing.epoch_order import (
    MEGABATCH,
    epoch_order,
    example_lengths,
    order_of_epoch,
    round_robin,
)
from encoder_zoo.tasks.preprocessing.examples import take_examples
from encoder_zoo.tasks.preprocessing.filling import filled_batch
from encoder_zoo.tasks.preprocessing.lengths import lengths_now
from encoder_zoo.tasks.preprocessing.packed_batches import with_packed_tokens
from encoder_zoo.tasks.preprocessing.packed_examples import pack_examples
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction

# Batches that are padded ahead of the one that the model works on.
AHEAD = 4
# Examples of a batch inside an exported graph.
GRAPH_BATCH = 32
BATCH_SIZE = 32  # by default


@dataclasses.dataclass(frozen=True)
class Plan:
    """How data are read.

    Attributes:
        batch_size: B.
        epochs: numbers of the epochs of a `fit`.
        shuffle: whether examples are shuffled.
        steps_per_epoch: batches of an epoch, of as many passes as that needs; None is one pass.
        group_lengths: whether the examples of a shuffled batch have like lengths, which saves
            padding; else they are drawn at random.
    """

    batch_size: int = BATCH_SIZE
    epochs: range = range(1)
    shuffle: bool = True
    steps_per_epoch: int | None = None
    group_lengths: bool = True


@dataclasses.dataclass(frozen=True)
class Batches:
    """One pass over prepared batches.

    Attributes:
        dataset: of results of the preprocessor's `collate`.
        order: (N,) index of the example at each position.
    """

    dataset: tf.data.Dataset
    order: np.ndarray


def bucket_length(length: tf.Tensor) -> tf.Tensor:
    """Return the smallest of `lengths_now` that is not below a length; a longer one stays.

    Example:
        >>> import tensorflow as tf
        >>> bucket_length(tf.constant(17)).numpy().item()
        32
    """
    buckets = tf.constant(lengths_now())
    fitting = tf.boolean_mask(buckets, buckets >= length)
    return tf.reduce_min(tf.concat([fitting, [tf.maximum(length, buckets[-1])]], axis=0))


class LengthGroupedBatcher:
    """Make batches of encoded examples, in graphs that are traced once.

    Args:
        collate: makes a batch of some examples, called with `(examples, seed)`.
        multiple: if given, every batch is filled up to `batch_size` rows, or the next multiple of
            this number: see `filling`.
        sequence_counts: if given, on JAX, the texts of a batch are packed into so many sequences:
            see `packed_batches`. Batches then have about equally many tokens.
    """

    def __init__(
        self,
        collate: Callable,
        multiple: int | None = None,
        sequence_counts: tuple[int, ...] | None = None,
    ):
        self._collate = collate
        self._multiple = multiple
        self._sequence_counts = sequence_counts
        self._ordered = ShapePolymorphicFunction(self._in_order)
        self._training = {  # by whether examples are shuffled, and grouped by length
            order: ShapePolymorphicFunction(functools.partial(self._epochs, *order))
            for order in ((True, True), (True, False), (False, False))
        }

    def ordered(self, examples: dict, batch_size: int) -> Batches:
        """Return one pass over the examples, the longest first, so that a batch that does not fit
        into memory fails at once; where batches are packed, with long and short texts in each.

        Args:
            examples: encoded examples, tensors with N examples; "token_ids" is ragged.
            batch_size: B.

        Returns:
            The batches, with the index of the example at each position.
        """
        order = np.argsort(-example_lengths(examples).numpy(), kind="stable")
        if self._sequence_counts:
            order = round_robin(order, batch_size)
        if not in_tensorflow():
            collate = self._filling(batch_size)
            return Batches(array_batches(collate, examples, order, batch_size), order)
        return Batches(self._ordered(examples, order, np.int64(batch_size)), order)

    def training(
        self, examples: dict, plan: Plan, capacity: int | None = None
    ) -> tuple[int, Callable[[int, int], tf.data.Dataset]]:
        """Return batches of several epochs in one dataset, each epoch in an order of its own.

        The order depends on seed and epoch alone, so training that continues at a later
        epoch gets the same batches.

        Args:
            examples: encoded examples, tensors with N examples; "token_ids" is ragged.
            plan: how they are read.
            capacity: pack examples into sequences of so many tokens; `batch_size` counts these
                sequences, and the collated "token_ids" are ragged (B, None, None).

        Returns:
            The number of batches in one pass, and `batches(seed, done)`: those of all epochs but
            the first that are done, which are never made. The seed is of order and masking.
        """
        lengths = examples["token_ids"].row_lengths().numpy()
        packing = () if capacity is None else (pack_examples(np.sort(lengths)[::-1], capacity),)
        steps = -(-(int(packing[0].nrows()) if packing else len(lengths)) // plan.batch_size)
        total = (plan.steps_per_epoch or steps) * len(plan.epochs)
        graph = self._training[plan.shuffle, plan.shuffle and plan.group_lengths]

        def batches(seed, done=0):
            if not in_tensorflow():
                numbers, mixed = (seed, steps, done, total), self._sequence_counts is not None
                return epochs_of_arrays(
                    self._filling(plan.batch_size), examples, packing, plan, numbers, mixed
                )
            numbers = (seed, plan.epochs.start, steps, plan.batch_size, total, done)
            return graph(examples, packing, tuple(map(np.int64, numbers)))

        return steps, batches

    def _filling(self, rows) -> Callable:
        """Return `collate`, followed by filling and packing where batches need them."""

        def collate(examples, seed):
            batch = filled_batch(self._collate, examples, seed, rows, self._multiple)
            counts = self._sequence_counts
            return with_packed_tokens(batch, counts) if counts else batch

        return collate

    def _in_order(self, examples, order, batch_size) -> tf.data.Dataset:
        def plan(step):
            return order[step * batch_size : (step + 1) * batch_size], tf.stack([0, step])

        steps = -(-tf.size(order, tf.int64) // batch_size)
        return self._collated(tf.data.Dataset.range(steps).map(plan), examples, batch_size)

    def _epochs(
        self, shuffle: bool, group_lengths: bool, examples, packing, numbers
    ) -> tf.data.Dataset:
        seed, first_epoch, steps, batch_size, total, done = numbers
        lengths = tf.cast(example_lengths(examples), tf.int32)

        def order_of(epoch):
            epoch_seed = tf.stack([seed, epoch if shuffle else tf.zeros_like(epoch)])
            return order_of_epoch(lengths, packing, batch_size, epoch_seed, shuffle, group_lengths)

        def epoch_plan(epoch):
            order = order_of(epoch)
            return tf.data.Dataset.range(steps).map(
                lambda step: (
                    order[step * batch_size : (step + 1) * batch_size],
                    tf.stack([seed, epoch * steps + step]),
                )
            )

        plan = tf.data.Dataset.counter(first_epoch).flat_map(epoch_plan).take(total)
        plan = plan.apply(tf.data.experimental.assert_cardinality(total))
        return self._collated(plan.skip(done), examples, batch_size)

    def _collated(self, plan: tf.data.Dataset, examples: dict, batch_size) -> tf.data.Dataset:
        def make(indices, seed):
            return self._filling(batch_size)(take_examples(examples, indices), seed)

        # Not tuned: padding is soon done, and the end of a tuned pipeline can take half a second.
        options = tf.data.Options()
        options.autotune.enabled = False
        batches = plan.map(make, num_parallel_calls=AHEAD, deterministic=True).prefetch(AHEAD)
        return batches.with_options(options)


def grouped_batches(
    megabatches: tf.data.Dataset,
    batch_size: int,
    seed: int | tf.Tensor,
    group_lengths: bool = True,
) -> tf.data.Dataset:
    """Return batches of raw inputs of like length, from a dataset of megabatches of them.

    Args:
        megabatches: `x`, `(x, y)` or `(x, y, sample_weight)`, tensors or ragged tensors, of
            `megabatch_size(batch_size)` raw examples each, the last of a pass perhaps of fewer.
        batch_size: B.
        seed: of the order inside the megabatches.
        group_lengths: whether batches are of like length; else they are drawn at random.

    Returns:
        Batches with the structure of the megabatches, every example exactly once.
    """

    def cut(number, megabatch):
        sizes = text_sizes(keras.utils.unpack_x_y_sample_weight(megabatch)[0])
        numbers = tf.stack([tf.cast(seed, tf.int64), number])
        order = epoch_order(sizes, batch_size, numbers, group_lengths)

        def batch_at(start):
            chosen = order[start : start + batch_size]
            # No labels beside weights are None.
            return tf.nest.map_structure(
                lambda values: None if values is None else tf.gather(values, chosen), megabatch
            )

        return tf.data.Dataset.range(0, tf.size(order, tf.int64), batch_size).map(batch_at)

    return tf.data.Dataset.zip(tf.data.Dataset.counter(), megabatches).flat_map(cut)


def megabatch_size(batch_size: int) -> int:
    """Return the number of examples among which batches of like length are made."""
    return batch_size * MEGABATCH


def text_sizes(x) -> tf.Tensor:
    """Return the bytes of N raw inputs, (N,) int32, an estimate of their numbers of tokens.

    Args:
        x: tensors or ragged tensors of texts or words, in any structure.

    Example:
        >>> import tensorflow as tf
        >>> words = tf.ragged.constant([["a", "cat"], ["it"]])
        >>> text_sizes((words, tf.constant(["why", "how"]))).numpy().tolist()
        [7, 5]
    """
    total = 0
    for texts in tf.nest.flatten(x):
        if texts.dtype != tf.string:
            continue
        sizes = tf.strings.length(texts)
        while len(sizes.shape) > 1:
            sizes = tf.reduce_sum(sizes, axis=-1)
        total += sizes
    return total


def in_graph_batches(
    function: Callable[[dict], tf.Tensor], examples: dict, lengths: tf.Tensor, width: int
) -> tf.RaggedTensor:
    """Call a function of batches inside `tf.function` for all examples, the longest first.

    Like `LengthGroupedBatcher.ordered` followed by `predict`: batches need little padding, and
    memory is that of one batch, however many examples there are.

    Args:
        function: of some examples, to float32 (T, width), the values of one after the other.
        examples: encoded, tensors with N examples; "token_ids" is ragged.
        lengths: (N,) int64, the number of values for every example.
        width: of a value.

    Returns:
        Ragged (N, None, width), in the order of the examples.
    """
    order = tf.argsort(examples["token_ids"].row_lengths(), direction="DESCENDING", stable=True)
    steps = -(-tf.size(order) // GRAPH_BATCH)
    shape = tf.TensorShape([None, width])
    parts = tf.TensorArray(tf.float32, steps, element_shape=shape, infer_shape=False)

    def step(i, parts):
        chosen = order[i * GRAPH_BATCH : (i + 1) * GRAPH_BATCH]
        values = function(take_examples(examples, chosen))
        return i + 1, parts.write(i, values)

    _, parts = tf.while_loop(lambda i, _: i < steps, step, (0, parts), parallel_iterations=1)
    outputs = tf.RaggedTensor.from_row_lengths(parts.concat(), tf.gather(lengths, order))
    return tf.gather(outputs, tf.argsort(order))
