"""Encoder model, embeddings, self-attention and blocks, implemented with `keras.ops`.

This module contains the formulas in their simplest form. Basic layers are defined in `layers`. Each
family overrides some of the formulas in a subclass. `Backbone` uses the faster implementations in
`kernels`, which return the same values.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, d = D/H, F
intermediate, Q queries, K keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

import keras
from keras import ops

from encoder_zoo.common.arguments import LayerArguments
from encoder_zoo.common.base_model import BaseModel
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import Fraction, NonNegativeInt, Rate, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders import attention_masks
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.layers import (
    INITIALIZER_RANGE,
    Activation,
    DirectCallMixin,
    LayerMixin,
    ReversibleEmbedding,
    Size,
    activate,
    get_activation,
    reshape,
)
from encoder_zoo.encoders.positions import compute_text_positions, rotate, take_first_tokens


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Embeddings(LayerMixin, ConfigFromSignature, keras.layers.Layer):
    """Compute LayerNorm(token + position + segment), (B, L, D).

    Args:
        vocabulary_size: Positive integer. The number of token ids.
        hidden_dim: Positive integer. The width of the embedding tables.
        max_positions: Integer. The number of rows in the position table. If 0, there is no position
            table. Defaults to 512.
        num_segments: Integer. The number of rows in the segment table. If 0, there is no segment
            table. If 1, all tokens belong to the same segment, and `segment_ids` is ignored.
            Defaults to 2.
        dropout: Float between 0 and 1. The dropout rate for the normalized sum. Defaults to 0.0.
        layer_norm_epsilon: Float. Value that is added to the variance. Defaults to 1e-12.
        output_dim: Optional positive integer. The width D of the output. A dense layer projects the
            normalized embeddings to this width. If None, there is no projection, and D is
            `hidden_dim`.
        use_bias: Boolean. Whether the LayerNorm and the projection have a bias. Defaults to True.

    Call arguments:
        token_ids: Integer tensor of shape (B, L).
        segment_ids: Integer tensor of shape (B, L). If None, all tokens belong to segment 0.
        padding_mask: Tensor of shape (B, L). Only used by families whose positions skip the
            padding.
        text_starts: Integer tensor of shape (B, K) for packed examples. See `compute_text_indices`.

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
        if not hasattr(self, "token_embedding"):  # unless `share_tables` was called
            kind = ReversibleEmbedding  # also the output layer for masked LM
            self.token_embedding = self.make_table("token_embedding", self.vocabulary_size, kind)
            self.position_embedding = self.make_table("position_embedding", self.max_positions)
            self.segment_embedding = self.make_table("segment_embedding", self.num_segments)
            self.norm = self.make_norm("norm")
        self.dropout_layer = self.make_dropout(self.dropout)
        # Projection to another width: Lan et al. 2020, ALBERT, section 3.1.
        self.projection = self.output_dim and self.make_dense("projection", self.output_dim)

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        self.check_length(token_ids)
        batch, length = ops.shape(token_ids)
        x = self.token_embedding(token_ids)  # (B, L, D)
        if self.position_embedding is not None:
            x = x + self.position_embedding(
                self.compute_position_ids(token_ids, padding_mask, text_starts)
            )
        if self.segment_embedding is not None:
            if segment_ids is None or self.num_segments == 1:
                segment_ids = ops.zeros((1, 1), "int32")
            x = x + self.segment_embedding(segment_ids)
        x = self.norm(ops.reshape(x, (-1, self.hidden_dim)), training=training)  # (B L, D)
        x = self.dropout_layer(x, training=training)
        x = x if self.projection is None else self.projection(x)
        return ops.reshape(x, (batch, length, x.shape[-1]))

    def compute_position_ids(self, token_ids, padding_mask=None, text_starts=None):
        """Compute the positions 0, 1, 2, ... of the tokens in each text, (1 or B, L)."""
        return compute_text_positions(text_starts, ops.shape(token_ids)[1])

    def share_tables(self, other: Embeddings) -> None:
        """Share the tables and the LayerNorm with another layer. The projection is not shared.

        Call this method before the layer is built.
        """
        for name in ("token_embedding", "position_embedding", "segment_embedding", "norm"):
            setattr(self, name, getattr(other, name))

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """The output shape (B, L, D), for `summary()`."""
        return (None, None, self.output_dim or self.hidden_dim)

    @property
    def max_sequence_length(self) -> int | None:
        """The maximum number of tokens, or None if there is no position table."""
        return self.max_positions or None

    def check_length(self, token_ids) -> None:
        """Raise a ValueError if the input is longer than `max_sequence_length`."""
        length, most = token_ids.shape[1], self.max_sequence_length
        # In JAX, unknown lengths are symbols.
        if most and isinstance(length, int) and length > most:
            raise ValueError(
                f"The input has {length} tokens, but the model only supports {most} tokens. "
                "Truncate the input, for example with the `sequence_length` of the preprocessor."
            )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SelfAttention(DirectCallMixin, LayerMixin, ConfigFromSignature, keras.layers.Layer):
    """Multi-head self-attention, (B, L, D).

    To implement a different attention, override `project` or `scores`.

    Args:
        hidden_dim: Positive integer. D, the width of the input and output. It must be a multiple of
            `num_heads`.
        num_heads: Positive integer. H, the number of attention heads.
        attention_dropout: Float between 0 and 1. The dropout rate for the attention probabilities.
            Defaults to 0.0.
        use_bias: Boolean. Whether the dense layers have a bias. Defaults to True.
        rotary: Boolean. Whether to rotate queries and keys by their positions, which requires the
            call argument `rotation`. Defaults to False.
        fused_qkv: Boolean. Whether a single dense layer computes queries, keys and values. Defaults
            to False.
        output_stddev: Float. The standard deviation of the initial weights in the output layer. See
            `layers.make_initializer`. Defaults to 0.02.

    Call arguments:
        x: Tensor of shape (B, L, D).
        attention_mask: An `AttentionMask`, or a boolean tensor that can be broadcast to (B, H, L,
            L). If None, no token is masked.
        return_probabilities: Boolean. Whether to also return the attention probabilities, (B, H, L,
            L). Defaults to False.
        rotation: Tuple of cosines and sines. See `positions.compute_rotation`.
        **context: Other values from `Encoder.block_contexts`, which are passed to `project` and
            `scores`.

    Raises:
        ValueError: If `hidden_dim` is not a multiple of `num_heads`, or if `rotary` is True and the
            head width is odd.

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
                "rotary=True requires an even head width, hidden_dim / num_heads. Received: "
                f"hidden_dim={hidden_dim}, num_heads={num_heads}."
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
        mask = attention_masks.convert_mask(attention_mask)  # (B, 1, 1 or L, L)
        mixed, probabilities = self.attend(*heads, mask, training, **context)
        output = self.join_heads(ops.transpose(mixed, (0, 2, 1, 3)), x)
        return (output, probabilities) if return_probabilities else output

    def project(self, x, rotation=None, **context):
        """Compute queries x W_Q, keys x W_K and values x W_V, each (B, L, H, d)."""
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
        """Compute softmax(QKᵀ/√d) V (equation 1), (B, H, Q, d), and probabilities, (B, H, Q, K)."""
        scores = self.scores(query, key, training=training, **context)  # (B, H, Q, K)
        probabilities = ops.softmax(attention_masks.mask_scores(scores, mask), axis=-1)
        dropped = self.dropout_layer(probabilities, training=training)
        return ops.matmul(dropped, value), probabilities

    def scores(self, query, key, training=None, **context):
        """Compute the attention scores QKᵀ/√d, (B, H, Q, K)."""
        return ops.matmul(query * query.shape[-1] ** -0.5, ops.transpose(key, (0, 1, 3, 2)))

    def join_heads(self, mixed, x):
        """Concatenate the heads (B, L, H, d), and apply the output layer, (B, L, D)."""
        output = self.output_dense(reshape(mixed, (-1, self.hidden_dim)))  # (B L, D)
        return reshape(output, ops.shape(x))

    def project_inputs(self, x, content) -> tuple:
        """Compute queries for `x`, and keys and values for `content`, each (B, L, H, d)."""
        heads = (*ops.shape(x)[:2], self.num_heads, self.hidden_dim // self.num_heads)
        layers = (self.query_dense, x), (self.key_dense, content), (self.value_dense, content)
        rows = (layer(ops.reshape(given, (-1, self.hidden_dim))) for layer, given in layers)
        return tuple(ops.reshape(values, heads) for values in rows)

    @property
    def projection_layers(self) -> list[keras.layers.Dense]:
        """The dense layers for queries, keys and values."""
        if self.fused_qkv:
            return [self.query_key_value_dense]
        return [self.query_dense, self.key_dense, self.value_dense]

    @property
    def lora_layers(self) -> list[keras.layers.Dense]:
        """The layers to update with LoRA by default: queries and values, as in Hu et al. 2022.

        With `fused_qkv`, the joint layer for queries, keys and values is updated.
        """
        return self.projection_layers[::2]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EncoderBlock(DirectCallMixin, LayerMixin, ConfigFromSignature, keras.layers.Layer):
    """Compute y = LayerNorm(x + attention(x)) and return LayerNorm(y + FFN(y)), (B, L, D).

    Args:
        hidden_dim: Positive integer. D, the width of the input and output.
        num_heads: Positive integer. H, the number of attention heads.
        intermediate_dim: Positive integer. F, the width of the feed-forward network.
        dropout: Float between 0 and 1. The dropout rate for the output of each sublayer. Defaults
            to 0.0.
        attention_dropout: Float between 0 and 1. The dropout rate for the attention probabilities.
            Defaults to 0.0.
        activation: String, one of `layers.ACTIVATIONS`. Activation of the feed-forward network.
            Defaults to "gelu".
        layer_norm_epsilon: Float. Value that is added to the variance. Defaults to 1e-12.
        use_bias: Boolean. Whether dense layers and LayerNorms have a bias. Defaults to True.
        gated: Boolean. Whether the feed-forward network is a gated linear unit (GLU). Defaults to
            False.
        rotary: Boolean. See `SelfAttention`. Defaults to False.
        fused_qkv: Boolean. See `SelfAttention`. Defaults to False.
        output_stddev: Float. The standard deviation of the initial weights in the last dense layer
            of both sublayers. Defaults to 0.02.

    Call arguments:
        x: Tensor of shape (B, L, D).
        attention_mask: See `SelfAttention`.
        return_probabilities: Boolean. Whether to also return the attention probabilities, (B, H, L,
            L). Defaults to False.
        **context: Other values from `Encoder.block_contexts`, which are passed to the attention.

    Attributes:
        attention_class: The attention layer class, which a family can replace.

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
        get_activation(activation)  # raise an error for unknown names
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
        """Create the attention layer. Keyword arguments override the settings of the block."""
        return self.make_layer(self.attention_class, "attention", **arguments)

    def make_feed_forward(self) -> None:
        """Create the dense layers of the feed-forward network. If gated, W and V share a layer."""
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
        x = self.attention_dropout_layer(attended, training=training, residual=x)  # adds x
        x = self.attention_norm(x, training=training)
        update = self.output_dense(self.compute_intermediate(x, training))
        x = self.output_dropout_layer(update, training=training, residual=x)
        x = reshape(self.output_norm(x, training=training), shape)
        return (x, probabilities) if return_probabilities else x

    def compute_intermediate(self, x, training=None):
        """Compute a(x W₁), or a(x W) ⊙ x V if gated (Shazeer 2020, section 2), (B, L, F)."""
        inner = self.intermediate_dense(x)  # (B L, F), or (B L, 2 F) for W and V
        if self.gated:
            inner, gate = ops.split(inner, 2, axis=-1)
            return activate(self.activation, inner, training) * gate
        return activate(self.activation, inner, training)

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """The output shape (B, L, D), for `summary()`."""
        return (None, None, self.hidden_dim)

    def project(self, x, attention_mask=None, training=None, **context):
        """Compute queries, keys and values for the block input (B, L, D), each (B, L, H, d)."""
        return self.attention.project(x, **context)

    @property
    def projection_layers(self) -> list[keras.layers.Layer]:
        """The layers used by `project`."""
        return self.attention.projection_layers


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Encoder(LayerMixin, BaseModel):
    """Encoder model. The outputs are "sequence_output", (B, L, D), and "pooled_output", (B, D).

    See `Backbone` for arguments, inputs and outputs. `Backbone` also adds kernels, input checks and
    presets to this class.

    Source: Devlin et al. 2019, BERT, section 3.

    Example:
        >>> encoder = Encoder(30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> outputs = encoder({"token_ids": keras.ops.array([[2, 7, 3]])})
        >>> keras.ops.shape(outputs["sequence_output"]), keras.ops.shape(outputs["pooled_output"])
        ((1, 3, 8), (1, 8))
    """

    use_bias = True  # whether the pooler has a bias

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
            self.blocks.append(self.make_block(i))  # in ALBERT, blocks are shared
        self.final_layer = self.make_final_layer()
        for layer in dict.fromkeys([self.embeddings, *self.blocks, self.final_layer]):
            if layer is not None and not layer.built:
                layer.build((None, None, self.hidden_dim))
        if self.pooler:
            self.pooler_dense = self.make_dense("pooler", self.hidden_dim, activation="tanh")

    def make_embeddings(self, kind: type = Embeddings, **arguments) -> keras.layers.Layer:
        """Create the embedding layer. Keyword arguments override the settings of the model."""
        arguments = {"max_positions": self.max_sequence_length, **arguments}
        return self.make_layer(kind, "embeddings", **arguments)

    def make_block(self, i: int, kind: type = EncoderBlock, **arguments) -> keras.layers.Layer:
        """Create the block with index i. Keyword arguments override the settings of the model."""
        return self.make_layer(kind, f"block_{i}", **arguments)

    def make_final_layer(self) -> keras.layers.Layer | None:
        """Create the layer after the last block, or return None (default) if there is no layer."""
        return None

    def call(self, inputs, training=None, return_hidden_states=False, return_projections=False):
        states, _, contexts = self._encode(inputs, training)
        outputs = self._make_outputs(states[-1], inputs)
        if return_hidden_states:
            outputs["hidden_states"] = states
        if return_projections:
            block, context = self.blocks[-1], contexts[-1]
            outputs["projections"] = block.project(states[-2], training=training, **context)
        return outputs

    def _encode(self, inputs, training=False, return_probabilities=False, embedded=None):
        """Run all blocks and return their results.

        Args:
            inputs: Dictionary of tensors. See `Backbone`.
            training: Boolean. Whether to apply dropout. Defaults to False.
            return_probabilities: Boolean. Whether to also return the attention probabilities.
                Defaults to False.
            embedded: Tensor of shape (B, L, D), the input of the first block. If None, the
                embeddings of the inputs are used.

        Returns:
            A tuple of three lists. The first list contains the input of the first block and the
            outputs of all blocks, (B, L, D). The final layer is already applied to the last output.
            The second list contains the attention probabilities, (B, H, L, L), and is empty if
            `return_probabilities` is False. The third list contains the context of each block.
        """
        given = add_padding_mask(inputs)
        x = self._embed(given, training) if embedded is None else embedded  # (B, L, D)
        contexts = self.block_contexts(inputs)
        states, probabilities = self._run(self.blocks, contexts, x, training, return_probabilities)
        if self.final_layer is not None:
            states[-1] = self.final_layer(states[-1])
        return states, probabilities, contexts

    def _embed(self, inputs: Mapping, training: bool | None = None) -> keras.KerasTensor:
        """Compute the input of the first block, (B, L, D)."""
        names = ("token_ids", "segment_ids", "padding_mask", "text_starts")
        return self.embeddings(*(inputs.get(name) for name in names), training=training)

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        """Return a dictionary of keyword arguments for each block, such as the attention mask."""
        return [{"attention_mask": self.attention_mask(inputs)}] * self.num_layers

    def attention_mask(
        self, inputs: Mapping, max_distance: int | None = None
    ) -> attention_masks.AttentionMask | keras.KerasTensor | None:
        """Create the attention mask.

        Args:
            inputs: Dictionary of tensors. See `Backbone`.
            max_distance: Integer. Maximum distance for attention between two tokens. If None, there
                is no limit.
        """
        attended, starts = inputs.get("attended_mask"), inputs.get("text_starts")
        if max_distance is not None or starts is not None:
            inputs = add_padding_mask(inputs)
        real = inputs.get("padding_mask") if attended is None else attended
        return attention_masks.make_attention_mask(real, starts, max_distance, attended is not None)

    def _run(self, blocks, contexts, x, training=False, return_probabilities=False):
        """Apply blocks to x, (B, L, D), one after the other.

        Returns:
            Tuple of two lists. The first list contains x and the output of each block. The second
            list contains the attention probabilities, and is empty if `return_probabilities` is
            False.
        """
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

    def _make_outputs(self, sequence_output, inputs: Mapping) -> dict:
        """Create the output dictionary of the model."""
        outputs = {"sequence_output": sequence_output}
        if self.pooler:
            outputs["pooled_output"] = self.pool(sequence_output, inputs)
        return outputs

    def pool(self, sequence_output, inputs):
        """Compute the pooled output tanh(x₀ W + b) for the first token, (B, D) or (B, K, D)."""
        return self.pooler_dense(take_first_tokens(sequence_output, inputs.get("text_starts")))
