"""Checks inside of graphs, whose errors name the example."""

from __future__ import annotations

from encoder_zoo.common.lazy import tf


def assert_right(right: tf.Tensor, *message: str | tf.Tensor) -> tf.Operation:
    """Return an assertion for `tf.data` whose error names the first wrong value.

    Args:
        right: (N,) bool.
        *message: text, and tensors (N,) whose value for the first that is wrong belongs in it.

    Example:
        >>> import tensorflow as tf
        >>> row, tokens = tf.range(2), tf.constant([3, 9])
        >>> assert_right(tokens < 5, "Example ", row, " of the batch has ", tokens, " tokens.")
        Traceback (most recent call last):
            ...
        tensorflow.python.framework.errors_impl.InvalidArgumentError: ...
    """
    parts = [
        part
        if isinstance(part, str)
        else tf.strings.reduce_join(tf.strings.as_string(tf.boolean_mask(part, ~right)[:1]))
        for part in message
    ]
    return tf.debugging.Assert(tf.reduce_all(right), [tf.strings.join(parts)])


def example_of_batch(values: tf.Tensor) -> tuple[str, tf.Tensor, str]:
    """Return the beginning of a message of `assert_right` about values (N,) of examples."""
    return "Example ", tf.range(tf.size(values)), " of the batch: "
