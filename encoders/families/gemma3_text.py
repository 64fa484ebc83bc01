"""Gemma 3 with bidirectional attention, the encoder of EmbeddingGemma.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, G key and value
heads, d head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import keras
from keras import ops

from encoder_zoo.common.validation import PositiveFloat, Rule, one_of, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.families import modernbert
from encoder_zoo.encoders.families.bert import CONFIG_KEYS, TOKEN_IDS
from encoder_zoo.encoders.families.eurobert import FAMILY as EUROBERT
from encoder_zoo.encoders.families.eurobert import (
    EuroBertBlock,
    GroupedQueryAttention,
    RMSNorm,
    RMSNormMixin,
    TokenEmbeddings,
)
from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.encoders.layers import NO_VALUE, Size
from encoder_zoo.encoders.positions import take_last_tokens
from encoder_zoo.encoders.tokenizers import GEMMA_BPE

EvenSize = Annotated[
    int, Rule(lambda v: type(v) is int and 0 < v < 2**20 and v % 2 == 0, "a positive even integer")
]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ScaledTokenEmbeddings(TokenEmbeddings):
    """Compute token embeddings multiplied by √D, (B, L, D). For arguments, see `Embeddings`.

    Source: Gemma Team 2024, Gemma, the released code.

    Example:
        >>> layer = ScaledTokenEmbeddings(vocabulary_size=10, hidden_dim=4)
        >>> keras.ops.shape(layer(keras.ops.array([[1, 2, 3]])))
        (1, 3, 4)
    """

    def call(self, *args, **kwargs):
        x = super().call(*args, **kwargs)
        return x * ops.cast(self.hidden_dim**0.5, x.dtype)  # rounded to the dtype, as in training


@keras.saving.register_keras_serializable(package="encoder_zoo")
class UnitOffsetRMSNorm(RMSNorm):
    """`RMSNorm` with the factor 1 + γ in float32. The initial value of γ is 0.

    See `RMSNorm` for the arguments.

    Source: Gemma Team 2024, Gemma, the released code.

    Example:
        >>> import numpy as np
        >>> UnitOffsetRMSNorm()(np.array([[3.0, 4.0]], "float32")).numpy().round(2).tolist()
        [[0.8500000238418579, 1.1299999952316284]]
    """

    gamma_initializer = "zeros"

    def call(self, inputs, training=None):
        scale = 1.0 + ops.cast(self.gamma, "float32")
        return ops.cast(self.normalize(inputs) * scale, inputs.dtype)


class UnitOffsetNormMixin(RMSNormMixin):
    """Mixin that creates `UnitOffsetRMSNorm` layers instead of `LayerNorm` layers."""

    norm_class = UnitOffsetRMSNorm


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Gemma3Attention(UnitOffsetNormMixin, GroupedQueryAttention):
    """`GroupedQueryAttention` with an RMSNorm for each query and key.

    Args:
        query_pre_attn_scalar: Positive integer. Queries are divided by the square root of this
            value, instead of √d.
        layer_norm_epsilon: Float. Value that is added to the mean in `UnitOffsetRMSNorm`.
        **kwargs: Additional arguments for `GroupedQueryAttention`.

    Source: Gemma Team 2025, Gemma 3, section 2.

    Example:
        >>> import numpy as np
        >>> attention = Gemma3Attention(
        ...     hidden_dim=8, num_heads=2, num_key_value_heads=1, head_dim=6,
        ...     query_pre_attn_scalar=6, layer_norm_epsilon=1e-6,
        ... )
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    def __init__(self, *args, query_pre_attn_scalar: int, layer_norm_epsilon: float, **kwargs):
        super().__init__(*args, **kwargs)
        self.query_pre_attn_scalar = query_pre_attn_scalar
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape=None):
        super().build(input_shape)
        self.query_norm = self.make_norm("query_norm", self.head_dim)
        self.key_norm = self.make_norm("key_norm", self.head_dim)

    def normalize_heads(self, query, key):
        scale = (self.head_dim / self.query_pre_attn_scalar) ** 0.5  # `scores` divides by √d
        query, key = self.query_norm(query), self.key_norm(key)
        return query if scale == 1 else query * scale, key

    @property
    def projection_layers(self) -> list[keras.layers.Layer]:
        return [*super().projection_layers, self.query_norm, self.key_norm]

    @property
    def lora_layers(self) -> list[keras.layers.Dense]:
        return [self.query_dense, self.value_dense]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Gemma3Block(UnitOffsetNormMixin, EuroBertBlock):
    """Compute y = x + norm(attention(norm(x))) and return y + norm(FFN(norm(y))).

    Args:
        head_dim: Positive integer. See `GroupedQueryAttention`.
        query_pre_attn_scalar: Positive integer. See `Gemma3Attention`.
        **kwargs: Additional arguments for `EuroBertBlock`.

    Source: Gemma Team 2025, Gemma 3, section 2.

    Example:
        >>> import numpy as np
        >>> block = Gemma3Block(
        ...     hidden_dim=8, num_heads=2, intermediate_dim=16, num_key_value_heads=1, head_dim=6,
        ...     query_pre_attn_scalar=6,
        ... )
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    attention_class = Gemma3Attention

    def __init__(self, *args, head_dim: int, query_pre_attn_scalar: int, **kwargs):
        super().__init__(*args, **kwargs)
        self.head_dim = head_dim
        self.query_pre_attn_scalar = query_pre_attn_scalar

    def build(self, input_shape=None):
        super().build(input_shape)
        self.attended_norm = self.make_norm("attended_norm")
        self.update_norm = self.make_norm("update_norm")

    def normalize_attended(self, attended, training=None):
        return self.attended_norm(attended, training=training)

    def normalize_update(self, update, training=None):
        return self.update_norm(update, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Gemma3TextBackbone(UnitOffsetNormMixin, Backbone):
    """Encoder of EmbeddingGemma. See `Backbone` for inputs and outputs.

    The model uses rotary positions. Most blocks use local attention, and every `global_every`-th
    block attends to all tokens. Local attention costs O(L). See `long_attention`. The model has no
    biases, no segments and no pooler.

    Args:
        num_key_value_heads: Positive integer. The number of key and value heads, which are shared
            by groups of query heads. Defaults to None, the number of query heads.
        head_dim: Positive even integer. d, the width of a head. Defaults to 256.
        query_pre_attn_scalar: Positive integer. The attention scores are divided by the square root
            of this value. Defaults to 256.
        local_attention: Positive integer. The window size of local attention in tokens. Half of the
            window is before a token, and half is after it. Defaults to 512.
        global_every: Positive integer. In each group of this many blocks, the last block attends to
            all tokens, and all other blocks use local attention. Defaults to 6.
        global_rope_theta: Positive float. Base of the rotary positions in blocks with global
            attention. Defaults to 1000000.0.
        local_rope_theta: Positive float. Base of the rotary positions in blocks with local
            attention. Defaults to 10000.0.
        **kwargs: Additional arguments for `Backbone`. `layer_norm_epsilon` is the epsilon of the
            RMSNorm layers.

    Source: Schechter Vera et al. 2025, EmbeddingGemma: Powerful and Lightweight Text
    Representations, section 2; Gemma Team 2025, Gemma 3 Technical Report, section 2.

    Example:
        >>> import numpy as np
        >>> backbone = Gemma3TextBackbone(
        ...     vocabulary_size=30, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16,
        ...     num_key_value_heads=1, head_dim=6,
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 1]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    use_bias = False
    defaults: ClassVar = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation": "gelu_pytorch_tanh",
        "layer_norm_epsilon": 1e-6,
        "max_sequence_length": 2048,
        "num_segments": 0,
        "pooler": False,
    }

    @validate_arguments
    def __init__(
        self,
        *args,
        num_key_value_heads: Size | None = None,
        head_dim: EvenSize = 256,
        query_pre_attn_scalar: Size = 256,
        local_attention: Size = 512,
        global_every: Size = 6,
        global_rope_theta: PositiveFloat = 1_000_000.0,
        local_rope_theta: PositiveFloat = 10_000.0,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.num_key_value_heads = num_key_value_heads or self.num_heads
        self.head_dim = head_dim
        self.query_pre_attn_scalar = query_pre_attn_scalar
        self.local_attention = local_attention
        self.global_every = global_every
        self.global_rope_theta = global_rope_theta
        self.local_rope_theta = local_rope_theta

    def make_embeddings(self) -> ScaledTokenEmbeddings:
        return super().make_embeddings(ScaledTokenEmbeddings, max_positions=0)

    def make_block(self, i: int) -> Gemma3Block:
        return super().make_block(i, Gemma3Block, rotary=True)

    def make_final_layer(self) -> RMSNorm:
        return self.make_norm("norm")

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        types = modernbert.make_layer_types(self.num_layers, self.global_every, offset=1)
        return modernbert.make_alternating_contexts(self, inputs, types, self.head_dim)

    def text_vectors(self, sequence_output, inputs: Mapping):
        """Return the output for the last token, (B, D), which classifiers use."""
        return take_last_tokens(sequence_output, inputs.get("padding_mask"))


def read_config(config: Mapping) -> dict:
    """Convert a configuration from any version of transformers to the keys of the first version.

    Fields that are missing are set to the defaults of transformers.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> config = read_config({"layer_types": ["sliding_attention", "full_attention"]})
        >>> config["sliding_window_pattern"], config["use_bidirectional_attention"]
        (2, False)
    """
    missing = {"num_key_value_heads": 4, "sliding_window": 4096}
    config = {**missing, "use_bidirectional_attention": False, **config}
    types = config.get("layer_types")
    if types is not None and _LAYER_TYPES.holds(types):
        config["sliding_window_pattern"] = modernbert.find_global_interval(types, offset=1)
    return config | modernbert.convert_rotary_fields(config, "rope_theta", "rope_local_base_freq")


_LAYER_TYPES = modernbert.make_layer_types_rule(
    f"a list that has {modernbert.GLOBAL!r} at the end of groups of equal size, and "
    f"{modernbert.LOCAL!r} everywhere else",
    offset=1,
)
_CLASSIFIER = Head("score", output_bias=False)

FAMILY = Family(
    name="gemma3_text",
    backbone=Gemma3TextBackbone,
    class_prefix="Gemma3Text",
    prefix="model",
    tensors={
        **EUROBERT.tensors,
        "blocks.{}.attention.query_norm": "layers.{}.self_attn.q_norm",
        "blocks.{}.attention.key_norm": "layers.{}.self_attn.k_norm",
        "blocks.{}.attended_norm": "layers.{}.post_attention_layernorm",
        "blocks.{}.output_norm": "layers.{}.pre_feedforward_layernorm",
        "blocks.{}.update_norm": "layers.{}.post_feedforward_layernorm",
    },
    config_keys={
        **CONFIG_KEYS,
        "dropout": "hidden_dropout",
        "attention_dropout": "attention_dropout",
        "activation": "hidden_activation",
        "layer_norm_epsilon": "rms_norm_eps",
        "num_key_value_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "query_pre_attn_scalar": "query_pre_attn_scalar",
        "local_attention": "sliding_window",
        "global_every": "sliding_window_pattern",
        "global_rope_theta": "rope_theta",
        "local_rope_theta": "rope_local_base_freq",
    },
    read_config=read_config,
    rules={
        "use_bidirectional_attention": one_of(True),
        "layer_types": _LAYER_TYPES,
        "rope_parameters": modernbert.ROTATIONS,
        "rope_scaling": NO_VALUE,
        "attn_logit_softcapping": NO_VALUE,
        "attention_bias": one_of(None, False),
        "tie_word_embeddings": one_of(None, True),
    },
    constants={
        # Used if no tokenizer has these ids, which can be out of range for a small vocabulary.
        **dict.fromkeys(TOKEN_IDS),
        "use_bidirectional_attention": True,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
    },
    token_ids=TOKEN_IDS,
    tokenizer=GEMMA_BPE,
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": _CLASSIFIER,
        "ForTokenClassification": Head("score"),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": Head("lm_head", tied_bias="lm_head.bias"),
    },
    tiny={"num_key_value_heads": 1, "head_dim": 6, "local_attention": 4, "global_every": 2},
)
Gemma3TextBackbone.family = FAMILY
