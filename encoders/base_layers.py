"""Constructors of the core's layers: their arguments, the checks of these, and their parts.

The formulas are in `embeddings`, `attention` and `block`.

Comment letters: B batch, L sequence, D hidden, H heads, F intermediate.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.encoders.kernels.layers import CalledDirectly
from encoder_zoo.encoders.layer_maker import MakesLayers
from encoder_zoo.encoders.layers import INITIALIZER_RANGE, activation_function


class EmbeddingsBase(MakesLayers, ConfigFromSignature, keras.layers.Layer):
    """Base of `Embeddings`.

    Args:
        vocabulary_size: number of token ids.
        hidden_dim: width of the tables.
        max_positions: rows of the position table; 0: there is no such table.
        num_segments: rows of the segment table; 0: there is no such table; 1: every token is in
            the only segment, and `segment_ids` are not read.
        dropout: share of the normalised sum dropped in training.
        layer_norm_epsilon: added to the variance.
        output_dim: D, where a dense layer projects the sum to another width; None: D is
            `hidden_dim`.
        use_bias: whether the LayerNorm and the projection have a bias.

    Call arguments:
        token_ids: (B, L) int.
        segment_ids: (B, L) int; None: segment 0 throughout.
        padding_mask: (B, L); read by families whose positions skip the padding.
        text_starts: (B, K) int, of packed examples, see `text_indices`.

    Returns:
        (B, L, D).

    Raises:
        ValueError: "Received a sequence of 600 tokens, but there are positions for 512. ..."

    Example:
        >>> from encoder_zoo.encoders.embeddings import Embeddings
        >>> layer = Embeddings(vocabulary_size=10, hidden_dim=4, max_positions=8, output_dim=6)
        >>> keras.ops.shape(layer(keras.ops.array([[1, 2, 3]])))
        (1, 3, 6)
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_positions: int = 512,
        num_segments: int = 2,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        output_dim: int | None = None,
        use_bias: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_positions = max_positions
        self.num_segments = num_segments
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.output_dim = output_dim
        self.use_bias = use_bias

    def share_tables(self, other: EmbeddingsBase) -> None:
        """Use the tables and the LayerNorm of other embeddings; the projection stays its own.

        Call it before the layer is built.
        """
        for name in ("token_embedding", "position_embedding", "segment_embedding", "norm"):
            setattr(self, name, getattr(other, name))

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """(B, L, D), for `summary()`."""
        return (None, None, self.output_dim or self.hidden_dim)

    @property
    def max_sequence_length(self) -> int | None:
        """Largest number of tokens that the position table serves; None without a table."""
        return self.max_positions or None

    def check_length(self, token_ids) -> None:
        """Raise a ValueError if there are more tokens than positions."""
        length, most = token_ids.shape[1], self.max_sequence_length
        # JAX has symbols for lengths that are not known yet.
        if most and isinstance(length, int) and length > most:
            raise ValueError(
                f"Received a sequence of {length} tokens, but there are positions for "
                f"{most}. Truncate the input, for example with the "
                "preprocessor's `sequence_length`."
            )


class AttentionBase(CalledDirectly, MakesLayers, ConfigFromSignature, keras.layers.Layer):
    """Base of `SelfAttention`.

    Args:
        hidden_dim: D, width of input and output; a multiple of `num_heads`.
        num_heads: H.
        attention_dropout: share of the attention probabilities dropped in training.
        use_bias: whether the dense layers have a bias.
        rotary: whether queries and keys are rotated by their positions; they get `rotation`.
        fused_qkv: whether one dense layer makes queries, keys and values.
        output_stddev: of the output layer's initial weights, see `layers.initializer`.

    Call arguments:
        x: (B, L, D).
        attention_mask: an `AttentionMask`, or a matrix broadcastable to (B, H, L, L), bool.
        return_probabilities: also return the attention probabilities (B, H, L, L).
        rotation: cosines and sines, see `positions.rotation`.
        **context: what `Backbone.block_contexts` gives besides, for `project` and `scores`.

    Returns:
        (B, L, D), or this and the probabilities.

    Raises:
        ValueError: "hidden_dim must be a multiple of num_heads. Received: hidden_dim=10, ..."
        ValueError: "Rotary positions need heads of an even width. Received: hidden_dim=6, ..."

    Example:
        >>> from encoder_zoo.encoders.attention import SelfAttention
        >>> attention = SelfAttention(hidden_dim=8, num_heads=2)
        >>> keras.ops.shape(attention(keras.ops.zeros((1, 3, 8))))
        (1, 3, 8)
    """

    calls_layers = True

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        attention_dropout: float = 0.0,
        use_bias: bool = True,
        rotary: bool = False,
        fused_qkv: bool = False,
        output_stddev: float = INITIALIZER_RANGE,
        **kwargs,
    ):
        super().__init__(**kwargs)
        received = f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}."
        if hidden_dim % num_heads:
            raise ValueError(f"hidden_dim must be a multiple of num_heads. {received}")
        if rotary and hidden_dim // num_heads % 2:
            raise ValueError(f"Rotary positions need heads of an even width. {received}")
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.use_bias = use_bias
        self.rotary = rotary
        self.fused_qkv = fused_qkv
        self.output_stddev = output_stddev

    @property
    def projection_layers(self) -> list[keras.layers.Dense]:
        """Dense layers of queries, keys and values."""
        if self.fused_qkv:
            return [self.query_key_value_dense]
        return [self.query_dense, self.key_dense, self.value_dense]

    def project_from(self, x, content) -> tuple:
        """Return queries of x, and keys and values of other vectors, each (B, L, H, d)."""
        heads = (*ops.shape(x)[:2], self.num_heads, self.hidden_dim // self.num_heads)
        layers = (self.query_dense, x), (self.key_dense, content), (self.value_dense, content)
        rows = (layer(ops.reshape(given, (-1, self.hidden_dim))) for layer, given in layers)
        return tuple(ops.reshape(values, heads) for values in rows)

    @property
    def lora_layers(self) -> list[keras.layers.Dense]:
        """Layers with low-rank updates, as in Hu et al. 2022: those of queries and values."""
        return self.projection_layers[::2]


class BlockBase(CalledDirectly, MakesLayers, ConfigFromSignature, keras.layers.Layer):
    """Base of `EncoderBlock`.

    Args:
        hidden_dim: D.
        num_heads: H.
        intermediate_dim: F, width of the feed-forward net.
        dropout: share of each sublayer's output dropped in training.
        attention_dropout: share of the attention probabilities dropped in training.
        activation: of the feed-forward net, one of `layers.ACTIVATIONS`.
        layer_norm_epsilon: added to the variance.
        use_bias: whether dense layers and LayerNorms have a bias.
        gated: whether the feed-forward net is a gated linear unit (GLU).
        rotary: see `AttentionBase`.
        fused_qkv: see `AttentionBase`.
        output_stddev: of the initial weights of both sublayers' last dense layers.

    Call arguments:
        x: (B, L, D).
        attention_mask: see `AttentionBase`.
        return_probabilities: also return the attention probabilities (B, H, L, L).
        **context: what `Backbone.block_contexts` gives besides, for the attention.

    Returns:
        (B, L, D), or this and the probabilities.

    Raises:
        ValueError: "Unknown activation 'gleu'. Expected one of gelu, gelu_new, ..."

    Example:
        >>> from encoder_zoo.encoders.block import EncoderBlock
        >>> block = EncoderBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(keras.ops.zeros((1, 3, 8))))
        (1, 3, 8)
    """

    calls_layers = True

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        use_bias: bool = True,
        gated: bool = False,
        rotary: bool = False,
        fused_qkv: bool = False,
        output_stddev: float = INITIALIZER_RANGE,
        **kwargs,
    ):
        super().__init__(**kwargs)
        activation_function(activation)  # raises if there is none
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.use_bias = use_bias
        self.gated = gated
        self.rotary = rotary
        self.fused_qkv = fused_qkv
        self.output_stddev = output_stddev

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """(B, L, D), for `summary()`."""
        return (None, None, self.hidden_dim)

    def project(self, x, attention_mask=None, training=None, **context):
        """Return queries, keys and values of the block's input (B, L, D), each (B, L, H, d)."""
        return self.attention.project(x, **context)

    @property
    def projection_layers(self) -> list[keras.layers.Layer]:
        """Layers of the block that `project` calls."""
        return self.attention.projection_layers
