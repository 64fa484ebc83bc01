"""ModernBERT: pre-norm blocks with gated feed-forward nets, rotary positions, local attention.

Comment letters: B batch, L sequence, D hidden, H heads, F intermediate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import keras
from keras import ops

from encoder_zoo.common.validation import (
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    Rate,
    Rule,
    is_number,
    one_of,
    validate_arguments,
)
from encoder_zoo.encoders.attention import SelfAttention
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.blocks import EncoderBlock
from encoder_zoo.encoders.embeddings import Embeddings
from encoder_zoo.encoders.family import Family, Head, Hidden
from encoder_zoo.encoders.layers import INITIALIZER_RANGE, Dropout, LayerNorm, initializer
from encoder_zoo.encoders.positions import positions_in_texts
from encoder_zoo.encoders.rules import ABSENT, Size
from encoder_zoo.encoders.tokenizers import MODERN_BPE

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # in config.json


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertEmbeddings(Embeddings):
    """`Embeddings` whose LayerNorm has no bias.

    Example:
        >>> ModernBertEmbeddings(10, 4, max_positions=0, num_segments=0).make_norm().center
        False
    """

    def make_norm(self) -> LayerNorm:
        return LayerNorm(
            epsilon=self.layer_norm_epsilon, center=False, name="norm", dtype=self.dtype_policy
        )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RotaryAttention(SelfAttention):
    """`SelfAttention` without biases, whose queries and keys are turned by their positions.

    One dense layer makes queries, keys and values, so that low-rank updates go to all three.

    Args:
        output_deviation: of the output layer's new weights, see `layers.initializer`.
        **kwargs: the other arguments of `SelfAttention`.

    Call arguments:
        rotation: see `rotation`.

    Raises:
        ValueError: "Rotary positions need heads of an even width. Received: hidden_dim=6, ..."

    Source: Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, section
    3.2, with the numbers of a head paired across its two halves, as in GPT-NeoX.

    Example:
        >>> import numpy as np
        >>> attention = RotaryAttention(hidden_dim=8, num_heads=2)
        >>> turns = rotation(np.arange(3)[None], 10_000.0, 4)
        >>> keras.ops.shape(attention(np.zeros((1, 3, 8), "float32"), rotation=turns))
        (1, 3, 8)
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        *args,
        output_deviation: float = INITIALIZER_RANGE,
        **kwargs,
    ):
        super().__init__(hidden_dim, num_heads, *args, **kwargs)
        self.output_deviation = output_deviation
        if hidden_dim // num_heads % 2:
            raise ValueError(
                "Rotary positions need heads of an even width. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}."
            )

    def build(self, input_shape=None):
        self.query_key_value_dense = self.dense("query_key_value", 3 * self.hidden_dim)
        self.output_dense = self.dense("output", self.hidden_dim, self.output_deviation)
        for layer in (self.query_key_value_dense, self.output_dense):
            layer.build((None, self.hidden_dim))
        self.dropout_layer = Dropout(self.attention_dropout, dtype=self.dtype_policy)

    def dense(self, name: str, units: int, stddev: float = INITIALIZER_RANGE) -> keras.layers.Dense:
        """A projection from D, without a bias."""
        return keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=initializer(stddev),
            name=name,
            dtype=self.dtype_policy,
        )

    @property
    def lora_layers(self) -> list[keras.layers.Dense]:
        return [self.query_key_value_dense]

    @property
    def projection_layers(self) -> list[keras.layers.Dense]:
        return [self.query_key_value_dense]

    def project(self, x, rotation):
        batch, length = ops.shape(x)[:2]
        rows = self.query_key_value_dense(ops.reshape(x, (-1, self.hidden_dim)))  # (B L, 3 D)
        heads = (batch, length, 3, self.num_heads, self.hidden_dim // self.num_heads)
        query, key, value = ops.unstack(ops.reshape(rows, heads), num=3, axis=2)
        return rotated(query, rotation), rotated(key, rotation), value

    def scores(self, query, key, training=None, rotation=None):
        return super().scores(query, key, training=training)


def rotation(
    positions: keras.KerasTensor, base: float, head_dim: int
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Cosines and sines of the angles by which each position turns the pairs of a head's numbers.

    Args:
        positions: (1 or B, L) int.
        base: the angle of a position falls from 1 for the first pair to almost 1 / base.
        head_dim: numbers of a head, twice as many as pairs.

    Returns:
        Two (1 or B, L, 1, head_dim / 2) float32.

    Source: Su et al. 2021, RoFormer, section 3.2.2.

    Example:
        >>> import numpy as np
        >>> cosines, sines = rotation(np.array([[0, 1]]), 10_000.0, 4)
        >>> np.array(sines)[0, :, 0].round(2).tolist()
        [[0.0, 0.0], [0.8399999737739563, 0.009999999776482582]]
    """
    speeds = base ** (-ops.arange(0, head_dim, 2, dtype="float32") / head_dim)
    angles = ops.cast(positions, "float32")[:, :, None, None] * speeds
    return ops.cos(angles), ops.sin(angles)


def rotated(x: keras.KerasTensor, rotation: tuple) -> keras.KerasTensor:
    """(B, L, H, D/H), each pair turned: a number of the first half with its twin in the second.

    Args:
        x: (B, L, H, D/H).
        rotation: see `rotation`.
    """
    cosines, sines = (ops.cast(part, "float32") for part in rotation)
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    return ops.cast(ops.concatenate(turned, axis=-1), x.dtype)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertBlock(EncoderBlock):
    """Attention and a gated feed-forward net, each of its normalised input, to which it is added.

    Args:
        normalizes_first: whether there is a LayerNorm before the attention. The first block has
            none, as the embeddings' comes right before it.
        output_deviation: of the new weights of both sublayers' last layers.
        **kwargs: the other arguments of `EncoderBlock`; `dropout` is that of the gated numbers,
            `attention_dropout` also that of the attention's output.

    Call arguments:
        rotation: see `rotation`.

    Source: Warner et al. 2024, ModernBERT, section 2.1; the gate is that of Shazeer 2020, GLU
    Variants Improve Transformer.

    Example:
        >>> import numpy as np
        >>> block = ModernBertBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> turns = rotation(np.arange(3)[None], 10_000.0, 4)
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32"), rotation=turns))
        (1, 3, 8)
    """

    def __init__(
        self,
        *args,
        normalizes_first: bool = True,
        output_deviation: float = INITIALIZER_RANGE,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.normalizes_first = normalizes_first
        self.output_deviation = output_deviation

    def build(self, input_shape=None):
        self.attention_norm = self._norm("attention_norm") if self.normalizes_first else None
        self.attention = self.make_attention()
        self.intermediate_norm = self._norm("intermediate_norm")
        self.intermediate_dense = self._dense(2 * self.intermediate_dim, "intermediate")
        self.output_dense = self._dense(self.hidden_dim, "output", self.output_deviation)
        self.attention_dropout_layer = Dropout(self.attention_dropout, dtype=self.dtype_policy)
        self.gated_dropout_layer = Dropout(self.dropout, dtype=self.dtype_policy)
        if self.attention_norm is not None:
            self.attention_norm.build((None, self.hidden_dim))
        self.attention.build((None, None, self.hidden_dim))
        self.intermediate_norm.build((None, self.hidden_dim))
        self.intermediate_dense.build((None, self.hidden_dim))
        self.output_dense.build((None, self.intermediate_dim))

    def make_attention(self) -> RotaryAttention:
        return RotaryAttention(
            self.hidden_dim,
            self.num_heads,
            self.attention_dropout,
            output_deviation=self.output_deviation,
            name="attention",
            dtype=self.dtype_policy,
        )

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(
            epsilon=self.layer_norm_epsilon, center=False, name=name, dtype=self.dtype_policy
        )

    def _dense(
        self, units: int, name: str, stddev: float = INITIALIZER_RANGE
    ) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=initializer(stddev),
            name=name,
            dtype=self.dtype_policy,
        )

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        shape, rows = ops.shape(x), (-1, self.hidden_dim)
        x = ops.reshape(x, rows)  # (B L, D)
        attended = self.attention(
            ops.reshape(self._normed(x, training), shape),
            attention_mask=attention_mask,
            training=training,
            return_probabilities=return_probabilities,
            **context,
        )
        if return_probabilities:
            attended, probabilities = attended
        attended = ops.reshape(attended, rows)
        x = self.attention_dropout_layer(attended, training=training, residual=x)
        inner = self.intermediate_dense(self.intermediate_norm(x, training=training))  # (B L, 2 F)
        inner, gate = ops.split(inner, 2, axis=-1)
        inner = self._activated(inner, training) * gate
        x = x + self.output_dense(self.gated_dropout_layer(inner, training=training))
        x = ops.reshape(x, shape)
        return (x, probabilities) if return_probabilities else x

    def project(self, x, attention_mask=None, training=None, **context):
        return super().project(self._normed(x, training), **context)

    @property
    def projection_layers(self) -> list[keras.layers.Layer]:
        norms = [] if self.attention_norm is None else [self.attention_norm]
        return [*norms, *super().projection_layers]

    def _normed(self, x, training):
        """What the attention sees of the block's input."""
        return x if self.attention_norm is None else self.attention_norm(x, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertBackbone(Backbone):
    """ModernBERT's encoder; inputs and outputs as for `Backbone`, with its own defaults.

    Positions are rotary. Blocks attend locally, but for every few, which attend to all tokens.
    Local attention costs O(L): see `long_attention`.

    Args:
        vocabulary_size: number of token ids.
        dropout: share of the gated numbers inside the feed-forward nets dropped in training.
        attention_dropout: share of attention probabilities, and of the attention's output.
        embedding_dropout: share of the embeddings.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        max_sequence_length: the most tokens that texts are truncated to.
        num_segments: 0: ModernBERT has no segment embeddings.
        pooler: False: ModernBERT has none.
        local_attention: how many tokens a local block's attention reaches over, half of them
            before a token and half behind.
        global_every: the blocks at places that this divides, from 0, attend to all tokens.
        global_rope_theta: base of the rotary positions in these blocks.
        local_rope_theta: that in the others.
        pooling: what a sequence classifier reads: "cls", the first token, or "mean", the mean of
            all.
        **kwargs: the other arguments of `Backbone`.

    Source: Warner et al. 2024, Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder
    for Fast, Memory Efficient, and Long Context Finetuning and Inference, section 2.

    Example:
        >>> import numpy as np
        >>> backbone = ModernBertBackbone(
        ...     vocabulary_size=30, num_layers=4, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    @validate_arguments
    def __init__(
        self,
        vocabulary_size: Size,
        *args,
        dropout: Rate = 0.0,
        attention_dropout: Rate = 0.0,
        embedding_dropout: Rate = 0.0,
        layer_norm_epsilon: Fraction = 1e-5,
        max_sequence_length: Size = 8192,
        num_segments: NonNegativeInt = 0,
        pooler: bool = False,
        local_attention: Size = 128,
        global_every: Size = 3,
        global_rope_theta: PositiveFloat = 160_000.0,
        local_rope_theta: PositiveFloat = 10_000.0,
        pooling: Literal["cls", "mean"] = "cls",
        **kwargs,
    ):
        super().__init__(
            vocabulary_size,
            *args,
            dropout=dropout,
            attention_dropout=attention_dropout,
            layer_norm_epsilon=layer_norm_epsilon,
            max_sequence_length=max_sequence_length,
            num_segments=num_segments,
            pooler=pooler,
            **kwargs,
        )
        self.embedding_dropout = embedding_dropout
        self.local_attention = local_attention
        self.global_every = global_every
        self.global_rope_theta = global_rope_theta
        self.local_rope_theta = local_rope_theta
        self.pooling = pooling

    def make_embeddings(self) -> ModernBertEmbeddings:
        return super().make_embeddings(
            ModernBertEmbeddings, max_positions=0, dropout=self.embedding_dropout
        )

    def make_block(self, i: int) -> ModernBertBlock:
        return super().make_block(
            i, ModernBertBlock, normalizes_first=i > 0, output_deviation=deep_deviation(self)
        )

    def make_final_layer(self) -> LayerNorm:
        return LayerNorm(
            epsilon=self.layer_norm_epsilon, center=False, name="norm", dtype=self.dtype_policy
        )

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        starts, length = inputs.get("text_starts"), ops.shape(inputs["token_ids"])[1]
        if starts is None:
            positions = ops.arange(length, dtype="int32")[None]
        else:
            positions = positions_in_texts(starts, length)
        width = self.hidden_dim // self.num_heads
        everywhere = {
            "attention_mask": self.attention_mask(inputs),
            "rotation": rotation(positions, self.global_rope_theta, width),
        }
        nearby = {
            "attention_mask": self.attention_mask(inputs, reach=self.local_attention // 2),
            "rotation": rotation(positions, self.local_rope_theta, width),
        }
        return [nearby if i % self.global_every else everywhere for i in range(self.num_layers)]

    def text_vectors(self, sequence_output, inputs: Mapping):
        if self.pooling == "cls":
            return super().text_vectors(sequence_output, inputs)
        real = inputs.get("padding_mask")
        if real is None:
            real = ops.ones_like(inputs["token_ids"])
        # In float32: thousands of tokens are too many for the sum in half precision.
        real = ops.cast(real, "float32")[:, :, None]
        x = ops.cast(sequence_output, "float32")
        mean = ops.sum(x * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)
        return ops.cast(mean, sequence_output.dtype)


def deep_deviation(backbone: Backbone) -> float:
    """Standard stddev of the new weights of what is added to the residual stream.

    The more layers add to it, the smaller each is, so that their sum is as large.

    Source: Warner et al. 2024, section 2.2.2; Shoeybi et al. 2019, Megatron-LM.
    """
    return INITIALIZER_RANGE / (2 * backbone.num_layers) ** 0.5


def wide_deviation(backbone: Backbone) -> float:
    """That of a classifier's new weights: its logits are as large as what it reads."""
    return backbone.hidden_dim**-0.5


# -- config.json -------------------------------------------------------------------------------


def read_config(config: Mapping) -> dict:
    """A configuration of any age in the words of the first, which all versions read.

    transformers 5 writes what blocks attend to as a list, and the bases of rotary positions in
    objects of their own. What these fields may hold, the family's rules say.

    Args:
        config: contents of config.json.

    Raises:
        ValueError: "config.json: layer_types has 3 entries. Expected one for each of the 2 ..."

    Example:
        >>> types = ["full_attention", "sliding_attention", "full_attention"]
        >>> config = read_config({"num_hidden_layers": 3, "layer_types": types})
        >>> config["global_attn_every_n_layers"]
        2
    """
    config = dict(config)
    types = config.get("layer_types")
    if types is not None and _TYPES.holds(types):
        if len(types) != config.get("num_hidden_layers"):
            raise ValueError(
                f"config.json: layer_types has {len(types)} entries. Expected one for each of the "
                f"{config.get('num_hidden_layers')!r} layers."
            )
        every = config.get("global_attn_every_n_layers", 3)
        fits = type(every) is int and every > 0 and types == _alternating(len(types), every)
        config["global_attn_every_n_layers"] = every if fits else _period(types)
    bases = config.get("rope_parameters")
    if bases is not None and _BASES.holds(bases):
        for kind, key in ((GLOBAL, "global_rope_theta"), (LOCAL, "local_rope_theta")):
            if (base := (bases.get(kind) or {}).get("rope_theta")) is not None:
                config[key] = base
    if "local_rope_theta" in config and config["local_rope_theta"] is None:
        config["local_rope_theta"] = config.get("global_rope_theta", 160_000.0)
    return config


def _alternating(layers: int, every: int) -> list[str]:
    return [LOCAL if i % every else GLOBAL for i in range(layers)]


def _period(types: list[str]) -> int:
    """Places from one global block to the next; as many as there are where there is one."""
    return types.index(GLOBAL, 1) if GLOBAL in types[1:] else len(types)


def _are_alternating(types: object) -> bool:
    return (
        isinstance(types, list)
        and bool(types)
        and types == _alternating(len(types), _period(types))
    )


def _is_base(value: object) -> bool:
    return is_number(value) and value > 0


def _are_bases(bases: object) -> bool:
    """Whether these are rotary positions as here, of which only the bases differ."""
    if not isinstance(bases, dict) or not set(bases) <= {GLOBAL, LOCAL}:
        return False
    kinds = [kind for kind in bases.values() if kind is not None]
    return all(
        isinstance(kind, dict)
        and set(kind) <= {"rope_type", "rope_theta"}
        and kind.get("rope_type", "default") == "default"
        and ("rope_theta" not in kind or _is_base(kind["rope_theta"]))
        for kind in kinds
    )


_TYPES = Rule(
    lambda v: v is None or _are_alternating(v),
    f"a list with a {GLOBAL!r} first and then at equal distances, and {LOCAL!r} elsewhere",
)
_BASES = Rule(
    lambda v: v is None or _are_bases(v),
    f"objects for {GLOBAL!r} and {LOCAL!r} of rope_theta and the rope_type 'default'",
)
_TOKEN_IDS = {
    "pad_token_id": "pad_token_id",
    "bos_token_id": "start_token_id",
    "eos_token_id": "end_token_id",
    "cls_token_id": "start_token_id",
    "sep_token_id": "end_token_id",
}
_HIDDEN = Hidden("head.dense", "gelu", norm="head.norm", bias=False, stddev=deep_deviation)
_CLASSIFIER = Head(
    "classifier",
    _HIDDEN,
    dropout="classifier_dropout",
    default_dropout=0.0,
    stddev=wide_deviation,
)

FAMILY = Family(
    name="modernbert",
    backbone=ModernBertBackbone,
    class_prefix="ModernBert",
    prefix="model",
    tensors={
        "embeddings.token_embedding": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "blocks.{}.attention.query_key_value_dense": "layers.{}.attn.Wqkv",
        "blocks.{}.attention.output_dense": "layers.{}.attn.Wo",
        "blocks.{}.attention_norm": "layers.{}.attn_norm",
        "blocks.{}.intermediate_norm": "layers.{}.mlp_norm",
        "blocks.{}.intermediate_dense": "layers.{}.mlp.Wi",
        "blocks.{}.output_dense": "layers.{}.mlp.Wo",
        "final_layer": "final_norm",
    },
    config_keys={
        "vocabulary_size": "vocab_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "hidden_dim": "hidden_size",
        "intermediate_dim": "intermediate_size",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "embedding_dropout": "embedding_dropout",
        "activation": "hidden_activation",
        "layer_norm_epsilon": "norm_eps",
        "max_sequence_length": "max_position_embeddings",
        "local_attention": "local_attention",
        "global_every": "global_attn_every_n_layers",
        "global_rope_theta": "global_rope_theta",
        "local_rope_theta": "local_rope_theta",
        "pooling": "classifier_pooling",
    },
    read_config=read_config,
    rules={
        "layer_types": _TYPES,
        "rope_parameters": _BASES,
        "rope_scaling": ABSENT,
        "partial_rotary_factor": one_of(None, 1),
        "head_dim": ABSENT,
        "sliding_window": ABSENT,  # `local_attention` says it
        "attention_bias": one_of(False),
        "mlp_bias": one_of(False),
        "norm_bias": one_of(False),
        "classifier_bias": one_of(False),
        "decoder_bias": one_of(True),
        "classifier_activation": one_of("gelu"),
    },
    constants={
        # Where no tokenizer tells: transformers has those of the first checkpoints otherwise,
        # beyond the end of a small vocabulary.
        **dict.fromkeys(_TOKEN_IDS),
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "classifier_activation": "gelu",
        "initializer_range": 0.02,
    },
    token_ids=_TOKEN_IDS,
    tokenizer=MODERN_BPE,
    # Of the example of fine-tuning on GLUE that was released with the paper.
    learning_rate=8e-5,
    weight_decay=8e-6,
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForTokenClassification": _CLASSIFIER,
        "ForQuestionAnswering": _CLASSIFIER,
        "ForMaskedLM": Head("decoder", _HIDDEN, tied_bias="decoder.bias"),
    },
    tiny={"local_attention": 4},
)
ModernBertBackbone.family = FAMILY
