"""Blocks with a gated linear unit, using two separate dense layers.

Comments use these letters for shapes: B batch, L sequence, D hidden, F intermediate.
"""

from __future__ import annotations

import keras

from encoder_zoo.encoders.core import EncoderBlock, SelfAttention
from encoder_zoo.encoders.layers import activate


@keras.saving.register_keras_serializable(package="encoder_zoo")
class GatedBlock(EncoderBlock):
    """`EncoderBlock` with a gated feed-forward network (a(x W) ⊙ x V) W₂.

    W and V do not use a bias. See `EncoderBlock` for the arguments.

    Attributes:
        attention_bias: Boolean. Whether to use a bias in the attention layers.
        output_bias: Boolean. Whether to use a bias with W₂.

    Source: Shazeer 2020, GLU Variants Improve Transformer, section 2.

    Example:
        >>> import numpy as np
        >>> block = GatedBlock(hidden_dim=8, num_heads=2, intermediate_dim=16, activation="silu")
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    attention_bias = False
    output_bias = False

    def make_attention(self) -> SelfAttention:
        return super().make_attention(use_bias=self.attention_bias)

    def make_feed_forward(self) -> None:
        width, inner = self.hidden_dim, self.intermediate_dim
        self.gate_dense = self.make_dense("gate", inner, use_bias=False)
        self.up_dense = self.make_dense("up", inner, use_bias=False)
        self.output_dense = self.make_dense(
            "output", width, inner, stddev=self.output_stddev, use_bias=self.output_bias
        )

    def compute_intermediate(self, x, training=None):
        """Compute a(x W) ⊙ x V, (B, L, F)."""
        return activate(self.activation, self.gate_dense(x), training) * self.up_dense(x)
