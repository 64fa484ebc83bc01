"""Attention. Comment letters: B batch, L length, D hidden, H heads, d = D/H, Q queries, K keys."""

import keras
from keras import ops

from encoder_zoo.encoders.attention_masks import as_matrix, mask_scores
from encoder_zoo.encoders.base_layers import AttentionBase
from encoder_zoo.encoders.kernels import gradients
from encoder_zoo.encoders.kernels.attention import attend_fast
from encoder_zoo.encoders.kernels.shapes import reshape
from encoder_zoo.encoders.positions import rotate


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SelfAttention(AttentionBase):
    """Return for each token a weighted mean of all tokens' values; arguments: `AttentionBase`.

    Vaswani et al. 2017, section 3.2. A family that differs overrides `project` or `scores`.
    """

    has_plain_scores = True  # False where a family overrides `scores`: kernels compute QKᵀ/√d only

    def build(self, input_shape=None):
        parts = ("query_key_value",) if self.fused_qkv else ("query", "key", "value")
        for part in parts:  # self.query_dense, ...
            setattr(self, f"{part}_dense", self.make_dense(part, 3 * self.hidden_dim // len(parts)))
        self.output_dense = self.make_dense("output", self.hidden_dim, stddev=self.output_stddev)
        self.dropout_layer = self.make_dropout(self.attention_dropout)

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        query, key, value = self.project(x, **context)  # (B, L, H, d) each
        if return_probabilities or not self.has_plain_scores:
            heads = (ops.transpose(t, (0, 2, 1, 3)) for t in (query, key, value))  # (B, H, L, d)
            mask = as_matrix(attention_mask)  # (B, 1, 1 or L, L)
            mixed, probabilities = self.attend(*heads, mask, training, **context)
            mixed = ops.transpose(mixed, (0, 2, 1, 3))  # (B, L, H, d)
        else:  # the same numbers, faster
            mixed = attend_fast(self, query, key, value, attention_mask, training)
        output = self.output_dense(reshape(mixed, (-1, self.hidden_dim)))  # (B L, D)
        output = reshape(output, ops.shape(x))
        return (output, probabilities) if return_probabilities else output

    def project(self, x, rotation=None, **context):
        """Return Q = x W_Q, K = x W_K and V = x W_V, each (B, L, H, d)."""
        batch, length = ops.shape(x)[:2]
        rows = reshape(x, (-1, self.hidden_dim))  # (B L, D)
        heads = (batch, length, self.num_heads, self.hidden_dim // self.num_heads)
        if self.fused_qkv:
            qkv = self.query_key_value_dense(rows)  # (B L, 3 D)
            query, key, value = ops.unstack(reshape(qkv, (*heads[:2], 3, *heads[2:])), 3, 2)
        else:
            layers = (self.query_dense, self.key_dense, self.value_dense)
            query, key, value = (reshape(layer(rows), heads) for layer in layers)
        if self.rotary:  # Su et al. 2021, RoFormer, equation 34
            query, key = rotate(query, rotation), rotate(key, rotation)
        return query, key, value

    def attend(self, query, key, value, mask=None, training=None, **context):
        """Return softmax(QKᵀ/√d) V, equation 1, (B, H, Q, d), and the softmax, (B, H, Q, K)."""
        scores = self.scores(query, key, training=training, **context)  # (B, H, Q, K)
        probabilities = gradients.softmax(mask_scores(scores, mask), training=training)
        dropped = self.dropout_layer(probabilities, training=training)
        return gradients.matmul(dropped, value, training=training), probabilities

    def scores(self, query, key, training=None, **context):
        """Return QKᵀ/√d, (B, H, Q, K), of (B, H, Q or K, d)."""
        query = query * query.shape[-1] ** -0.5
        return gradients.matmul_transposed(query, key, training=training)
