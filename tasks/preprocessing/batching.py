"""Create batches of examples with similar length, padded to the longest example in the batch.

Comments use these letters for shapes: N (examples), B (batch size).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.lazy import keras, tf, uses_tensorflow, xp
from encoder_zoo.encoders.inputs import CANDIDATE
from encoder_zoo.tasks.preprocessing.batch_shapes import (
    add_packed_tokens,
    fill_batch,
    make_packed_order,
    pack_examples,
    take_examples,
)
from encoder_zoo.tasks.preprocessing.tracing import ShapePolymorphicFunction

if TYPE_CHECKING:
    from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches


# This seed is used in evaluation, so that random choices depend on the text and not on the batch.
FIXED_SEED = -1

# Number of batches in a megabatch. Examples are sorted by length inside megabatches, as in
# transformers. Smaller megabatches need more padding, larger megabatches make the order less
# random.
MEGABATCH = 50


def make_array_batches(
    collate: Callable, examples: dict, order: np.ndarray, batch_size: int
) -> ArrayBatches:
    """Create batches for one pass over encoded examples, in a given order.

    Args:
        collate: Function of `(examples, seed)` that creates a batch.
        examples: Dict. N encoded examples.
        order: Integer array of shape (N,).
        batch_size: Positive integer. Batch size B.
    """
    from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches  # this imports Keras

    def make(number: int):
        rows = order[number * batch_size : (number + 1) * batch_size]
        return collate(take_examples(examples, rows), np.array([FIXED_SEED, number]))

    return ArrayBatches(make, range(-(-len(order) // batch_size)))


def iterate_epochs(
    collate: Callable,
    examples: dict,
    packing: tuple,
    plan: Plan,
    numbers: tuple,
    mixed: bool = False,
) -> ArrayBatches:
    """Create the batches of all epochs, except for the batches that are already done.

    Args:
        collate, examples: See `make_array_batches`.
        packing: Tuple. The plan from `pack_examples`, or empty.
        plan: `Plan` with the batch size, epochs and steps.
        numbers: Tuple of four integers: the seed, the number of batches per pass, the number of
            batches already done, and the total number of batches.
        mixed: Boolean. See `shuffle_by_length`. This has no effect unless batches are shuffled.
            Defaults to False.
    """
    from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches  # this imports Keras

    seed, steps, done, total = numbers
    lengths, size = xp.cast(count_tokens(examples), xp.int32), plan.batch_size

    @functools.lru_cache(maxsize=1)
    def make_order(epoch: int):
        of_epoch = np.array([seed, epoch if plan.shuffle else 0])
        return make_epoch_order(lengths, packing, size, of_epoch, plan.shuffle, mixed)

    def make(number: int):
        step = number % steps
        rows = make_order(number // steps)[step * size : (step + 1) * size]
        return collate(take_examples(examples, rows), np.array([seed, number]))

    first = plan.epochs.start * steps
    return ArrayBatches(make, range(first + done, first + total))


def count_tokens(examples: dict) -> xp.Tensor:
    """Return the number of tokens in all texts of each example, int64 (N,).

    For preprocessed inputs, the padding is counted, too.

    Example:
        >>> import tensorflow as tf
        >>> first = tf.ragged.constant([[2, 7, 3], [2, 3]])
        >>> others = tf.ragged.constant([[[2, 3], [2, 5, 3]], [[2, 3], [2, 3]]])
        >>> examples = {"token_ids": first, "candidate_token_ids": others}
        >>> count_tokens(examples).numpy().tolist()
        [8, 6]
    """
    token_ids = examples["token_ids"]
    if not hasattr(token_ids, "row_lengths"):
        count, length = xp.unstack(xp.shape(token_ids, xp.int64))
        return xp.fill([count], length)
    lengths = token_ids.row_lengths()
    if (others := f"{CANDIDATE}token_ids") in examples:
        lengths += xp.reduce_sum(examples[others].row_lengths(axis=2), axis=1)
    return lengths


def shuffle_by_length(
    lengths: xp.Tensor, batch_size: int, seed: xp.Tensor, mixed: bool = False
) -> xp.Tensor:
    """Return a random order in which examples of similar length are adjacent.

    Batches in this order need little padding.

    Args:
        lengths: Integer tensor of shape (N,). Number of tokens per example.
        batch_size: Positive integer. Batch size B.
        seed: Integer tensor of shape (2,). The same seed gives the same order.
        mixed: Boolean. If True, every batch contains short and long examples instead, with about
            the same number of tokens per batch. Defaults to False.

    Returns:
        Int64 tensor of shape (N,) with every example index exactly once. The examples are shuffled
        and sorted by length inside megabatches of `MEGABATCH` batches. After that, the batches are
        shuffled. A smaller last batch is not sorted, because it would always contain the longest
        examples.
    """
    count = xp.size(lengths, xp.int64)
    full = count // batch_size * batch_size
    order = xp.random.experimental.stateless_shuffle(xp.range(count), seed)
    order, rest = order[:full], order[full:]
    megabatch = xp.range(full) // (batch_size * MEGABATCH)
    shuffled = xp.cast(xp.gather(lengths, order), xp.int64)
    key = megabatch * (xp.reduce_max(shuffled) + 1) + shuffled
    order = xp.gather(order, xp.argsort(key, stable=True))
    if mixed:
        ranks = xp.range(full) - megabatch * batch_size * MEGABATCH
        # Distribute the sorted examples in each megabatch over its batches in turn.
        batches = xp.minimum(full // batch_size - megabatch * MEGABATCH, MEGABATCH)
        order = xp.gather(order, xp.argsort(megabatch * MEGABATCH + ranks % batches, stable=True))

    batches = xp.reshape(order, (-1, batch_size))
    batches = xp.random.experimental.stateless_shuffle(batches, seed + 1)
    return xp.concat([xp.reshape(batches, (-1,)), rest], axis=0)


def make_epoch_order(
    lengths: xp.Tensor,
    packing: tuple,
    batch_size: int,
    seed: xp.Tensor,
    shuffle: bool,
    mixed: bool = False,
) -> xp.Tensor | xp.RaggedTensor:
    """Return the order of the examples, or of packed sequences of examples, in an epoch.

    Args:
        lengths: Int32 tensor of shape (N,). Number of tokens per example.
        packing: Tuple. The plan from `pack_examples`, or empty.
        batch_size: Positive integer. Batch size B.
        seed: Integer tensor of shape (2,). Seed for this epoch.
        shuffle: See `Plan`.
        mixed: See `shuffle_by_length`. Defaults to False.
    """
    if packing:
        return make_packed_order(lengths, *packing, seed)
    if shuffle:
        return shuffle_by_length(lengths, batch_size, seed, mixed)
    return xp.range(xp.size(lengths, xp.int64))


def distribute_round_robin(order: np.ndarray, batch_size: int) -> np.ndarray:
    """Distribute sorted examples over batches in turn. Each batch gets short and long examples.

    Args:
        order: Integer array of shape (N,). Example indices, sorted by length.
        batch_size: Positive integer. Batch size B.

    Example:
        >>> distribute_round_robin(np.arange(6), 2).tolist()
        [0, 3, 1, 4, 2, 5]
    """
    steps = -(-len(order) // batch_size)
    return order[np.argsort(np.arange(len(order)) % steps, kind="stable")]


# Number of batches to pad in advance.
BATCHES_AHEAD = 4
# Number of examples per batch inside an exported graph.
GRAPH_BATCH_SIZE = 32
BATCH_SIZE = 32  # the default


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings for reading data.

    Attributes:
        batch_size: Positive integer. Batch size B.
        epochs: Range. Epochs that `fit` runs.
        shuffle: Boolean. Whether to shuffle examples.
        steps_per_epoch: Optional positive integer. Number of batches per epoch, which can need
            several passes over the data. If None, an epoch is one pass.
    """

    batch_size: int = BATCH_SIZE
    epochs: range = range(1)
    shuffle: bool = True
    steps_per_epoch: int | None = None


@dataclasses.dataclass(frozen=True)
class Batches:
    """Batches for one pass over the examples.

    Attributes:
        dataset: Dataset of collated batches.
        order: Integer array of shape (N,). Index of the example at each position in the batches.
    """

    dataset: tf.data.Dataset
    order: np.ndarray


def find_bucket_length(length: xp.Tensor, lengths: Sequence[int]) -> xp.Tensor:
    """Return the smallest of `lengths` that is at least `length`, or `length` if all are smaller.

    Example:
        >>> import tensorflow as tf
        >>> find_bucket_length(tf.constant(17), (16, 32, 64)).numpy().item()
        32
    """
    buckets = xp.constant(lengths)
    fitting = xp.boolean_mask(buckets, buckets >= length)
    return xp.reduce_min(xp.concat([fitting, [xp.maximum(length, buckets[-1])]], axis=0))


class LengthGroupedBatcher:
    """Create batches of encoded examples. The graphs are traced only once.

    Args:
        collate: Function of `(examples, seed)` that creates a batch.
        multiple: Optional positive integer. If given, every batch is filled to `batch_size` rows,
            rounded up to a multiple of this value (see `fill_batch`).
        sequence_counts: Optional tuple of integers, for JAX. If given, the texts in a batch are
            packed into one of these numbers of sequences (see `choose_sequence_counts`). All
            batches then have about the same number of tokens.
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
        self._ordered = ShapePolymorphicFunction(self._make_ordered_batches)
        self._training = {  # keys: whether to shuffle examples
            shuffle: ShapePolymorphicFunction(functools.partial(self._make_epochs, shuffle))
            for shuffle in (True, False)
        }

    def make_ordered_batches(self, examples: dict, batch_size: int) -> Batches:
        """Create batches for one pass over the examples, starting with the longest examples.

        The largest batch is the first, so a batch that does not fit into memory fails immediately.
        With packing, each batch has long and short texts.

        Args:
            examples: Dict of tensors. N encoded examples. "token_ids" is ragged.
            batch_size: Positive integer. Batch size B.

        Returns:
            `Batches` with the dataset and the example order.
        """
        order = np.argsort(-count_tokens(examples).numpy(), kind="stable")
        if self._sequence_counts:
            order = distribute_round_robin(order, batch_size)
        if not uses_tensorflow():
            collate = self._make_collate(batch_size)
            return Batches(make_array_batches(collate, examples, order, batch_size), order)
        return Batches(self._ordered(examples, order, np.int64(batch_size)), order)

    def make_training_batches(
        self, examples: dict, plan: Plan, capacity: int | None = None
    ) -> tuple[int, Callable[[int, int], tf.data.Dataset]]:
        """Create one dataset with the batches of several epochs. Each epoch has its own order.

        The order only depends on the seed and the epoch, so that a training gets the same batches
        if it is resumed at a later epoch.

        Args:
            examples: Dict of tensors. N encoded examples. "token_ids" is ragged.
            plan: `Plan` with the batch size, epochs and steps.
            capacity: Optional positive integer. If given, examples are packed into sequences of
                this number of tokens. In this case, `batch_size` counts sequences, and the collated
                "token_ids" are ragged (B, None, None).

        Returns:
            Tuple of the number of batches per pass, and a function `batches(seed, done)`. The
            function returns the batches for all epochs, and skips the first `done` batches without
            creating them. The seed is used for the order and for masking.
        """
        lengths = count_tokens(examples).numpy()
        packing = () if capacity is None else (pack_examples(np.sort(lengths)[::-1], capacity),)
        steps = -(-(int(packing[0].nrows()) if packing else len(lengths)) // plan.batch_size)
        total = (plan.steps_per_epoch or steps) * len(plan.epochs)
        graph = self._training[plan.shuffle]

        def make_batches(seed, done=0):
            if not uses_tensorflow():
                numbers, mixed = (seed, steps, done, total), self._sequence_counts is not None
                return iterate_epochs(
                    self._make_collate(plan.batch_size), examples, packing, plan, numbers, mixed
                )
            numbers = (seed, plan.epochs.start, steps, plan.batch_size, total, done)
            return graph(examples, packing, tuple(map(np.int64, numbers)))

        return steps, make_batches

    def _make_collate(self, rows) -> Callable:
        """Return `collate`, wrapped so that it also fills and packs batches if necessary."""

        def collate(examples, seed):
            batch = fill_batch(self._collate, examples, seed, rows, self._multiple)
            counts = self._sequence_counts
            return add_packed_tokens(batch, counts) if counts else batch

        return collate

    def _make_ordered_batches(self, examples, order, batch_size) -> tf.data.Dataset:
        def plan_batch(step):
            rows = order[step * batch_size : (step + 1) * batch_size]
            return rows, xp.stack([FIXED_SEED, step])

        steps = -(-xp.size(order, xp.int64) // batch_size)
        return self._collate_plan(
            tf.data.Dataset.range(steps).map(plan_batch), examples, batch_size
        )

    def _make_epochs(self, shuffle: bool, examples, packing, numbers) -> tf.data.Dataset:
        seed, first_epoch, steps, batch_size, total, done = numbers
        lengths = xp.cast(count_tokens(examples), xp.int32)

        def make_order(epoch):
            epoch_seed = xp.stack([seed, epoch if shuffle else xp.zeros_like(epoch)])
            return make_epoch_order(lengths, packing, batch_size, epoch_seed, shuffle)

        def make_epoch_plan(epoch):
            order = make_order(epoch)
            return tf.data.Dataset.range(steps).map(
                lambda step: (
                    order[step * batch_size : (step + 1) * batch_size],
                    xp.stack([seed, epoch * steps + step]),
                )
            )

        plan = tf.data.Dataset.counter(first_epoch).flat_map(make_epoch_plan).take(total)
        plan = plan.apply(tf.data.experimental.assert_cardinality(total))
        return self._collate_plan(plan.skip(done), examples, batch_size)

    def _collate_plan(self, plan: tf.data.Dataset, examples: dict, batch_size) -> tf.data.Dataset:
        @tf.autograph.experimental.do_not_convert  # converting the preprocessor takes seconds
        def make(indices, seed):
            return self._make_collate(batch_size)(take_examples(examples, indices), seed)

        # Padding is fast and does not need tuning. Ending a tuned pipeline can take half a second.
        options = tf.data.Options()
        options.autotune.enabled = False
        batches = plan.map(make, num_parallel_calls=BATCHES_AHEAD, deterministic=True).prefetch(
            BATCHES_AHEAD
        )
        return batches.with_options(options)


def group_batches(
    megabatches: tf.data.Dataset, batch_size: int, seed: int | xp.Tensor
) -> tf.data.Dataset:
    """Divide megabatches of raw inputs into batches of similar length.

    Args:
        megabatches: Dataset of `x`, `(x, y)` or `(x, y, sample_weight)`, tensors or ragged tensors.
            Each megabatch has `get_megabatch_size(batch_size)` raw examples, except for the last
            megabatch in a pass.
        batch_size: Positive integer. Batch size B.
        seed: Integer. Seed for the order inside the megabatches.

    Returns:
        Dataset of batches with the same structure as the megabatches. Every example occurs exactly
        once.
    """

    def split_megabatch(number, megabatch):
        sizes = count_bytes(keras.utils.unpack_x_y_sample_weight(megabatch)[0])
        numbers = xp.stack([xp.cast(seed, xp.int64), number])
        order = shuffle_by_length(sizes, batch_size, numbers)

        def get_batch(start):
            chosen = order[start : start + batch_size]
            # If there are weights without labels, the labels are None.
            return xp.nest.map_structure(
                lambda values: None if values is None else xp.gather(values, chosen), megabatch
            )

        return tf.data.Dataset.range(0, xp.size(order, xp.int64), batch_size).map(get_batch)

    return tf.data.Dataset.zip(tf.data.Dataset.counter(), megabatches).flat_map(split_megabatch)


def get_megabatch_size(batch_size: int) -> int:
    """Return the number of examples in a megabatch. A megabatch is sorted by length."""
    return batch_size * MEGABATCH


def count_bytes(x) -> xp.Tensor:
    """Return the number of bytes (N,) of each raw input, to estimate its number of tokens.

    Args:
        x: Tensors or ragged tensors with texts or words, in any structure.

    Example:
        >>> import tensorflow as tf
        >>> words = tf.ragged.constant([["a", "cat"], ["it"]])
        >>> count_bytes((words, tf.constant(["why", "how"]))).numpy().tolist()
        [7, 5]
    """
    total = 0
    for texts in xp.nest.flatten(x):
        if texts.dtype != xp.string:
            continue
        sizes = xp.strings.length(texts)
        while len(sizes.shape) > 1:
            sizes = xp.reduce_sum(sizes, axis=-1)
        total += sizes
    return total


def map_graph_batches(
    function: Callable[[dict], xp.Tensor], examples: dict, lengths: xp.Tensor, width: int
) -> xp.RaggedTensor:
    """Apply a function to all examples in batches inside `tf.function`, longest examples first.

    This is similar to calling `LengthGroupedBatcher.make_ordered_batches` and then `predict`.
    Batches need little padding, and the memory usage does not depend on the number of examples.

    Args:
        function: Function that computes the values of a batch of examples, concatenated to float32
            (T, width).
        examples: Dict of tensors. N encoded examples. "token_ids" is ragged.
        lengths: Int64 tensor of shape (N,). Number of values per example.
        width: Positive integer. Width of each value.

    Returns:
        Ragged tensor of shape (N, None, width), in the example order.
    """
    order = xp.argsort(examples["token_ids"].row_lengths(), direction="DESCENDING", stable=True)
    steps = -(-xp.size(order) // GRAPH_BATCH_SIZE)
    shape = xp.TensorShape([None, width])
    parts = xp.TensorArray(xp.float32, steps, element_shape=shape, infer_shape=False)

    def step(i, parts):
        chosen = order[i * GRAPH_BATCH_SIZE : (i + 1) * GRAPH_BATCH_SIZE]
        values = function(take_examples(examples, chosen))
        return i + 1, parts.write(i, values)

    _, parts = xp.while_loop(lambda i, _: i < steps, step, (0, parts), parallel_iterations=1)
    outputs = xp.RaggedTensor.from_row_lengths(parts.concat(), xp.gather(lengths, order))
    return xp.gather(outputs, xp.argsort(order))
