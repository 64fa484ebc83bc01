"""Hash tables that are freed with the tokenizers that hold them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


class HashTable(tf.lookup.StaticHashTable):
    """A `tf.lookup.StaticHashTable` whose memory is freed with the last reference to it.

    TensorFlow finds a StaticHashTable by its name and therefore keeps it until the process ends,
    5 MB for each `BertTokenizer` of 30,000 tokens. A table that is made eagerly has no name here.
    In a graph, as in a SavedModel, a table keeps its name, by which each run finds it again.

    Args:
        keys: (N,), strings or int64, at least one.
        values: (N,), int32 or int64.
        default_value: of keys that are not in the table.

    Example:
        >>> table = HashTable(["cat", "dog"], [7, 8], default_value=-1)
        >>> table.lookup(tf.constant(["dog", "bird"])).numpy().tolist()
        [8, -1]
    """

    def __init__(
        self, keys: np.ndarray | tf.Tensor, values: np.ndarray | tf.Tensor, default_value: int
    ):
        initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
        super().__init__(initializer, default_value=default_value)

    def _create_resource(self) -> tf.Tensor:
        if not tf.executing_eagerly():
            return super()._create_resource()
        return tf.raw_ops.AnonymousHashTable(key_dtype=self.key_dtype, value_dtype=self.value_dtype)
