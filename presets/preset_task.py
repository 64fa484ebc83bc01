"""What presets ask of a task, which stands a floor above them."""

from __future__ import annotations

from typing import ClassVar, Protocol

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head


class PresetTask(Protocol):
    """A task, as far as it is loaded from presets and saved to them.

    Attributes:
        task_name: in `encoder_zoo.json`.
        checkpoint_class_suffix: its head, see `Family.heads`.
        pipeline_tag: the hub's name for what it does.
        preprocessor_class: of its raw inputs.
        backbone: the encoder.
        preprocessor: one of its class, or None.
        learning_rate: peak, recommended to those who train it on.
        default_learning_rate: what it is where nobody says another.
    """

    task_name: ClassVar[str]
    checkpoint_class_suffix: ClassVar[str]
    pipeline_tag: ClassVar[str]
    preprocessor_class: ClassVar[type]
    backbone: Backbone
    preprocessor: object | None
    learning_rate: float
    default_learning_rate: float

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
