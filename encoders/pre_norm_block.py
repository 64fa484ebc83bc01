"""Blocks with normalization before each sublayer, instead of after each sublayer.

Comments use these letters for shapes: B batch, L sequence, D hidden.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.encoders.core import EncoderBlock


@keras.saving.register_keras_serializable(package="encoder_zoo")
class PreNormBlock(EncoderBlock):
    """Compute y = x + attention(norm(x)) and return y + FFN(norm(y)).

    See `EncoderBlock` for the arguments.

    Source: Xiong et al. 2020, On Layer Normalization in the Transformer Architecture, figure 1.

    Example:
        >>> import numpy as np
        >>> block = PreNormBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        context.update(training=training, return_probabilities=return_probabilities)
        attended = self.attention(
            self.attention_norm(x, training=training), attention_mask=attention_mask, **context
        )
        if return_probabilities:
            attended, probabilities = attended
        shape, rows = ops.shape(x), (-1, self.hidden_dim)
        x, attended = ops.reshape(x, rows), ops.reshape(attended, rows)  # (B L, D)
        attended = self.normalize_attended(attended, training)
        x = self.attention_dropout_layer(attended, training=training, residual=x)
        inner = self.compute_intermediate(self.output_norm(x, training=training), training)
        update = self.normalize_update(self.output_dense(inner), training)
        x = ops.reshape(self.output_dropout_layer(update, training=training, residual=x), shape)
        return (x, probabilities) if return_probabilities else x

    def normalize_attended(self, attended, training=None):
        """Normalize the attention output (B L, D) before adding x. By default, do not change it."""
        return attended

    def normalize_update(self, update, training=None):
        """Normalize the FFN output (B L, D) before adding y. By default, do not change it."""
        return update

    def project(self, x, attention_mask=None, training=None, **context):
        return super().project(self.attention_norm(x, training=training), **context)

    @property
    def projection_layers(self) -> list[keras.layers.Layer]:
        return [self.attention_norm, *super().projection_layers]
