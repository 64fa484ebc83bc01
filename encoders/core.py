"""The encoder in formulas: embeddings, attention, block, and these one after another.

Arguments, weights and formula of each stand together, in `keras.ops`. The layers that they are made
of, and the functions `activate` and `reshape`, are in `layers`. Families are subclasses that change
single formulas. `kernels` computes the same numbers faster; `Backbone` chooses it.

Comment letters: B batch, L sequence, D hidden, H heads, d = D/H, F intermediate, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.model_configuration import ModelConfigFromSignature
from encoder_zoo.common.validation import Fraction, NonNegativeInt, Rate, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.attention_masks import (
    AttentionMask,
    as_matrix,
    make_attention_mask,
    mask_scores,
)
from encoder_zoo.encoders.inputs import with_padding_mask
from encoder_zoo.encoders.layers import (
    INITIALIZER_RANGE,
    Activation,
    CalledDirectly,
    MakesLayers,
    Size,
    activate,
    activation_function,
    reshape,
)
from encoder_zoo.encoders.positions import first_tokens, positions_in_texts, rotate


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Embeddings(MakesLayers, ConfigFromSignature, keras.layers.Layer):
    """Return LayerNorm(token + position + segment), (B, L, D).

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

    Raises:
        ValueError: If the input is longer than `max_sequence_length`.

    Source: Devlin et al. 2019, BERT, section 3 and figure 2.

    Example:
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

    def build(self, input_shape=None):
        if not hasattr(self, "token_embedding"):  # else these are another's, see `share_tables`
            kind = keras.layers.ReversibleEmbedding  # masked language models multiply by it again
            self.token_embedding = self.make_table("token_embedding", self.vocabulary_size, kind)
            self.position_embedding = self.make_table("position_embedding", self.max_positions)
            self.segment_embedding = self.make_table("segment_embedding", self.num_segments)
            self.norm = self.make_norm("norm")
        self.dropout_layer = self.make_dropout(self.dropout)
        # To another width: Lan et al. 2020, ALBERT, section 3.1.
        self.projection = self.output_dim and self.make_dense("projection", self.output_dim)

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        self.check_length(token_ids)
        batch, length = ops.shape(token_ids)
        x = self.token_embedding(token_ids)  # (B, L, D)
        if self.position_embedding is not None:
            x = x + self.position_embedding(self.position_ids(token_ids, padding_mask, text_starts))
        if self.segment_embedding is not None:
            if segment_ids is None or self.num_segments == 1:
                segment_ids = ops.zeros((1, 1), "int32")
            x = x + self.segment_embedding(segment_ids)
        x = self.norm(ops.reshape(x, (-1, self.hidden_dim)), training=training)  # (B L, D)
        x = self.dropout_layer(x, training=training)
        x = x if self.projection is None else self.projection(x)
        return ops.reshape(x, (batch, length, x.shape[-1]))

    def position_ids(self, token_ids, padding_mask=None, text_starts=None):
        """Return 0, 1, 2, ..., (1 or B, L); in packed examples they restart in every text."""
        return positions_in_texts(text_starts, ops.shape(token_ids)[1])

    def share_tables(self, other: Embeddings) -> None:
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
                f"The input has {length} tokens, but there are positions for {most}. Truncate it, "
                "for example with the preprocessor's sequence_length."
            )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SelfAttention(CalledDirectly, MakesLayers, ConfigFromSignature, keras.layers.Layer):
    """Return for each token a weighted mean of all tokens' values, (B, L, D).

    A family that differs overrides `project` or `scores`.

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
        **context: what `Encoder.block_contexts` gives besides, for `project` and `scores`.

    Raises:
        ValueError: If `hidden_dim` is not a multiple of `num_heads`, or if `rotary` is True and the
            heads have an odd width.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.

    Example:
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
        if hidden_dim % num_heads:
            raise invalid("hidden_dim", hidden_dim, f"a multiple of num_heads={num_heads}")
        if rotary and hidden_dim // num_heads % 2:
            raise ValueError(
                f"rotary=True makes heads of an odd width from hidden_dim={hidden_dim}, "
                f"num_heads={num_heads}. Expected an even width."
            )
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.use_bias = use_bias
        self.rotary = rotary
        self.fused_qkv = fused_qkv
        self.output_stddev = output_stddev

    def build(self, input_shape=None):
        parts = ("query_key_value",) if self.fused_qkv else ("query", "key", "value")
        for part in parts:  # self.query_dense, ...
            setattr(self, f"{part}_dense", self.make_dense(part, 3 * self.hidden_dim // len(parts)))
        self.output_dense = self.make_dense("output", self.hidden_dim, stddev=self.output_stddev)
        self.dropout_layer = self.make_dropout(self.attention_dropout)

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        heads = (ops.transpose(t, (0, 2, 1, 3)) for t in self.project(x, **context))  # (B, H, L, d)
        mask = as_matrix(attention_mask)  # (B, 1, 1 or L, L)
        mixed, probabilities = self.attend(*heads, mask, training, **context)
        output = self.join_heads(ops.transpose(mixed, (0, 2, 1, 3)), x)
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
        probabilities = ops.softmax(mask_scores(scores, mask), axis=-1)
        dropped = self.dropout_layer(probabilities, training=training)
        return ops.matmul(dropped, value), probabilities

    def scores(self, query, key, training=None, **context):
        """Return QKᵀ/√d, (B, H, Q, K), of (B, H, Q or K, d)."""
        return ops.matmul(query * query.shape[-1] ** -0.5, ops.transpose(key, (0, 1, 3, 2)))

    def join_heads(self, mixed, x):
        """Return the heads (B, L, H, d) side by side, times W_O, in the shape of x, (B, L, D)."""
        output = self.output_dense(reshape(mixed, (-1, self.hidden_dim)))  # (B L, D)
        return reshape(output, ops.shape(x))

    def project_from(self, x, content) -> tuple:
        """Return queries of x, and keys and values of other vectors, each (B, L, H, d)."""
        heads = (*ops.shape(x)[:2], self.num_heads, self.hidden_dim // self.num_heads)
        layers = (self.query_dense, x), (self.key_dense, content), (self.value_dense, content)
        rows = (layer(ops.reshape(given, (-1, self.hidden_dim))) for layer, given in layers)
        return tuple(ops.reshape(values, heads) for values in rows)

    @property
    def projection_layers(self) -> list[keras.layers.Dense]:
        """Dense layers of queries, keys and values."""
        if self.fused_qkv:
            return [self.query_key_value_dense]
        return [self.query_dense, self.key_dense, self.value_dense]

    @property
    def lora_layers(self) -> list[keras.layers.Dense]:
        """Layers with low-rank updates, as in Hu et al. 2022: those of queries and values."""
        return self.projection_layers[::2]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EncoderBlock(CalledDirectly, MakesLayers, ConfigFromSignature, keras.layers.Layer):
    """Return LayerNorm(y + FFN(y)) of y = LayerNorm(x + attention(x)), (B, L, D).

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
        rotary: see `SelfAttention`.
        fused_qkv: see `SelfAttention`.
        output_stddev: of the initial weights of both sublayers' last dense layers.

    Call arguments:
        x: (B, L, D).
        attention_mask: see `SelfAttention`.
        return_probabilities: also return the attention probabilities (B, H, L, L).
        **context: what `Encoder.block_contexts` gives besides, for the attention.

    Attributes:
        attention_class: of the attention; a family may have another.

    Raises:
        ValueError: If `activation` is unknown.

    Source: Vaswani et al. 2017, Attention Is All You Need, sections 3.1 and 3.3.

    Example:
        >>> block = EncoderBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(keras.ops.zeros((1, 3, 8))))
        (1, 3, 8)
    """

    calls_layers = True
    attention_class = SelfAttention

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

    def build(self, input_shape=None):
        self.attention = self.make_attention()
        self.attention_norm = self.make_norm("attention_norm")
        self.make_feed_forward()
        self.output_norm = self.make_norm("output_norm")
        self.attention_dropout_layer = self.make_dropout(self.dropout)
        self.output_dropout_layer = self.make_dropout(self.dropout)
        self.attention.build((None, None, self.hidden_dim))

    def make_attention(self, **arguments) -> SelfAttention:
        """Return the attention, of the block's own settings and `arguments`."""
        return self.make_layer(self.attention_class, "attention", **arguments)

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
        x = self.attention_dropout_layer(attended, training=training, residual=x)  # their sum
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


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Encoder(MakesLayers, ModelConfigFromSignature, keras.Model):
    """Return `{"sequence_output": (B, L, D), "pooled_output": (B, D)}` of token ids.

    The plain model. `Backbone` is the same with kernels, checks and presets; arguments, inputs and
    outputs are described there.

    Source: Devlin et al. 2019, BERT, section 3.

    Example:
        >>> encoder = Encoder(30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> outputs = encoder({"token_ids": keras.ops.array([[2, 7, 3]])})
        >>> keras.ops.shape(outputs["sequence_output"]), keras.ops.shape(outputs["pooled_output"])
        ((1, 3, 8), (1, 8))
    """

    use_bias = True  # of the pooler

    @validate_arguments
    def __init__(
        self,
        vocabulary_size: Size,
        num_layers: Size,
        num_heads: Size,
        hidden_dim: Size,
        intermediate_dim: Size,
        dropout: Rate = 0.1,
        attention_dropout: Rate = 0.1,
        activation: Activation = "gelu",
        layer_norm_epsilon: Fraction = 1e-12,
        max_sequence_length: Size = 512,
        num_segments: NonNegativeInt = 2,
        pooler: bool = True,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.pooler = pooler

    def build(self, input_shape=None):
        self.embeddings, self.blocks = self.make_embeddings(), []
        for i in range(self.num_layers):
            self.blocks.append(self.make_block(i))  # in ALBERT several are one
        self.final_layer = self.make_final_layer()
        for layer in dict.fromkeys([self.embeddings, *self.blocks, self.final_layer]):
            if layer is not None and not layer.built:
                layer.build((None, None, self.hidden_dim))
        if self.pooler:
            self.pooler_dense = self.make_dense("pooler", self.hidden_dim, activation="tanh")

    def make_embeddings(self, kind: type = Embeddings, **arguments) -> keras.layers.Layer:
        """Return the layer before the blocks, with the model's settings and `arguments`."""
        arguments = {"max_positions": self.max_sequence_length, **arguments}
        return self.make_layer(kind, "embeddings", **arguments)

    def make_block(self, i: int, kind: type = EncoderBlock, **arguments) -> keras.layers.Layer:
        """Return block i, from 0, with the model's settings and `arguments`."""
        return self.make_layer(kind, f"block_{i}", **arguments)

    def make_final_layer(self) -> keras.layers.Layer | None:
        """Return the layer after the last block, from (B, L, D) to the same; None for none."""
        return None

    def call(self, inputs, training=None, return_hidden_states=False, return_projections=False):
        states, _, contexts = self._encode(inputs, training)
        outputs = self._outputs_of(states[-1], inputs)
        if return_hidden_states:
            outputs["hidden_states"] = states
        if return_projections:
            block, context = self.blocks[-1], contexts[-1]
            outputs["projections"] = block.project(states[-2], training=training, **context)
        return outputs

    def _encode(self, inputs, training=False, return_probabilities=False, embedded=None):
        """Return what all blocks compute.

        Args:
            inputs, training: see the class.
            return_probabilities: whether the attention returns its probabilities.
            embedded: the input of the first block, (B, L, D); None: the inputs' embeddings.

        Returns:
            The input of the first block and the output of each, (B, L, D), of the last one behind
            the final layer; each block's attention probabilities, (B, H, L, L), if they are
            wanted; and what each block gets beside its input.
        """
        given = with_padding_mask(inputs)
        x = self._embed(given, training) if embedded is None else embedded  # (B, L, D)
        contexts = self.block_contexts(inputs)
        states, probabilities = self._run(self.blocks, contexts, x, training, return_probabilities)
        if self.final_layer is not None:
            states[-1] = self.final_layer(states[-1])
        return states, probabilities, contexts

    def _embed(self, inputs: Mapping, training: bool | None = None) -> keras.KerasTensor:
        """Return the input of the first block, (B, L, D)."""
        names = ("token_ids", "segment_ids", "padding_mask", "text_starts")
        return self.embeddings(*(inputs.get(name) for name in names), training=training)

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        """Return for each block what it gets by name beside its input: tensors, or nested ones."""
        return [{"attention_mask": self.attention_mask(inputs)}] * self.num_layers

    def attention_mask(
        self, inputs: Mapping, max_distance: int | None = None
    ) -> AttentionMask | keras.KerasTensor | None:
        """Return which tokens may attend to which.

        Args:
            inputs: as for `block_contexts`.
            max_distance: the largest distance at which one attends to another; None: any.
        """
        attended, starts = inputs.get("attended_mask"), inputs.get("text_starts")
        if max_distance is not None or starts is not None:
            inputs = with_padding_mask(inputs)
        real = inputs.get("padding_mask") if attended is None else attended
        return make_attention_mask(real, starts, max_distance, attended is not None)

    def _run(self, blocks, contexts, x, training=False, return_probabilities=False):
        """Return x, (B, L, D), and the outputs of blocks one after another, and probabilities."""
        states, probabilities = [x], []
        for block, context in zip(blocks, contexts, strict=True):
            if return_probabilities:
                x, p = block(x, training=training, return_probabilities=True, **context)
                probabilities.append(p)  # (B, H, L, L)
            else:
                x = self._run_block(block, x, context, training)  # (B, L, D)
            states.append(x)
        return states, probabilities

    def _run_block(self, block, x, context, training):
        return block(x, training=training, **context)

    def _outputs_of(self, sequence_output, inputs: Mapping) -> dict:
        """Return the outputs: those of the last block (B, L, D), and of the pooler (B, D)."""
        outputs = {"sequence_output": sequence_output}
        if self.pooler:
            outputs["pooled_output"] = self.pool(sequence_output, inputs)
        return outputs

    def pool(self, sequence_output, inputs):
        """Return tanh(x₀ W + b), (B, D), of each text's first token; packed texts: (B, K, D)."""
        return self.pooler_dense(first_tokens(sequence_output, inputs.get("text_starts")))
