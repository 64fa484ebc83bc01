"""Batches of one number of rows, for compilers that make a program for every shape.

A batch with fewer examples is filled with copies of its last one, and an input `REAL_ROWS` says
which rows are examples. Losses and metrics leave the others out: see `training.filled_rows`.

Comment letters: N examples, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

import keras

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.examples import take_examples

REAL_ROWS = "real_rows"  # (B,) bool
PACKED_TOKENS = "packed_tokens"  # (S, L) int32, see `encode_packed`; no row for each example


def filled_batch(collate: Callable, examples: dict, seed, rows, multiple: int | None):
    """Return a collated batch, filled up to a number of rows or the next multiple of a number.

    Args:
        collate: called with `(examples, seed)`.
        examples: encoded, at least one.
        seed: (2,) int.
        rows: of the batch; if there are more examples, a multiple of 8 that holds them.
        multiple: of which the rows are one; None: the batch is not filled.
    """
    if multiple is None:
        return collate(examples, seed)
    count = count_examples(examples)
    rows = tf.cast(rows, count.dtype)
    multiple = tf.where(count > rows, 8 * multiple, multiple)
    rows = -(-tf.maximum(rows, count) // multiple) * multiple
    return mark(collate(fill(examples, rows), seed), count)


def fill(examples: dict, rows) -> dict:
    """Return encoded examples with copies of the last up to a number of rows.

    Args:
        examples: tensors and ragged tensors of N examples, at least one.
        rows: B; if there are more examples, all are returned.

    Example:
        >>> import tensorflow as tf
        >>> fill({"token_ids": tf.ragged.constant([[2, 5, 3], [2, 3]])}, 3)["token_ids"].to_list()
        [[2, 5, 3], [2, 3], [2, 3]]
    """
    count = count_examples(examples)
    rows = tf.maximum(tf.cast(rows, count.dtype), count)
    indices = tf.minimum(tf.range(rows), count - 1)
    return take_examples(examples, indices)


def count_examples(examples: dict):
    """Return N, int32."""
    return tf.size(examples["token_ids"].row_lengths(), tf.int32)


def mark(batch, count):
    """Return a collated batch with the input `REAL_ROWS`: which rows are among the first `count`.

    Args:
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`, of B rows.
        count: of rows that are examples.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    real = tf.range(tf.shape(x["token_ids"])[0]) < count
    return keras.utils.pack_x_y_sample_weight({**x, REAL_ROWS: real}, y, sample_weight)


def real_examples(*batch):
    """Return a batch without the rows that only fill it."""
    marks = batch[0].get(REAL_ROWS) if isinstance(batch[0], dict) else None
    if marks is not None:
        inputs = {name: v for name, v in batch[0].items() if name != PACKED_TOKENS}
        batch = inputs, *batch[1:]
        batch = tf.nest.map_structure(lambda rows: tf.boolean_mask(rows, marks), batch)
    return batch if len(batch) > 1 else batch[0]
