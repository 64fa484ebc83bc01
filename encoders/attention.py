"""Self-attention: all pairs of tokens at once, or part by part where a text is long.

Comment letters: B batch, L sequence, D hidden, H heads, Q queries, K keys.
"""

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders.attention_masks import AttentionMask
from encoder_zoo.encoders.kernels import gradients
from encoder_zoo.encoders.kernels.long_attention import (
    attend_in_blocks,
    attend_in_chunks,
    known_to_be_long,
)
from encoder_zoo.encoders.layers import Dropout, initializer

SHORT = 512  # tokens, up to which the scores of all pairs cost the least; measured


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SelfAttention(ConfigFromSignature, keras.layers.Layer):
    """Multi-head self-attention over scaled dot products.

    A family whose attention differs overrides a step: `dense` for projections of another kind,
    `project` for what is done to queries and keys before they meet (rotary positions), `scores`
    for what else tells how much a token matters to another (relative positions), `mask` for who
    may attend to whom. The steps get the block's further context by name.

    Args:
        hidden_dim: D, width of input and output; a multiple of `num_heads`.
        num_heads: H.
        attention_dropout: share of the attention probabilities dropped in training.

    Call arguments:
        x: (B, L, D).
        attention_mask: an `AttentionMask`, or its matrix, broadcastable to (B, H, L, L), bool.
        return_probabilities: also return the attention probabilities (B, H, L, L).
        **context: what `Backbone.block_contexts` gives besides, for `project` and `scores`.

    Returns:
        (B, L, D), or this and the probabilities.

    Raises:
        ValueError: "hidden_dim must be a multiple of num_heads. Received: hidden_dim=10, ..."

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.

    Example:
        >>> import numpy as np
        >>> attention = SelfAttention(hidden_dim=8, num_heads=2)
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    # Whether `scores` are scaled dot products alone, so that a backend's own kernel serves.
    has_plain_scores = True

    def __init__(self, hidden_dim: int, num_heads: int, attention_dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        if hidden_dim % num_heads:
            raise ValueError(
                "hidden_dim must be a multiple of num_heads. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}."
            )
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout

    def build(self, input_shape=None):
        self.query_dense = self.dense("query")
        self.key_dense = self.dense("key")
        self.value_dense = self.dense("value")
        self.output_dense = self.dense("output")
        for layer in (self.query_dense, self.key_dense, self.value_dense, self.output_dense):
            layer.build((None, self.hidden_dim))
        self.dropout_layer = Dropout(self.attention_dropout, dtype=self.dtype_policy)

    def dense(self, name: str) -> keras.layers.Dense:
        """A projection from D to D."""
        return keras.layers.Dense(
            self.hidden_dim, kernel_initializer=initializer(), name=name, dtype=self.dtype_policy
        )

    @property
    def lora_layers(self) -> list[keras.layers.Dense]:
        """Those that low-rank updates go to, as in Hu et al. 2022: queries' and values'."""
        return [self.query_dense, self.value_dense]

    @property
    def projection_layers(self) -> list[keras.layers.Dense]:
        """Those that `project` makes queries, keys and values with."""
        return [self.query_dense, self.key_dense, self.value_dense]

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        batch, length = ops.shape(x)[:2]
        query, key, value = self.project(x, **context)

        if return_probabilities:
            heads = (_turned(t) for t in (query, key, value))
            mixed, probabilities = self.attend_by_scores(
                *heads, _matrix(attention_mask), training, **context
            )
            mixed = _turned(mixed)
        elif isinstance(attention_mask, AttentionMask) and self.has_plain_scores:
            mixed = self.attend_by_length(query, key, value, attention_mask, training)
        else:
            mixed = self.attend(query, key, value, _matrix(attention_mask), training, **context)
        output = self.output_dense(ops.reshape(mixed, (-1, self.hidden_dim)))  # (B L, D)
        output = ops.reshape(output, (batch, length, self.hidden_dim))
        return (output, probabilities) if return_probabilities else output

    def attend_by_length(self, query, key, value, mask: AttentionMask, training):
        """(B, L, H, D/H): as `attend`, part by part where the text is long."""
        length = ops.shape(query)[1]
        drawing = self.dropout_layer.drawing_once(training)

        def at_once():
            with drawing():
                return self.attend(query, key, value, mask.matrix(), training)

        def in_blocks():
            def attend(*arguments):
                return self.attend(*arguments, training)

            with drawing():
                return attend_in_blocks(attend, query, key, value, mask)

        def in_chunks():
            def attend(*arguments, chunk):
                with drawing(chunk):
                    return self.attend_heads(*arguments, training)

            return attend_in_chunks(attend, query, key, value, mask, training)

        drops = training and self.attention_dropout
        if mask.reach is not None:
            return _either(length > SHORT, in_blocks, at_once)
        if keras.config.backend() == "torch" and mask.texts is None and not drops:
            return at_once()
        return _either(length > SHORT, in_chunks, at_once)

    def attend(self, query, key, value, attention_mask, training, **context):
        """(B, Q, H, D/H) from queries of that shape, and from keys and values (B, K, H, D/H)."""
        heads = (_turned(t) for t in (query, key, value))
        return _turned(self.attend_heads(*heads, attention_mask, training, **context))

    def attend_heads(self, query, key, value, attention_mask, training, **context):
        """As `attend`, of (B, H, Q or K, D/H), by the backend's own kernel if one serves."""
        drops = training and self.attention_dropout
        if self.has_plain_scores and keras.config.backend() != "tensorflow" and not drops:
            tokens = (_turned(t) for t in (query, key, value))
            return _turned(fused_attention(*tokens, attention_mask))
        arguments = (query, key, value, attention_mask, training)
        return self.attend_by_scores(*arguments, **context)[0]

    def attend_by_scores(self, query, key, value, attention_mask, training, **context):
        """As `attend_heads`, and the probabilities (B, H, Q, K)."""
        scores = self.scores(query, key, training=training, **context)
        probabilities = gradients.apply(
            gradients.softmax, self.mask(scores, attention_mask), training=training
        )
        dropped = self.dropout_layer(probabilities, training=training)
        mixed = gradients.apply(gradients.product, dropped, value, training=training)
        return mixed, probabilities

    def project(self, x, **context):
        """Queries, keys and values of (B, L, D), each (B, L, H, D/H)."""
        batch, length = ops.shape(x)[:2]
        # As rows: TensorFlow merges a bias into a product of two matrices only.
        rows = ops.reshape(x, (-1, self.hidden_dim))  # (B L, D)
        heads = (batch, length, self.num_heads, self.hidden_dim // self.num_heads)
        layers = (self.query_dense, self.key_dense, self.value_dense)
        return tuple(ops.reshape(layer(rows), heads) for layer in layers)

    def scores(self, query, key, training=None, **context):
        """(B, H, Q, K) from (B, H, Q or K, D/H): how much each query asks of each key."""
        query = query * query.shape[-1] ** -0.5
        return gradients.apply(gradients.product_with_transposed, query, key, training=training)

    def mask(self, scores, attention_mask):
        """The scores, far below all others where a token may not be attended to."""
        if attention_mask is None:
            return scores
        # Finite, so that a row of padding alone stays finite; within float16's range.
        lowest = -3e4 if self.compute_dtype == "float16" else -1e9
        return scores + ops.cast(ops.where(attention_mask, 0.0, lowest), scores.dtype)


def fused_attention(
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    attention_mask: keras.KerasTensor | None,
) -> keras.KerasTensor:
    """Attention by the backend's own kernel, which never writes the (B, H, L, L) probabilities.

    Args:
        query: (B, Q, H, D/H).
        key: (B, K, H, D/H).
        value: as the key.
        attention_mask: broadcastable to (B, H, Q, K), bool.

    Returns:
        (B, Q, H, D/H).

    Source: Dao et al. 2022, FlashAttention.
    """
    flash_attention = None  # where it can
    if keras.config.backend() == "jax":
        import jax

        if jax.default_backend() == "tpu":
            # Keras's kernel there applies the first row's mask to all (backend/jax/nn.py).
            flash_attention = False
    if attention_mask is not None and keras.config.backend() == "jax":
        # cuDNN does not broadcast it. (B, 1, Q, K)
        shape = (*attention_mask.shape[:2], query.shape[1], key.shape[1])
        attention_mask = ops.broadcast_to(attention_mask, shape)
    return ops.dot_product_attention(
        query, key, value, mask=attention_mask, flash_attention=flash_attention
    )


def _turned(x):
    """(B, L, H, D/H) to (B, H, L, D/H), or back."""
    return ops.transpose(x, (0, 2, 1, 3))


def _matrix(mask):
    return mask.matrix() if isinstance(mask, AttentionMask) else mask


def _either(is_long, by_parts, at_once):
    """What one of two functions returns; both are in a graph whose lengths are open."""
    if keras.config.backend() == "tensorflow" and not isinstance(is_long, bool):
        is_long = known_to_be_long(is_long)
    if isinstance(is_long, bool):
        return by_parts() if is_long else at_once()
    return ops.cond(is_long, by_parts, at_once)
