"""The record of a task, the layout of its folder, and the protocol that presets use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.presets.formats.checkpoint import Checkpoint

if TYPE_CHECKING:
    import keras

    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.presets.opening import TokenizerPreset


class FolderFormat:
    """The files of a preset beside config.json, weights and tokenizer; here none, as transformers.

    The layouts of other libraries are subclasses, one object each.

    Attributes:
        opened_by: class of sentence-transformers, or of gliner, that opens the folder; None:
            transformers does.
        settings: arguments of the task and its preprocessor that its files hold. They are not
            repeated in `encoder_zoo.json`, and `from_preset` does not pass them to the backbone.
        encoder_prefix: before the names of the encoder's tensors, where its files have the
            configuration in place of config.json; None: transformers' names.
    """

    opened_by: str | None = None
    settings: tuple[str, ...] = ()
    encoder_prefix: str | None = None

    def arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        """Return the arguments of the task that the files hold.

        Args:
            checkpoint: the opened preset.
            given: arguments of the caller, which count more.

        Returns:
            {argument: value}. A value of `FolderFiles` is opened as a model of the same class.

        Raises:
            ValueError: If a file has other content than expected. The message names the file.
        """
        return {}

    def text_arguments(self, preset: Checkpoint | TokenizerPreset, tokenizer) -> dict[str, object]:
        """Return the arguments of the preprocessor that the files hold.

        Args:
            preset: opened.
            tokenizer: of the preset.

        Raises:
            ValueError: If a field of a file has a wrong value.
        """
        return {}

    def tokens_to_add(self, preset: Checkpoint, tokenizer, given: Mapping) -> Sequence[str]:
        """Return the tokens that the task needs and the preset's tokenizer lacks.

        Args:
            preset, tokenizer: as of `text_arguments`.
            given: arguments of the caller.
        """
        return ()

    def restore(
        self, task: PresetTask, checkpoint: Checkpoint, given: Mapping, allow_nonfinite: bool
    ) -> set[str]:
        """Load the weights of layers after the backbone that `Family.heads` does not name.

        Args:
            task: made by `arguments`.
            checkpoint, given: as of `arguments`.
            allow_nonfinite: see `presets.opening.Safeguards`.

        Returns:
            The names of those that are among the checkpoint's tensors, not in files of their own.
        """
        return set()

    def weights(self, task: PresetTask) -> list[keras.Variable]:
        """Return the weights that no head has: those in `files`, and those that only training
        uses."""
        return []

    def files(self, task: PresetTask, dtype: object = None) -> dict[str, object]:
        """Return the files of a task's preset.

        Args:
            task: to save.
            dtype: of the weights in them. Defaults to None, their own.

        Returns:
            {path in the folder: bytes}; they replace files of the tokenizer of the same name. A
            model in place of bytes is saved in the subfolder of this name.
        """
        return {}

    def config_fields(self, task: PresetTask) -> dict[str, object]:
        """Return the fields of config.json for the settings of a head.

        Raises:
            ValueError: If there is no field for a setting.
        """
        return {}


TRANSFORMERS_FOLDER = FolderFormat()


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """The facts about a task that other code reads, as data; how it computes are its methods.

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
        tuned_settings: Mapping from those of the settings that belong to the weights to their value
            before they are tuned, which `fit` sets again, and the method that tunes them.
        distilled_settings: arguments, of the task and its preprocessor, that a student takes over
            from its teacher.
        instead_of_predict: for raw texts, of a task that takes only prepared inputs in `predict`.
        only_saved_model: what of it no other format has, where a SavedModel is its only export;
            of such a task `for_cpu` converts the backbone alone, to "sequence_output".
        file_advice: the end of an error for a path in place of texts.
        folder: layout of its presets. Defaults to transformers'.
        learning_rate: Float. Peak of the default learning rate. Defaults to that of the family.
        warmup: share of the steps in which the learning rate rises. Defaults to None: as usual.
        of_pairs: Boolean. Whether the head of the family also tells pairs of segments apart, where
            families have heads of both kinds under the name.
        has_classes: whether the outputs are of classes, with `labels` and `num_classes`.
        labels_tokens: whether there is an answer, and a label, for each token.
        pretrains: whether the labels are made of the texts.
        learns_soft_labels: whether `Distillation` trains it on a teacher's outputs.
        predicts_lists: whether `predict` returns a list of the outputs for each text.
        predicts_tokens: Boolean. Whether it reads the stream of predictions, in families that
            have one.
        group_lengths: whether `fit` makes batches of examples of like length.
        packs_batches: whether the texts of a batch may be packed on JAX, see
            `choose_sequence_counts`. Only for outputs that `logits_of` makes of those of
            `encoded`, and losses that are a mean over examples, which does not depend on the
            batches.
        goes_step_by_step: what goes through texts token by token, such as "an LSTM": TensorFlow
            does not train it compiled by XLA, which would have to know how many steps there are.

    Example:
        >>> from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
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
    tuned_settings: Mapping[str, tuple[object, str]] = dataclasses.field(default_factory=dict)
    distilled_settings: tuple[str, ...] = ()
    instead_of_predict: str | None = None
    only_saved_model: str | None = None
    file_advice: str = "ez.read_annotations({!r}) reads files of annotations."
    folder: FolderFormat = TRANSFORMERS_FOLDER
    learning_rate: float | None = None
    warmup: float | None = None
    of_pairs: bool | None = None
    has_classes: bool = False
    labels_tokens: bool = False
    pretrains: bool = False
    learns_soft_labels: bool = False
    predicts_lists: bool = False
    predicts_tokens: bool = False
    group_lengths: bool = True
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
    def checkpoint_arguments(cls, checkpoint: Checkpoint, given: Mapping) -> dict:
        """Return constructor arguments from config.json, overridden by those of the caller."""

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Return why the head of a checkpoint cannot be loaded; None if it can."""

    def kept_classes(self, config: dict) -> list[int | None] | None:
        """Return the row of each label in the head of a checkpoint with other labels, some of them
        the same; None for a new label. None if the head is taken as it is, or not at all."""

    def train_pooler(self) -> None:
        """Unfreeze the pooler if the head reads its output."""
