"""NomicBERT: BERT with rotary positions, gated feed-forward networks and few biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import keras

from encoder_zoo.common.validation import PositiveFloat, one_of, validate_arguments
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.families.bert import KEYS_WITH_SEGMENTS
from encoder_zoo.encoders.family import Family, Head, Hidden, map_attention_names
from encoder_zoo.encoders.gated_block import GatedBlock
from encoder_zoo.encoders.layers import NO_VALUE, Size
from encoder_zoo.encoders.rope import (
    DYNAMIC,
    ROPE_RULES,
    RopeScaling,
    ScaledRotation,
    convert_rope_fields,
)
from encoder_zoo.encoders.tokenizers import WORDPIECE


@keras.saving.register_keras_serializable(package="encoder_zoo")
class NomicBertBackbone(ScaledRotation, Backbone):
    """NomicBERT encoder. See `Backbone` for inputs and outputs.

    The model uses rotary positions. It has no pooler, because the tanh layer of the classifier is
    part of its head.

    Args:
        rope_theta: Positive float. Base of the rotary positions. Defaults to 1000.0.
        rope_scaling: Optional dictionary. Scaling for texts that are longer than in pretraining,
            for example `{"rope_type": "dynamic", "factor": 2.0}` (NTK). The type "linear" is also
            supported. Defaults to None, which means no scaling.
        trained_length: Positive integer. The maximum number of tokens in pretraining. Dynamic
            scaling is applied to longer texts. Defaults to 2048.
        **kwargs: Additional arguments for `Backbone`. `max_sequence_length` can be larger than
            `trained_length`.

    Source: Nussbaum et al. 2024, Nomic Embed: Training a Reproducible Long Context Text Embedder,
    section 3.

    Example:
        >>> import numpy as np
        >>> backbone = NomicBertBackbone(
        ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
        ... )
        >>> outputs = backbone({"token_ids": np.array([[2, 7, 3]])})
        >>> {name: keras.ops.shape(value) for name, value in outputs.items()}
        {'sequence_output': (1, 3, 8)}
    """

    defaults: ClassVar = {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation": "silu",
        "max_sequence_length": 2048,
        "pooler": False,
    }

    @validate_arguments
    def __init__(
        self,
        *args,
        rope_theta: PositiveFloat = 1000.0,
        rope_scaling: RopeScaling = None,
        trained_length: Size = 2048,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.rope_theta = rope_theta
        self.rope_scaling = rope_scaling and dict(rope_scaling)
        self.trained_length = trained_length

    def make_embeddings(self) -> keras.layers.Layer:
        return super().make_embeddings(max_positions=0)

    def make_block(self, i: int) -> GatedBlock:
        return super().make_block(i, GatedBlock, rotary=True)

    def get_max_unscaled_length(self) -> int:
        return self.trained_length


# -- config.json -------------------------------------------------------------------------------

# The keys of the code that was released with the paper. Most of them are keys of GPT-2.
_OLD_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_trained_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
}
_OLD_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}


def read_config(config: Mapping) -> dict:
    """Convert a configuration from transformers or the original code to the same keys.

    Args:
        config: Dictionary with the contents of config.json.

    Example:
        >>> old = {"n_embd": 768, "activation_function": "swiglu", "rotary_emb_base": 1000,
        ...        "rotary_scaling_factor": 2, "max_trained_positions": 2048, "n_positions": 8192}
        >>> config = read_config(old)
        >>> config["hidden_size"], config["hidden_act"], config["max_position_embeddings"]
        (768, 'silu', 2048)
        >>> config["rope_scaling"], config["n_positions"]
        ({'rope_type': 'dynamic', 'factor': 2}, 8192)
    """
    config = convert_rope_fields(config)
    for old, new in _OLD_KEYS.items():
        if config.get(old) is not None:
            config.setdefault(new, config[old])
    if (activation := config.get("activation_function")) in _OLD_ACTIVATIONS:
        config.setdefault("hidden_act", _OLD_ACTIVATIONS[activation])
    if (factor := config.pop("rotary_scaling_factor", None)) is not None:
        config.setdefault("rope_scaling", {"rope_type": DYNAMIC, "factor": factor})
    if "max_position_embeddings" in config:
        config.setdefault("n_positions", config["max_position_embeddings"])
    return config


NOMIC_TENSORS = {
    "embeddings.token_embedding": "embeddings.word_embeddings",
    "embeddings.segment_embedding": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    **map_attention_names("blocks.{}.attention", "layers.{}.self_attn.*_proj"),
    "blocks.{}.attention_norm": "layers.{}.post_attention_layernorm",
    "blocks.{}.gate_dense": "layers.{}.mlp.gate_proj",
    "blocks.{}.up_dense": "layers.{}.mlp.up_proj",
    "blocks.{}.output_dense": "layers.{}.mlp.down_proj",
    "blocks.{}.output_norm": "layers.{}.post_mlp_layernorm",
}
QUERIES_KEYS_VALUES = tuple(f"layers.{{}}.self_attn.{name}_proj." for name in "qkv")
_OLD_SETTINGS = (
    "prenorm",
    "parallel_block",
    "rotary_emb_interleaved",
    "qkv_proj_bias",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
    "use_rms_norm",
    "causal",
)

_CLASSIFIER = Head(
    "classifier", Hidden("nomic_bert.pooler.dense", "tanh"), dropout="classifier_dropout"
)

FAMILY = Family(
    name="nomic_bert",
    backbone=NomicBertBackbone,
    class_prefix="NomicBert",
    prefix="nomic_bert",
    tensors=NOMIC_TENSORS,
    other_names={
        "bert.": "",
        "pooler.": "nomic_bert.pooler.",
        "emb_ln.": "embeddings.LayerNorm.",
        "encoder.layers.": "layers.",
        "layers.{}.attn.out_proj.": "layers.{}.self_attn.o_proj.",
        "layers.{}.mlp.fc11.": "layers.{}.mlp.up_proj.",
        "layers.{}.mlp.fc12.": "layers.{}.mlp.gate_proj.",
        "layers.{}.mlp.fc2.": "layers.{}.mlp.down_proj.",
        "layers.{}.norm1.": "layers.{}.post_attention_layernorm.",
        "layers.{}.norm2.": "layers.{}.post_mlp_layernorm.",
    },
    fused={"layers.{}.attn.Wqkv.": QUERIES_KEYS_VALUES},
    config_keys={
        **KEYS_WITH_SEGMENTS,
        "max_sequence_length": "n_positions",
        "trained_length": "max_position_embeddings",
        "rope_theta": "rope_theta",
        "rope_scaling": "rope_scaling",
    },
    read_config=read_config,
    rules={
        **ROPE_RULES,
        "activation_function": one_of(None, *_OLD_ACTIVATIONS),
        "rotary_emb_fraction": one_of(None, 1),
        "rotary_emb_scale_base": NO_VALUE,
        **dict.fromkeys(_OLD_SETTINGS, one_of(None, False)),
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
            "cls.predictions.decoder",
            Hidden("cls.predictions.transform.dense", norm="cls.predictions.transform.layer_norm"),
            tied_bias="cls.predictions.bias",
        ),
    },
    tiny={"rope_scaling": {"rope_type": DYNAMIC, "factor": 2.0}, "trained_length": 16},
)
NomicBertBackbone.family = FAMILY
