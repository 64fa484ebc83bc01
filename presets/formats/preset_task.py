"""The protocol of a task, as far as loading and saving presets need it."""

from __future__ import annotations

from typing import ClassVar, Protocol

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family, Head


class PresetTask(Protocol):
    """A task, as far as it is loaded from presets and saved to them.

    Attributes:
        task_name: in `encoder_zoo.json`.
        checkpoint_class_suffix: end of the name of transformers' class; "Model" without a head.
        head_record: the record of its head in the backbone's family.
        pipeline_tag: the hub's name for what it does.
        preprocessor_class: of its raw inputs.
        problem_type: as in config.json, of tasks that have several.
        labels: names of the classes, of tasks that have some.
        num_classes: number of classes, likewise.
        peft_task_type: peft's name for the task; None: it cannot be saved as adapters.
        answer_settings: constructor arguments that decide how it answers, saved with the preset.
        head: the layers behind the backbone; None: there are none, or not yet.
        backbone: the encoder.
        preprocessor: one of its class, or None.
        learning_rate: peak, recommended for further training.
        default_learning_rate: the default.
    """

    task_name: ClassVar[str]
    checkpoint_class_suffix: ClassVar[str]
    pipeline_tag: ClassVar[str]
    preprocessor_class: ClassVar[type]
    problem_type: str | None
    labels: list[str] | None
    num_classes: int | None
    peft_task_type: ClassVar[str | None]
    answer_settings: ClassVar[tuple[str, ...]]
    head: object | None
    head_record: Head
    backbone: Backbone
    preprocessor: object | None
    learning_rate: float
    default_learning_rate: float

    @classmethod
    def head_of(cls, family: Family) -> Head:
        """Return the record of the family's head for this task."""
        ...

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        """Constructor arguments from config.json, under those that the caller gave."""
        ...

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Why the head of a checkpoint must not be taken over, or None if it may."""
        ...

    def check_representable(self) -> None:
        """Raises a ValueError where config.json has no word for a setting of the head."""
        ...

    def train_pooler(self) -> None:
        """Unfreeze the pooler if the head reads its output."""
        ...
