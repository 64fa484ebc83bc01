"""Base of all tasks: a backbone, a head, a preprocessor; loading, saving, exporting."""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import keras
import numpy as np

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.variable_names import NamesVariablesAlike
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.encoders.inputs import backbone_inputs
from encoder_zoo.encoders.packed_batch import encode_packed
from encoder_zoo.encoders.sharding import whole_array
from encoder_zoo.tasks.base.task_presets import TaskPresets
from encoder_zoo.tasks.preprocessing.filling import PACKED_TOKENS
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.named_metrics import EXACT, metric_by_name
from encoder_zoo.tasks.training.prepared import is_prepared
from encoder_zoo.tasks.training.text_model import TextModel

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.tasks.serving.lite_model import LiteModel

logger = logging.getLogger("encoder_zoo")

MAX_SHOWN = 10  # labels in a `repr`


class TinyData(NamedTuple):
    """Arguments and data of a small task, for the checks of `encoder_zoo.testing`.

    Attributes:
        arguments: of the task's constructor, in addition to backbone and preprocessor.
        x: raw inputs, of the letters a to p.
        y: labels, or None.
    """

    arguments: dict
    x: object
    y: object = None


class Task(ConfigFromSignature, TaskPresets, TextModel, metaclass=NamesVariablesAlike):
    """Base of the tasks: a backbone, a head, and a preprocessor for raw text.

    Args:
        backbone: any `Backbone`.
        preprocessor: turns raw inputs into the model's; without one, `fit`, `evaluate` and
            `predict` take prepared inputs (`{"token_ids", ...}`) only.

    Attributes:
        task_name: name in `TASKS` and in `encoder_zoo.json`.
        checkpoint_class_suffix: end of the name of transformers' class, after the family's; the
            key in `Family.heads` of the head that the task needs. "Model": it needs none.
        default_head: of families whose record has no head of that name; None: the task does not
            support them.
        pipeline_tag: the Hugging Face hub's name for the task.
        preprocessor_class: of its raw inputs.
        has_classes: whether the outputs are of classes, with `labels` and `num_classes`.
        new_head: first weights of a head that a checkpoint does not have, until the first answer.
        kept_weights: {tensor: value} of a checkpoint, for a head that `fit` builds.
        labels_tokens: whether there is an answer, and a label, for each token.
        pretrains: whether the labels are made of the texts.
        problem_type: as in config.json, of tasks that have several.
        learns_soft_labels: whether `Distillation` trains it on a teacher's outputs.
        peft_task_type: peft's name for the task; None: it cannot be saved as adapters.
        text_method: the method that answers to raw text, such as "classify"; None: there is none.
        answer_type: TypedDict of its answers, where these may be lists that are empty.
        instead_of_predict: for raw texts, of a task that takes only prepared inputs in `predict`.
        answer_settings: constructor arguments that decide how it answers, saved in
            `encoder_zoo.json` among the preprocessor's.
    """

    task_name: str
    checkpoint_class_suffix: str = "Model"
    default_head: Head | None = None
    pipeline_tag: str = "feature-extraction"
    preprocessor_class: type[Preprocessor]
    has_classes: bool = False
    problem_type: str | None = None
    learns_soft_labels: bool = False
    peft_task_type: str | None = None
    text_method: str | None = None
    answer_type: type | None = None
    instead_of_predict: str | None = None
    answer_settings: tuple[str, ...] = ()

    labels: list[str] | None = None
    num_classes: int | None = None
    new_head: tuple | None = None
    kept_weights: Mapping[str, np.ndarray] = MappingProxyType({})
    lite_model: LiteModel | None = None  # of the results of `for_cpu`
    head: keras.layers.Layer | None

    def __init__(self, backbone: Backbone, preprocessor: Preprocessor | None = None, **kwargs):
        self._check_parts(backbone, preprocessor)
        # Keras scales losses by the task's precision.
        super().__init__(**{"dtype": backbone.dtype_policy, **kwargs})
        self.backbone = backbone
        self.head = None  # here: torch does not find a layer behind an attribute of the class
        # A copy: `attach` notes this task's labels and lengths in it.
        self.preprocessor = copy.copy(preprocessor)
        self._reset_training_state()

    @classmethod
    def _check_parts(cls, backbone: object, preprocessor: object) -> None:
        """Raise a TypeError without a backbone, or for the preprocessor of another task."""
        if not isinstance(backbone, Backbone):
            raise TypeError(
                f"{cls.__name__} takes a Backbone. Received: a {type(backbone).__name__}."
            )
        expected = cls.preprocessor_class
        if preprocessor is None or getattr(preprocessor, "task_name", "") == expected.task_name:
            return
        raise TypeError(
            f"{cls.__name__} takes a {expected.__name__}. Received: a "
            f"{type(preprocessor).__name__}. Make one with the same tokenizer."
        )

    def _finish_building(self) -> None:
        """Mark the task as built, if it has its head, and attach its preprocessor."""
        self.built = self.head is not None
        if self.preprocessor is not None:
            self.preprocessor.attach(self)

    # -- description ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        backbone, labels = self.backbone, self.labels
        parts = [
            f"{type(backbone).__name__} of {backbone.num_layers} layers of {backbone.hidden_dim}",
            f"{sum(math.prod(weight.shape) for weight in self.weights):,} weights",
            *([f"labels {', '.join(labels[:MAX_SHOWN])}"] if labels else []),
        ]
        more = f" and {len(labels) - MAX_SHOWN} more" if len(labels or []) > MAX_SHOWN else ""
        return f"<{type(self).__name__}: {'; '.join(parts)}{more}>"

    def encoded(self, inputs: dict, training: bool | None = None) -> dict:
        """Return the backbone's outputs for those inputs that it reads."""
        given = backbone_inputs(inputs)
        if PACKED_TOKENS in inputs:
            return encode_packed(self.backbone, given, inputs[PACKED_TOKENS], training)
        return self.backbone(given, training=training)

    def call(self, inputs, training=None):
        if self.lite_model is not None:
            self._check_answers_only(training)
            if self.lite_model.takes(inputs):
                return self.lite_model(inputs)
        return self.logits_of(self.encoded(inputs, training), inputs, training)

    def logits_of(self, encoded: dict, inputs: dict, training: bool | None = None):
        """Return the task's outputs, from those of its backbone."""
        raise NotImplementedError

    @classmethod
    def head_of(cls, family: Family) -> Head:
        """Return the record of the family's head for this task.

        Raises:
            ValueError: "The family 'bert' has no head ForPreTraining. Expected one of ..."
        """
        suffix = cls.checkpoint_class_suffix
        if cls.default_head is not None and suffix not in family.heads:
            return cls.default_head
        return family.head(suffix)

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family has the head that the task needs."""
        suffix = cls.checkpoint_class_suffix
        return suffix in ("Model", *family.heads) or cls.default_head is not None

    @property
    def head_record(self) -> Head:
        """Return the record of the head that the backbone's family has for this task."""
        return self.head_of(self.backbone.family)

    @classmethod
    def tiny_data(cls) -> TinyData:
        """Return arguments and data for the checks of `encoder_zoo.testing`."""
        return TinyData({}, ["a b ab", "", "c d e a b", "p"])

    def tiny_questions(self) -> tuple:
        """Return the arguments of `text_method` for as many texts as `tiny_data` has."""
        x = self.tiny_data().x
        return x if isinstance(x, tuple) else (x,)

    def _answer_like(self, teacher: Task) -> None:
        """Take over the settings that decide which tokens have answers, before distillation."""

    def _set_word_splitting(self, x) -> None:
        """Note how the inputs of `fit` are split into words, for tasks that label words."""

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        """Return the arguments of the constructor: the given ones, else those in config.json."""
        stored = {"dropout": config.get(head.dropout)} if head.dropout else {}
        return {**stored, **arguments}

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Return why a checkpoint's head must not be loaded, or None."""
        return None

    def kept_classes(self, config: dict) -> list[int | None] | None:
        """Return the row that each label has in the head of a checkpoint with other labels.

        Of a new label it is None; None alone if no label is the checkpoint's, or all are.
        """
        return None

    def check_representable(self) -> None:
        """Raise a ValueError if config.json has no field for a setting of the head."""

    def metric_by_name(self, name: str):
        """Return the metric of a name; a name of Keras is returned unchanged."""
        if self.labels_tokens and name.lower() in EXACT:
            raise ValueError(
                f"{name!r} keeps the outputs of all examples, which are too many where these are "
                "tokens. Use 'f1_macro', or keras.metrics.AUC(multi_label=True, num_labels="
                f"{self.num_classes}), which is approximate."
            )
        return metric_by_name(name, self.output_activation, self.num_classes)

    def default_loss(self) -> keras.losses.Loss:
        """Return the default loss of `compile`."""
        raise NotImplementedError

    def default_metrics(self) -> list:
        """Return the default metrics of `compile`, weighted by sample weights."""
        raise NotImplementedError

    def _warn_new_head(self) -> None:
        """Log once that answers are those of a head with random weights."""
        first, self.new_head = self.new_head, None
        if first is None or len(first) != len(self.head.weights):
            return
        pairs = zip(first, self.head.weights, strict=True)
        if all(np.array_equal(value, whole_array(weight)) for value, weight in pairs):
            logger.warning(
                "This %s answers from a head with random weights: the checkpoint has none, and it "
                "was not trained yet. Its answers mean nothing before `fit`.",
                type(self).__name__,
            )

    def _check_answers(self, x=None) -> None:
        if x is not None and self.instead_of_predict and not is_prepared(x):
            raise ValueError(
                f"{type(self).__name__}.predict takes prepared inputs, {{'token_ids', "
                "'padding_mask', ...}: raw texts would be masked at random. Use "
                f"{self.instead_of_predict}, or evaluate(texts). Received: {type(x).__name__}."
            )

    @reads_weights
    def export(
        self, path: str | os.PathLike[str], format: str = "tf_saved_model", **options: Any
    ) -> None:
        """Write the task as files that run without this package.

        `classifier.export("served/1")` makes a version folder for TensorFlow Serving, in which
        `tf.saved_model.load("served/1").signatures["serving_default"](text=tf.constant([...]))`
        gives the answers of `classify`. A task that was quantized by Keras, `quantize("int8")`, is
        exported with its int8 weights, as "tf_saved_model" and "onnx".

        Args:
            path: of a "tf_saved_model" the version folder, such as "served/1"; of "onnx" and
                "litert" the file, `....onnx`, `....tflite`. It is written atomically.
            format: "tf_saved_model" takes raw text and gives answers, and loads with TensorFlow
                alone; "onnx" and "litert" take token ids and give logits.
            **options: of a "tf_saved_model" those of the task's `signatures`, such as `strategy` or
                `null_threshold`; otherwise those of Keras's exporter, such as
                `optimizations=[tf.lite.Optimize.DEFAULT]` for int8 weights in "litert".

        Raises:
            ValueError: "Unknown format ...", "Export needs Keras's TensorFlow backend ..."

        Source: `tasks/serving/export.py` describes the files.
        """
        from encoder_zoo.tasks.serving.export import export_task

        self._check_answers_only(self.lite_model is not None)
        export_task(self, path, format, **options)

    @validate_arguments
    def for_cpu(self, dtype: Literal["int8", "float32"] = "int8") -> Self:
        """Return a copy that answers faster on a CPU, by LiteRT (package ai-edge-litert).

        Its answers are those of the weights of now. The conversion takes some seconds. What
        LiteRT has no inputs for, such as `explain`, is computed with the backbone instead.

        Args:
            dtype: "int8" quantizes the weights of matrix products, which changes the answers a
                little; "float32" keeps them, and is slower.

        Returns:
            A task of this class that shares this one's backbone, for all but `fit` and `export`.

        Raises:
            ValueError: "Export needs Keras's TensorFlow backend ...", "for_cpu takes a model in
                float32. ..."
            ImportError: "for_cpu needs the package ai-edge-litert: ..."

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
            >>> fast = embedder.for_cpu()
            >>> float(embedder.embed("Good morning!") @ fast.embed("Good morning!")) > 0.97
            True
        """
        from encoder_zoo.tasks.serving.lite_model import LiteModel

        self._check_answers_only(self.lite_model is not None)
        answering = type(self).from_config(self.get_config())
        for own, copied in zip(self.variables, answering.variables, strict=True):
            if own is not copied:
                copied.assign(own)
        answering.lite_model = LiteModel(self, dtype)
        return answering

    def _check_answers_only(self, changes: bool | None) -> None:
        """Raise an error before a result of `for_cpu` is trained or exported."""
        if changes:
            raise ValueError(
                "This is the result of for_cpu, which answers only. Call fit or export of the "
                "model that it was made of, and for_cpu again."
            )

    def signatures(self, **options) -> dict[str, Callable]:
        """Return the functions of an export, from raw text to answers.

        Args:
            **options: arguments of the task's text-level method, fixed in the export.

        Returns:
            For each signature a function of string tensors (N,), which runs in `tf.function`; its
            results have the names and the values of the text-level method's, padded to tensors.
        """
        raise NotImplementedError

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return the least and the largest number that each prepared input may hold.

        A task whose preprocessor makes more than its backbone reads overrides this.

        Args:
            length: L, of the examples.
        """
        return self.backbone.input_ranges(length)

    def prepared_inputs(self) -> list[str]:
        """Return the names of the model's inputs, each (B, ...) int32 in an export."""
        segments = ["segment_ids"] if self.backbone.family.uses_segments else []
        return ["token_ids", "padding_mask", *segments]

    @property
    def served_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that `signatures` uses."""
        return self.preprocessor.tokenizer
