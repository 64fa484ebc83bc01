"""Loading of rerankers, with the names and types of its arguments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets

if TYPE_CHECKING:
    from typing import Self


class RerankerPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `Reranker.from_preset`."""

    max_length: int | None


class RerankerPresets(TaskPresets):
    """Mixin of `Reranker`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[RerankerPresetArguments]
    ) -> Self:
        """Load a cross-encoder, or an encoder with a new head; see `TaskPresets`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `activation` of the scores, "sigmoid" or "linear"; of the preprocessor
                `sequence_length`, `max_length`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)
