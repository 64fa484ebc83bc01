"""Keyword arguments of a task's `from_preset` that all tasks have."""

from __future__ import annotations

from encoder_zoo.common.preset_arguments import (
    BackbonePresetArguments,
    TokenizerPresetArguments,
)


class TaskPresetArguments(BackbonePresetArguments, TokenizerPresetArguments, total=False):
    """Of the backbone, of the tokenizer, and of every preprocessor."""

    sequence_length: int | None
