"""Types of keyword arguments. Editors use them to complete argument names and check types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from encoder_zoo.common.validation import Rule

if TYPE_CHECKING:
    import keras


class LayerArguments(TypedDict, total=False):
    """Keyword arguments of `keras.layers.Layer`, for `**kwargs: Unpack[LayerArguments]`."""

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool
    activity_regularizer: Any


class PresetArguments(TypedDict, total=False):
    """Safety options for all `from_preset` methods. See `presets.files.folder_files.Safeguards`."""

    verify: bool
    max_bytes: int
    allow_nonfinite: bool


class TokenizerPresetArguments(PresetArguments, total=False):
    """Keyword arguments for `Tokenizer.from_preset`."""

    added_tokens: Sequence[str | Mapping[str, object]]


class SaveOptions(TypedDict, total=False):
    """Keyword arguments for `save_to_preset` in the Hugging Face format."""

    shard_bytes: int


_NAME = re.compile(r"(hf://)?\w[\w.-]*/\w[\w.-]*")

Repository = Annotated[
    str, Rule(lambda v: bool(_NAME.fullmatch(v)), "the name of a repository, such as 'user/name'")
]
CommitMessage = Annotated[
    str, Rule(lambda v: isinstance(v, str) and bool(v.strip()), "a line of text")
]


class CompileOptions(TypedDict, total=False):
    """Keyword arguments for `TextModel.compile` after `metrics`."""

    weighted_metrics: object
    jit_compile: bool | Literal["auto"] | None
    learning_rate: float | None
    gradient_accumulation_steps: int | None
    weight_decay: float | None
    warmup: float | None
    layer_decay: float | None
    frozen_layers: int | None
    loss_weights: object
    run_eagerly: bool | None
    steps_per_execution: int | None
    auto_scale_loss: bool | None


class PredictOptions(TypedDict, total=False):
    """Keyword arguments for `TextModel.predict` after `batch_size`."""

    verbose: Literal[0, 1, 2, "auto"]
    steps: int | None
    callbacks: Sequence[keras.callbacks.Callback] | None


class EvaluateOptions(PredictOptions, total=False):
    """Keyword arguments for `TextModel.evaluate` after `batch_size`, except `return_dict`."""

    sample_weight: object
