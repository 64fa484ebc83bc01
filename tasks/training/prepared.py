"""Checks of the numbers in prepared inputs, before anything is traced or trained on them.

Comment letters: N rows, L sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from encoder_zoo.common.lazy import array_ops, keras, tf
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.inputs import TRANSFORMERS_NAMES, check_inputs
from encoder_zoo.tasks.preprocessing.batch_shapes import pack_batch
from encoder_zoo.tasks.preprocessing.checks import assert_right

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone


LABELS = ("labels", "sample_weight")  # of examples; everything else is an input


def inputs_of(element):
    """Return the inputs of a dataset's element, or of its `element_spec`."""
    return keras.utils.unpack_x_y_sample_weight(element)[0]


def is_prepared(x: object) -> bool:
    """Return whether an input is meant as prepared: a mapping with `token_ids` or a like name.

    Example:
        >>> is_prepared({"token_ids": [[2, 3]]}), is_prepared({"input_ids": [[2, 3]]})
        (True, True)
        >>> is_prepared({"first": ["a"], "second": ["b"]})
        False
    """
    names = {*TRANSFORMERS_NAMES, *TRANSFORMERS_NAMES.values()}
    return isinstance(x, Mapping) and any(name in names for name in x)


class TakesInputs(Protocol):
    """A model that says what its inputs may hold."""

    backbone: Backbone

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]: ...


def checked_arrays(task: TakesInputs, x: Mapping) -> dict:
    """Check prepared inputs in memory.

    Args:
        task: that takes them.
        x: arrays, tensors, or lists of rows of one length.

    Returns:
        The inputs, lists as arrays.

    Raises:
        ValueError: If an input has a value out of its range, a row has no token, and as for
            `check_inputs`.
    """
    if not isinstance(x, Mapping):
        raise invalid(
            "x",
            x,
            "prepared inputs, {'token_ids': ..., 'padding_mask': ...}, which preprocessor(texts) "
            "makes; fit, evaluate and predict take texts",
        )
    given = {name: _not_a_list(name, values) for name, values in dict(x).items()}
    _check_structure(task, given)
    ranges = task.input_ranges(given["token_ids"].shape[1])
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


def prepared_examples(x: Mapping, y, sample_weight) -> dict:
    """Return prepared inputs as examples, in the types that Keras gives a model.

    Example:
        >>> examples = prepared_examples({"token_ids": np.array([[2, 3]])}, [0.5], None)
        >>> {name: values.dtype.name for name, values in examples.items()}
        {'token_ids': 'int64', 'labels': 'float32'}
    """
    given = {**x, **dict(zip(LABELS, (y, sample_weight), strict=True))}
    return {name: _as_tensors(values) for name, values in given.items() if values is not None}


def _as_tensors(values):
    if isinstance(values, Mapping):
        return {name: _as_tensors(inner) for name, inner in values.items()}
    if isinstance(values, tuple) and np.ndim(values[0]):  # of several outputs
        return tuple(map(_as_tensors, values))
    array = _as_array(values)
    is_float = np.issubdtype(array.dtype, np.floating)
    return array_ops.convert_to_tensor(array.astype(keras.config.floatx()) if is_float else array)


def prepared_batch(examples: dict, seed=None):
    """Return a batch of `prepared_examples` as the model takes it."""
    x = {name: values for name, values in examples.items() if name not in LABELS}
    return pack_batch(x, *map(examples.get, LABELS))


def _check_structure(task: TakesInputs, inputs: Mapping) -> None:
    """Raise an error for other inputs than the task's, and a ValueError for rows that are too long;
    rows of several texts may have any length."""
    check_inputs(inputs, tuple(task.input_ranges(0)), type(task).__name__)
    length, longest = inputs["token_ids"].shape[1], task.backbone.max_sequence_length
    if type(length) is int and length > longest and "text_starts" not in inputs:
        raise invalid(
            "The length of token_ids",
            length,
            f"at most {longest}: truncate the texts, for example with the preprocessor's "
            "`sequence_length`",
        )


def _check_array(name: str, values: np.ndarray, least: int, most: int) -> None:
    if values.size and (values.min() < least or values.max() > most):
        wrong = (values < least) | (values > most)
        index = tuple(np.argwhere(wrong)[0])
        raise ValueError(
            f"{name} has {values[index]} in row {index[0]}. Expected integers from {least} to "
            f"{most}."
        )
    if name.endswith("padding_mask"):
        has_token = values.any(axis=-1)  # (N,), or of further texts (N, K)
        for row in np.flatnonzero(~has_token.reshape(len(values), -1).all(axis=1))[:1]:
            raise ValueError(
                f"padding_mask has no token in row {row}. Expected 1 at one token or more."
            )


def checked_dataset(task: TakesInputs, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Check a dataset of prepared batches: its structure now, the numbers as it is read.

    Args:
        task: that takes them.
        dataset: elements `x`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ValueError: As for `checked_arrays`.
    """
    _check_structure(task, inputs_of(dataset.element_spec))

    @tf.autograph.experimental.do_not_convert
    def check(x, *labels):
        length = array_ops.shape(x["token_ids"], array_ops.int64)[1]
        checks = [
            assertion
            for name, values in x.items()
            if name != "soft_weights"
            for assertion in _assertions(name, values, *task.input_ranges(length)[name])
        ]
        with tf.control_dependencies(checks):
            x = {name: array_ops.identity(values) for name, values in x.items()}
        return (x, *labels) if labels else x

    return dataset.map(check)


def _assertions(name: str, values: array_ops.Tensor, least: int, most: int) -> list[tf.Operation]:
    row = array_ops.range(array_ops.shape(values)[0])
    where = ("Row ", row, " of the batch: ", name)
    checks = []
    if values.dtype != array_ops.bool:
        values = array_ops.cast(values, array_ops.int64)
        wrong = (values < least) | (values > array_ops.cast(most, array_ops.int64))
        worst = array_ops.reduce_max(array_ops.where(wrong, values, array_ops.int64.min), axis=1)
        most = array_ops.fill(array_ops.shape(row), array_ops.cast(most, array_ops.int64))
        expected = (f". Expected integers from {least} to ", most, ".")
        right = ~array_ops.reduce_any(wrong, axis=1)
        checks.append(assert_right(right, *where, " has ", worst, *expected))
    if name.endswith("padding_mask"):
        expected = " has no token. Expected 1 at one token or more."
        right = array_ops.reduce_any(array_ops.cast(values, array_ops.bool), axis=1)
        checks.append(assert_right(right, *where, expected))
    return checks
