"""Loading of classifiers, with the names and types of its arguments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Unpack

import keras

from encoder_zoo.tasks.base.preset_arguments import TaskPresetArguments
from encoder_zoo.tasks.base.task_presets import TaskPresets

if TYPE_CHECKING:
    from typing import Self


class ClassifierPresetArguments(TaskPresetArguments, total=False):
    """Keyword arguments of `SequenceClassifier.from_preset`."""

    labels: Sequence[str | int] | None
    num_classes: int | None
    head: keras.layers.Layer | None
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"]
    window_length: int | None
    doc_stride: int
    window_pooling: Literal["mean", "max"]
    text_columns: Sequence[str] | None


class ClassifierPresets(TaskPresets):
    """Mixin of `SequenceClassifier`."""

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[ClassifierPresetArguments]
    ) -> Self:
        """Load a classifier, or an encoder for which a new head is made; see `TaskPresets`.

        Args:
            source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: `labels=["bad", "good"]`, `num_classes`, `head`, `problem_type`,
                `window_pooling`; of the preprocessor `sequence_length`, `window_length`,
                `doc_stride`, `text_columns`; `dropout`, `dtype` and others of the backbone;
                `added_tokens` of the tokenizer; `verify`, `max_bytes`, `allow_nonfinite` of the
                checks.

        Raises:
            ValueError: if the preset does not exist or its files do not fit together.
            TypeError: "SequenceClassifier.from_preset got an unknown argument 'lables'. Did you
                mean 'labels'?"
        """
        return super().from_preset(source, **arguments)
