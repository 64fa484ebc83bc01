"""Encoded examples: a dict of tensors and ragged tensors with one row each."""

from __future__ import annotations

from collections.abc import Mapping

from encoder_zoo.common.lazy import tf


def take_examples(examples: Mapping, indices) -> dict:
    """Return the examples of some rows.

    Example:
        >>> import tensorflow as tf
        >>> take_examples({"labels": tf.constant([5, 6, 7])}, [2, 0])["labels"].numpy().tolist()
        [7, 5]
    """
    return {name: tf.gather(values, indices) for name, values in examples.items()}
