"""The protocol of tasks that presets are loaded to and saved from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.checkpoint import Checkpoint

if TYPE_CHECKING:
    from encoder_zoo.encoders.backbone import Backbone


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """What other code needs to know of a task, as data; how it computes are its methods.

    A subclass of a task with other fields has `record = dataclasses.replace(Base.record, ...)`.

    Args:
        name: in `TASKS` and in `encoder_zoo.json`.
        preprocessor_class: of its raw inputs.
        head: end of the name of transformers' class, after the family's; the key in `Family.heads`
            of the head that the task needs. Defaults to "Model": it needs none.
        default_head: `Head` of families whose record has no head of that name. Defaults to None:
            the task does not support them.
        pipeline_tag: the Hugging Face hub's name for the task.
        peft_type: peft's name for the task. Defaults to None: it cannot be saved as adapters.
        text_method: the method that answers to raw text, such as "classify". Defaults to None:
            there is none.
        answer_type: TypedDict of its answers, where these may be lists that are empty.
        answer_settings: constructor arguments that decide how it answers, saved in
            `encoder_zoo.json` among the preprocessor's.
        distilled_settings: arguments, of the task and its preprocessor, that a student takes over
            from its teacher.
        instead_of_predict: for raw texts, of a task that takes only prepared inputs in `predict`.
        only_saved_model: what of it no other format has, where a SavedModel is its only export;
            of such a task `for_cpu` converts the backbone alone, to "sequence_output".
        file_advice: the end of an error for a path in place of texts.
        warmup: share of the steps in which the learning rate rises. Defaults to None: as usual.
        has_classes: whether the outputs are of classes, with `labels` and `num_classes`.
        labels_tokens: whether there is an answer, and a label, for each token.
        pretrains: whether the labels are made of the texts.
        learns_soft_labels: whether `Distillation` trains it on a teacher's outputs.
        predicts_lists: whether `predict` returns a list of the outputs for each text.
        pads_classes: whether the outputs of an example have as many classes as the longest example
            of its batch, such as positions of tokens.
        group_lengths: whether `fit` makes batches of examples of like length.
        fills_batches: whether rows that fill a batch can be left out of the task's loss, where it
            is one of Keras's: see `graphs.real_rows`.
        packs_batches: whether the texts of a batch may be packed on JAX, see
            `choose_sequence_counts`. Only for outputs that `logits_of` makes of those of
            `encoded`, and losses that are a mean over examples, which does not depend on the
            batches.
        goes_step_by_step: what goes through texts token by token, such as "an LSTM": TensorFlow
            does not train it compiled by XLA, which would have to know how many steps there are.

    Example:
        >>> from encoder_zoo import Preprocessor
        >>> TaskRecord("scorer", Preprocessor, text_method="score").head
        'Model'
    """

    name: str
    preprocessor_class: type
    _: dataclasses.KW_ONLY
    head: str = "Model"
    default_head: Head | None = None
    pipeline_tag: str = "feature-extraction"
    peft_type: str | None = None
    text_method: str | None = None
    answer_type: type | None = None
    answer_settings: tuple[str, ...] = ()
    distilled_settings: tuple[str, ...] = ()
    instead_of_predict: str | None = None
    only_saved_model: str | None = None
    file_advice: str = "ez.read_annotations({!r}) reads files of annotations."
    warmup: float | None = None
    has_classes: bool = False
    labels_tokens: bool = False
    pretrains: bool = False
    learns_soft_labels: bool = False
    predicts_lists: bool = False
    pads_classes: bool = False
    group_lengths: bool = True
    fills_batches: bool = True
    packs_batches: bool = False
    goes_step_by_step: str | None = None


class PresetTask(Protocol):
    """The attributes of tasks that loading and saving read.

    Attributes:
        record: of the task.
        head_record: of its head in the backbone's family.
        problem_type: as in config.json; None for tasks with one.
        labels: names of the classes, if the task has classes.
        num_classes: number of classes, likewise.
        new_head: first weights of a head that a checkpoint does not have; None: it has the head.
        kept_weights: {tensor: value} of a checkpoint, for a head that is built by `fit`.
        given_head: the user's layer that is the head; None: the family's.
        weights_before_adapters: see `adapters.weights_before_adapters`.
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

    record: TaskRecord
    problem_type: str | None
    labels: list[str] | None
    num_classes: int | None
    new_head: tuple | None
    kept_weights: Mapping
    given_head: object | None
    weights_before_adapters: Mapping
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
