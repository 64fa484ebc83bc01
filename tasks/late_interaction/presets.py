"""Loading and saving of late interaction models: ColBERT's authors', PyLate's, and others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.presets.formats import late_interaction_folder
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets

if TYPE_CHECKING:
    from typing import Self


class LateInteractionPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `LateInteraction.from_preset`."""

    dim: int | None
    projections: Sequence[Mapping[str, object]]
    normalize: bool
    query_length: int | None
    document_length: int | None
    query_marker: str | None
    document_marker: str | None
    prompts: Mapping[str, str] | None
    expand_queries: bool
    expansion_length: int | None
    attend_to_expansion: bool
    skiplist: Sequence[str]


class LateInteractionPresets(TaskPresets):
    """Mixin of `LateInteraction`."""

    sentence_transformers_class = "MultiVectorEncoder"
    settings_in_files = late_interaction_folder.ARGUMENTS

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[LateInteractionPresetArguments]
    ) -> Self:
        """Load a model of any format, or an encoder, which gets a new projection and markers.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `dim`, `projections`, `normalize`; of the preprocessor `query_length`,
                `document_length`, `query_marker`, `document_marker`, which are added to the
                vocabulary where it lacks them, `prompts`, `expand_queries`, `expansion_length`,
                `attend_to_expansion`, `skiplist`, `sequence_length`; `dropout`, `dtype` and others
                of the backbone; `added_tokens` of the tokenizer; `verify`, `max_bytes`,
                `allow_nonfinite` of the checks.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def tokens_to_add(cls, checkpoint: Checkpoint, tokenizer, given: dict) -> list[str]:
        return late_interaction_folder.tokens_to_add(checkpoint, tokenizer, given)

    @classmethod
    def arguments_from_files(cls, checkpoint: Checkpoint, given: dict) -> dict:
        return late_interaction_folder.model_arguments(checkpoint, given)

    @validate_arguments
    def load_from_files(
        self, checkpoint: Checkpoint, given: dict, allow_nonfinite: bool
    ) -> set[str]:
        return late_interaction_folder.restore_projections(self, checkpoint, given, allow_nonfinite)

    @property
    def weights_in_files(self) -> list[keras.Variable]:
        return [weight for layer in self.projection_layers for weight in layer.weights]

    def files_to_save(self, dtype: object) -> dict[str, bytes]:
        return late_interaction_folder.late_interaction_files(self, dtype)
