"""Loading of token classifiers, with the names and types of its arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Unpack

import keras

from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets

if TYPE_CHECKING:
    from typing import Self


class TokenClassifierPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `TokenClassifier.from_preset`."""

    labels: Sequence[str] | None
    num_classes: int | None
    head: keras.layers.Layer | None
    strategy: Literal["simple", "first", "average", "max", "none"] | None
    doc_stride: int | None
    label_all_tokens: bool
    split_symbols: bool | Literal["outer"]
    valid_tags: bool | None


class TokenClassifierPresets(TaskPresets):
    """Mixin of `TokenClassifier`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[TokenClassifierPresetArguments]
    ) -> Self:
        """Load a token classifier, or an encoder with a new head; see `TaskPresets`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `labels=["O", "B-PER", "I-PER"]`, `num_classes`, `head`, `strategy`,
                `valid_tags`; of the preprocessor `sequence_length`, `doc_stride`,
                `label_all_tokens`, `split_symbols`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.
        """
        return super().from_preset(source, **arguments)
