"""EuroBERT: the blocks of Llama with bidirectional attention.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, G key and value
heads, d head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import PositiveFloat, one_of, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import Embeddings
from encoder_zoo.encoders.families.bert import CONFIG_KEYS, TOKEN_IDS
from encoder_zoo.encoders.family import Family, Head, Hidden, map_attention_names
from encoder_zoo.encoders.gated_block import GatedBlock
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.kernels.attention import FastAttention
from encoder_zoo.encoders.layers import (
    DirectCallMixin,
    LayerMixin,
    ReversibleEmbedding,
    Size,
    reshape,
)
from encoder_zoo.encoders.positions import average_tokens, rotate
from encoder_zoo.encoders.pre_norm_block import PreNormBlock
from encoder_zoo.encoders.rope import ROPE_RULES, RopeScaling, ScaledRotation, convert_rope_fields
from encoder_zoo.encoders.tokenizers import LLAMA_BPE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TokenEmbeddings(Embeddings):
    """Compute token embeddings without normalization, (B, L, D). For arguments, see `Embeddings`.

    Example:
        >>> layer = TokenEmbeddings(vocabulary_size=10, hidden_dim=4)
        >>> keras.ops.shape(layer(keras.ops.array([[1, 2, 3]])))
        (1, 3, 4)
    """

    def build(self, input_shape=None):
        if not hasattr(self, "token_embedding"):  # the table can be shared, see `share_tables`
            kind = ReversibleEmbedding
            self.token_embedding = self.make_table("token_embedding", self.vocabulary_size, kind)
            self.position_embedding = self.segment_embedding = self.norm = None
        self.dropout_layer = self.make_dropout(self.dropout)
        self.projection = None

    def call(self, token_ids, segment_ids=None, padding_mask=None, text_starts=None, training=None):
        shape = (*ops.shape(token_ids), self.hidden_dim)
        x = ops.reshape(self.token_embedding(token_ids), (-1, self.hidden_dim))
        return ops.reshape(self.dropout_layer(x, training=training), shape)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RMSNorm(DirectCallMixin, ConfigFromSignature, keras.layers.Layer):
    """Root mean square normalization, x / sqrt(mean(x²) + ε) ⊙ γ, over the last axis.

    The mean is computed in float32.

    Args:
        epsilon: Float. Value that is added to the mean. Defaults to 1e-5.

    Source: Zhang and Sennrich 2019, Root Mean Square Layer Normalization, section 4.

    Example:
        >>> import numpy as np
        >>> RMSNorm(epsilon=0.0)(np.array([[3.0, 4.0]], "float32")).numpy().round(2).tolist()
        [[0.8500000238418579, 1.1299999952316284]]
    """

    gamma_initializer = "ones"

    def __init__(self, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        shape = (input_shape[-1],)
        self.gamma = self.add_weight(shape=shape, initializer=self.gamma_initializer, name="gamma")
        self.output_shape = tuple(input_shape)  # for `summary()`

    def call(self, inputs, training=None):
        x = self.normalize(inputs)
        return ops.cast(x, inputs.dtype) * ops.cast(self.gamma, inputs.dtype)

    def normalize(self, inputs):
        """Compute x / sqrt(mean(x²) + ε) in float32."""
        x = ops.cast(inputs, "float32")
        return x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)


class RMSNormMixin(LayerMixin):
    """Mixin that creates `RMSNorm` layers instead of `LayerNorm` layers.

    Attributes:
        norm_class: The layer class to use. Families can override this attribute.
    """

    norm_class = RMSNorm

    def make_norm(self, name: str, width: int | None = None) -> RMSNorm:
        """Create and build an `RMSNorm` layer. The default width is `hidden_dim`."""
        layer = self.norm_class(epsilon=self.layer_norm_epsilon, name=name, dtype=self.dtype_policy)
        layer.build((None, width or self.hidden_dim))
        return layer


@keras.saving.register_keras_serializable(package="encoder_zoo")
class GroupedQueryAttention(FastAttention):
    """`SelfAttention` with fewer key and value heads than query heads.

    Args:
        num_key_value_heads: Positive integer. G, a divisor of `num_heads`.
        head_dim: Positive integer. d, the width of a head. Defaults to None, which is `hidden_dim`
            divided by `num_heads`.
        **kwargs: Additional arguments for `SelfAttention`.

    Raises:
        ValueError: If `num_heads` is not a multiple of `num_key_value_heads`.

    Source: Ainslie et al. 2023, GQA: Training Generalized Multi-Query Transformer Models from
    Multi-Head Checkpoints, section 2.2.

    Example:
        >>> import numpy as np
        >>> attention = GroupedQueryAttention(hidden_dim=8, num_heads=4, num_key_value_heads=2)
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    def __init__(self, *args, num_key_value_heads: int, head_dim: int | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        if self.num_heads % num_key_value_heads:
            raise invalid(
                "num_heads",
                self.num_heads,
                f"a multiple of num_key_value_heads={num_key_value_heads}",
            )
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim or self.hidden_dim // self.num_heads

    def build(self, input_shape=None):
        inner, width = (n * self.head_dim for n in (self.num_heads, self.num_key_value_heads))
        self.query_dense = self.make_dense("query", inner)
        self.key_dense = self.make_dense("key", width)
        self.value_dense = self.make_dense("value", width)
        self.output_dense = self.make_dense(
            "output", self.hidden_dim, inner, stddev=self.output_stddev
        )
        self.dropout_layer = self.make_dropout(self.attention_dropout)

    def project(self, x, rotation=None, **context):
        """Compute queries, keys and values, each (B, L, H, d). Each group of heads shares a key."""
        batch, length = ops.shape(x)[:2]
        rows, width = reshape(x, (-1, self.hidden_dim)), self.head_dim
        layers = (self.query_dense, self.key_dense, self.value_dense)
        query, key, value = (
            reshape(layer(rows), (batch, length, layer.units // width, width)) for layer in layers
        )
        query, key = self.normalize_heads(query, key)
        if self.rotary:
            query, key = rotate(query, rotation), rotate(key, rotation)
        shared = self.num_heads // self.num_key_value_heads
        if shared > 1:
            key, value = ops.repeat(key, shared, axis=2), ops.repeat(value, shared, axis=2)
        return query, key, value

    def normalize_heads(self, query, key):
        """Normalize queries and keys (B, L, H or G, d). By default, they are not changed."""
        return query, key

    def join_heads(self, mixed, x):
        inner = reshape(mixed, (-1, self.num_heads * self.head_dim))  # (B L, H d)
        return reshape(self.output_dense(inner), ops.shape(x))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EuroBertBlock(RMSNormMixin, GatedBlock, PreNormBlock):
    """`PreNormBlock` with RMSNorm and a gated feed-forward network.

    Args:
        num_key_value_heads: Positive integer. See `GroupedQueryAttention`.
        **kwargs: Additional arguments for `EncoderBlock`.

    Source: Boizard et al. 2025, EuroBERT, section 2.1; Touvron et al. 2023, LLaMA, section 2.2.

    Example:
        >>> import numpy as np
        >>> block = EuroBertBlock(
        ...     hidden_dim=8, num_heads=4, intermediate_dim=16, num_key_value_heads=2
        ... )
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    attention_class = GroupedQueryAttention

    def __init__(self, *args, num_key_value_heads: int, **kwargs):
        super().__init__(*args, **kwargs)
        self.num_key_value_heads = num_key_value_heads


@keras.saving.register_keras_serializable(package="encoder_zoo")
class EuroBertBackbone(RMSNormMixin, ScaledRotation, Backbone):
    """EuroBERT encoder. See `Backbone` for inputs and outputs.

    The model uses rotary positions. It has no biases, no segments and no pooler.

    Args:
        num_key_value_heads: Positive integer. The number of key and value heads, which are shared
            by groups of query heads. Defaults to None, the number of query heads.
        rope_theta: Positive float. Base of the rotary positions. Defaults to 10000.0.
        rope_scaling: Dictionary or None. See `GteBackbone`.
        pooling: String. How a sequence classifier reads the tokens: "bos" uses the first token,
            "mean" uses the mean of all tokens, and "late" averages the logits of all tokens.
            Defaults to "late".
        **kwargs: Additional arguments for `Backbone`. `layer_norm_epsilon` is the epsilon of the
            RMSNorm layers.

    Source: Boizard et al. 2025, EuroBERT: Scaling Multilingual Encoders for European Languages,
    section 2.1.

    Example:
        >>> import numpy as np
        >>> backbone = EuroBertBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=4, hidden_dim=8, intermediate_dim=16,
        ...     num_key_value_heads=2,
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    use_bias = False
    defaults: ClassVar = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation": "silu",
        "layer_norm_epsilon": 1e-5,
        "max_sequence_length": 8192,
        "num_segments": 0,
        "pooler": False,
    }

    @validate_arguments
    def __init__(
        self,
        *args,
        num_key_value_heads: Size | None = None,
        rope_theta: PositiveFloat = 10_000.0,
        rope_scaling: RopeScaling = None,
        pooling: Literal["late", "mean", "bos"] = "late",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.num_key_value_heads = num_key_value_heads or self.num_heads
        self.rope_theta = rope_theta
        self.rope_scaling = rope_scaling and dict(rope_scaling)
        self.pooling = pooling

    @property
    def pools_logits(self) -> bool:
        """Return True if classifiers compute the mean of all token logits."""
        return self.pooling == "late"

    def make_embeddings(self) -> TokenEmbeddings:
        return super().make_embeddings(TokenEmbeddings, max_positions=0)

    def make_block(self, i: int) -> EuroBertBlock:
        return super().make_block(i, EuroBertBlock, rotary=True)

    def make_final_layer(self) -> RMSNorm:
        return self.make_norm("norm")

    def text_vectors(self, sequence_output, inputs: Mapping):
        if self.pooling == "bos":
            return super().text_vectors(sequence_output, inputs)
        return average_tokens(sequence_output, add_padding_mask(inputs)["padding_mask"])


def read_config(config: Mapping) -> dict:
    """Convert a configuration from any version of transformers to the same keys.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> read_config({"num_attention_heads": 12, "rope_theta": 250000})["rope_theta"]
        250000
    """
    config = convert_rope_fields(config)
    if config.get("num_key_value_heads") is None and "num_attention_heads" in config:
        config["num_key_value_heads"] = config["num_attention_heads"]
    return config


_CLASSIFIER = Head("classifier", Hidden("dense", "gelu"))

FAMILY = Family(
    name="eurobert",
    backbone=EuroBertBackbone,
    class_prefix="EuroBert",
    prefix="model",
    tensors={
        "embeddings.token_embedding": "embed_tokens",
        **map_attention_names("blocks.{}.attention", "layers.{}.self_attn.*_proj"),
        "blocks.{}.attention_norm": "layers.{}.input_layernorm",
        "blocks.{}.output_norm": "layers.{}.post_attention_layernorm",
        "blocks.{}.gate_dense": "layers.{}.mlp.gate_proj",
        "blocks.{}.up_dense": "layers.{}.mlp.up_proj",
        "blocks.{}.output_dense": "layers.{}.mlp.down_proj",
        "final_layer": "norm",
    },
    config_keys={
        **CONFIG_KEYS,
        "dropout": "hidden_dropout",
        "attention_dropout": "attention_dropout",
        "layer_norm_epsilon": "rms_norm_eps",
        "num_key_value_heads": "num_key_value_heads",
        "rope_theta": "rope_theta",
        "rope_scaling": "rope_scaling",
        "pooling": "classifier_pooling",
    },
    read_config=read_config,
    rules={
        **ROPE_RULES,
        "attention_bias": one_of(None, False),
        "mlp_bias": one_of(None, False),
        "tie_word_embeddings": one_of(None, False),
    },
    constants={
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
    },
    token_ids={**TOKEN_IDS, "mask_token_id": "mask_token_id"},
    tokenizer=LLAMA_BPE,
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": _CLASSIFIER,
        "ForTokenClassification": Head("classifier"),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": Head("lm_head"),
    },
    tiny={
        "num_key_value_heads": 1,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "pooling": "late",
    },
)
EuroBertBackbone.family = FAMILY
