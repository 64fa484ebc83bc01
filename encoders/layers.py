"""The layers of a BERT-like encoder: embeddings, self-attention and the post-norm block.

Comment letters: B batch, L sequence, D hidden, H heads, F intermediate.
"""

from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.configured import Configured

# The names that checkpoints use. "gelu" is exact (erf); the tanh form has several names.
ACTIVATIONS: dict[str, Callable] = {
    # Keras's own takes two passes more over the memory on TensorFlow.
    "gelu": lambda x: 0.5 * x * (1 + ops.erf(x * 2**-0.5)),
    "gelu_new": lambda x: ops.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
    "silu": ops.silu,
    "swish": ops.silu,
    "tanh": ops.tanh,
}


def activation_function(name: str) -> Callable:
    """The function behind an activation's name.

    Args:
        name: one of `ACTIVATIONS`.

    Returns:
        A function of one tensor.

    Raises:
        ValueError: "Unknown activation 'gleu'. Expected one of gelu, gelu_new, ..."

    Example:
        >>> float(activation_function("relu")(-1.0))
        0.0
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation {name!r}. Expected one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def initializer() -> keras.initializers.Initializer:
    """Weights as BERT draws them (Devlin et al. 2019, released code): truncated normal, 0.02."""
    return keras.initializers.TruncatedNormal(stddev=0.02)


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


def text_numbers(text_starts: keras.KerasTensor, length: int) -> keras.KerasTensor:
    """To which text of a packed row each position belongs.

    Args:
        text_starts: (B, K) int, the positions where the row's texts begin, the first of them 0;
            in a row of fewer than K texts the rest are `length` or more.
        length: L.

    Returns:
        (B, L) int, from 0; padding belongs to the last text.

    Example:
        >>> import numpy as np
        >>> np.array(text_numbers(np.array([[0, 3, 9]]), 5)).tolist()
        [[0, 0, 0, 1, 1]]
    """
    starts = ops.cast(text_starts, "int32")
    begun = ops.arange(length, dtype="int32")[None, :, None] >= starts[:, None, :]  # (B, L, K)
    return ops.sum(ops.cast(begun, "int32"), axis=-1) - 1


def positions_in_texts(text_starts: keras.KerasTensor, length: int) -> keras.KerasTensor:
    """(B, L) int: how far each position of a packed row is from the start of its text.

    Args:
        text_starts: (B, K) int, see `text_numbers`.
        length: L.

    Example:
        >>> import numpy as np
        >>> np.array(positions_in_texts(np.array([[0, 3, 9]]), 5)).tolist()
        [[0, 1, 2, 0, 1]]
    """
    starts = ops.take_along_axis(text_starts, text_numbers(text_starts, length), axis=1)
    return ops.arange(length, dtype="int32")[None, :] - ops.cast(starts, "int32")


def take_positions(x: keras.KerasTensor, positions: keras.KerasTensor) -> keras.KerasTensor:
    """What stands at some positions of every row.

    Args:
        x: (B, L, D).
        positions: (B, M) int.

    Returns:
        (B, M, D).

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0).reshape(1, 3, 2)
        >>> np.array(take_positions(x, np.array([[2, 0]]))).tolist()
        [[[4.0, 5.0], [0.0, 1.0]]]
    """
    batch, length, hidden_dim = ops.shape(x)
    # One flat gather: (B * L, D) by (B, M).
    offsets = ops.arange(batch, dtype="int32")[:, None] * length
    return ops.take(
        ops.reshape(x, (-1, hidden_dim)), ops.cast(positions, "int32") + offsets, axis=0
    )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's LayerNorm over the last axis, cheaper on TensorFlow; arguments as there."""

    def call(self, inputs, training=None):
        if keras.config.backend() != "tensorflow":
            return super().call(inputs)
        formula = gradients.layer_norm(self.epsilon)
        weights = [ops.convert_to_tensor(weight) for weight in (self.gamma, self.beta)]
        return gradients.apply(formula, inputs, *weights, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, cheaper on TensorFlow; arguments as there.

    Call arguments:
        inputs: (N, D) or (B, H, L, L); D and H are known when the graph is made.
        residual: as `inputs`; what is left of these is added to it.
    """

    def call(self, inputs, training=False, residual=None):
        drops = training and self.rate > 0
        if not drops or keras.config.backend() != "tensorflow":
            dropped = super().call(inputs, training=training)
            return dropped if residual is None else residual + dropped
        kept = self._kept(inputs)
        if residual is None:
            return gradients.apply(gradients.masked, inputs, kept, training=True)
        return gradients.apply(gradients.residual, residual, inputs, kept, training=True)

    def _kept(self, x):
        """In x's shape and type: 0 where an element is dropped, else what makes up for those."""
        # Random numbers are most of what dropout costs, and 16 bits are enough: each number
        # decides on two elements, by its upper and by its lower half.
        batch, size, *others = ops.shape(x)
        draws = keras.random.randint(
            (batch, (size + 1) // 2, *others), -(2**31), 2**31 - 1, seed=self.seed_generator
        )
        dropped = round(self.rate * 2**16)
        upper = draws >= (dropped - 2**15) * 2**16
        lower = ops.bitwise_and(draws, 2**16 - 1) >= dropped
        kept = ops.concatenate([upper, lower], axis=1)
        kept = kept[:, :size] if size % 2 else kept
        return ops.cast(kept, x.dtype) * (1 / (1 - self.rate))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Embeddings(Configured, keras.layers.Layer):
    """Sum of token, position and segment embeddings, then LayerNorm and dropout.

    Args:
        vocabulary_size: number of token ids.
        hidden_dim: D, width of the embeddings.
        max_positions: rows of the position table.
        num_segments: rows of the segment table. With 1 every token is in the only segment and
            `segment_ids` are not read.
        dropout: share of the outputs dropped in training.
        layer_norm_epsilon: added to the variance.

    Call arguments:
        token_ids: (B, L) int.
        segment_ids: (B, L) int, or None for segment 0 throughout.
        padding_mask: (B, L); used by families whose positions skip the padding.
        text_starts: (B, K) int, for packed rows, see `text_numbers`: positions count anew in
            every text.

    Returns:
        (B, L, D).

    Source: Devlin et al. 2019, BERT, section 3 and figure 2.

    Example:
        >>> import numpy as np
        >>> layer = Embeddings(vocabulary_size=10, hidden_dim=4, max_positions=8)
        >>> keras.ops.shape(layer(np.array([[1, 2, 3]])))
        (1, 3, 4)
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_positions: int = 512,
        num_segments: int = 2,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_positions = max_positions
        self.num_segments = num_segments
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon

        def table(rows: int, name: str, kind: type = keras.layers.Embedding):
            return kind(rows, hidden_dim, initializer(), name=name, dtype=self.dtype_policy)

        # Reversible: a masked language model projects back onto the same table.
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=initializer(),
            name="token_embedding",
            dtype=self.dtype_policy,
        )
        self.position_embedding = table(max_positions, "position_embedding")
        self.segment_embedding = table(num_segments, "segment_embedding")
        self.norm = LayerNorm(epsilon=layer_norm_epsilon, name="norm", dtype=self.dtype_policy)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape=None):
        for layer in (self.token_embedding, self.position_embedding, self.segment_embedding):
            layer.build((None, None))
        self.norm.build((None, None, self.hidden_dim))

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        self._check_length(token_ids)
        x = self.token_embedding(token_ids)  # (B, L, D)
        x = x + self.position_embedding(self.position_ids(token_ids, padding_mask, text_starts))
        if segment_ids is None or self.num_segments == 1:
            segment_ids = ops.zeros((1, 1), "int32")
        x = x + self.segment_embedding(segment_ids)
        rows = self.norm(ops.reshape(x, (-1, self.hidden_dim)), training=training)
        return ops.reshape(self.dropout_layer(rows, training=training), ops.shape(x))

    def position_ids(self, token_ids, padding_mask=None, text_starts=None):
        """(1 or B, L): positions count from 0."""
        length = ops.shape(token_ids)[1]
        if text_starts is not None:
            return positions_in_texts(text_starts, length)
        return ops.arange(length)[None, :]

    @property
    def max_sequence_length(self) -> int:
        """The most tokens that the position table serves."""
        return self.max_positions

    def _check_length(self, token_ids):
        length = token_ids.shape[1]
        # JAX has symbols for lengths that are not known yet.
        if isinstance(length, int) and length > self.max_sequence_length:
            raise ValueError(
                f"Received a sequence of {length} tokens, but there are positions for "
                f"{self.max_sequence_length}. Truncate the input, for example with the "
                "preprocessor's `sequence_length`."
            )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SelfAttention(Configured, keras.layers.Layer):
    """Multi-head self-attention over scaled dot products.

    Args:
        hidden_dim: D, width of input and output; a multiple of `num_heads`.
        num_heads: H.
        attention_dropout: share of the attention probabilities dropped in training.

    Call arguments:
        x: (B, L, D).
        attention_mask: broadcastable to (B, H, L, L), bool; see `make_attention_mask`.
        return_probabilities: also return the attention probabilities (B, H, L, L).

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

        def dense(name: str) -> keras.layers.Dense:
            return keras.layers.Dense(
                hidden_dim, kernel_initializer=initializer(), name=name, dtype=self.dtype_policy
            )

        self.query_dense = dense("query")
        self.key_dense = dense("key")
        self.value_dense = dense("value")
        self.output_dense = dense("output")
        self.dropout_layer = Dropout(attention_dropout, dtype=self.dtype_policy)

    def build(self, input_shape=None):
        for layer in (self.query_dense, self.key_dense, self.value_dense, self.output_dense):
            layer.build((None, None, self.hidden_dim))

    def call(self, x, attention_mask=None, training=None, return_probabilities=False):
        batch, length = ops.shape(x)[:2]
        rows = ops.reshape(x, (-1, self.hidden_dim))  # (B L, D)
        heads = (batch, length, self.num_heads, self.hidden_dim // self.num_heads)
        query = ops.reshape(self.query_dense(rows), heads)
        key = ops.reshape(self.key_dense(rows), heads)
        value = ops.reshape(self.value_dense(rows), heads)

        drops = training and self.attention_dropout
        if keras.config.backend() == "tensorflow" or drops or return_probabilities:
            mixed, probabilities = self._mix(query, key, value, attention_mask, training)
        else:
            mixed = fused_attention(query, key, value, attention_mask)
        output = self.output_dense(ops.reshape(mixed, (-1, self.hidden_dim)))
        output = ops.reshape(output, (batch, length, self.hidden_dim))
        return (output, probabilities) if return_probabilities else output

    def _mix(self, query, key, value, attention_mask, training):
        """(B, L, H, D/H): the values that every token attends to; and the probabilities."""
        own = training and keras.config.backend() == "tensorflow"
        query = ops.transpose(query, (0, 2, 1, 3)) * query.shape[-1] ** -0.5  # (B, H, L, D/H)
        key = ops.transpose(key, (0, 2, 3, 1))
        value = ops.transpose(value, (0, 2, 1, 3))
        scores = gradients.apply(gradients.product, query, key, training=own)
        if attention_mask is not None:
            # Finite, so that a row of padding alone stays finite; within float16's range.
            lowest = -3e4 if self.compute_dtype == "float16" else -1e9
            scores = scores + ops.cast(ops.where(attention_mask, 0.0, lowest), scores.dtype)
        # In float32 also under mixed precision: bfloat16 sums of many terms lose too much.
        probabilities = gradients.apply(gradients.softmax, scores, training=own)
        dropped = self.dropout_layer(probabilities, training=training)
        mixed = gradients.apply(gradients.product, dropped, value, training=own)
        return ops.transpose(mixed, (0, 2, 1, 3)), probabilities


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


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EncoderBlock(Configured, keras.layers.Layer):
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

        def norm(name: str) -> LayerNorm:
            return LayerNorm(epsilon=layer_norm_epsilon, name=name, dtype=self.dtype_policy)

        def dense(units: int, name: str) -> keras.layers.Dense:
            return keras.layers.Dense(
                units, kernel_initializer=initializer(), name=name, dtype=self.dtype_policy
            )

        self.attention = SelfAttention(
            hidden_dim, num_heads, attention_dropout, name="attention", dtype=self.dtype_policy
        )
        self.attention_norm = norm("attention_norm")
        self.intermediate_dense = dense(intermediate_dim, "intermediate")
        self.output_dense = dense(hidden_dim, "output")
        self.output_norm = norm("output_norm")
        self.attention_dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.output_dropout_layer = Dropout(dropout, dtype=self.dtype_policy)
        self.activation_function = activation_function(activation)

    def build(self, input_shape=None):
        shape = (None, None, self.hidden_dim)
        for layer in (
            self.attention,
            self.attention_norm,
            self.intermediate_dense,
            self.output_norm,
        ):
            layer.build(shape)
        self.output_dense.build((None, None, self.intermediate_dim))

    def call(self, x, attention_mask=None, training=None, return_probabilities=False):
        attended = self.attention(
            x, attention_mask, training=training, return_probabilities=return_probabilities
        )
        if return_probabilities:
            attended, probabilities = attended
        shape = ops.shape(x)
        rows = (-1, self.hidden_dim)
        x, attended = ops.reshape(x, rows), ops.reshape(attended, rows)  # (B L, D)
        x = self.attention_dropout_layer(attended, training=training, residual=x)
        x = self.attention_norm(x, training=training)
        inner = self.activate(self.intermediate_dense(x), training)  # (B L, F)
        x = self.output_dropout_layer(self.output_dense(inner), training=training, residual=x)
        x = ops.reshape(self.output_norm(x, training=training), shape)
        return (x, probabilities) if return_probabilities else x

    def activate(self, x, training=None):
        """The activation, in training on TensorFlow with its own gradient."""
        if self.activation == "gelu" and training and keras.config.backend() == "tensorflow":
            return gradients.apply(gradients.gelu, x, training=True)
        return self.activation_function(x)
