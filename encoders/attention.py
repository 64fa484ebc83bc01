"""Self-attention, and who may attend to whom.

Comment letters: B batch, L sequence, D hidden, H heads.
"""

import keras
from keras import ops

from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.configured import Configured
from encoder_zoo.encoders.layers import Dropout, initializer
from encoder_zoo.encoders.positions import text_numbers


def make_attention_mask(
    padding_mask: keras.KerasTensor, text_starts: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Which tokens may attend to which: none to padding, and none to another text.

    Args:
        padding_mask: (B, L), true or 1 at real tokens, false or 0 at padding.
        text_starts: (B, K) int, where the texts of packed rows begin, see `text_numbers`.

    Returns:
        (B, 1, 1, L), or for packed rows (B, 1, L, L), bool: true where the token of the last axis
        may be attended to.

    Example:
        >>> import numpy as np
        >>> np.array(make_attention_mask(np.array([[1, 1, 0]]))).tolist()
        [[[[True, True, False]]]]
    """
    allowed = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
    if text_starts is not None:
        number = text_numbers(text_starts, ops.shape(padding_mask)[1])
        allowed = allowed & (number[:, None, :, None] == number[:, None, None, :])
    return allowed


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SelfAttention(Configured, keras.layers.Layer):
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
        attention_mask: broadcastable to (B, H, L, L), bool; see `make_attention_mask`.
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

        drops = training and self.attention_dropout
        own_kernel = self.has_plain_scores and keras.config.backend() != "tensorflow"
        if own_kernel and not drops and not return_probabilities:
            mixed = fused_attention(query, key, value, attention_mask)
        else:
            query, key, value = (ops.transpose(t, (0, 2, 1, 3)) for t in (query, key, value))
            scores = self.scores(query, key, training=training, **context)
            probabilities = gradients.apply(
                gradients.softmax, self.mask(scores, attention_mask), training=training
            )
            dropped = self.dropout_layer(probabilities, training=training)
            mixed = gradients.apply(gradients.product, dropped, value, training=training)
            mixed = ops.transpose(mixed, (0, 2, 1, 3))
        output = self.output_dense(ops.reshape(mixed, (-1, self.hidden_dim)))  # (B L, D)
        output = ops.reshape(output, (batch, length, self.hidden_dim))
        return (output, probabilities) if return_probabilities else output

    def project(self, x, **context):
        """Queries, keys and values of (B, L, D), each (B, L, H, D/H)."""
        batch, length = ops.shape(x)[:2]
        # As rows: TensorFlow merges a bias into a product of two matrices only.
        rows = ops.reshape(x, (-1, self.hidden_dim))  # (B L, D)
        heads = (batch, length, self.num_heads, self.hidden_dim // self.num_heads)
        layers = (self.query_dense, self.key_dense, self.value_dense)
        return tuple(ops.reshape(layer(rows), heads) for layer in layers)

    def scores(self, query, key, training=None, **context):
        """(B, H, L, L) from two (B, H, L, D/H): how much each token's query asks of each key."""
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
        query: (B, L, H, D/H).
        key: as the query.
        value: as the query.
        attention_mask: see `SelfAttention`.

    Returns:
        (B, L, H, D/H).

    Source: Dao et al. 2022, FlashAttention.
    """
    flash_attention = None  # where it can
    if keras.config.backend() == "jax":
        import jax

        if jax.default_backend() == "tpu":
            # Keras's kernel there applies the first row's mask to all (backend/jax/nn.py).
            flash_attention = False
    if attention_mask is not None:
        # cuDNN does not broadcast it. (B, 1, L, L)
        shape = (*attention_mask.shape[:2], query.shape[1], query.shape[1])
        attention_mask = ops.broadcast_to(attention_mask, shape)
    return ops.dot_product_attention(
        query, key, value, mask=attention_mask, flash_attention=flash_attention
    )
