"""Define task records, folder formats, and the protocol for tasks in presets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.presets.formats.checkpoint import Checkpoint, Preset

if TYPE_CHECKING:
    import keras

    from encoder_zoo.encoders.backbone import Backbone


class FolderFormat:
    """Additional files in the folder of a task, next to config.json, weights and tokenizer.

    This base class does not add files, as in transformers. Subclasses implement the formats of
    other libraries.

    Attributes:
        opened_by: Optional string. The class in sentence-transformers or gliner to open the folder.
            If None, the folder can be opened with transformers.
        settings: Tuple of strings. The task and preprocessor arguments that are stored in the
            additional files. They are not passed to the backbone, and not stored in
            `encoder_zoo.json`.
        encoder_prefix: Optional string. The prefix of all encoder tensors, for formats without
            config.json. If None, tensors are named as in transformers.
    """

    opened_by: str | None = None
    settings: tuple[str, ...] = ()
    encoder_prefix: str | None = None

    def read_arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        """Get the task arguments that are stored in the files.

        Args:
            checkpoint: An open `Checkpoint` to load from.
            given: Dict of arguments from the caller, which override values from the files.

        Returns:
            A dict of task arguments. If a value is a `FolderFiles`, the caller replaces it with a
            model of the same class, which is loaded from the files.

        Raises:
            ValueError: If a file is invalid. The message contains the path.
        """
        return {}

    def read_preprocessor_arguments(self, preset: Preset, tokenizer) -> dict[str, object]:
        """Get the preprocessor arguments that are stored in the files.

        Args:
            preset: An open `Preset`.
            tokenizer: Tokenizer loaded from the preset.

        Returns:
            A dict {argument name: value}.

        Raises:
            ValueError: If a field value is invalid.
        """
        return {}

    def list_tokens_to_add(self, preset: Checkpoint, tokenizer, given: Mapping) -> Sequence[str]:
        """List the tokens that the task needs but the tokenizer does not contain.

        Args:
            preset: An open `Checkpoint`.
            tokenizer: Tokenizer loaded from the preset.
            given: Dict of preprocessor arguments from the caller.
        """
        return ()

    def restore(self, task: PresetTask, checkpoint: Checkpoint, given: Mapping) -> set[str]:
        """Load the weights of task layers that do not belong to `Family.heads`.

        Args:
            task: Task created with `read_arguments`.
            checkpoint: An open `Checkpoint` to load from.
            given: Dict of arguments from the caller.

        Returns:
            A set of strings. Checkpoint names of all loaded tensors, except for tensors in separate
            files.
        """
        return set()

    def list_additional_weights(self, task: PresetTask) -> list[keras.Variable]:
        """List all weights that `make_files` stores or that are only used during training."""
        return []

    def make_files(self, task: PresetTask, dtype: object = None) -> dict[str, object]:
        """Create the additional preset files.

        Args:
            task: Task to save.
            dtype: Dtype of the stored weights. If None, every weight keeps its dtype.

        Returns:
            A dict {path in the folder: bytes}. The files override tokenizer files of the same name.
            A value can also be a model to save in a subfolder.
        """
        return {}

    def make_config_fields(self, task: PresetTask) -> dict[str, object]:
        """Create the config.json fields for the head settings.

        Raises:
            ValueError: If a setting cannot be stored.
        """
        return {}


TRANSFORMERS_FOLDER = FolderFormat()


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """Description of a task class for other modules.

    In a subclass, fields can be changed with `record = dataclasses.replace(Base.record, ...)`.

    Args:
        name: String. The task name in `TASKS` and `encoder_zoo.json`.
        preprocessor_class: Preprocessor class.
        head: String. The head name in `Family.heads`, which is also the suffix of class names in
            transformers. Defaults to "Model", which means that the task has no head.
        default_head: Optional `Head` for families without `head` in `Family.heads`. If None, these
            families are not supported.
        pipeline_tag: String. The task name on the Hugging Face Hub. Defaults to
            "feature-extraction".
        peft_type: Optional string. The task name in peft. If None, adapters cannot be saved.
        answers_class: Optional subclass of `Answers` with the methods for inference on raw text.
            Its settings are task attributes with the same names.
        text_method: Optional string. The main method of `answers_class`, such as "classify".
        answer_type: Optional TypedDict. Type of the results, for tasks with lists of results that
            can be empty.
        answer_settings: Tuple of strings. Constructor arguments that only affect inference. They
            are stored in `encoder_zoo.json` together with preprocessor arguments. Defaults to ().
        tuned_settings: Dict {setting: (initial value, method)} of settings that depend on the
            weights, such as thresholds. The method tunes the setting, and `fit` restores the
            initial value. Defaults to {}.
        compile_settings: Tuple of strings. Additional arguments of `compile`, which are stored as
            task attributes. Defaults to ().
        distilled_settings: Tuple of strings. The task and preprocessor arguments that a student
            copies from the teacher. Defaults to ().
        instead_of_predict: Optional string. Advice for users who pass raw texts to `predict`, for
            tasks that only accept preprocessed inputs.
        only_saved_model: Optional string. Operation that can only be exported as a SavedModel, such
            as "an LSTM". For these tasks, `for_cpu` only converts the backbone with the output
            "sequence_output".
        file_advice: String. The last sentence of the error message for a path instead of texts,
            with {!r} for the path. Defaults to a sentence about `read_annotations`.
        folder: The `FolderFormat` of presets. Defaults to the format of transformers.
        learning_rate: Optional float. Default peak learning rate. If None, the learning rate of the
            family will be used.
        warmup: Optional float. The fraction of steps in which the learning rate increases. If None,
            the default of the optimizer will be used.
        of_pairs: Optional boolean. Whether the head classifies pairs of segments. Some families use
            the same name for a head for single segments and a head for pairs.
        has_classes: Boolean. Whether the outputs are classes with `labels` and `num_classes`.
            Defaults to False.
        labels_tokens: Boolean. Whether labels and results belong to tokens. Defaults to False.
        pretrains: Boolean. Whether the labels are computed from the texts. Defaults to False.
        learns_soft_labels: Boolean. Whether `Distillation` can train the task on teacher outputs.
            Defaults to False.
        predicts_tokens: Boolean. Whether the task uses the prediction stream, in families with two
            streams. Defaults to False.
        packs_batches: Boolean. Whether texts in a batch can be packed on JAX. See
            `choose_sequence_counts`. Packing requires that `logits_of` computes outputs from
            `encoded`, and that the loss is a mean over independent examples. Defaults to False.

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
    answers_class: type | None = None
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
    predicts_tokens: bool = False
    packs_batches: bool = False


class PresetTask(Protocol):
    """Protocol with the task attributes that are used to load, save and export tasks.

    Attributes:
        record: The `TaskRecord` of the task class.
        head_record: The `Head` of the task in the family of the backbone.
        problem_type: Optional string. Problem type in config.json.
        labels: Optional list of strings. The class names.
        num_classes: Optional integer. The number of classes.
        new_head: Optional tuple of arrays. Initial weights for a new head, or None when the
            checkpoint contains a head.
        kept_weights: Dict {tensor name: value in the checkpoint}, for heads that `fit` builds.
        given_head: Optional layer from the user that replaces the head of the family.
        weights_before_adapters: Dict of arrays. See `adapters.get_weights_before_adapters`.
        head: Optional layer that is applied to the outputs of the backbone.
        backbone: A `Backbone`.
        preprocessor: Optional instance of `record.preprocessor_class`.
        learning_rate: Float. Recommended peak learning rate for further training.
        default_learning_rate: Float. The peak learning rate of the family.
        last_evaluation: Dict of floats. Results of the last `evaluate` with the current
            weights, for the model card.
        served_tokenizers: List of the tokenizers that `signatures` uses.
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
    served_tokenizers: list

    @classmethod
    def get_family_head(cls, family: Family) -> Head:
        """Return the head for this task in a family."""

    @classmethod
    def read_checkpoint_arguments(cls, checkpoint: Checkpoint, given: Mapping) -> dict:
        """Get the constructor arguments in config.json that the caller does not override."""

    def explain_head_mismatch(self, config: dict, arguments: dict) -> str | None:
        """Return the reason why the head in the checkpoint cannot be loaded, or None."""

    def find_kept_classes(self, config: dict) -> list[int | None] | None:
        """Map each label of the task to a row of the head in the checkpoint.

        A new label is mapped to None. If the labels are the same as in the checkpoint, or if all
        labels are new, the result is None.
        """

    def train_pooler(self) -> None:
        """Unfreeze the pooler if this head uses its output."""

    def list_input_names(self) -> list[str]:
        """Return the names of the model inputs."""

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return a dict mapping input names to tuples (minimum value, maximum value)."""

    def signatures(self, **options) -> dict[str, Callable]:
        """Return the functions that a SavedModel contains."""
