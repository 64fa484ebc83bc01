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
    from encoder_zoo.presets.formats.checkpoint import TokenizerPreset


class FolderFormat:
    """Files to write for a task, in addition to config.json, weights and tokenizer.

    The base class adds no files, as in transformers. Subclasses implement the layouts of other
    libraries.

    Attributes:
        opened_by: Optional string. Class in sentence-transformers or gliner that opens the folder.
            If None, a class of transformers opens it.
        settings: Tuple of strings. Task and preprocessor arguments that are stored in these files.
            `from_preset` does not pass them to the backbone, and `encoder_zoo.json` does not
            contain them.
        encoder_prefix: Optional string. Prefix of encoder tensors, if the files contain the
            configuration instead of config.json. If None, tensors have the same names as in
            transformers.
    """

    opened_by: str | None = None
    settings: tuple[str, ...] = ()
    encoder_prefix: str | None = None

    def arguments(self, checkpoint: Checkpoint, given: Mapping) -> dict[str, object]:
        """Read task arguments from the files.

        Args:
            checkpoint: Open `Checkpoint` to load from.
            given: Dict of arguments from the caller, which override values from the files.

        Returns:
            A dict of task arguments. If a value is a `FolderFiles`, it is opened as a model of the
            same class.

        Raises:
            ValueError: If a file is invalid. The message contains its path.
        """
        return {}

    def read_text_arguments(
        self, preset: Checkpoint | TokenizerPreset, tokenizer
    ) -> dict[str, object]:
        """Read preprocessor arguments from the files.

        Args:
            preset: The open preset.
            tokenizer: The preset's tokenizer.

        Returns:
            A dict from names of arguments to values.

        Raises:
            ValueError: If field values are invalid.
        """
        return {}

    def list_tokens_to_add(self, preset: Checkpoint, tokenizer, given: Mapping) -> Sequence[str]:
        """Return tokens that are needed for the task but missing from the tokenizer.

        Args:
            preset: The open preset.
            tokenizer: Tokenizer loaded from the preset.
            given: Dict with arguments from the caller.
        """
        return ()

    def restore(
        self, task: PresetTask, checkpoint: Checkpoint, given: Mapping, allow_nonfinite: bool
    ) -> set[str]:
        """Load the weights of layers after the backbone that do not belong to `Family.heads`.

        Args:
            task: Task created with `arguments`.
            checkpoint: Open `Checkpoint` to load from.
            given: Dict with arguments from the caller.
            allow_nonfinite: Boolean. See `presets.opening.Safeguards`.

        Returns:
            The set of loaded tensors, by name in the checkpoint. It does not include tensors in
            separate files.
        """
        return set()

    def weights(self, task: PresetTask) -> list[keras.Variable]:
        """Return all weights stored in `files`, and all weights that are only used in training."""
        return []

    def files(self, task: PresetTask, dtype: object = None) -> dict[str, object]:
        """Create a preset's additional files.

        Args:
            task: Task to save.
            dtype: Dtype of the stored weights. Defaults to None, which means that every weight
                keeps its dtype.

        Returns:
            A dict from paths in the folder to bytes. The files replace tokenizer files with the
            same name. To save a model in a subfolder, use the model instead of bytes.
        """
        return {}

    def config_fields(self, task: PresetTask) -> dict[str, object]:
        """Return the config.json fields for the head's settings.

        Raises:
            ValueError: If a setting cannot be stored.
        """
        return {}


TRANSFORMERS_FOLDER = FolderFormat()


@dataclasses.dataclass(frozen=True)
class TaskRecord:
    """Task class properties to be used in other modules.

    A subclass changes properties with `record = dataclasses.replace(Base.record, ...)`.

    Args:
        name: String. Name of the task in `TASKS` and `encoder_zoo.json`.
        preprocessor_class: The preprocessor's class.
        head: String. Name of the head in `Family.heads`, which is also the suffix of class
            names in transformers. Defaults to "Model", which means that the task has no head.
        default_head: Optional `Head`. The head for families that do not have `head` in
            `Family.heads`. If None, such families are not supported. Defaults to None.
        pipeline_tag: String. Name of the task on the Hugging Face Hub. Defaults to
            "feature-extraction".
        peft_type: Optional string. Name of the task in peft. If None, adapters cannot be saved.
            Defaults to None.
        text_method: Optional string. Name of the method for inference on raw text, such as
            "classify". Defaults to None.
        answer_type: Optional TypedDict. Type of results, if results can be empty lists.
            Defaults to None.
        answer_settings: Tuple of strings. Constructor arguments that only affect inference. They
            are saved in `encoder_zoo.json` together with preprocessor arguments.
        tuned_settings: Dict of settings that depend on the weights, such as thresholds. Each value
            is a tuple of the initial value, which `fit` restores, and the method name that
            tunes the setting.
        compile_settings: Tuple of strings. Additional arguments for `compile`, which are stored as
            task attributes.
        distilled_settings: Tuple of strings. Task and preprocessor arguments that a student copies
            from its teacher.
        instead_of_predict: Optional string. Advice for users who pass raw texts to `predict`, if it
            only accepts prepared inputs. Defaults to None.
        only_saved_model: Optional string. Computation that only a SavedModel supports, such as
            "an LSTM". For such a task, `for_cpu` only converts the backbone, with the output
            "sequence_output". Defaults to None.
        file_advice: String. End of the error message for users who pass a path instead of
            texts.
        folder: The `FolderFormat` of presets. Defaults to the format of transformers.
        learning_rate: Optional float. Default peak learning rate. If None, the value of the
            family is used. Defaults to None.
        warmup: Optional float. Fraction of steps in which the learning rate increases. If None,
            the usual value is used. Defaults to None.
        of_pairs: Optional boolean. Whether the head classifies pairs of segments, for families in
            which a single name stands for both kinds of heads. Defaults to None.
        has_classes: Boolean. Whether the outputs are classes with `labels` and `num_classes`.
            Defaults to False.
        labels_tokens: Boolean. Whether labels and results belong to tokens. Defaults to False.
        pretrains: Boolean. Whether the labels are computed from the texts. Defaults to False.
        learns_soft_labels: Boolean. Whether `Distillation` can train the task on teacher outputs.
            Defaults to False.
        predicts_lists: Boolean. Whether `predict` returns a list with the outputs for each text.
            Defaults to False.
        predicts_tokens: Boolean. Whether the task uses the prediction stream, in families with two
            streams. Defaults to False.
        group_lengths: Boolean. Whether `fit` groups examples of similar length into batches.
            Defaults to True.
        packs_batches: Boolean. Whether texts in a batch can be packed on JAX. See
            `choose_sequence_counts`. Packing requires that `logits_of` computes outputs from
            `encoded`, and that the loss is a mean over examples which does not depend on the batch.
            Defaults to False.
        goes_step_by_step: Optional string. Name of a recurrent layer, such as "an LSTM".
            TensorFlow trains such a task without XLA, which requires a fixed number of steps.
            Defaults to None.

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
    """Task attributes that are required for loading and saving presets.

    Attributes:
        record: The `TaskRecord` of the task class.
        head_record: The `Head` of the backbone's family.
        problem_type: String. Problem type in config.json. None for tasks without problem types.
        labels: Optional list of strings. Class names.
        num_classes: Optional integer. Number of classes.
        new_head: Optional tuple of arrays. Initial weights of a new head. None if the
            checkpoint contains a head.
        kept_weights: Dict from tensor names to values in the checkpoint, for heads that `fit`
            builds.
        given_head: Optional layer. Layer that a user passed to replace the family's head.
        weights_before_adapters: Dict of arrays. See `adapters.weights_before_adapters`.
        head: Optional layer that is applied to the backbone's outputs.
        backbone: Backbone. The encoder.
        preprocessor: Instance of `record.preprocessor_class`, or None.
        learning_rate: Float. Recommended peak learning rate for further training.
        default_learning_rate: Float. Peak learning rate of the family.
        last_evaluation: Dict of floats. Results of the last `evaluate` with the current
            weights, for the model card.
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
        """Return a family's head for this task."""

    @classmethod
    def read_checkpoint_arguments(cls, checkpoint: Checkpoint, given: Mapping) -> dict:
        """Return constructor arguments from config.json. Arguments of the caller override them."""

    def explain_head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Explain why a checkpoint head cannot be loaded. Return None when it can be loaded."""

    def find_kept_classes(self, config: dict) -> list[int | None] | None:
        """Return each label's row in a checkpoint's head, if some labels are new.

        The row of a new label is None. The result is None if all rows or no rows of the head are
        used.
        """

    def train_pooler(self) -> None:
        """Unfreeze the pooler if this head uses its output."""
