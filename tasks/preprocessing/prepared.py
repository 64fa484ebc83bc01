"""Check the values in preprocessed inputs before a model is traced or trained.

Comments use these letters for shapes: N (rows), L (sequence length).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.inputs import TRANSFORMERS_NAMES, check_inputs
from encoder_zoo.tasks.preprocessing.batch_shapes import pack_batch
from encoder_zoo.tasks.preprocessing.checks import make_assertion

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone


LABEL_INPUTS = ("labels", "sample_weight")  # any other key in the examples is an input


def get_inputs(element):
    """Return the inputs of a dataset element, or of an `element_spec`."""
    return keras.utils.unpack_x_y_sample_weight(element)[0]


def is_prepared(x: object) -> bool:
    """Return whether an input is preprocessed: a mapping with `token_ids` or a similar key.

    Example:
        >>> is_prepared({"token_ids": [[2, 3]]}), is_prepared({"input_ids": [[2, 3]]})
        (True, True)
        >>> is_prepared({"first": ["a"], "second": ["b"]})
        False
    """
    names = {*TRANSFORMERS_NAMES, *TRANSFORMERS_NAMES.values()}
    return isinstance(x, Mapping) and any(name in names for name in x)


class SupportsInputs(Protocol):
    """Protocol for models that describe their inputs."""

    backbone: Backbone

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]: ...


def check_arrays(task: SupportsInputs, x: Mapping) -> dict:
    """Check preprocessed inputs in memory.

    Args:
        task: Task that the inputs are for.
        x: Dict of arrays, tensors, or lists of rows with the same length.

    Returns:
        Dict of the inputs. Lists are converted to arrays.

    Raises:
        ValueError: If an input is missing or unknown, if a value is out of range, or if a row
            contains no token.
    """
    if not isinstance(x, Mapping):
        raise invalid(
            "x",
            x,
            "preprocessed inputs, {'token_ids': ..., 'padding_mask': ...}, from "
            "preprocessor(texts). fit, evaluate and predict also accept texts",
        )
    given = {name: convert_list(name, values) for name, values in dict(x).items()}
    _check_structure(task, given)
    ranges = task.input_ranges(given["token_ids"].shape[1])
    for name, values in given.items():
        if values is not None and name != "soft_weights":
            check_values(name, _convert_to_array(values), *ranges[name])
    return given


def convert_list(name: str, values: object) -> object:
    """Convert a list of rows to an array. Any other value is returned unchanged.

    Raises:
        ValueError: If the rows of `values` have different lengths.
    """
    if not isinstance(values, list | tuple):
        return values
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(
            f"{name} has rows of different lengths. Pad all rows to the same length."
        ) from None


def _convert_to_array(values: object) -> np.ndarray:
    # NumPy converts most tensors without a copy, but PyTorch tensors can be on a GPU.
    return keras.ops.convert_to_numpy(values) if hasattr(values, "cpu") else np.asarray(values)


def make_prepared_examples(x: Mapping, y, sample_weight) -> dict:
    """Convert preprocessed inputs to examples, with the dtypes that Keras passes to a model.

    Example:
        >>> examples = make_prepared_examples({"token_ids": np.array([[2, 3]])}, [0.5], None)
        >>> {name: values.dtype.name for name, values in examples.items()}
        {'token_ids': 'int64', 'labels': 'float32'}
    """
    given = {**x, **dict(zip(LABEL_INPUTS, (y, sample_weight), strict=True))}
    return {
        name: _convert_to_tensors(values) for name, values in given.items() if values is not None
    }


def _convert_to_tensors(values):
    if isinstance(values, Mapping):
        return {name: _convert_to_tensors(inner) for name, inner in values.items()}
    if isinstance(values, tuple) and np.ndim(values[0]):  # labels for several outputs
        return tuple(map(_convert_to_tensors, values))
    array = _convert_to_array(values)
    is_float = np.issubdtype(array.dtype, np.floating)
    return xp.convert_to_tensor(array.astype(keras.config.floatx()) if is_float else array)


def make_prepared_batch(examples: dict, seed=None):
    """Convert a batch of `make_prepared_examples` to the model inputs."""
    x = {name: values for name, values in examples.items() if name not in LABEL_INPUTS}
    return pack_batch(x, *map(examples.get, LABEL_INPUTS))


def _check_structure(task: SupportsInputs, inputs: Mapping) -> None:
    """Raise an error if inputs are missing or unknown, or if rows are too long.

    Packed rows with several texts can have any length.
    """
    check_inputs(inputs, tuple(task.input_ranges(0)), type(task).__name__)
    length, longest = inputs["token_ids"].shape[1], task.backbone.max_sequence_length
    if type(length) is int and length > longest and "text_starts" not in inputs:
        raise ValueError(
            f"The length of token_ids is {length}, but the backbone supports at most {longest}. "
            "Truncate the texts, for example with `sequence_length` of the preprocessor."
        )


def check_values(name: str, values: np.ndarray, least: int, most: int) -> None:
    """Check the values of an input.

    Raises:
        ValueError: If a value is not between `least` and `most`, or if a row of "padding_mask"
            contains no token.
    """
    if values.size and (values.min() < least or values.max() > most):
        wrong = (values < least) | (values > most)
        index = tuple(np.argwhere(wrong)[0])
        raise ValueError(
            f"{name} has {values[index]} in row {index[0]}. Expected integers from {least} to "
            f"{most}."
        )
    if name.endswith("padding_mask"):
        has_token = values.any(axis=-1)  # (N,), or (N, K) for several texts
        for row in np.flatnonzero(~has_token.reshape(len(values), -1).all(axis=1))[:1]:
            raise ValueError(
                f"padding_mask has no token in row {row}. Expected 1 for at least one token."
            )


def check_dataset(task: SupportsInputs, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Check the structure of a dataset of preprocessed batches.

    The values are checked when the dataset is read.

    Args:
        task: Task that the batches are for.
        dataset: Dataset of `x`, `(x, y)` or `(x, y, sample_weight)`.

    Raises:
        ValueError: If the inputs are invalid. See `check_arrays`.
    """
    _check_structure(task, get_inputs(dataset.element_spec))

    @tf.autograph.experimental.do_not_convert
    def check(x, *labels):
        length = xp.shape(x["token_ids"], xp.int64)[1]
        checks = [
            assertion
            for name, values in x.items()
            if name != "soft_weights"
            for assertion in _make_assertions(name, values, *task.input_ranges(length)[name])
        ]
        with tf.control_dependencies(checks):
            x = {name: xp.identity(values) for name, values in x.items()}
        return (x, *labels) if labels else x

    return dataset.map(check)


def _make_assertions(name: str, values: xp.Tensor, least: int, most: int) -> list[tf.Operation]:
    row = xp.range(xp.shape(values)[0])
    where = ("Row ", row, " of the batch: ", name)
    checks = []
    if values.dtype != xp.bool:
        values = xp.cast(values, xp.int64)
        wrong = (values < least) | (values > xp.cast(most, xp.int64))
        worst = xp.reduce_max(xp.where(wrong, values, xp.int64.min), axis=1)
        most = xp.fill(xp.shape(row), xp.cast(most, xp.int64))
        expected = (f". Expected integers from {least} to ", most, ".")
        right = ~xp.reduce_any(wrong, axis=1)
        checks.append(make_assertion(right, *where, " has ", worst, *expected))
    if name.endswith("padding_mask"):
        expected = " has no token. Expected 1 for at least one token."
        right = xp.reduce_any(xp.cast(values, xp.bool), axis=1)
        checks.append(make_assertion(right, *where, expected))
    return checks
