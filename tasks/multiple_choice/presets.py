"""Loading of models for multiple choice, with the names and types of its arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets
from encoder_zoo.tasks.sequence_classification.pooling import WindowPooling

if TYPE_CHECKING:
    from typing import Self


class MultipleChoicePresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `MultipleChoice.from_preset`."""

    window_length: int | None
    doc_stride: int
    window_pooling: WindowPooling
    text_columns: Sequence[str] | None


class MultipleChoicePresets(TaskPresets):
    """Mixin of `MultipleChoice`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[MultipleChoicePresetArguments]
    ) -> Self:
        """Load a model for multiple choice, or an encoder with a new head; see `TaskPresets`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `window_pooling`; of the preprocessor `sequence_length`, `window_length`,
                `doc_stride`, `text_columns`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)
