"""Loading and saving of sparse encoders, in the files of sentence-transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from encoder_zoo.presets.formats import sparse_folder
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets

if TYPE_CHECKING:
    from typing import Self


class SparseEncoderPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `SparseEncoder.from_preset`; `pooling` and `activation` are among those
    of all tasks."""

    max_terms: int | None
    similarity_function: str
    head_activation: str | None
    head_layer_norm_epsilon: float | None
    max_length: int | None
    prompts: Mapping[str, str] | None
    default_prompt: str | None
    include_prompt: bool


class SparseEncoderPresets(TaskPresets):
    """Mixin of `SparseEncoder`."""

    sentence_transformers_class = "SparseEncoder"
    settings_in_files = sparse_folder.ARGUMENTS

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[SparseEncoderPresetArguments]
    ) -> Self:
        """Load a sparse encoder, or a masked language model to make one of; see `TaskPresets`.

        An encoder without the head of a masked language model gets a new one, to be trained.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `pooling`, `activation`, `max_terms`, `similarity_function`; of the
                preprocessor `sequence_length`, `max_length`, `prompts`, `default_prompt`,
                `include_prompt`; `dropout`, `dtype` and others of the backbone; `added_tokens` of
                the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the checks.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def arguments_from_files(cls, checkpoint: Checkpoint, given: dict) -> dict:
        return sparse_folder.encoder_arguments(checkpoint)

    def files_to_save(self, dtype: object) -> dict[str, bytes]:
        return sparse_folder.encoder_files(self)
