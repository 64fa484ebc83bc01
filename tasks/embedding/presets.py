"""Loading and saving of embedders, in the files of sentence-transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import keras

from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.presets.formats import embedding_folder
from encoder_zoo.presets.formats.checkpoint import Checkpoint
from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets
from encoder_zoo.tasks.retrieval.similarity import Similarity

if TYPE_CHECKING:
    from typing import Self


class EmbedderPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `TextEmbedder.from_preset`; `pooling` is among those of all tasks."""

    dense: Sequence[Mapping[str, object]]
    normalize: bool
    dim: int | None
    similarity_function: Similarity
    max_length: int | None
    prompts: Mapping[str, str] | None
    default_prompt: str | None
    include_prompt: bool


class EmbedderPresets(TaskPresets):
    """Mixin of `TextEmbedder`."""

    sentence_transformers_class = "SentenceTransformer"
    settings_in_files = embedding_folder.ARGUMENTS

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[EmbedderPresetArguments]
    ) -> Self:
        """Load an embedder of any format, or an encoder without a head; see `TaskPresets`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `pooling`, `dense`, `normalize`, `dim`, `similarity_function`; of the
                preprocessor `sequence_length`, `max_length`, `prompts`, `default_prompt`,
                `include_prompt`; `dropout`, `dtype` and others of the backbone; `added_tokens` of
                the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the checks.
        """
        return super().from_preset(source, **arguments)

    @classmethod
    def arguments_from_files(cls, checkpoint: Checkpoint, given: dict) -> dict:
        return embedding_folder.embedder_arguments(checkpoint, given)

    @validate_arguments
    def load_from_files(self, checkpoint: Checkpoint, given: dict, allow_nonfinite: bool) -> None:
        embedding_folder.restore_dense(self, checkpoint, given, allow_nonfinite)

    @property
    def weights_in_files(self) -> list[keras.Variable]:
        return [weight for layer in self.dense_layers for weight in layer.weights]

    def files_to_save(self, dtype: object) -> dict[str, bytes]:
        return embedding_folder.embedder_files(self, dtype)
