"""The encoder block. Comment letters: B batch, L sequence, D hidden, F intermediate."""

import keras
from keras import ops

from encoder_zoo.encoders.attention import SelfAttention
from encoder_zoo.encoders.base_layers import BlockBase
from encoder_zoo.encoders.kernels.shapes import reshape
from encoder_zoo.encoders.layers import activate


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EncoderBlock(BlockBase):
    """Return LayerNorm(y + FFN(y)) of y = LayerNorm(x + attention(x)); arguments: `BlockBase`.

    Vaswani et al. 2017, Attention Is All You Need, sections 3.1 and 3.3.
    """

    def build(self, input_shape=None):
        self.attention = self.make_attention()
        self.attention_norm = self.make_norm("attention_norm")
        self.make_feed_forward()
        self.output_norm = self.make_norm("output_norm")
        self.attention_dropout_layer = self.make_dropout(self.dropout)
        self.output_dropout_layer = self.make_dropout(self.dropout)
        self.attention.build((None, None, self.hidden_dim))

    def make_attention(self, kind: type[SelfAttention] = SelfAttention) -> SelfAttention:
        """Return the attention, of the block's own settings; a family gives its `kind`."""
        return self.make_layer(kind, "attention")

    def make_feed_forward(self) -> None:
        """Make W₁, or W and V side by side, and W₂."""
        sizes = self.hidden_dim, self.intermediate_dim
        self.intermediate_dense = self.make_dense("intermediate", sizes[1] * (1 + self.gated))
        self.output_dense = self.make_dense("output", *sizes, stddev=self.output_stddev)

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        context.update(training=training, return_probabilities=return_probabilities)
        attended = self.attention(x, attention_mask=attention_mask, **context)
        if return_probabilities:
            attended, probabilities = attended
        shape, rows = ops.shape(x), (-1, self.hidden_dim)
        x, attended = reshape(x, rows), reshape(attended, rows)  # (B L, D)
        x = self.attention_dropout_layer(attended, training=training, residual=x)
        x = self.attention_norm(x, training=training)
        update = self.output_dense(self.intermediate(x, training))
        x = self.output_dropout_layer(update, training=training, residual=x)
        x = reshape(self.output_norm(x, training=training), shape)
        return (x, probabilities) if return_probabilities else x

    def intermediate(self, x, training=None):
        """Return a(x W₁), (B L, F); gated, a(x W) ⊙ x V, Shazeer 2020, GLU Variants, section 2."""
        inner = self.intermediate_dense(x)  # (B L, F), or for W and V side by side (B L, 2 F)
        if self.gated:
            inner, gate = ops.split(inner, 2, axis=-1)
            return activate(self.activation, inner, training) * gate
        return activate(self.activation, inner, training)
