"""Types of keyword arguments, by which editors complete names and underline others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

import keras

from encoder_zoo.common.validation import Rule


class LayerArguments(TypedDict, total=False):
    """Keyword arguments of `keras.layers.Layer`, for `**kwargs: Unpack[LayerArguments]`."""

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool
    activity_regularizer: Any


class PresetArguments(TypedDict, total=False):
    """Name the checks of every `from_preset`; see `presets.opening.Safeguards`."""

    verify: bool
    max_bytes: int
    allow_nonfinite: bool


class TokenizerPresetArguments(PresetArguments, total=False):
    """Name the arguments of `Tokenizer.from_preset`."""

    added_tokens: Sequence[str | Mapping[str, object]]


class BackbonePresetArguments(PresetArguments, total=False):
    """Name arguments of `Backbone.from_preset`, of all families, that change no weight's shape."""

    dtype: str | keras.DTypePolicy
    dropout: float
    attention_dropout: float
    activation: str
    layer_norm_epsilon: float
    num_heads: int
    pooler: bool
    pad_token_id: int  # RoBERTa and families after it
    sinusoidal_positions: bool  # DistilBERT
    embedding_dropout: float  # ModernBERT
    classifier_activation: str
    local_attention: int
    global_every: int
    global_rope_theta: float
    local_rope_theta: float
    pooling: str | Sequence[str]
    max_relative_positions: int  # DeBERTa
    convolution_activation: str
    pooler_activation: str
    summary_activation: str | None  # ELECTRA, XLNet
    activation_dropout: float  # BART
    decoder_start_token_id: int
    trained_length: int  # NomicBERT
    rope_theta: float  # and GTE, EuroBERT
    rope_scaling: Mapping[str, object]


class SaveOptions(TypedDict, total=False):
    """Name the arguments of `save_to_preset`, in the Hugging Face format."""

    shard_bytes: int


class TaskPresetArguments(BackbonePresetArguments, TokenizerPresetArguments, total=False):
    """Of the backbone, of the tokenizer, and of every preprocessor."""

    sequence_length: int | None


_NAME = re.compile(r"(hf://)?\w[\w.-]*/\w[\w.-]*")

Repository = Annotated[
    str, Rule(lambda v: bool(_NAME.fullmatch(v)), "the name of a repository, such as 'user/name'")
]
CommitMessage = Annotated[
    str, Rule(lambda v: isinstance(v, str) and bool(v.strip()), "a line of text")
]
