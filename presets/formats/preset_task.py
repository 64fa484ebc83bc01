"""Task records, folder formats, and the protocol of tasks in presets."""

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
    """Preset files to write in addition to config.json, the weights and the tokenizer.

    The base class adds no files, as in transformers. Subclasses implement the layouts of other
    libraries.

    Attributes:
        opened_by: Optional string. Class in sentence-transformers or gliner that opens the folder.
            None means a class of transformers.
        settings: Tuple of strings. Task and preprocessor arguments that these files store.
            `from_preset` does not pass them to the backbone, and they are not written to
            `encoder_zoo.json`.
        encoder_prefix: Optional string. Prefix of the encoder's tensors, if these files contain the
            configuration instead of config.json. None means the tensor names of transformers.
    """

    opened_by: str | None = None
    settings: tuple[str, ...] = ()
    encoder_prefix: str | None = None

    def arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        """Read task arguments from the files.

        Args:
            checkpoint: Open `Checkpoint` to load from.
            given: Dict with arguments from the caller. They have priority.

        Returns:
            A dict from names of arguments to values. A `FolderFiles` value is opened as a model of
                the same class.

        Raises:
            ValueError: If file contents are invalid. The message contains its path.
        """
        return {}

    def text_arguments(self, preset: Checkpoint | TokenizerPreset, tokenizer) -> dict[str, object]:
        """Read preprocessor arguments from the files.

        Args:
            preset: The opened preset.
            tokenizer: Tokenizer loaded from the preset.

        Returns:
            A dict from names of arguments to values.

        Raises:
            ValueError: If field values are invalid.
        """
        return {}

    def list_tokens_to_add(self, preset: Checkpoint, tokenizer, given: Mapping) -> Sequence[str]:
        """Return tokens that are needed for the task but missing from the tokenizer.

        Args:
            preset: The opened preset.
            tokenizer: Tokenizer loaded from the preset.
            given: Dict with arguments from the caller.
        """
        return ()

    def restore(
        self, task: PresetTask, checkpoint: Checkpoint, given: Mapping, allow_nonfinite: bool
    ) -> set[str]:
        """Load weights for layers that follow the backbone but are not in `Family.heads`.

        Args:
            task: Task created with `arguments`.
            checkpoint: Open `Checkpoint` to load from.
            given: Dict with arguments from the caller.
            allow_nonfinite: Boolean. See `presets.opening.Safeguards`.

        Returns:
            A set with the checkpoint names for all loaded tensors. Tensors in separate files are
                not included.
        """
        return set()

    def weights(self, task: PresetTask) -> list[keras.Variable]:
        """Return the weights in `files`, and weights that are only used during training."""
        return []

    def files(self, task: PresetTask, dtype: object = None) -> dict[str, object]:
        """Create additional preset files.

        Args:
            task: Task to save.
            dtype: Dtype of the stored weights. Defaults to None, which keeps each dtype.

        Returns:
            A dict from paths in the folder to bytes. These files replace tokenizer files with the
                same name. To save a model in a subfolder, map its path to the model instead of
                bytes.
        """
        return {}

    def config_fields(self, task: PresetTask) -> dict[str, object]:
        """Return config.json fields for head settings.

        Raises:
            ValueError: If a setting cannot be stored.
        """
        return {}


TRANSFORMERS_FOLDER = FolderFormat()


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """Task class properties used by other code.

    Subclasses change properties with `record = dataclasses.replace(Base.record, ...)`.

    Args:
        name: String. Name to use in `TASKS` and `encoder_zoo.json`.
        preprocessor_class: Class of the preprocessor.
        head: String. Head name in `Family.heads`, which is also a class name suffix in
            transformers. Defaults to "Model", which needs no head.
        default_head: Optional `Head`. Head for families without this key. None means that such
            families are not supported. Defaults to None.
        pipeline_tag: String. Task name on the Hugging Face Hub. Defaults to "feature-extraction".
        peft_type: Optional string. Task name in peft. None means that adapters cannot be saved.
            Defaults to None.
        text_method: Optional string. Name of the method for inference on raw text, such as
            "classify". Defaults to None.
        answer_type: Optional TypedDict. Type of the results, if the results can be empty lists.
            Defaults to None.
        answer_settings: Tuple of strings. Constructor arguments for inference. They are saved in
            `encoder_zoo.json` together with preprocessor arguments.
        tuned_settings: Dict that maps settings that depend on the weights to tuples (initial value,
            name for the method that tunes it). `fit` resets them to the initial value.
        compile_settings: Tuple of strings. Additional arguments for `compile`, which are stored as
            task attributes.
        distilled_settings: Tuple of strings. Task and preprocessor arguments that students copy
            from a teacher.
        instead_of_predict: Optional string. Advice for raw texts, if `predict` only accepts
            prepared inputs. Defaults to None.
        only_saved_model: Optional string. Feature that can only be exported as a SavedModel. For
            such a task, `for_cpu` converts only the backbone, with the output "sequence_output".
            Defaults to None.
        file_advice: String. Last part of error messages for paths that are passed instead of texts.
        folder: `FolderFormat` of its presets. Defaults to the format of transformers.
        learning_rate: Optional float. Default peak learning rate. None means the family's value.
            Defaults to None.
        warmup: Optional float. Fraction of the steps in which the learning rate increases. None
            means the usual value. Defaults to None.
        of_pairs: Optional boolean. Whether the head handles pair segments separately, for families
            that use the same name for both head types. Defaults to None.
        has_classes: Boolean. Whether the outputs are classes with `labels` and `num_classes`.
            Defaults to False.
        labels_tokens: Boolean. Whether labels and results belong to tokens. Defaults to False.
        pretrains: Boolean. Whether the labels are computed from the texts. Defaults to False.
        learns_soft_labels: Boolean. Whether `Distillation` can train on teacher outputs. Defaults
            to False.
        predicts_lists: Boolean. Whether `predict` returns a list with the outputs for each text.
            Defaults to False.
        predicts_tokens: Boolean. Whether the task reads the prediction stream of families with two
            streams. Defaults to False.
        group_lengths: Boolean. Whether `fit` groups examples of similar length into batches.
            Defaults to True.
        packs_batches: Boolean. Whether texts in a batch can be packed on JAX. See
            `choose_sequence_counts`. Packing requires `logits_of` to compute outputs from
            `encoded`, and a loss that averages over examples without depending on batches. Defaults
            to False.
        goes_step_by_step: Optional string. A recurrent layer, such as "an LSTM". TensorFlow trains
            it without XLA, because XLA needs a fixed number of steps. Defaults to None.

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
    compile_settings: tuple[str, ...] = ()
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
    """The attributes of tasks that are used to load and save presets.

    Attributes:
        record: `TaskRecord` of the task class.
        head_record: `Head` of the backbone's family.
        problem_type: String as in config.json, or None for tasks without problem types.
        labels: Optional list of strings. Class names.
        num_classes: Optional integer. Number of classes.
        new_head: Optional tuple of arrays. Initial weights of a new head. None means that the
            checkpoint contains a head.
        kept_weights: Dict from tensor names to checkpoint values, for heads built by `fit`.
        given_head: Optional layer that users pass to replace the family's head.
        weights_before_adapters: Dict of arrays. See `adapters.weights_before_adapters`.
        head: Optional layers to apply after the backbone.
        backbone: Backbone. The encoder.
        preprocessor: Preprocessor from `record.preprocessor_class`, or None.
        learning_rate: Float. Recommended peak learning rate for further training.
        default_learning_rate: Float. Peak learning rate of the family.
        last_evaluation: Dict of floats. Results of the last `evaluate` with the current weights,
            for the model card.
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
        """Return the family's head for this task."""

    @classmethod
    def checkpoint_arguments(cls, checkpoint: Checkpoint, given: Mapping) -> dict:
        """Return constructor arguments from config.json, overridden by the caller's arguments."""

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Explain why a checkpoint head cannot be loaded. Return None if it can be loaded."""

    def kept_classes(self, config: dict) -> list[int | None] | None:
        """Return the row of each label in a checkpoint head with partly different labels.

        The row of a new label is None. The result is None if the head is used without changes, or
        if it is not used.
        """

    def train_pooler(self) -> None:
        """Unfreeze the pooler if this head uses its output."""
