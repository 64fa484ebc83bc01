"""Faster attention: all pairs at once or in parts, by a backend's kernel or written-out gradients.

Every form returns the numbers of `SelfAttention`, the formula.

Comment letters: B batch, L sequence, H heads, d numbers of a head, Q queries, K keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
from keras import ops

from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.attention_masks import mask_scores
from encoder_zoo.encoders.core import SelfAttention
from encoder_zoo.encoders.kernels import long_attention

if TYPE_CHECKING:
    from encoder_zoo.encoders.attention_masks import AttentionMask


@keras.saving.register_keras_serializable(package="encoder_zoo")
class FastAttention(SelfAttention):
    """`SelfAttention`, faster; the same arguments.

    Where a subclass has other `scores`, the probabilities of all pairs are computed at once, with
    gradients written out: kernels know no other scores than QKᵀ/√d.

    Example:
        >>> attention = FastAttention(hidden_dim=8, num_heads=2)
        >>> keras.ops.shape(attention(keras.ops.zeros((1, 3, 8))))
        (1, 3, 8)
    """

    has_plain_scores = True

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        own = (cls.scores, cls.attend)
        cls.has_plain_scores = own == (FastAttention.scores, FastAttention.attend)

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        if return_probabilities or not self.has_plain_scores:
            return super().call(x, attention_mask, training, return_probabilities, **context)
        query, key, value = self.project(x, **context)  # (B, L, H, d) each
        mixed = attend_fast(self, query, key, value, attention_mask, training)
        return self.join_heads(mixed, x)

    def attend(self, query, key, value, mask=None, training=None, **context):
        scores = self.scores(query, key, training=training, **context)  # (B, H, Q, K)
        probabilities = gradients.softmax(mask_scores(scores, mask), training=training)
        dropped = self.dropout_layer(probabilities, training=training)
        return gradients.matmul(dropped, value, training=training), probabilities

    def scores(self, query, key, training=None, **context):
        query = query * query.shape[-1] ** -0.5
        return gradients.matmul_transposed(query, key, training=training)


def attend_fast(
    layer: FastAttention,
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: AttentionMask | keras.KerasTensor | None,
    training: bool | None = None,
) -> keras.KerasTensor:
    """Return softmax(QKᵀ/√d) V by the fastest form for the backend and the length of the texts.

    Args:
        layer: its `attend` is the formula, its `dropout_layer` drops the formula's probabilities.
        query: (B, L, H, d).
        key: as the query.
        value: as the query.
        mask: an `AttentionMask`, or a matrix broadcastable to (B, H, L, L), bool: then the text is
            not divided into parts.
        training: whether probabilities are dropped, and gradients are needed.

    Returns:
        (B, L, H, d).
    """

    def attend(*query_key_value, mask):
        heads = (_transpose(t) for t in query_key_value)
        return _transpose(_attend_heads(layer, *heads, mask, training))

    if not hasattr(mask, "max_distance"):
        return attend(query, key, value, mask=mask)
    drawing = layer.dropout_layer.drawing_once(training)

    def at_once():
        with drawing():
            return attend(query, key, value, mask=mask.matrix())

    def in_blocks():
        with drawing():
            return long_attention.attend_in_blocks(attend, query, key, value, mask)

    def in_chunks():
        def attend_chunk(*query_key_value, mask, chunk):
            with drawing(chunk):
                return _attend_heads(layer, *query_key_value, mask, training)

        return long_attention.attend_in_chunks(attend_chunk, query, key, value, mask, training)

    length = ops.shape(query)[1]
    if mask.max_distance is not None:
        return _either(length > long_attention.SHORT, in_blocks, at_once)
    drops = training and layer.dropout_layer.rate
    if mask.texts is None and not drops and _kernel_writes_no_pairs(query):
        return at_once()
    return _either(length > long_attention.SHORT, in_chunks, at_once)


def _attend_heads(layer, query, key, value, mask, training):
    """Return (B, H, Q, d), of (B, H, Q or K, d), by the backend's kernel if it has one."""
    rate = layer.dropout_layer.rate if training else 0.0
    if keras.config.backend() == "torch":
        return _attend_on_torch(query, key, value, mask, rate)
    if rate or not _jax_has_a_kernel():
        return layer.attend(query, key, value, mask, training)[0]
    tokens = (_transpose(t) for t in (query, key, value))
    return _transpose(fused_attention(*tokens, mask))


def _jax_has_a_kernel():
    """Return whether the backend is JAX on a GPU.

    Elsewhere JAX's function computes what the layer does, but traces itself anew at every call that
    is not compiled and keeps the traces; Keras's for TPUs applies the first example's mask to all.
    """
    if keras.config.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu"


def _kernel_writes_no_pairs(query):
    """Return whether the backend's kernel works without the probabilities of all pairs."""
    half = keras.backend.standardize_dtype(query.dtype) in ("float16", "bfloat16")
    cudnn = half and query.shape[-1] % 8 == 0
    return keras.config.backend() == "torch" or (_jax_has_a_kernel() and cudnn)


def _attend_on_torch(query, key, value, mask, rate):
    """Return (B, H, Q, d) by PyTorch's kernel, without the copies that Keras's function makes."""
    import torch

    if mask is not None:
        # Finite, so that an example of padding alone stays finite.
        mask = torch.where(mask, 0.0, torch.finfo(query.dtype).min / 2).to(query.dtype)
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, mask, dropout_p=rate)


def fused_attention(
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: keras.KerasTensor | None,
) -> keras.KerasTensor:
    """Return attention by the backend's kernel, which never writes the (B, H, Q, K) probabilities.

    Args:
        query: (B, Q, H, d).
        key: (B, K, H, d).
        value: as the key.
        mask: broadcastable to (B, H, Q, K), bool.

    Returns:
        (B, Q, H, d).

    Source: Dao et al. 2022, FlashAttention.
    """
    if mask is not None and keras.config.backend() == "jax":
        # cuDNN does not broadcast it. (B, 1, Q, K)
        mask = ops.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    return ops.dot_product_attention(query, key, value, mask=mask)


def _transpose(x):
    """(B, L, H, d) to (B, H, L, d), or back."""
    return ops.transpose(x, (0, 2, 1, 3))


def _either(is_long, by_parts, at_once):
    """Return the result of one of two functions; a graph of unknown lengths holds both."""
    if keras.config.backend() == "tensorflow" and not isinstance(is_long, bool):
        is_long = long_attention.known_to_be_long(is_long)
    if isinstance(is_long, bool):
        return by_parts() if is_long else at_once()
    return ops.cond(is_long, by_parts, at_once)
