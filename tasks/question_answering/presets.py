"""Loading of models for question answering, with the names and types of its arguments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets

if TYPE_CHECKING:
    from typing import Self


class SpanQAPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `SpanQA.from_preset`."""

    null_threshold: float | None
    beam: tuple[int, int] | None
    window_length: int
    doc_stride: int


class SpanQAPresets(TaskPresets):
    """Mixin of `SpanQA`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[SpanQAPresetArguments]
    ) -> Self:
        """Load a model that answers questions, or an encoder with a new head; see `TaskPresets`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `null_threshold`, `beam`; of the preprocessor `sequence_length`,
                `window_length`, `doc_stride`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)
