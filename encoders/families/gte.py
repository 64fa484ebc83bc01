"""GTE: BERT with rotary positions and gated feed-forward networks, for texts of 8,192 tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import keras

from encoder_zoo.common.validation import PositiveFloat, is_number, one_of, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.families.bert import KEYS_WITH_SEGMENTS
from encoder_zoo.encoders.families.nomic_bert import NOMIC_TENSORS, QUERIES_KEYS_VALUES
from encoder_zoo.encoders.family import Family, Head, Hidden
from encoder_zoo.encoders.gated_block import GatedBlock
from encoder_zoo.encoders.rope import (
    LINEAR,
    ROPE_RULES,
    RopeScaling,
    ScaledRotation,
    convert_rope_fields,
)
from encoder_zoo.encoders.tokenizers import WORDPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class GteBlock(GatedBlock):
    """`GatedBlock` with biases in the attention and output layers, and with inner dropout.

    Example:
        >>> import numpy as np
        >>> block = GteBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> keras.ops.shape(block(np.zeros((1, 3, 8), "float32")))
        (1, 3, 8)
    """

    attention_bias = True
    output_bias = True

    def build(self, input_shape=None):
        super().build(input_shape)
        self.gated_dropout_layer = self.make_dropout(self.dropout)

    def compute_intermediate(self, x, training=None):
        return self.gated_dropout_layer(
            super().compute_intermediate(x, training), training=training
        )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class GteBackbone(ScaledRotation, Backbone):
    """GTE encoder. See `Backbone` for inputs and outputs.

    The model uses rotary positions. It has no pooler, because the tanh layer of the classifier is
    part of its head.

    Args:
        rope_theta: Positive float. Base of the rotary positions. Defaults to 160000.0.
        rope_scaling: Optional dictionary. `{"rope_type": "linear", "factor": 2.0}` divides
            positions by the factor. The type "dynamic" increases the base for texts of more than
            `max_sequence_length` tokens. Defaults to None, which means no scaling.
        **kwargs: Additional arguments for `Backbone`.

    Source: Zhang et al. 2024, mGTE: Generalized Long-Context Text Representation and Reranking
    Models for Multilingual Text Retrieval, section 2.1.

    Example:
        >>> import numpy as np
        >>> backbone = GteBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    defaults: ClassVar = {
        "attention_dropout": 0.0,
        "max_sequence_length": 8192,
        "num_segments": 1,
        "pooler": False,
    }

    @validate_arguments
    def __init__(
        self,
        *args,
        rope_theta: PositiveFloat = 160_000.0,
        rope_scaling: RopeScaling = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.rope_theta = rope_theta
        self.rope_scaling = rope_scaling and dict(rope_scaling)

    def make_embeddings(self) -> keras.layers.Layer:
        return super().make_embeddings(max_positions=0)

    def make_block(self, i: int) -> GteBlock:
        return super().make_block(i, GteBlock, rotary=True)


# -- config.json -------------------------------------------------------------------------------

OLD_MODEL_TYPE = "new"  # the type in the code of the publisher's repository


def read_config(config: Mapping) -> dict:
    """Convert a configuration from transformers or the original code to the same keys.

    In the older code, "ntk" scaling multiplies the base of the rotary positions by a factor and
    divides them by a power of the factor. The division is the same as linear scaling.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> old = {"model_type": "new", "architectures": ["NewModel"], "rope_theta": 500000,
        ...        "rope_scaling": {"type": "ntk", "factor": 2.0}, "hidden_size": 768,
        ...        "num_attention_heads": 12}
        >>> config = read_config(old)
        >>> config["model_type"], config["architectures"], config["rope_theta"]
        ('gte', ['GteModel'], 1000000.0)
        >>> config["rope_scaling"]["rope_type"], round(config["rope_scaling"]["factor"], 4)
        ('linear', 1.0219)
    """
    config = convert_rope_fields(config)
    if config.get("model_type") != OLD_MODEL_TYPE:
        return config
    config["model_type"] = "gte"
    config.setdefault("rope_theta", 10_000.0)
    names = config.get("architectures")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        config["architectures"] = [
            f"Gte{name.removeprefix('New')}" if name.startswith("New") else name for name in names
        ]
    return _convert_ntk_scaling(config)


def _convert_ntk_scaling(config: dict) -> dict:
    """Convert "ntk" scaling in a configuration to linear scaling."""
    scaling, factor = config.get("rope_scaling"), None
    if isinstance(scaling, dict) and set(scaling) == {"rope_type", "factor"}:
        factor = scaling["factor"] if scaling["rope_type"] == "ntk" else None
    sizes = config.get("hidden_size"), config.get("num_attention_heads"), config["rope_theta"]
    if not all(is_number(value) and value > 0 for value in (factor, *sizes)):
        return config
    hidden, heads, theta = sizes
    scaling = {"rope_type": LINEAR, "factor": factor ** (2 * heads / hidden)}
    return {**config, "rope_theta": theta * factor, "rope_scaling": scaling}


_CLASSIFIER = Head("classifier", Hidden("gte.pooler.dense", "tanh"), dropout="classifier_dropout")

FAMILY = Family(
    name="gte",
    backbone=GteBackbone,
    class_prefix="Gte",
    prefix="gte",
    tensors=NOMIC_TENSORS,
    other_names={
        "new.": "",
        "pooler.": "gte.pooler.",
        "encoder.layer.": "layers.",
        **{
            f"layers.{{}}.attention.{name}_proj.": f"layers.{{}}.self_attn.{name}_proj."
            for name in "qkvo"
        },
        "layers.{}.attn_ln.": "layers.{}.post_attention_layernorm.",
        "layers.{}.mlp_ln.": "layers.{}.post_mlp_layernorm.",
        "lm_head.norm.": "lm_head.layer_norm.",
    },
    fused={
        "layers.{}.attention.qkv_proj.": QUERIES_KEYS_VALUES,
        "layers.{}.mlp.up_gate_proj.": ("layers.{}.mlp.up_proj.", "layers.{}.mlp.gate_proj."),
    },
    config_keys={**KEYS_WITH_SEGMENTS, "rope_theta": "rope_theta", "rope_scaling": "rope_scaling"},
    read_config=read_config,
    rules={
        **ROPE_RULES,
        "position_embedding_type": one_of(None, "rope"),
        "layer_norm_type": one_of(None, "layer_norm"),
        "logn_attention_scale": one_of(None, False),
    },
    constants={"initializer_range": 0.02},
    tokenizer=WORDPIECE,
    uses_segments=True,
    heads={
        "ForSequenceClassification": _CLASSIFIER,
        "ForMultipleChoice": _CLASSIFIER,
        "ForTokenClassification": Head("classifier", dropout="classifier_dropout"),
        "ForQuestionAnswering": Head("qa_outputs"),
        "ForMaskedLM": Head(
            "lm_head.decoder",
            Hidden("lm_head.dense", "gelu", norm="lm_head.layer_norm"),
            tied_bias="lm_head.decoder.bias",
        ),
    },
    tiny={"rope_scaling": {"rope_type": LINEAR, "factor": 2.0}, "num_segments": 2},
)
GteBackbone.family = FAMILY
