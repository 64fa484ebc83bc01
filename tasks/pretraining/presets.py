"""Loading of the tasks of pretraining, with the names and types of their arguments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets

if TYPE_CHECKING:
    from typing import Self


class MaskingPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments that the preprocessors of pretraining share."""

    mask_rate: float
    whole_words: bool
    dynamic: bool
    pack_texts: bool
    across_documents: bool
    seed: int


class MaskedLMPresetArguments(MaskingPresetArguments, total=False):
    """Keyword arguments of `MaskedLM.from_preset`."""

    head_activation: str | None
    head_layer_norm_epsilon: float | None


class PretrainingPresetArguments(MaskingPresetArguments, total=False):
    """Keyword arguments of `Pretraining.from_preset`."""

    short_share: float


class ReplacedTokensPresetArguments(MaskingPresetArguments, total=False):
    """Keyword arguments of `ReplacedTokenDetection.from_preset`."""

    generator_size: float | None
    generator_depth: float | None
    detection_weight: float


class MaskedLMPresets(TaskPresets):
    """Mixin of `MaskedLM`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[MaskedLMPresetArguments]
    ) -> Self:
        """Load a masked language model; see `TaskPresets`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `head_activation`, `head_layer_norm_epsilon`; of the preprocessor
                `sequence_length`, `mask_rate`, `whole_words`, `dynamic`, `pack_texts`,
                `across_documents`, `seed`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)


class PretrainingPresets(TaskPresets):
    """Mixin of `Pretraining`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[PretrainingPresetArguments]
    ) -> Self:
        """Load a model with the two heads of BERT's pretraining; see `TaskPresets`.

        Args:
            source: as for `MaskedLM`.
            **arguments: `short_share`, and those of `MaskedLM` but for its head's.
        """
        return super().from_preset(source, **arguments)


class ReplacedTokensPresets(TaskPresets):
    """Mixin of `ReplacedTokenDetection`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[ReplacedTokensPresetArguments]
    ) -> Self:
        """Load a model that tells replaced tokens; see `TaskPresets`.

        Args:
            source: as for `MaskedLM`.
            **arguments: `generator_size`, `generator_depth`, `detection_weight`, and those of
                `MaskedLM` but for its head's.
        """
        return super().from_preset(source, **arguments)
