"""ModernBERT: pre-norm blocks with local attention, rotary positions and gated networks.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, F intermediate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import keras
from keras import ops

from encoder_zoo.common.validation import (
    PositiveFloat,
    Rate,
    Rule,
    is_number,
    one_of,
    validate_arguments,
)
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.core import EncoderBlock
from encoder_zoo.encoders.families.bert import CONFIG_KEYS, TOKEN_IDS
from encoder_zoo.encoders.family import Family, Head, Hidden
from encoder_zoo.encoders.inputs import add_padding_mask
from encoder_zoo.encoders.layers import INITIALIZER_RANGE, NO_VALUE, Activation, LayerNorm, Size
from encoder_zoo.encoders.positions import average_tokens
from encoder_zoo.encoders.rope import (
    RopeScaling,
    compute_scaled_rotation,
    convert_rope_fields,
    is_rope_scaling,
)
from encoder_zoo.encoders.tokenizers import MODERN_BPE

GLOBAL, LOCAL = "full_attention", "sliding_attention"  # the names in config.json


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertBlock(EncoderBlock):
    """Compute y = x + attention(LayerNorm(x)) and return y + FFN(LayerNorm(y)).

    Args:
        normalizes_first: Boolean. Whether to apply a LayerNorm before the attention. The first
            block does not need it, because the embeddings end with a LayerNorm. Defaults to True.
        **kwargs: Additional arguments for `EncoderBlock`. `dropout` is applied to the gated values,
            and `attention_dropout` also to the output of the attention.

    Source: Warner et al. 2024, ModernBERT, section 2.1; Xiong et al. 2020, On Layer Normalization
    in the Transformer Architecture (pre-norm).

    Example:
        >>> import numpy as np
        >>> block = ModernBertBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    def __init__(self, *args, normalizes_first: bool = True, **kwargs):
        super().__init__(*args, **kwargs)
        self.normalizes_first = normalizes_first

    def build(self, input_shape=None):
        self.attention_norm = self.make_norm("attention_norm") if self.normalizes_first else None
        self.attention = self.make_attention()
        self.intermediate_norm = self.make_norm("intermediate_norm")
        self.make_feed_forward()
        self.attention_dropout_layer = self.make_dropout(self.attention_dropout)
        self.gated_dropout_layer = self.make_dropout(self.dropout)
        self.attention.build((None, None, self.hidden_dim))

    def call(self, x, attention_mask=None, training=None, return_probabilities=False, **context):
        shape, rows = ops.shape(x), (-1, self.hidden_dim)
        x = ops.reshape(x, rows)  # (B L, D)
        normed = ops.reshape(self._normalize_input(x, training), shape)
        context.update(training=training, return_probabilities=return_probabilities)
        attended = self.attention(normed, attention_mask=attention_mask, **context)
        if return_probabilities:
            attended, probabilities = attended
        attended = ops.reshape(attended, rows)
        x = self.attention_dropout_layer(attended, training=training, residual=x)
        normed = self.intermediate_norm(x, training=training)
        inner = self.compute_intermediate(normed, training)  # (B L, F)
        x = x + self.output_dense(self.gated_dropout_layer(inner, training=training))
        x = ops.reshape(x, shape)
        return (x, probabilities) if return_probabilities else x

    def project(self, x, attention_mask=None, training=None, **context):
        return super().project(self._normalize_input(x, training), **context)

    @property
    def projection_layers(self) -> list[keras.layers.Layer]:
        norms = [] if self.attention_norm is None else [self.attention_norm]
        return [*norms, *super().projection_layers]

    def _normalize_input(self, x, training):
        """Normalize the attention input, unless the block has no LayerNorm for this input."""
        return x if self.attention_norm is None else self.attention_norm(x, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ModernBertBackbone(Backbone):
    """ModernBERT encoder. See `Backbone` for inputs and outputs.

    The model uses rotary positions. Most blocks use local attention, and every `global_every`-th
    block attends to all tokens. Local attention costs O(L). See `long_attention`. The model has no
    segments and no pooler.

    Args:
        dropout: Float between 0 and 1. The dropout rate for the gated values in the feed-forward
            networks. Defaults to 0.0.
        attention_dropout: Float between 0 and 1. The dropout rate for the attention probabilities
            and the output of the attention. Defaults to 0.0.
        embedding_dropout: Float between 0 and 1. The dropout rate for the embeddings. Defaults to
            0.0.
        local_attention: Positive integer. The window size of local attention in tokens. Half of the
            window is before a token, and half is after it. Defaults to 128.
        global_every: Positive integer. Blocks whose index is a multiple of this value attend to all
            tokens. Defaults to 3.
        global_rope_theta: Positive float. Base of the rotary positions in blocks with global
            attention. Defaults to 160000.0.
        local_rope_theta: Positive float. Base of the rotary positions in blocks with local
            attention. Defaults to 10000.0.
        rope_scaling: Optional dictionary. Scaling of the rotary positions in all blocks for texts
            that are longer than in pretraining, for example `{"rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 8192}`. The types "linear" and "dynamic" are also
            supported. Defaults to None, which means no scaling.
        pooling: String. How a sequence classifier reads the tokens: "cls" uses the first token, and
            "mean" uses the mean of all tokens. Defaults to "cls".
        classifier_activation: String. The activation of the dense layer before the output layer of
            every head. Defaults to "gelu".
        **kwargs: Additional arguments for `Backbone`.

    Source: Warner et al. 2024, Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for
    Fast, Memory Efficient, and Long Context Finetuning and Inference, section 2.

    Example:
        >>> import numpy as np
        >>> backbone = ModernBertBackbone(
        ...     vocabulary_size=30, num_layers=4, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    use_bias = False
    defaults: ClassVar = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "max_sequence_length": 8192,
        "num_segments": 0,
        "pooler": False,
    }

    @validate_arguments
    def __init__(
        self,
        *args,
        embedding_dropout: Rate = 0.0,
        local_attention: Size = 128,
        global_every: Size = 3,
        global_rope_theta: PositiveFloat = 160_000.0,
        local_rope_theta: PositiveFloat = 10_000.0,
        rope_scaling: RopeScaling = None,
        pooling: Literal["cls", "mean"] = "cls",
        classifier_activation: Activation = "gelu",
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.embedding_dropout = embedding_dropout
        self.local_attention = local_attention
        self.global_every = global_every
        self.global_rope_theta = global_rope_theta
        self.local_rope_theta = local_rope_theta
        self.rope_scaling = rope_scaling and dict(rope_scaling)
        self.pooling = pooling
        self.classifier_activation = classifier_activation

    def make_embeddings(self) -> keras.layers.Layer:
        return super().make_embeddings(max_positions=0, dropout=self.embedding_dropout)

    def make_block(self, i: int) -> ModernBertBlock:
        return super().make_block(
            i,
            ModernBertBlock,
            gated=True,
            rotary=True,
            fused_qkv=True,
            normalizes_first=i > 0,
            output_stddev=compute_residual_stddev(self),
        )

    def make_final_layer(self) -> LayerNorm:
        return self.make_norm("norm")

    def block_contexts(self, inputs: Mapping) -> list[Mapping]:
        types = make_layer_types(self.num_layers, self.global_every)
        width = self.hidden_dim // self.num_heads
        return make_alternating_contexts(self, inputs, types, width, self.rope_scaling)

    def text_vectors(self, sequence_output, inputs: Mapping):
        if self.pooling == "cls":
            return super().text_vectors(sequence_output, inputs)
        return average_tokens(sequence_output, add_padding_mask(inputs)["padding_mask"])


def make_alternating_contexts(
    backbone: Backbone,
    inputs: Mapping,
    types: Sequence[str],
    head_dim: int,
    scaling: Mapping | None = None,
) -> list[Mapping]:
    """Return the context of each block, for global or local attention. See `block_contexts`.

    Args:
        backbone: A backbone with the arguments `local_attention`, `global_rope_theta` and
            `local_rope_theta`.
        inputs: Dictionary of tensors, the inputs of the backbone.
        types: List of strings. `GLOBAL` or `LOCAL` for each block.
        head_dim: Even integer. The width of a head.
        scaling: Optional dictionary. See `compute_scaled_rotation`.
    """

    def make_context(theta: float, max_distance: int | None) -> Mapping:
        trained_length = backbone.max_sequence_length
        return {
            "attention_mask": backbone.attention_mask(inputs, max_distance=max_distance),
            "rotation": compute_scaled_rotation(inputs, theta, head_dim, scaling, trained_length),
        }

    contexts = {
        GLOBAL: make_context(backbone.global_rope_theta, None),
        LOCAL: make_context(backbone.local_rope_theta, backbone.local_attention // 2),
    }
    return [contexts[kind] for kind in types]


def compute_residual_stddev(backbone: Backbone) -> float:
    """Return the standard deviation of initial weights for layers added to the residual stream.

    The standard deviation decreases with the number of layers, so that the sum of all layers keeps
    the same scale.

    Source: Warner et al. 2024, section 2.2.2; Shoeybi et al. 2019, Megatron-LM.
    """
    return INITIALIZER_RANGE / (2 * backbone.num_layers) ** 0.5


def compute_input_stddev(backbone: Backbone) -> float:
    """Return the standard deviation of initial weights that preserve the scale of the input."""
    return backbone.hidden_dim**-0.5


# -- config.json -------------------------------------------------------------------------------


def read_config(config: Mapping) -> dict:
    """Convert a configuration to the keys of the first transformers version with ModernBERT.

    transformers 5 stores the types of blocks as a list and the bases of rotary positions as nested
    objects. If the list or the objects are invalid, they are not converted, and the rules of the
    family raise an error later.

    Args:
        config: Dictionary with the contents of config.json.

    Raises:
        ValueError: If the number of `layer_types` is not the number of layers.

    Example:
        >>> types = ["full_attention", "sliding_attention", "full_attention"]
        >>> config = read_config({"num_hidden_layers": 3, "layer_types": types})
        >>> config["global_attn_every_n_layers"]
        2
    """
    config = dict(config)
    types = config.get("layer_types")
    layers = config.get("num_hidden_layers")
    if types is not None and layers is not None and _LAYER_TYPES.holds(types):
        if len(types) != layers:
            raise ValueError(
                f"config.json: layer_types has {len(types)} entries. Expected one entry for each "
                f"of the {layers!r} layers."
            )
        every = config.get("global_attn_every_n_layers", 3)
        fits = type(every) is int and every > 0 and types == make_layer_types(len(types), every)
        config["global_attn_every_n_layers"] = every if fits else find_global_interval(types)
    if config.get("rope_scaling") is not None:  # has priority over `rope_parameters`
        config["rope_scaling"] = convert_rope_fields({"rope_scaling": config["rope_scaling"]})[
            "rope_scaling"
        ]
    config |= convert_rotary_fields(config, "global_rope_theta", "local_rope_theta")
    if "local_rope_theta" in config and config["local_rope_theta"] is None:
        config["local_rope_theta"] = config.get("global_rope_theta", 160_000.0)
    return config


def convert_rotary_fields(config: Mapping, global_key: str, local_key: str) -> dict[str, object]:
    """Convert the rotary fields of transformers 5 to two bases and the scaling.

    Args:
        config: Dictionary with the contents of config.json.
        global_key: String. The key for the base in blocks with global attention.
        local_key: String. The key for the base in blocks with local attention.

    Example:
        >>> parameters = {"full_attention": {"rope_theta": 10.0}, "sliding_attention": None}
        >>> convert_rotary_fields({"rope_parameters": parameters}, "rope_theta", "local_theta")
        {'rope_theta': 10.0}
    """
    kinds = config.get("rope_parameters")
    if kinds is None or not ROTATIONS.holds(kinds):
        return {}
    found = {}
    for kind, key in ((GLOBAL, global_key), (LOCAL, local_key)):
        fields = convert_rope_fields({"rope_parameters": kinds.get(kind) or {}})
        found[key] = fields.get("rope_theta")
        found["rope_scaling"] = config.get("rope_scaling") or fields["rope_scaling"]
    return {key: value for key, value in found.items() if value is not None}


def make_layer_types(layers: int, every: int, offset: int = 0) -> list[str]:
    """Return the type of each block. Block i is global if `i + offset` is a multiple of `every`.

    Args:
        layers: Positive integer. The number of blocks.
        every: Positive integer. The distance between global blocks.
        offset: Integer, 0 or 1. With 1, the last block of each group is global instead of the first
            block. Defaults to 0.
    """
    return [LOCAL if (i + offset) % every else GLOBAL for i in range(layers)]


def find_global_interval(types: list[str], offset: int = 0) -> int:
    """Return the smallest possible `every` for a list of types. See `make_layer_types`."""
    later = types[1 - offset :]
    return later.index(GLOBAL) + 1 if GLOBAL in later else len(types) + offset


def make_layer_types_rule(words: str, offset: int = 0) -> Rule:
    """Create the rule for `layer_types` in config.json. See `make_layer_types`."""

    def is_alternating(types: object) -> bool:
        every = find_global_interval(types, offset) if types and isinstance(types, list) else None
        return every is not None and types == make_layer_types(len(types), every, offset)

    return Rule(lambda v: v is None or is_alternating(v), words)


def _has_same_scaling(kinds: object) -> bool:
    """Return True if global and local blocks use the same scaling for rotary positions."""
    if not isinstance(kinds, dict) or not set(kinds) <= {GLOBAL, LOCAL}:
        return False
    objects = [kinds.get(kind) or {} for kind in (GLOBAL, LOCAL)]
    if not all(isinstance(fields, dict) for fields in objects):
        return False
    first, second = (convert_rope_fields({"rope_parameters": fields}) for fields in objects)
    bases = [fields.get("rope_theta", 1.0) for fields in (first, second)]
    return (
        first["rope_scaling"] == second["rope_scaling"]
        and is_rope_scaling(first["rope_scaling"])
        and all(is_number(base) and base > 0 for base in bases)
    )


_LAYER_TYPES = make_layer_types_rule(
    f"a list that has {GLOBAL!r} first and at equal distances, and {LOCAL!r} everywhere else",
)
ROTATIONS = Rule(
    lambda v: v is None or _has_same_scaling(v),
    f"objects for {GLOBAL!r} and {LOCAL!r} with a rope_theta and the same rope_type, 'default', "
    "'linear', 'dynamic' or 'yarn', with the same settings",
)
_TOKEN_IDS = {**TOKEN_IDS, "cls_token_id": "start_token_id", "sep_token_id": "end_token_id"}
_HIDDEN = Hidden(
    "head.dense",
    activation_argument="classifier_activation",
    norm="head.norm",
    bias=False,
    stddev=compute_residual_stddev,
)
_CLASSIFIER = Head(
    "classifier",
    _HIDDEN,
    dropout="classifier_dropout",
    default_dropout=0.0,
    stddev=compute_input_stddev,
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
        **CONFIG_KEYS,
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "embedding_dropout": "embedding_dropout",
        "activation": "hidden_activation",
        "layer_norm_epsilon": "norm_eps",
        "local_attention": "local_attention",
        "global_every": "global_attn_every_n_layers",
        "global_rope_theta": "global_rope_theta",
        "local_rope_theta": "local_rope_theta",
        "rope_scaling": "rope_scaling",
        "pooling": "classifier_pooling",
        "classifier_activation": "classifier_activation",
    },
    read_config=read_config,
    rules={
        "layer_types": _LAYER_TYPES,
        "rope_parameters": ROTATIONS,
        "partial_rotary_factor": one_of(None, 1),
        "head_dim": NO_VALUE,
        "sliding_window": NO_VALUE,  # `local_attention` has this value
        "attention_bias": one_of(False),
        "mlp_bias": one_of(False),
        "norm_bias": one_of(False),
        "classifier_bias": one_of(False),
        "decoder_bias": one_of(True),
    },
    constants={
        # Used if no tokenizer has these ids. The defaults of transformers are the ids of the first
        # checkpoints, which can be out of range for a small vocabulary.
        **dict.fromkeys(_TOKEN_IDS),
        "attention_bias": False,
        "mlp_bias": False,
        "norm_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "initializer_range": 0.02,
    },
    token_ids=_TOKEN_IDS,
    tokenizer=MODERN_BPE,
    # The value in the GLUE fine-tuning example that was released with the paper.
    learning_rate=8e-5,
    weight_decay=8e-6,
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": _CLASSIFIER,
        "ForTokenClassification": _CLASSIFIER,
        "ForQuestionAnswering": _CLASSIFIER,
        "ForMaskedLM": Head("decoder", _HIDDEN, tied_bias="decoder.bias"),
    },
    tiny={"local_attention": 4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
)
ModernBertBackbone.family = FAMILY
