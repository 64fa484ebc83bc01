"""The protocol of tasks that presets are loaded to and saved from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.checkpoint import Checkpoint

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone


class PresetTask(Protocol):
    """The attributes of tasks that loading and saving read.

    Attributes:
        task_name: in `encoder_zoo.json`.
        checkpoint_class_suffix: suffix of the class name in transformers; "Model" without a head.
        head_record: of its head in the backbone's family.
        pipeline_tag: of the hub.
        preprocessor_class: of its raw inputs.
        problem_type: as in config.json; None for tasks with one.
        labels: names of the classes, if the task has classes.
        num_classes: number of classes, likewise.
        has_classes: whether the outputs are of classes that the user names.
        new_head: first weights of a head that a checkpoint does not have; None: it has the head.
        kept_weights: {tensor: value} of a checkpoint, for a head that is built by `fit`.
        peft_task_type: name of the task in peft; None if it cannot be saved as adapters.
        given_head: the user's layer that is the head; None: the family's.
        weights_before_adapters: see `adapters.weights_before_adapters`.
        answer_settings: constructor arguments of inference, saved with the preset.
        settings_in_files: arguments that `files_to_save` or `extra_config` writes.
        sentence_transformers_class: that opens the preset; None: transformers does.
        encoder_prefix: before the names of the encoder's tensors, of a task whose `files_to_save`
            have the configuration in place of config.json; None: transformers' names.
        head: the layers after the backbone, or None.
        backbone: the encoder.
        preprocessor: of `preprocessor_class`, or None.
        learning_rate: recommended peak for further training.
        default_learning_rate: of the family.
        last_evaluation: results of the last `evaluate` of these weights, for the model card.
    """

    task_name: ClassVar[str]
    checkpoint_class_suffix: ClassVar[str]
    pipeline_tag: ClassVar[str]
    preprocessor_class: ClassVar[type]
    problem_type: str | None
    labels: list[str] | None
    num_classes: int | None
    has_classes: ClassVar[bool]
    new_head: tuple | None
    kept_weights: Mapping
    peft_task_type: ClassVar[str | None]
    given_head: object | None
    weights_before_adapters: Mapping
    answer_settings: ClassVar[tuple[str, ...]]
    settings_in_files: ClassVar[tuple[str, ...]]
    sentence_transformers_class: ClassVar[str | None]
    encoder_prefix: ClassVar[str | None]
    head: object | None
    head_record: Head
    backbone: Backbone
    preprocessor: object | None
    learning_rate: float
    default_learning_rate: float
    last_evaluation: Mapping[str, float]

    @classmethod
    def head_of(cls, family: Family) -> Head:
        """Return the record of the family's head for this task."""

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        """Return constructor arguments from config.json, overridden by those of the caller."""

    @classmethod
    def arguments_from_files(cls, checkpoint: Checkpoint, given: dict) -> dict:
        """Return constructor arguments from other files than config.json."""

    @classmethod
    def tokens_to_add(cls, checkpoint: Checkpoint, tokenizer: object, given: dict) -> Sequence[str]:
        """Return the tokens that the task needs and a preset's tokenizer lacks."""

    @classmethod
    def models_in_files(cls, checkpoint: Checkpoint, given: dict) -> Mapping[str, FolderFiles]:
        """Return {argument of the constructor: files of another model of this class}."""

    def models_to_save(self) -> Mapping[str, PresetTask]:
        """Return {subfolder: another model of this class that is saved in it}."""

    def load_from_files(
        self, checkpoint: Checkpoint, given: dict, allow_nonfinite: bool
    ) -> set[str] | None:
        """Load weights of layers after the backbone that its family's heads do not name.

        Returns the names of those that are among the checkpoint's tensors; None for none.
        """

    def files_to_save(self, dtype: object) -> dict[str, bytes]:
        """Return further files of the preset: {path in the folder: contents}."""

    def extra_config(self) -> dict:
        """Return further fields of config.json."""

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Return why the head of a checkpoint cannot be loaded; None if it can."""

    def kept_classes(self, config: dict) -> list[int | None] | None:
        """Return the row of each label in the head of a checkpoint with other labels, some of them
        the same; None for a new label. None if the head is taken as it is, or not at all."""

    def check_representable(self) -> None:
        """Raise a ValueError if config.json has no field for a setting of the head."""

    def train_pooler(self) -> None:
        """Unfreeze the pooler if the head reads its output."""
