"""Hash tables that are freed with their tokenizers."""

import numpy as np
import tensorflow as tf


class HashTable(tf.lookup.StaticHashTable):
    """Maps keys to values like `tf.lookup.StaticHashTable`, but is freed with its last reference.

    TensorFlow keeps named tables until the process ends, 5 MB for a `BertTokenizer` of 30,000
    tokens. A table made eagerly is anonymous here; in graphs, as in a SavedModel, it has a name.

    Args:
        keys: (N,), strings or int64, at least one.
        values: (N,), int32 or int64.
        default_value: value of other keys.

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
