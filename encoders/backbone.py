"""What every backbone shares: embeddings, a stack of encoder blocks, an optional pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import (
    Fraction,
    NonNegativeInt,
    Rate,
    validate_arguments,
)
from encoder_zoo.common.variable_names import variables_named_alike
from encoder_zoo.encoders.attention import SHORT
from encoder_zoo.encoders.attention_masks import AttentionMask, make_attention_mask
from encoder_zoo.encoders.backbone_presets import BackbonePresets
from encoder_zoo.encoders.backbone_training import BackboneTraining
from encoder_zoo.encoders.blocks import EncoderBlock
from encoder_zoo.encoders.embeddings import Embeddings
from encoder_zoo.encoders.inputs import INPUTS, TASK_INPUTS, check_inputs
from encoder_zoo.encoders.kernels.gradient_checkpointing import recomputed
from encoder_zoo.encoders.layers import initializer
from encoder_zoo.encoders.positions import take_positions
from encoder_zoo.encoders.rules import Activation, Size

if TYPE_CHECKING:
    from typing_extensions import Self

    from encoder_zoo.encoders.family import Family


class _BuiltAtOnce(type(keras.Model)):
    """Builds a model when the last `__init__` has returned, so that a subclass's is done too."""

    def __call__(cls, *args, **kwargs):
        with variables_named_alike():
            model = super().__call__(*args, **kwargs)
            model.build((None, None))
        return model


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Backbone(
    BackbonePresets, BackboneTraining, ConfigFromSignature, keras.Model, metaclass=_BuiltAtOnce
):
    """A stack of post-norm encoder blocks over token, position and segment embeddings.

    The base of all families' backbones; `Backbone.from_preset` picks the right one. A family that
    differs overrides what differs: `make_embeddings`, `make_block` and `make_final_layer`, which
    `build` calls when `__init__` is done; `block_contexts`, what each block is given beside its
    input; `pool` and `text_vectors`.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of encoder blocks.
        num_heads: H, attention heads of each block.
        hidden_dim: D, width of the model; a multiple of `num_heads`.
        intermediate_dim: F, width of the feed-forward nets.
        dropout: share of embeddings and sublayer outputs dropped in training.
        attention_dropout: share of attention probabilities dropped in training.
        activation: of the feed-forward nets; "gelu" is the exact one, see `layers.ACTIVATIONS`.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        max_sequence_length: the most tokens the model takes.
        num_segments: number of segment ids.
        pooler: whether there is a pooler; without one there is no `pooled_output`.

    Call arguments:
        inputs: `{"token_ids", "padding_mask", "segment_ids"}`, each (B, L) int or bool.
            `padding_mask` is 1 at real tokens; without it every token is real.
            Without `segment_ids` every token is in segment 0.
            Rows that hold several texts have "text_starts", (B, K) int, the positions where the
            texts begin; rows with fewer than K are filled up with L. The outputs are those of the
            texts in rows of their own.
        return_hidden_states: whether to return what goes into the first block and what comes out
            of each.
        return_projections: whether to return what the last block's attention makes of its input.

    Returns:
        `{"sequence_output": (B, L, D), "pooled_output": (B, D)}`; with "text_starts"
        `pooled_output` is (B, K, D). With `return_hidden_states` also "hidden_states", a list of
        `num_layers + 1` tensors (B, L, D), the last of which is the sequence output. With
        `return_projections` also "projections", the queries, keys and values of the last block's
        H heads, each (B, L, H, D/H).

    Attributes:
        embeddings: the layer before the blocks.
        blocks: list of the blocks, in their order; a family may have one stand at every place.

    Example:
        >>> import numpy as np
        >>> import encoder_zoo as ez
        >>> backbone = ez.Backbone.from_preset("bert_nano_en_uncased")
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])}, return_hidden_states=True)
        >>> len(outputs["hidden_states"]) == len(backbone.blocks) + 1
        True
    """

    family: Family

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
        **kwargs,
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
        self._checkpoints_gradients = False
        self.checkpoint_vocabulary = None  # see presets.vocabulary

    def build(self, input_shape=None):
        self.embeddings = self.make_embeddings()
        self.embeddings.build((None, None))
        self.blocks = []
        for i in range(self.num_layers):
            self.blocks.append(self.make_block(i))
        for block in dict.fromkeys(self.blocks):
            block.build((None, None, self.hidden_dim))
        self.final_layer = self.make_final_layer()
        if self.final_layer is not None:
            self.final_layer.build((None, None, self.hidden_dim))
        if self.pooler:
            self.pooler_dense = keras.layers.Dense(
                self.hidden_dim,
                activation="tanh",
                kernel_initializer=initializer(),
                name="pooler",
                dtype=self.dtype_policy,
            )
            self.pooler_dense.build((None, self.hidden_dim))

    @classmethod
    def sharing_embeddings(cls, other: Backbone, **arguments) -> Self:
        """A backbone whose tables of tokens, positions and segments are those of another.

        They are one until either is saved.

        Args:
            other: a backbone of embeddings as wide.
            **arguments: of the new one.

        Example:
            >>> from encoder_zoo import ElectraBackbone
            >>> large = ElectraBackbone(30, 2, 2, hidden_dim=8, intermediate_dim=16)
            >>> small = ElectraBackbone.sharing_embeddings(
            ...     large, vocabulary_size=30, num_layers=1, num_heads=1, hidden_dim=4,
            ...     intermediate_dim=8, embedding_dim=8,
            ... )
            >>> small.embeddings.token_embedding is large.embeddings.token_embedding
            True
        """
        backbone = type.__call__(cls, **arguments)  # not built yet
        embeddings = backbone.make_embeddings()
        embeddings.share_tables(other.embeddings)
        backbone.make_embeddings = lambda: embeddings
        backbone.build((None, None))
        return backbone

    def build_from_config(self, config):
        """Nothing: whoever makes a backbone has it built."""

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """(B, L, D), for `summary()`."""
        return (None, None, self.hidden_dim)

    def make_embeddings(
        self, kind: type[keras.layers.Layer] = Embeddings, **arguments
    ) -> keras.layers.Layer:
        """The layer before the blocks; called as `Embeddings` is.

        A family that differs overrides this, and says here what differs.

        Args:
            kind: of layer.
            **arguments: of it, beside those of `Embeddings` or in their place.
        """
        usual = {
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "max_positions": self.max_sequence_length,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }
        return kind(**{**usual, **arguments}, name="embeddings", dtype=self.dtype_policy)

    def make_block(
        self, i: int, kind: type[keras.layers.Layer] = EncoderBlock, **arguments
    ) -> keras.layers.Layer:
        """The block that stands at place i, from 0; called as `EncoderBlock` is.

        A family that differs overrides this, and says here what differs. The blocks before it are
        in `blocks`, where one is to stand at several places.

        Args:
            i: its place.
            kind: of layer.
            **arguments: of it, beside those of `EncoderBlock` or in their place.
        """
        usual = {
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": self.activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }
        return kind(**{**usual, **arguments}, name=f"block_{i}", dtype=self.dtype_policy)

    def make_final_layer(self) -> keras.layers.Layer | None:
        """What comes after the last block, from (B, L, D) to the same; None for nothing."""
        return None

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        """What each block is given by name beside its input, one mapping for each place.

        Tensors, or nested structures of them; those of floating point are differentiated, also
        with gradient checkpointing.

        Args:
            inputs: as for calling the backbone; "padding_mask" is always there.
        """
        return [{"attention_mask": self.attention_mask(inputs)}] * self.num_layers

    def attention_mask(
        self, inputs: Mapping, reach: int | None = None
    ) -> AttentionMask | keras.KerasTensor:
        """Who may attend to whom: a matrix where all texts are short, as that is less to trace.

        Args:
            inputs: as for `block_contexts`.
            reach: the largest distance at which one attends to another; None: any.
        """
        mask = make_attention_mask(inputs["padding_mask"], inputs.get("text_starts"), reach)
        return mask if self.max_sequence_length > SHORT else mask.matrix()

    def pool(self, sequence_output, inputs: Mapping):
        """(B, D), or for packed rows (B, K, D): the pooler's view of every text's first token."""
        first = sequence_output[:, 0]  # (B, D)
        if (starts := inputs.get("text_starts")) is not None:
            last = ops.shape(sequence_output)[1] - 1
            first = take_positions(sequence_output, ops.minimum(starts, last))  # (B, K, D)
        return self.pooler_dense(first)

    def text_vectors(self, sequence_output, inputs: Mapping):
        """(B, D): what a head without a pooler reads of each text, the first token's output."""
        return sequence_output[:, 0]

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return the least and the largest number that each input may hold.

        Args:
            length: L, of the rows.

        Example:
            >>> from encoder_zoo import RobertaBackbone
            >>> backbone = RobertaBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
            >>> backbone.input_ranges(length=3)["token_ids"]
            (0, 29)
        """
        # With a single segment, its embedding is that of all tokens, whatever the ids are.
        segments = max(self.num_segments, 2 if self.family.uses_segments else 1)
        ranges = (0, self.vocabulary_size - 1), (0, 1), (0, segments - 1), (0, length)
        return dict(zip(INPUTS, ranges, strict=True))

    def __call__(self, inputs, *args, **kwargs):
        check_inputs(inputs, (*INPUTS, *TASK_INPUTS), type(self).__name__)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, training=None, return_hidden_states=False, return_projections=False):
        hidden_states, _, contexts = self._encode(inputs, training=training)
        outputs = {"sequence_output": hidden_states[-1]}
        if self.pooler:
            outputs["pooled_output"] = self.pool(hidden_states[-1], inputs)
        if return_hidden_states:
            outputs["hidden_states"] = hidden_states
        if return_projections:
            before_last = hidden_states[-2]
            outputs["projections"] = self.blocks[-1].project(
                before_last, training=training, **contexts[-1]
            )
        return outputs

    def attention_probabilities(self, inputs: Mapping) -> keras.KerasTensor:
        """How much every token attends to every other one, to look at or to draw.

        Args:
            inputs: as for calling the backbone.

        Returns:
            (B, num_layers, H, L, L) float; each last axis sums to 1.
        """
        _, probabilities, _ = self._encode(inputs, return_probabilities=True)
        return ops.stack(probabilities, axis=1)

    def _encode(self, inputs, training=False, return_probabilities=False):
        """What goes into the first block and comes out of each; the attention probabilities; and
        the blocks' contexts."""
        token_ids = inputs["token_ids"]
        if inputs.get("padding_mask") is None:
            inputs = {**inputs, "padding_mask": ops.ones_like(token_ids)}
        others = [inputs.get(name) for name in ("segment_ids", "padding_mask", "text_starts")]
        x = self.embeddings(token_ids, *others, training=training)
        states, probabilities = [x], []
        contexts = self.block_contexts(inputs)
        for block, context in zip(self.blocks, contexts, strict=True):
            if return_probabilities:
                x, p = block(x, training=training, return_probabilities=True, **context)
                probabilities.append(p)
            elif training and self._checkpoints_gradients:
                x = recomputed(block, x, context)
            else:
                x = block(x, training=training, **context)
            states.append(x)
        if self.final_layer is not None:
            states[-1] = self.final_layer(x)
        return states, probabilities, contexts
