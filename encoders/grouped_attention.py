"""Attention whose queries share keys and values in groups.

Comment letters: B batch, L sequence, H heads of queries, G heads of keys and values, d head.
"""

import keras
from keras import ops

from encoder_zoo.encoders.attention import SelfAttention
from encoder_zoo.encoders.kernels.shapes import reshape
from encoder_zoo.encoders.positions import rotate


@keras.saving.register_keras_serializable(package="encoder_zoo")
class GroupedQueryAttention(SelfAttention):
    """`SelfAttention` with fewer heads of keys and values than of queries.

    Args:
        num_key_value_heads: G, a divisor of `num_heads`.
        **kwargs: the other arguments of `SelfAttention`.

    Raises:
        ValueError: "num_heads must be a multiple of num_key_value_heads. Received: num_heads=4, "
            "num_key_value_heads=3."

    Source: Ainslie et al. 2023, GQA: Training Generalized Multi-Query Transformer Models from
    Multi-Head Checkpoints, section 2.2.

    Example:
        >>> import numpy as np
        >>> attention = GroupedQueryAttention(hidden_dim=8, num_heads=4, num_key_value_heads=2)
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    def __init__(self, *args, num_key_value_heads: int, **kwargs):
        super().__init__(*args, **kwargs)
        if self.num_heads % num_key_value_heads:
            raise ValueError(
                "num_heads must be a multiple of num_key_value_heads. Received: "
                f"num_heads={self.num_heads}, num_key_value_heads={num_key_value_heads}."
            )
        self.num_key_value_heads = num_key_value_heads

    def build(self, input_shape=None):
        width = self.hidden_dim // self.num_heads * self.num_key_value_heads
        self.query_dense = self.make_dense("query", self.hidden_dim)
        self.key_dense = self.make_dense("key", width)
        self.value_dense = self.make_dense("value", width)
        self.output_dense = self.make_dense("output", self.hidden_dim, stddev=self.output_stddev)
        self.dropout_layer = self.make_dropout(self.attention_dropout)

    def project(self, x, rotation=None, **context):
        """Return queries, keys and values, each (B, L, H, d); G of the latter are different."""
        batch, length = ops.shape(x)[:2]
        rows, width = reshape(x, (-1, self.hidden_dim)), self.hidden_dim // self.num_heads
        layers = (self.query_dense, self.key_dense, self.value_dense)
        query, key, value = (
            reshape(layer(rows), (batch, length, layer.units // width, width)) for layer in layers
        )
        if self.rotary:
            query, key = rotate(query, rotation), rotate(key, rotation)
        shared = self.num_heads // self.num_key_value_heads
        if shared > 1:
            key, value = ops.repeat(key, shared, axis=2), ops.repeat(value, shared, axis=2)
        return query, key, value
