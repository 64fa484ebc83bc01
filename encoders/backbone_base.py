"""The constructor of backbones, their checks and shapes, and sharing of embedding tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Unpack

import keras
from keras import ops

from encoder_zoo.common.layer_arguments import LayerArguments
from encoder_zoo.common.quantization import QuantizationInConfig
from encoder_zoo.common.validation import Fraction, NonNegativeInt, Rate, validate_arguments
from encoder_zoo.common.variable_names import variables_named_alike
from encoder_zoo.encoders.attention_masks import AttentionMask, make_attention_mask
from encoder_zoo.encoders.backbone_presets import BackbonePresets
from encoder_zoo.encoders.backbone_training import BackboneTraining
from encoder_zoo.encoders.inputs import INPUTS, TASK_INPUTS, check_inputs, with_padding_mask
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.encoders.layer_maker import MakesLayers
from encoder_zoo.encoders.rules import Activation, Size

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.family import Family


class _BuiltAtOnce(type(keras.Model)):
    """Metaclass that applies a class's `defaults`, and builds a model after the last `__init__`."""

    def __call__(cls, *args, **kwargs):
        with variables_named_alike():
            model = super().__call__(*args, **{**cls.defaults, **kwargs})
            model.build((None, None))
        return model


class BackboneBase(
    BackbonePresets,
    BackboneTraining,
    MakesLayers,
    QuantizationInConfig,
    keras.Model,
    metaclass=_BuiltAtOnce,
):
    """Base of `Backbone`; `Backbone.from_preset` picks the right family.

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
        max_sequence_length: largest number of tokens of an example.
        num_segments: number of segment ids.
        pooler: whether there is a pooler; without one there is no `pooled_output`.

    Call arguments:
        inputs: `{"token_ids", "padding_mask", "segment_ids"}`, each (B, L) int or bool.
            `padding_mask` is 1 at real tokens; without it every token is real.
            Without `segment_ids` every token is in segment 0.
            Packed examples, which hold several texts, have "text_starts", (B, K) int, the
            positions where the texts begin; those of fewer than K texts are filled up with L. The
            outputs are those of the texts in examples of their own.
            "attended_mask", (B, L), is 0 at tokens that no token attends to, though they have
            outputs; without it, it is `padding_mask`.
        return_hidden_states: whether to return the input and output of all blocks.
        return_projections: whether to return the last block's queries, keys and values.

    Returns:
        `{"sequence_output": (B, L, D), "pooled_output": (B, D)}`; with "text_starts"
        `pooled_output` is (B, K, D). With `return_hidden_states` also "hidden_states", a list of
        `num_layers + 1` tensors (B, L, D), the last of which is the sequence output. With
        `return_projections` also "projections", the queries, keys and values of the last block's
        H heads, each (B, L, H, D/H).

    Attributes:
        embeddings: the layer before the blocks.
        blocks: list of the blocks, in their order; in some families one block has several indices.
            Those of a decoder, where there is one, are the last.

    Example:
        >>> import numpy as np
        >>> import encoder_zoo as ez
        >>> backbone = ez.Backbone.from_preset("bert_nano_en_uncased")
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])}, return_hidden_states=True)
        >>> len(outputs["hidden_states"]) == len(backbone.blocks) + 1
        True
    """

    family: Family
    defaults: ClassVar[Mapping[str, object]] = {}  # of a subclass, instead of those of `__init__`
    use_bias = True  # of the pooler
    pools_logits = False  # whether a classifier's logits are the mean of those of all tokens
    # Whether tokens are predicted in an order, each from those before it, by `predictions`.
    predicts_in_order = False
    decoder_blocks = ()  # those of `blocks` that are a decoder's, the last ones

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
        self._checkpoints_gradients = False
        self.checkpoint_vocabulary = None  # see presets.vocabulary
        self.origin = None  # see presets.origin

    @classmethod
    def sharing_embeddings(cls, other: BackboneBase, **arguments) -> Self:
        """Return a backbone that shares the embedding tables of another.

        Saving separates them.

        Args:
            other: a backbone with embeddings of the same width.
            **arguments: of the new backbone.

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
        backbone = type.__call__(cls, **{**cls.defaults, **arguments})  # not built yet
        embeddings = backbone.make_embeddings()
        embeddings.share_tables(other.embeddings)
        backbone.make_embeddings = lambda: embeddings
        backbone.build((None, None))
        return backbone

    def build_from_config(self, config):
        """Do nothing: the metaclass has built the backbone."""

    @property
    def output_shape(self) -> tuple[None, None, int]:
        """(B, L, D), for `summary()`."""
        return (None, None, self.hidden_dim)

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return the smallest and the largest value of each input.

        Args:
            length: L, of the examples.

        Example:
            >>> from encoder_zoo import RobertaBackbone
            >>> backbone = RobertaBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
            >>> backbone.input_ranges(length=3)["token_ids"]
            (0, 29)
        """
        # With a single segment, its embedding is that of all tokens, whatever the ids are.
        segments = max(self.num_segments, 2 if self.family.uses_segments else 1)
        ranges = (0, self.vocabulary_size - 1), (0, 1), (0, segments - 1), (0, length), (0, 1)
        return dict(zip(INPUTS, ranges, strict=True))

    def make_final_layer(self) -> keras.layers.Layer | None:
        """Return the layer after the last block, from (B, L, D) to the same; None for none."""
        return None

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        """Return for each block what it gets by name beside its input: tensors, or nested ones."""
        return [{"attention_mask": self.attention_mask(inputs)}] * self.num_layers

    def attention_mask(
        self, inputs: Mapping, max_distance: int | None = None
    ) -> AttentionMask | keras.KerasTensor | None:
        """Return which tokens may attend to which; a matrix, which is less to trace, if possible.

        None, as the matrix of texts without padding: kernels are faster without a mask.

        Args:
            inputs: as for `block_contexts`.
            max_distance: the largest distance at which one attends to another; None: any.
        """
        attended, starts = inputs.get("attended_mask"), inputs.get("text_starts")
        if max_distance is not None or starts is not None:
            inputs = with_padding_mask(inputs)
        real = inputs.get("padding_mask") if attended is None else attended
        mask = make_attention_mask(real, starts, max_distance, attended is not None)
        return mask if self.max_sequence_length > long_attention.SHORT else mask.matrix()

    def __call__(self, inputs, *args, **kwargs):
        check_inputs(inputs, (*INPUTS, *TASK_INPUTS), type(self).__name__)
        return super().__call__(inputs, *args, **kwargs)

    def _embed(self, inputs: Mapping, training: bool | None = None) -> keras.KerasTensor:
        """Return the input of the first block, (B, L, D)."""
        names = ("token_ids", "segment_ids", "padding_mask", "text_starts")
        return self.embeddings(*(inputs.get(name) for name in names), training=training)

    def _encode_embedded(self, embedded, inputs: Mapping) -> dict:
        """Return the outputs for other inputs of the first block than those of `_embed`.

        Args:
            embedded: (B, L, D).
            inputs: as for calling the backbone.
        """
        states, _, _ = self._encode(inputs, embedded=embedded)
        return self._outputs_of(states[-1], inputs)

    def _outputs_of(self, sequence_output, inputs: Mapping) -> dict:
        """Return the outputs: those of the last block (B, L, D), and of the pooler (B, D)."""
        outputs = {"sequence_output": sequence_output}
        if self.pooler:
            outputs["pooled_output"] = self.pool(sequence_output, inputs)
        return outputs

    def text_vectors(self, sequence_output, inputs: Mapping):
        """Return the input of heads without a pooler, (B, D): the first token's output."""
        return sequence_output[:, 0]

    def attention_probabilities(self, inputs: Mapping) -> keras.KerasTensor:
        """Return how much every token attends to every other one.

        Args:
            inputs: as for calling the backbone.

        Returns:
            (B, num_layers, H, L, L) float; each last axis sums to 1.
        """
        _, probabilities, _ = self._encode(inputs, return_probabilities=True)
        return ops.stack(probabilities, axis=1)
