"""The post-norm block.

Comment letters: B batch, L sequence, D hidden, H heads, F intermediate.
"""

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders.attention import SelfAttention
from encoder_zoo.encoders.kernels import gradients
from encoder_zoo.encoders.layers import Dropout, LayerNorm, activation_function, initializer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EncoderBlock(ConfigFromSignature, keras.layers.Layer):
    """Self-attention and a feed-forward net, each added to its input and then normalised.

    Args:
        hidden_dim: D.
        num_heads: H.
        intermediate_dim: F, width of the feed-forward net.
        dropout: share of each sublayer's output dropped in training.
        attention_dropout: share of the attention probabilities dropped in training.
        activation: name of the feed-forward net's activation, see `ACTIVATIONS`.
        layer_norm_epsilon: added to the variance.

    Call arguments:
        x: (B, L, D).
        attention_mask: see `SelfAttention`.
        return_probabilities: also return the attention probabilities (B, H, L, L).
        **context: what `Backbone.block_contexts` gives besides, for the attention.

    Returns:
        (B, L, D), or this and the probabilities.

    Source: Vaswani et al. 2017, section 3.1 (post-norm), with BERT's GELU.

    Example:
        >>> import numpy as np
        >>> block = EncoderBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.activation_function = activation_function(activation)

    def build(self, input_shape=None):
        self.attention = self.make_attention()
        self.attention_norm = self._norm("attention_norm")
        self.intermediate_dense = self._dense(self.intermediate_dim, "intermediate")
        self.output_dense = self._dense(self.hidden_dim, "output")
        self.output_norm = self._norm("output_norm")
        self.attention_dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy)
        self.output_dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy)
        self.attention.build((None, None, self.hidden_dim))
        for layer in (self.attention_norm, self.intermediate_dense, self.output_norm):
            layer.build((None, self.hidden_dim))
        self.output_dense.build((None, self.intermediate_dim))

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """(B, L, D), for `summary()`."""
        return (None, None, self.hidden_dim)

    def make_attention(self) -> SelfAttention:
        """The attention, which a family may replace by one of its own."""
        return SelfAttention(
            self.hidden_dim,
            self.num_heads,
            self.attention_dropout,
            name="attention",
            dtype=self.dtype_policy,
        )

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(epsilon=self.layer_norm_epsilon, name=name, dtype=self.dtype_policy)

    def _dense(self, units: int, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            units, kernel_initializer=initializer(), name=name, dtype=self.dtype_policy
        )

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        attended = self.attention(
            x,
            attention_mask=attention_mask,
            training=training,
            return_probabilities=return_probabilities,
            **context,
        )
        if return_probabilities:
            attended, probabilities = attended
        shape, rows = ops.shape(x), (-1, self.hidden_dim)
        x, attended = ops.reshape(x, rows), ops.reshape(attended, rows)  # (B L, D)
        x = self.attention_dropout_layer(attended, training=training, residual=x)
        x = self.attention_norm(x, training=training)
        inner = self._activated(self.intermediate_dense(x), training)  # (B L, F)
        x = self.output_dropout_layer(self.output_dense(inner), training=training, residual=x)
        x = ops.reshape(self.output_norm(x, training=training), shape)
        return (x, probabilities) if return_probabilities else x

    def project(self, x, attention_mask=None, training=None, **context):
        """Queries, keys and values of the block's input (B, L, D), each (B, L, H, D/H)."""
        return self.attention.project(x, **context)

    @property
    def projection_layers(self) -> list[keras.layers.Layer]:
        """Those of the block's layers that `project` runs through."""
        return self.attention.projection_layers

    def _activated(self, x, training):
        if self.activation == "gelu" and gradients.are_used(training):
            return gradients.apply(gradients.gelu, x, training=True)
        return self.activation_function(x)
