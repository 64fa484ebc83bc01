"""Checks of the numbers in prepared inputs, before anything is traced or trained on them.

Comment letters: N rows, L sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.inputs import OTHER_NAMES, check_inputs
from encoder_zoo.tasks.preprocessing.checks import assert_right

# Of rows of so many tokens {input: (least, most)}, the whole numbers that it may hold.
Ranges = Callable[[int], dict[str, tuple[int, int]]]


def is_prepared(x: object) -> bool:
    """Return whether an input is meant as prepared: a mapping with `token_ids` or a like name.

    Example:
        >>> is_prepared({"token_ids": [[2, 3]]}), is_prepared({"input_ids": [[2, 3]]})
        (True, True)
        >>> is_prepared({"first": ["a"], "second": ["b"]})
        False
    """
    names = {*OTHER_NAMES, *OTHER_NAMES.values()}
    return isinstance(x, Mapping) and any(name in names for name in x)


def checked_arrays(x: Mapping, ranges: Ranges, longest: int, taker: str) -> dict:
    """Check prepared inputs in memory.

    Args:
        x: arrays, tensors, or lists of rows of one length.
        ranges: `input_ranges` of the task.
        longest: the most tokens of a row.
        taker: name of the task's class, for errors.

    Returns:
        The inputs, lists as arrays.

    Raises:
        ValueError: "token_ids has -1 in row 3. Expected integers from 0 to 30521.", "padding_mask
            has no token in row 3. ...", and as of `check_inputs`.
    """
    given = {name: _not_a_list(name, values) for name, values in dict(x).items()}
    check_inputs(given, tuple(ranges(0)), taker)
    _check_length(given, longest)
    ranges = ranges(given["token_ids"].shape[1])
    for name, values in given.items():
        if values is not None and name != "soft_weights":
            _check_array(name, _as_array(values), *ranges[name])
    return given


def _not_a_list(name: str, values: object) -> object:
    if not isinstance(values, list | tuple):
        return values
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} has rows of different lengths. Expected rows padded to one length."
        ) from None


def _as_array(values: object) -> np.ndarray:
    # NumPy looks at most tensors without a copy; those of PyTorch may be on a GPU.
    return keras.ops.convert_to_numpy(values) if hasattr(values, "cpu") else np.asarray(values)


def _check_length(inputs: Mapping, longest: int) -> None:
    """Raise a ValueError for rows that are too long; rows of several texts may have any length."""
    length = inputs["token_ids"].shape[1]
    if type(length) is int and length > longest and "text_starts" not in inputs:
        raise ValueError(
            f"token_ids has {length} positions. Expected at most {longest}. Truncate the texts, "
            "for example with the preprocessor's `sequence_length`."
        )


def _check_array(name: str, values: np.ndarray, least: int, most: int) -> None:
    if values.size and (values.min() < least or values.max() > most):
        wrong = (values < least) | (values > most)
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name} has {values[row, column]} in row {row}. Expected integers from {least} to "
            f"{most}."
        )
    if name.endswith("padding_mask"):
        for row in np.flatnonzero(~values.any(axis=1))[:1]:
            raise ValueError(
                f"padding_mask has no token in row {row}. Expected 1 at one token or more."
            )


def checked_dataset(
    dataset: tf.data.Dataset, ranges: Ranges, longest: int, taker: str
) -> tf.data.Dataset:
    """Check a dataset of prepared batches: its structure now, the numbers as it is read.

    Args:
        dataset: elements `x`, `(x, y)` or `(x, y, sample_weight)`.
        ranges: `input_ranges` of the task.
        longest: the most tokens of a row.
        taker: name of the task's class, for errors.

    Raises:
        ValueError: as of `checked_arrays`.
    """
    x = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)[0]
    check_inputs(x, tuple(ranges(0)), taker)
    _check_length(x, longest)

    @tf.autograph.experimental.do_not_convert
    def check(x, *labels):
        length = tf.shape(x["token_ids"], tf.int64)[1]
        checks = [
            assertion
            for name, values in x.items()
            if name != "soft_weights"
            for assertion in _assertions(name, values, *ranges(length)[name])
        ]
        with tf.control_dependencies(checks):
            x = {name: tf.identity(values) for name, values in x.items()}
        return (x, *labels) if labels else x

    return dataset.map(check)


def _assertions(name: str, values: tf.Tensor, least: int, most: int) -> list[tf.Operation]:
    row = tf.range(tf.shape(values)[0])
    where = ("Row ", row, " of the batch: ", name)
    checks = []
    if values.dtype != tf.bool:
        values = tf.cast(values, tf.int64)
        wrong = (values < least) | (values > tf.cast(most, tf.int64))
        worst = tf.reduce_max(tf.where(wrong, values, tf.int64.min), axis=1)
        most = tf.fill(tf.shape(row), tf.cast(most, tf.int64))
        expected = (f". Expected integers from {least} to ", most, ".")
        right = ~tf.reduce_any(wrong, axis=1)
        checks.append(assert_right(right, *where, " has ", worst, *expected))
    if name.endswith("padding_mask"):
        expected = " has no token. Expected 1 at one token or more."
        right = tf.reduce_any(tf.cast(values, tf.bool), axis=1)
        checks.append(assert_right(right, *where, expected))
    return checks
