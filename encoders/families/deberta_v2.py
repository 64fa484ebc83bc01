"""DeBERTa-v2 and v3: disentangled attention based on token content and on distances.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, S buckets on either
side, K width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import Rule, one_of, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.attention_masks import convert_mask
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import Embeddings, EncoderBlock
from encoder_zoo.encoders.families.bert import CONFIG_KEYS, MASKED_LM
from encoder_zoo.encoders.family import Family, Generator, Head, Hidden, remove_head_width
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.kernels.attention import FastAttention
from encoder_zoo.encoders.layers import NO_VALUE, Activation, Size, activate, make_initializer
from encoder_zoo.encoders.positions import (
    align_distance_scores,
    compute_buckets,
    compute_log_buckets,
    compute_text_indices,
)
from encoder_zoo.encoders.tokenizers import DEBERTA_SENTENCEPIECE

CONTENT_TO_POSITION, POSITION_TO_CONTENT = "c2p", "p2c"  # the names in config.json
TERMS = (CONTENT_TO_POSITION, POSITION_TO_CONTENT)
Terms = Annotated[
    Sequence[str],
    Rule(
        lambda v: (
            isinstance(v, list | tuple) and 0 < len(v) == len(set(v)) and set(v) <= set(TERMS)
        ),
        f"a list of one or both of {', '.join(TERMS)}",
    ),
]
ConvolutionWidth = Annotated[
    int,
    Rule(
        lambda v: type(v) is int and (v == 0 or (0 < v < 100 and v % 2 == 1)),
        "0 or an odd integer below 100",
    ),
]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class DisentangledAttention(FastAttention):
    """`SelfAttention` with additional scores for the distances between tokens.

    The query and key projections are also applied to the distance embeddings.

    Args:
        terms: List of strings. The terms that are added to the scores: "c2p" multiplies queries of
            tokens with keys of distances, and "p2c" multiplies queries of distances with keys of
            tokens. Defaults to both.
        dropout: Float between 0 and 1. The dropout rate for the distance embeddings. Defaults to
            0.0.
        **kwargs: Additional arguments for `SelfAttention`.

    Call arguments:
        relative_embeddings: Tensor of shape (2 S, D). One embedding for each bucket of distances.
        buckets: Integer tensor of shape (2, 2 L). See `compute_buckets`.
        attending: Tensor of shape (B, 1, L, 1). It is 0 for tokens that attend to all tokens
            equally. Defaults to None, which means that there are no such tokens.

    Source: He et al. 2021, DeBERTa: Decoding-enhanced BERT with Disentangled Attention, section 3.1
    and algorithm 1.

    Example:
        >>> import numpy as np
        >>> attention = DisentangledAttention(hidden_dim=8, num_heads=2)
        >>> buckets = compute_buckets(3, compute_log_buckets(4, 16))
        >>> distances = {"relative_embeddings": np.ones((8, 8), "float32"), "buckets": buckets}
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32"), **distances))
        (1, 3, 8)
    """

    def __init__(self, *args, terms: Sequence[str] = TERMS, dropout: float = 0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.terms = list(terms)
        self.dropout = dropout

    def build(self, input_shape=None):
        super().build(input_shape)
        self.relative_dropout_layer = self.make_dropout(self.dropout)

    def scores(self, query, key, training=None, *, relative_embeddings, buckets, attending=None):
        # Scale the sum so that it has the same variance as a single product.
        share = (1 + len(self.terms)) ** -0.5
        scores = super().scores(query * share, key, training=training)  # (B, H, L, L)
        scale = share * query.shape[-1] ** -0.5
        table = self.relative_dropout_layer(relative_embeddings, training=training)
        if CONTENT_TO_POSITION in self.terms:
            keys = self._split_heads(self.key_dense(ops.take(table, buckets[0], axis=0)))
            scores = scores + align_distance_scores(ops.matmul(query * scale, keys))
        if POSITION_TO_CONTENT in self.terms:
            queries = self._split_heads(self.query_dense(ops.take(table, buckets[1], axis=0)))
            transposed = align_distance_scores(ops.matmul(key * scale, queries))  # (B, H, L, L)
            scores = scores + ops.transpose(transposed, (0, 1, 3, 2))
        return scores if attending is None else scores * ops.cast(attending, scores.dtype)

    def _split_heads(self, rows):
        """Reshape (2 L, D) to (H, D/H, 2 L)."""
        shape = (-1, self.num_heads, self.hidden_dim // self.num_heads)
        return ops.transpose(ops.reshape(rows, shape), (1, 2, 0))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TextConvolution(ConfigFromSignature, keras.layers.Layer):
    """Apply a 1D convolution to the tokens in each text, with zero padding at both ends.

    Args:
        hidden_dim: Positive integer. The input and output width D.
        width: Odd integer. The kernel size K in tokens.

    Call arguments:
        x: Tensor of shape (B, L, D).
        text_indices: Integer tensor of shape (B, L). The text index for each token. Tokens of other
            texts are treated as zeros.

    Returns:
        Tensor of shape (B, L, D).

    Raises:
        ValueError: If `width` is even.

    Example:
        >>> import numpy as np
        >>> layer = TextConvolution(hidden_dim=4, width=3)
        >>> text_indices = np.array([[1, 1, 2]])
        >>> keras.ops.shape(layer(np.ones((1, 3, 4), "float32"), text_indices))
        (1, 3, 4)
    """

    def __init__(self, hidden_dim: int, width: int, **kwargs):
        super().__init__(**kwargs)
        if width % 2 == 0:
            raise invalid("width", width, "an odd number")
        self.hidden_dim = hidden_dim
        self.width = width

    def build(self, *shapes):
        shape = (self.width, self.hidden_dim, self.hidden_dim)
        self.kernel = self.add_weight(shape, make_initializer(), name="kernel")
        self.bias = self.add_weight((self.hidden_dim,), "zeros", name="bias")

    def call(self, x, text_indices):
        length, before = ops.shape(x)[1], self.width // 2
        padded = ops.pad(x, ((0, 0), (before, before), (0, 0)))
        others = ops.pad(text_indices, ((0, 0), (before, before)), constant_values=-1)
        y = self.bias
        for k in range(self.width):
            seen = ops.cast(others[:, k : k + length] == text_indices, x.dtype)
            seen = ops.expand_dims(seen, axis=-1)  # LiteRT cannot slice dynamic sizes [:, :, None]
            y = y + ops.matmul(padded[:, k : k + length] * seen, self.kernel[k])
        return y


@keras.saving.register_keras_serializable(package="encoder_zoo")
class DebertaV2Block(EncoderBlock):
    """`EncoderBlock` with disentangled attention and an optional convolution.

    Args:
        terms: List of strings. See `DisentangledAttention`. Defaults to both terms.
        convolution_width: Odd integer, or 0 for no convolution. The kernel size of a convolution
            that is applied to the block input. The result is added to the block output, followed by
            a layer normalization. Defaults to 0.
        convolution_activation: String, one of `layers.ACTIVATIONS`. Defaults to "tanh".
        **kwargs: Additional arguments for `EncoderBlock`.

    Call arguments:
        text_indices: Integer tensor of shape (B, L). See `TextConvolution`.
        **context: Call arguments of `DisentangledAttention`.

    Source: He et al. 2021, DeBERTa, the released code of version 2.

    Example:
        >>> import numpy as np
        >>> block = DebertaV2Block(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> buckets = compute_buckets(3, compute_log_buckets(4, 16))
        >>> distances = {"relative_embeddings": np.ones((8, 8), "float32"), "buckets": buckets}
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32"), **distances))
        (1, 3, 8)
    """

    attention_class = DisentangledAttention

    def __init__(
        self,
        *args,
        terms: Sequence[str] = TERMS,
        convolution_width: int = 0,
        convolution_activation: str = "tanh",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.terms = list(terms)
        self.convolution_width = convolution_width
        self.convolution_activation = convolution_activation

    def build(self, input_shape=None):
        super().build(input_shape)
        self.convolution = self.convolution_norm = None
        if self.convolution_width:
            self.convolution = self.make_layer(
                TextConvolution, "convolution", width=self.convolution_width
            )
            self.convolution_norm = self.make_norm("convolution_norm")
            self.convolution_dropout_layer = self.make_dropout(self.dropout)
            self.convolution.build()

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        text_indices = context.pop("text_indices", None)
        outputs = super().call(x, attention_mask, training, return_probabilities, **context)
        if self.convolution is None:
            return outputs
        y, *probabilities = outputs if return_probabilities else (outputs,)
        shape, rows = ops.shape(x), (-1, self.hidden_dim)
        convolved = ops.reshape(self.convolution(x, text_indices), rows)  # (B L, D)
        convolved = self.convolution_dropout_layer(convolved, training=training)
        convolved = activate(self.convolution_activation, convolved)
        y = self.convolution_norm(ops.reshape(y, rows) + convolved, training=training)
        y = ops.reshape(y, shape)
        if "attending" in context:
            y = y * ops.cast(context["attending"][:, 0], y.dtype)
        return (y, *probabilities) if return_probabilities else y


@keras.saving.register_keras_serializable(package="encoder_zoo")
class DebertaV2Backbone(Backbone):
    """DeBERTa-v2 and DeBERTa-v3 encoder. See `Backbone` for inputs and outputs.

    The model has no position embeddings. Instead, all blocks share one table of distance
    embeddings, so texts can be longer than in pretraining. The model has no segments and no pooler.
    As in transformers, the embeddings of tokens with a 0 in "attended_mask" are zeros, and these
    tokens attend to all tokens equally.

    Args:
        position_buckets: Positive integer. S, the number of distance embeddings in each direction.
            Defaults to 256.
        max_relative_positions: Positive integer. Distances larger than about this value share
            one embedding. Defaults to 512.
        terms: List of strings. The terms of the attention scores. See `DisentangledAttention`.
            Defaults to both terms.
        convolution_width: Odd integer. The kernel size of the convolution in the first block.
            Defaults to 0, which means no convolution.
        convolution_activation: String. The activation of the convolution. Defaults to "tanh".
        pooler_activation: String. The activation of the dense layer before the output layer of
            `SequenceClassifier` and `MultipleChoice`. Defaults to "gelu".
        **kwargs: Additional arguments for `Backbone`.

    Raises:
        ValueError: If `terms` is empty or contains other values than "c2p" and "p2c". See also
            `compute_log_buckets`.

    Source: He et al. 2021, DeBERTa: Decoding-enhanced BERT with Disentangled Attention. He et al.
    2023, DeBERTaV3: Improving DeBERTa using ELECTRA-Style Pre-Training with Gradient-Disentangled
    Embedding Sharing, which uses the same architecture.

    Example:
        >>> import numpy as np
        >>> backbone = DebertaV2Backbone(
        ...     vocabulary_size=30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[1, 7, 2]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    defaults: ClassVar = {"layer_norm_epsilon": 1e-7, "num_segments": 0, "pooler": False}

    @validate_arguments
    def __init__(
        self,
        *args,
        position_buckets: Size = 256,
        max_relative_positions: Size = 512,
        terms: Terms = TERMS,
        convolution_width: ConvolutionWidth = 0,
        convolution_activation: Activation = "tanh",
        pooler_activation: Activation = "gelu",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.pooler_activation = pooler_activation
        self.position_buckets = position_buckets
        self.max_relative_positions = max_relative_positions
        self.terms = [term for term in TERMS if term in terms]
        self.convolution_width = convolution_width
        self.convolution_activation = convolution_activation
        self._log_buckets = compute_log_buckets(position_buckets, max_relative_positions)

    def build(self, input_shape=None):
        super().build(input_shape)
        self.relative_embedding = self.make_table("relative_embedding", 2 * self.position_buckets)
        self.relative_norm = self.make_norm("relative_norm")

    def make_embeddings(self) -> Embeddings:
        return super().make_embeddings(max_positions=0)

    def make_block(self, i: int) -> DebertaV2Block:
        return super().make_block(
            i, DebertaV2Block, convolution_width=0 if i else self.convolution_width
        )

    def _embed(self, inputs: Mapping, training: bool | None = None):
        embedded = super()._embed(inputs, training)
        if "attended_mask" not in inputs:
            return embedded
        return embedded * ops.cast(_make_attending_mask(inputs)[:, 0], embedded.dtype)

    def attention_mask(self, inputs: Mapping, max_distance: int | None = None):
        mask = super().attention_mask(inputs, max_distance)
        if "attended_mask" not in inputs:
            return mask
        real = ops.cast(add_padding_mask(inputs)["padding_mask"], "bool")[:, None, None, :]
        return ops.where(_make_attending_mask(inputs), convert_mask(mask), real)  # (B, 1, L, L)

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        length = ops.shape(inputs["token_ids"])[1]
        rows = self.relative_embedding(ops.arange(2 * self.position_buckets, dtype="int32"))
        distances = {
            "relative_embeddings": self.relative_norm(rows),
            "buckets": compute_buckets(length, self._log_buckets),
        }
        if "attended_mask" in inputs:
            distances["attending"] = _make_attending_mask(inputs)
        contexts = [{**context, **distances} for context in super().block_contexts(inputs)]
        if self.convolution_width:
            inputs = add_padding_mask(inputs)
            real, starts = ops.cast(inputs["padding_mask"], "int32"), inputs.get("text_starts")
            indices = real if starts is None else real * (1 + compute_text_indices(starts, length))
            contexts[0]["text_indices"] = indices
        return contexts


def _make_attending_mask(inputs: Mapping):
    """Return "attended_mask" as a boolean mask for queries, (B, 1, L, 1)."""
    return ops.cast(inputs["attended_mask"], "bool")[:, None, :, None]


# -- config.json -------------------------------------------------------------------------------


def read_config(config: Mapping) -> dict:
    """Convert a configuration from any version of transformers to the same form.

    Missing fields are set to the default values in transformers. `pos_att_type` becomes a list, and
    widths that only repeat another field are removed.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> config = read_config({"pos_att_type": "p2c|c2p", "max_position_embeddings": 512})
        >>> config["pos_att_type"], config["max_relative_positions"], config["relative_attention"]
        (['p2c', 'c2p'], 512, False)
    """
    config = {**_MISSING_FIELDS, **config}
    if isinstance(config["pos_att_type"], str):
        config["pos_att_type"] = [t.strip() for t in config["pos_att_type"].lower().split("|")]
    if config["max_relative_positions"] == -1:
        config["max_relative_positions"] = config.get("max_position_embeddings", 512)
    # These widths can be equal to another field.
    if config.get("pooler_hidden_size") == config.get("hidden_size"):
        config.pop("pooler_hidden_size", None)
    remove_head_width(config, "attention_head_size")
    config["legacy"] = True  # selects the names of the masked-LM head, but both are supported
    return config


# Default values in transformers.
_MISSING_FIELDS = {
    "relative_attention": False,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "position_biased_input": True,
    "position_buckets": -1,
    "max_relative_positions": -1,
    "pos_att_type": None,
}

_CLASSIFIER = Head(
    "classifier",
    Hidden("pooler.dense", activation_argument="pooler_activation"),
    dropout="cls_dropout",
)

FAMILY = Family(
    name="deberta-v2",
    backbone=DebertaV2Backbone,
    class_prefix="DebertaV2",
    prefix="deberta",
    tensors={
        "embeddings.token_embedding": "embeddings.word_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "relative_embedding": "encoder.rel_embeddings",
        "relative_norm": "encoder.LayerNorm",
        "blocks.0.convolution": "encoder.conv.conv",
        "blocks.0.convolution_norm": "encoder.conv.LayerNorm",
        "blocks.{}.attention.query_dense": "encoder.layer.{}.attention.self.query_proj",
        "blocks.{}.attention.key_dense": "encoder.layer.{}.attention.self.key_proj",
        "blocks.{}.attention.value_dense": "encoder.layer.{}.attention.self.value_proj",
        "blocks.{}.attention.output_dense": "encoder.layer.{}.attention.output.dense",
        "blocks.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
        "blocks.{}.intermediate_dense": "encoder.layer.{}.intermediate.dense",
        "blocks.{}.output_dense": "encoder.layer.{}.output.dense",
        "blocks.{}.output_norm": "encoder.layer.{}.output.LayerNorm",
    },
    # Newer checkpoints, including version 3, store the masked-LM head under the names of
    # Microsoft's code.
    other_names={
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        "lm_predictions.lm_head.": "cls.predictions.transform.",
    },
    # Version 3 shares its embeddings with a generator (He et al. 2023, section 3.3). These weights
    # are only used in pretraining: the difference to the shared embeddings, and unused position
    # embeddings.
    pretraining_only=(
        "embeddings.word_embeddings._weight",
        "embeddings.position_embeddings._weight",
        "embeddings.position_embeddings.weight",
    ),
    config_keys={
        **CONFIG_KEYS,
        "position_buckets": "position_buckets",
        "max_relative_positions": "max_relative_positions",
        "terms": "pos_att_type",
        "convolution_width": "conv_kernel_size",
        "convolution_activation": "conv_act",
        "pooler_activation": "pooler_hidden_act",
    },
    read_config=read_config,
    rules={
        "relative_attention": one_of(True),
        "share_att_key": one_of(True),
        "norm_rel_ebd": one_of("layer_norm"),
        "position_biased_input": one_of(False),
        "type_vocab_size": one_of(0),
        "conv_groups": one_of(None, 1),
        "attention_head_size": NO_VALUE,
        "pooler_hidden_size": NO_VALUE,
        "pooler_dropout": one_of(None, 0),
    },
    constants={
        "relative_attention": True,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "pooler_dropout": 0,
        "legacy": True,
        "initializer_range": 0.02,
    },
    tokenizer=DEBERTA_SENTENCEPIECE,
    # He et al. 2023, DeBERTaV3, table 11: 1.5e-5 to 4e-5 for base models.
    learning_rate=2e-5,
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": _CLASSIFIER,
        "ForTokenClassification": Head("classifier", dropout="hidden_dropout_prob"),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": MASKED_LM,
        # The discriminator of version 3 in Microsoft's code. transformers has no class for it.
        "ForPreTraining": Head(
            "mask_predictions.classifier",
            Hidden("mask_predictions.dense"),
            first_norm="mask_predictions.LayerNorm",
        ),
    },
    # He et al. 2023, DeBERTaV3, section 3.1: the same width and half the depth.
    generator=Generator(width=1.0, depth=0.5),
    tiny={"position_buckets": 8, "max_relative_positions": 16, "convolution_width": 3},
)
DebertaV2Backbone.family = FAMILY
