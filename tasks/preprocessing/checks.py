"""Check values in memory and inside graphs. Errors contain the index of the row or example."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain


def check_each(
    values,
    right: xp.Tensor,
    *message: str | xp.Tensor | list | Callable[[int], str],
    unit: str = "Row",
    index: xp.Tensor | None = None,
):
    """Return the values if they are valid. Otherwise, raise an error for the first invalid item.

    Args:
        values: Tensor, ragged tensor or nested structure. It is returned unchanged.
        right: Boolean tensor of shape (N,). Whether each item is valid.
        *message: Parts of the error message: strings, tensors or lists of shape (N,), or functions
            that convert the index of the invalid item to a string. For tensors and lists, the value
            of the invalid item is shown. Functions are omitted in graphs.
        unit: String. Name of an item in the error message. Defaults to "Row".
        index: Optional integer tensor of shape (N,). Index to show for each item. If None, items
            are counted from 0.

    Raises:
        ValueError: If a value in memory is invalid.
        tf.errors.InvalidArgumentError: If a value is invalid when a graph runs.

    Example:
        >>> import tensorflow as tf
        >>> tokens = tf.constant([3, 9])
        >>> check_each(tokens, tokens < 5, " has ", tokens, " tokens.")
        Traceback (most recent call last):
        ValueError: Row 1 has 9 tokens.
    """
    index = xp.range(xp.size(right)) if index is None else index
    if xp.is_symbolic_tensor(right):
        parts = [part for part in message if not callable(part)]
        with tf.control_dependencies(
            [make_assertion(right, f"{unit} ", index, " of the batch", *parts)]
        ):
            return xp.nest.map_structure(xp.identity, values, expand_composites=True)
    for i in np.flatnonzero(~np.asarray(right))[:1]:
        parts = "".join(
            part if isinstance(part, str) else _format_part(part, i) for part in message
        )
        raise ValueError(f"{unit} {index[i]}{parts}")
    return values


def check_no_iterator(values, name: str) -> None:
    """Raise a ValueError for an iterator, because it can be read only once."""
    if isinstance(values, Iterator):
        raise ValueError(
            f"{name} is a {type(values).__name__}, which can only be read once. Convert it with "
            "list(...), or pass an array or a column."
        )


def check_same_length(x, y) -> None:
    """Raise a ValueError if the numbers of texts and labels differ.

    Args:
        x: Texts, a tuple of columns of texts, or preprocessed inputs.
        y: Labels, or a dict of columns of labels.

    Raises:
        ValueError: If `x` and `y` differ in length.

    Example:
        >>> check_same_length((["a", "b"], ["c", "d"]), [0, 1])
    """
    texts = x[0] if isinstance(x, tuple) else next(iter(x.values())) if isinstance(x, dict) else x
    y = next(iter(y.values())) if isinstance(y, dict) and y else y
    counts = [v.shape[0] if hasattr(v, "shape") else len(v) for v in (texts, y)]
    if counts[0] != counts[1]:
        raise ValueError(
            "Received {} texts, but {} labels. Expected one label per text.".format(*counts)
        )


def has_text(texts: xp.Tensor) -> xp.Tensor:
    """Return whether each string (N,) contains more than whitespace.

    Example:
        >>> import tensorflow as tf
        >>> has_text(tf.constant(["a", " "])).numpy().tolist()
        [True, False]
    """
    return xp.strings.length(xp.strings.strip(texts)) > 0


def _format_part(part, i: int) -> str:
    if callable(part):
        return part(i)
    value = part[i]
    value = value.numpy() if hasattr(value, "numpy") else value
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return repr(value.decode() if isinstance(value, bytes) else value)


def make_assertion(right: xp.Tensor, *message: str | xp.Tensor) -> tf.Operation:
    """Create an assertion for `tf.data`. Its error describes the first invalid value.

    Args:
        right: Boolean tensor of shape (N,). Whether each value is valid.
        *message: Parts of the error message: strings, or tensors of shape (N, ...). For tensors,
            the entry of the first invalid value is shown.

    Example:
        >>> import tensorflow as tf
        >>> row, tokens = tf.range(2), tf.constant([3, 9])
        >>> make_assertion(tokens < 5, "Example ", row, " of the batch has ", tokens, " tokens.")
        Traceback (most recent call last):
            ...
        tensorflow.python.framework.errors_impl.InvalidArgumentError: ...
    """
    # The message has no quotes, because TensorFlow would print them with backslashes.
    parts = [
        part.replace("'", "") if isinstance(part, str) else _format_first(part, ~right)
        for part in message
    ]
    return tf.debugging.Assert(xp.reduce_all(right), [xp.strings.join(parts)])


def _format_first(part: xp.Tensor, wrong: xp.Tensor) -> xp.Tensor:
    values = xp.boolean_mask(part, wrong)[:1]
    text = xp.strings.reduce_join(xp.strings.as_string(values), separator=", ")
    return xp.strings.join(["[", text, "]"]) if len(part.shape) == 2 else text


def convert_numbers(values, name: str, expected: str) -> xp.Tensor:
    """Convert numbers to a float32 tensor with the same shape.

    Raises:
        ValueError: If a value is not a number.
    """
    check_no_iterator(values, name)
    values = convert_to_plain(values)
    if isinstance(values, list | tuple) and any(value is None for value in values):
        raise ValueError(f"{name} contains None. Expected {expected}.")
    try:
        values = xp.convert_to_tensor(values)
    except (TypeError, ValueError):  # for example, lists of different lengths
        raise invalid(name, values, expected) from None
    dtype = xp.as_dtype(values.dtype)
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise invalid(f"The dtype of `{name}`", values.dtype.name, expected)
    return xp.cast(values, "float32")
