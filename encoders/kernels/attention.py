"""Faster attention, using the kernels of the backend, manual gradients, or chunks.

All implementations return the same values as `SelfAttention`.

Comments use these letters for shapes: B batch, L sequence, H heads, d head size, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.attention_masks import AttentionMask, mask_scores
from encoder_zoo.encoders.core import SelfAttention
from encoder_zoo.encoders.kernels import long_attention


@keras.saving.register_keras_serializable(package="encoder_zoo")
class FastAttention(SelfAttention):
    """Faster implementation of `SelfAttention`, with the same arguments.

    If a subclass overrides `scores` or `attend`, the probabilities of all pairs are computed at
    once, because kernels only support the scores QKᵀ/√d.

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
    """Compute softmax(QKᵀ/√d) V with the fastest method for the backend and the sequence length.

    Args:
        layer: The attention layer. Its method `attend` contains the formula, and its
            `dropout_layer` is applied to the probabilities.
        query: Tensor of shape (B, L, H, d).
        key: Tensor of shape (B, L, H, d).
        value: Tensor of shape (B, L, H, d).
        mask: An `AttentionMask`, or a boolean tensor that can be broadcast to (B, H, L, L). With a
            tensor, the sequence is not divided into parts.
        training: Optional boolean. Whether to apply dropout and to compute gradients.

    Returns:
        Tensor of shape (B, L, H, d).
    """

    def attend(*query_key_value, mask):
        heads = (_transpose(t) for t in query_key_value)
        return _transpose(attend_heads(layer, *heads, mask, training))

    if not hasattr(mask, "max_distance"):
        return attend(query, key, value, mask=mask)
    drawing = layer.dropout_layer.share_seed(training)

    def attend_all():
        with drawing():
            return attend(query, key, value, mask=mask.make_matrix())

    def attend_by_block():
        with drawing():
            return long_attention.attend_in_blocks(attend, query, key, value, mask)

    def attend_by_chunk():
        def attend_chunk(*query_key_value, mask, chunk):
            with drawing(chunk):
                return attend_heads(layer, *query_key_value, mask, training)

        return long_attention.attend_in_chunks(attend_chunk, query, key, value, mask, training)

    is_long = long_attention.is_long_text(ops.shape(query)[1])
    if mask.supports_blocks:
        return select(is_long, attend_by_block, attend_all)
    drops = training and layer.dropout_layer.rate
    is_plain = mask.texts is None and mask.max_distance is None
    if is_plain and not drops and _has_efficient_kernel(query):
        return attend_all()
    return select(is_long, attend_by_chunk, attend_all)


def attend_heads(layer, query, key, value, mask, training):
    """Compute the attention output (B, H, Q, d), using a kernel if possible."""
    rate = layer.dropout_layer.rate if training else 0.0
    if keras.config.backend() == "torch":
        return _attend_on_torch(query, key, value, mask, rate)
    if rate or not _has_jax_kernel():
        return layer.attend(query, key, value, mask, training)[0]
    tokens = (_transpose(t) for t in (query, key, value))
    return _transpose(compute_fused_attention(*tokens, mask))


def _has_jax_kernel():
    """Return True for JAX on a GPU.

    On other devices, the JAX function has no advantage over the layer. Without compilation, it is
    traced again in every call and keeps the traces. The TPU function of Keras uses the mask of the
    first example for all examples.
    """
    if keras.config.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu"


def _has_efficient_kernel(query):
    """Return True if the backend has a kernel that does not store all probabilities."""
    half = keras.backend.standardize_dtype(query.dtype) in ("float16", "bfloat16")
    cudnn = half and query.shape[-1] % 8 == 0
    return keras.config.backend() == "torch" or (_has_jax_kernel() and cudnn)


def _attend_on_torch(query, key, value, mask, rate):
    """Compute the attention output (B, H, Q, d) in PyTorch, without copying inputs."""
    import torch

    if mask is not None:
        # Use a finite value. Otherwise, an example that only contains padding becomes NaN.
        mask = torch.where(mask, 0.0, torch.finfo(query.dtype).min / 2).to(query.dtype)
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, mask, dropout_p=rate)


def compute_fused_attention(
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: keras.KerasTensor | None,
) -> keras.KerasTensor:
    """Compute attention with the kernel of the backend, which does not store the probabilities.

    Args:
        query: Tensor of shape (B, Q, H, d).
        key: Tensor of shape (B, K, H, d).
        value: Tensor of shape (B, K, H, d).
        mask: Boolean tensor that can be broadcast to (B, H, Q, K). If None, no token is masked.

    Returns:
        Tensor of shape (B, Q, H, d).

    Source: Dao et al. 2022, FlashAttention.
    """
    if mask is not None and keras.config.backend() == "jax":
        # cuDNN does not support broadcasting for this axis.
        mask = ops.broadcast_to(mask, (*mask.shape[:2], query.shape[1], key.shape[1]))
    return ops.dot_product_attention(query, key, value, mask=mask)


def _transpose(x):
    """Swap the axes 1 and 2."""
    return ops.transpose(x, (0, 2, 1, 3))


def select(condition: bool | keras.KerasTensor, if_true: Callable, if_false: Callable):
    """Call one of two functions. If the condition is a tensor, the graph contains both branches."""
    if isinstance(condition, bool):
        return if_true() if condition else if_false()
    return ops.cond(condition, if_true, if_false)
