"""Base of all tasks: a backbone, a head, a preprocessor; loading, saving, exporting."""

from __future__ import annotations

import copy
import logging
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack

import keras
import numpy as np

from encoder_zoo.common.arguments import (
    CommitMessage,
    Repository,
    SaveOptions,
    TokenizerPresetArguments,
)
from encoder_zoo.common.extras import extra
from encoder_zoo.common.validation import PositiveFloat, PositiveInt, validate_arguments
from encoder_zoo.common.variable_names import NamesVariablesAlike
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.common.wording import ForeignName, invalid
from encoder_zoo.encoders.arrays import whole_array
from encoder_zoo.encoders.backbone import Backbone, BackbonePresetArguments
from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.encoders.inputs import backbone_inputs
from encoder_zoo.encoders.packed_batch import encode_packed
from encoder_zoo.presets import adapters, loading, pushing, saving
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.preprocessing.batch_shapes import PACKED_TOKENS
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.inference import predict_texts
from encoder_zoo.tasks.training.prepared import is_prepared
from encoder_zoo.tasks.training.text_model import TextModel

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.formats.checkpoint import Checkpoint
    from encoder_zoo.tasks.base.answers import Answers
    from encoder_zoo.tasks.serving.cpu_model import CpuModel
    from encoder_zoo.tasks.training.data import Source

logger = logging.getLogger("encoder_zoo")

MAX_SHOWN = 10  # labels in a `repr`


class TaskPresetArguments(BackbonePresetArguments, TokenizerPresetArguments, total=False):
    """Of the backbone, of the tokenizer, and of every preprocessor."""

    sequence_length: int | None
    preprocessor: Preprocessor | None


class TinyData(NamedTuple):
    """Arguments and data of a small task, for the checks of `encoder_zoo.testing`.

    Attributes:
        arguments: of the task's constructor, in addition to backbone and preprocessor.
        x: raw inputs, of the letters a to p.
        y: labels, or None.
        questions: Function of the task that returns the arguments of `record.text_method` for as
            many texts. Defaults to the columns of `x`.
    """

    arguments: dict
    x: object
    y: object = None
    questions: Callable[[Task], tuple] | None = None


class Task(TextModel, metaclass=NamesVariablesAlike):
    """Base of the tasks: a backbone, a head, and a preprocessor for raw text.

    Args:
        backbone: A `Backbone`.
        preprocessor: turns raw inputs into the model's; without one, `fit`, `evaluate` and
            `predict` take prepared inputs (`{"token_ids", ...}`) only.

    Attributes:
        record: what other code needs to know of the task.
        new_head: first weights of a head that a checkpoint does not have, until the first answer.
        kept_weights: {tensor: value} of a checkpoint, for a head that `fit` builds.
        weights_before_adapters: Dict of names in a file of adapters to arrays, the head and its
            pooler as they were before `enable_lora` or `load_adapters`.
        problem_type: as in config.json, of tasks that have several.
    """

    problem_type: str | None = None
    fixed_settings = ("dropout", "num_classes", "crf")
    if not TYPE_CHECKING:  # so that editors do not offer them
        from_pretrained = ForeignName("from_preset(source)")
        from_transformers = ForeignName("from_preset(source)")
        save_pretrained = ForeignName("save_to_preset(folder)")
        to_disk = ForeignName("save_to_preset(folder)")
        max_seq_length = ForeignName("from_preset(source, sequence_length=...)")
        max_length = ForeignName("from_preset(source, sequence_length=...)")
        num_labels = ForeignName("from_preset(source, num_classes=...)")
        id2label = ForeignName("labels")
        label2id = ForeignName("labels")

    labels: list[str] | None = None
    num_classes: int | None = None
    new_head: tuple | None = None
    kept_weights: Mapping[str, np.ndarray] = MappingProxyType({})
    weights_before_adapters: Mapping[str, np.ndarray] = MappingProxyType({})
    cpu_model: CpuModel | None = None  # of the results of `for_cpu`
    head: keras.layers.Layer | None

    def __init__(self, backbone: Backbone, preprocessor: Preprocessor | None = None, **kwargs):
        self._check_parts(backbone, preprocessor)
        # Keras scales losses by the task's precision.
        super().__init__(**{"dtype": backbone.dtype_policy, **kwargs})
        self.backbone = backbone
        self.head = None  # here: torch does not find a layer behind an attribute of the class
        self._preprocessor = copy.copy(preprocessor)
        self._reset_training_state()

    @property
    def preprocessor(self) -> Preprocessor | None:
        """Return what turns raw inputs into the model's; another of the same class can be set.

        The task takes a copy of what is set, in which it notes its labels and lengths.

        Raises:
            TypeError: If it is set to a preprocessor of another task.
        """
        return self._preprocessor

    @preprocessor.setter
    def preprocessor(self, preprocessor: Preprocessor | None) -> None:
        self._check_parts(self.backbone, preprocessor)
        self._preprocessor = copy.copy(preprocessor)
        if preprocessor is not None:
            self._preprocessor.attach(self)

    @classmethod
    def _check_parts(cls, backbone: object, preprocessor: object) -> None:
        """Raise a TypeError without a backbone, or for the preprocessor of another task."""
        if not isinstance(backbone, Backbone):
            raise invalid("backbone", backbone, "a Backbone", TypeError)
        loading.check_preprocessor_class(cls, preprocessor)

    def _finish_building(self) -> None:
        """Build the head, as far as the task can, and attach the preprocessor."""
        with self.distribution.scope():
            self.head = self.build_head()
        self.built = self.head is not None
        if self.preprocessor is not None:
            self.preprocessor.attach(self)

    def build_head(self) -> keras.layers.Layer | None:
        """Return the layers after the backbone, built; None as long as their size is not known."""
        return self.head

    # -- description ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        backbone, labels = self.backbone, self.labels
        parts = [
            f"{type(backbone).__name__} of {backbone.num_layers} layers of {backbone.hidden_dim}",
            f"{sum(math.prod(weight.shape) for weight in self.weights):,} weights",
            *([f"answers in {self.cpu_model.identity} on the CPU"] if self.cpu_model else []),
            *([f"labels {', '.join(labels[:MAX_SHOWN])}"] if labels else []),
        ]
        more = f" and {len(labels) - MAX_SHOWN} more" if len(labels or []) > MAX_SHOWN else ""
        return f"<{type(self).__name__}: {'; '.join(parts)}{more}>"

    def encoded(self, inputs: dict, training: bool | None = None) -> dict:
        """Return the backbone's outputs for those inputs that it reads."""
        if self.record.predicts_tokens and self.backbone.predicts_in_order:
            return {"predictions": self.backbone.predictions(inputs, training)}
        given = backbone_inputs(inputs)
        if PACKED_TOKENS in inputs:
            return encode_packed(self.backbone, given, inputs[PACKED_TOKENS], training)
        return self.backbone(given, training=training)

    def call(self, inputs, training=None):
        if self.cpu_model is not None:
            self._check_answers_only(training)
            whole = self.record.only_saved_model is None
            read = inputs if whole else backbone_inputs(inputs)
            if self.cpu_model.session.takes(read):
                outputs = self.cpu_model(read)
                return outputs if whole else self.logits_of({"sequence_output": outputs}, inputs)
        return self.logits_of(self.encoded(inputs, training), inputs, training)

    def logits_of(self, encoded: dict, inputs: dict, training: bool | None = None):
        """Return the task's outputs, from those of its backbone."""
        raise NotImplementedError

    @classmethod
    def head_of(cls, family: Family) -> Head:
        """Return the record of the family's head for this task.

        Raises:
            ValueError: If the family has no such head.
        """
        record = cls.record
        if record.default_head is not None and record.head not in family.heads:
            return record.default_head
        return family.head(record.head)

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family has the head that the task needs."""
        record, head = cls.record, family.heads.get(cls.record.head)
        if head is None:
            return record.head == "Model" or record.default_head is not None
        return record.of_pairs in (None, head.pair is not None)

    @property
    def head_record(self) -> Head:
        """Return the record of the head that the backbone's family has for this task."""
        return self.head_of(self.backbone.family)

    @classmethod
    def least_weights(cls, config: dict) -> int:
        """Return how many numbers the large matrices of a configuration's head have."""
        hidden, layers = config["backbone"]["config"]["hidden_dim"], config.get("dense") or ()
        widths = [hidden, *(layer["units"] for layer in layers)]
        of_classes = (1 if config.get("head") else hidden) * (config.get("num_classes") or 0)
        return of_classes + sum(map(operator.mul, widths, widths[1:]))

    @classmethod
    def tiny_data(cls) -> TinyData:
        """Return arguments and data for the checks of `encoder_zoo.testing`."""
        return TinyData({}, ["a b ab", "", "c d e a b", "p"])

    def tiny_questions(self) -> tuple:
        """Return the arguments of `record.text_method` for as many texts as `tiny_data` has."""
        data = self.tiny_data()
        if data.questions is not None:
            return data.questions(self)
        return data.x if isinstance(data.x, tuple) else (data.x,)

    @classmethod
    def checkpoint_arguments(cls, checkpoint: Checkpoint, given: Mapping) -> dict:
        """Return the arguments of the constructor: the given ones, else those in config.json."""
        field = cls.head_of(checkpoint.family).dropout
        stored = {"dropout": checkpoint.config.get(field)} if field else {}
        return {**stored, **given}

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """Return why a checkpoint's head must not be loaded, or None."""
        return None

    def kept_classes(self, config: dict) -> list[int | None] | None:
        """Return the row that each label has in the head of a checkpoint with other labels.

        Of a new label it is None; None alone if no label is the checkpoint's, or all are.
        """
        return None

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

    @property
    def _answers(self) -> Answers:
        """Return the text side of the answers, with the settings of now and this task as runner."""
        raise NotImplementedError

    def _predict_texts(self, x, batch_size: int, predict: Callable):
        if self.record.predicts_lists or self.preprocessor.pools_windows:
            return self._answers.predict_texts(x, batch_size)
        return predict_texts(self, x, batch_size, predict)

    def _check_answers(self, x=None) -> None:
        if x is not None and self.record.instead_of_predict and not is_prepared(x):
            raise invalid(
                "x",
                x,
                "prepared inputs, {'token_ids', 'padding_mask', ...}: raw texts would be masked at "
                f"random. Use {self.record.instead_of_predict}, or evaluate(texts)",
            )

    def _before_training(self, x, y, data: Source) -> bool:
        settings = self.record.tuned_settings
        changed = [name for name, (value, _) in settings.items() if getattr(self, name) != value]
        for name in changed:
            setattr(self, name, settings[name][0])
        if changed:
            logger.warning(
                "The %s of this %s belong to its weights before this training, and are reset. Call "
                "%s again.",
                " and the ".join(changed),
                type(self).__name__,
                " and ".join(settings[name][1] for name in changed),
            )
        return False

    @reads_weights
    def export(
        self, path: str | os.PathLike[str], format: str | None = None, **options: Any
    ) -> None:
        """Write the task as files that run without Keras.

        `classifier.export("served", format="onnx")` makes a folder that `ez.open_export` answers
        with in a process without Keras. `classifier.export("served/1")` makes a version folder for
        TensorFlow Serving, in which
        `tf.saved_model.load("served/1").signatures["serving_default"](text=tf.constant([...]))`
        gives the answers of `classify`. A task that was quantized by Keras, `quantize("int8")`, is
        exported with its int8 weights, as "tf_saved_model" and "onnx".

        Args:
            path: String or path. The version folder of a "tf_saved_model", such as "served/1". Of
                the other formats a folder for `ez.open_export`, or only the file of the model:
                `....onnx`, `....tflite`, `....xml` of OpenVINO, whose weights are in a `.bin`
                next to it. Both are written atomically.
            format: String or None. None chooses the format by the path's suffix: `.onnx`,
                `.tflite` or `.xml`, and otherwise "tf_saved_model". A "tf_saved_model", on
                TensorFlow's backend, takes raw text and gives answers, and loads with TensorFlow
                alone. Models in "onnx", "openvino" and "litert", on PyTorch's backend too, take
                token ids and give the outputs of `predict`. A tokenizer.json is written next to the
                file, with which the library `tokenizers` makes the ids. Defaults to None.
            **options: of a "tf_saved_model" those of the task's `signatures`, such as `strategy` or
                `null_threshold`. Of a folder `dtype="int8"`, which quantizes matrix products in
                ONNX and LiteRT, and `texts=`, some typical inputs, on which the outputs in int8 are
                compared with those in float32 (the `agreement` of the opened export). Otherwise
                those of Keras's exporter, such as `optimizations=[tf.lite.Optimize.DEFAULT]` for
                int8 weights in "litert".

        Raises:
            ValueError: If the backend or the task does not support the format, or a tokenizer.json
                of another export lies next to the file.
            ImportError: If a package that the format needs is not installed.

        Source: `tasks/serving/export.py` describes the files.
        """
        from encoder_zoo.tasks.serving.export import export_task

        self._check_answers_only(self.cpu_model is not None)
        export_task(self, path, format, **options)

    @validate_arguments
    def for_cpu(
        self,
        dtype: Literal["int8", "bfloat16", "float32"] = "int8",
        engine: Literal["litert", "openvino"] = "litert",
        texts: object = None,
    ) -> Self:
        """Return a copy that answers faster on a CPU, by LiteRT or by OpenVINO.

        Its answers are those of the weights of now. The conversion takes some seconds. What the
        engine has no inputs for, such as `explain`, is computed with the backbone instead, and so
        is all that is asked of a copy, a pickle or a saved file of the result. Of an
        `EntityExtractor` the encoder is converted, and the layers behind it are computed as before.

        Args:
            dtype: "int8" quantizes matrix products, which changes the answers a little; "float32"
                keeps them, and is slower; "bfloat16", by OpenVINO, changes them less than int8,
                and is float32 on processors without AVX512_BF16 or AMX.
            engine: "litert" (package ai-edge-litert), on TensorFlow; "openvino" (the extra
                encoder-zoo[openvino]), on TensorFlow and PyTorch.
            texts: some hundred typical inputs, as for `predict`; needed for int8 by OpenVINO, which
                takes the ranges of activations from them; LiteRT takes them from each row.

        Returns:
            A task of this class that shares this one's backbone, for all but `fit` and `export`.

        Raises:
            ValueError: If the engine does not support the backend, the task or `dtype`, the task
                does not compute in float32, or `texts` is missing for int8 by OpenVINO or given
                without it.
            ImportError: If a package that the engine needs is not installed.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
            >>> fast = embedder.for_cpu()
            >>> float(embedder.embed("Good morning!") @ fast.embed("Good morning!")) > 0.97
            True
        """
        from encoder_zoo.tasks.serving.cpu_model import convert_for_cpu

        self._check_answers_only(self.cpu_model is not None)
        calibrates = (engine, dtype) == ("openvino", "int8")
        if calibrates and (texts is None or (isinstance(texts, Sized) and not len(texts))):
            raise invalid(
                "texts",
                texts,
                "some hundred typical inputs for int8 by OpenVINO; or pass dtype='bfloat16'",
            )
        if texts is not None and not calibrates:
            raise invalid(
                "texts",
                texts,
                f"None, unless engine='openvino' and dtype='int8': got {engine!r}, {dtype!r}",
            )
        shared = {"backbone": self.backbone, "preprocessor": self.preprocessor}
        answering = type(self).from_config({**self.get_config(), **shared})
        for own, copied in zip(self.variables, answering.variables, strict=True):
            if own is not copied:
                copied.assign(own)
        converted = TokenEncoder(self.backbone) if self.record.only_saved_model else self
        answering.cpu_model = convert_for_cpu(converted, dtype, engine)
        if calibrates:
            answering.cpu_model.quantize(lambda: answering.predict(texts, 1, verbose=0))
        return answering

    def _check_answers_only(self, changes: bool | None) -> None:
        """Raise an error before a result of `for_cpu` is trained or exported."""
        if changes:
            raise ValueError(
                "This is the result of for_cpu, which only answers. Call fit or export of the "
                "model that it was made of, and for_cpu again. Write a file in int8 with "
                "`model.export('model.tflite', format='litert', "
                "optimizations=[tf.lite.Optimize.DEFAULT])`."
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

    @property
    def served_tokenizers(self) -> list[Tokenizer]:
        """Return all tokenizers that `signatures` uses, where a task has others beside its own."""
        return [self.served_tokenizer]

    # -- presets -----------------------------------------------------------------------------------

    @classmethod
    def from_preset(cls, source: str | os.PathLike[str], **arguments: Any) -> Self:
        """Load backbone, tokenizer and, if the checkpoint has one for this task, the head.

        Logs one line for new and one for unused weights.

        Args:
            source: a name of `list_presets()`, a folder in the Hugging Face format, of KerasHub or
                of Google's BERT code, `hf://organisation/name[@revision]`, or `kaggle://...`.
            **arguments: of the task (`labels=[...]`), its preprocessor (`sequence_length=128`)
                or the backbone (`dropout=0.0`, `dtype="mixed_bfloat16"`); `added_tokens`, words or
                markers to add to the vocabulary, see `BertTokenizer`, for which the embedding gets
                new rows, the mean of the others; `preprocessor=`, one of the same preset, or None
                for a task that takes prepared inputs only; and how much to check: `verify`,
                `max_bytes`, `allow_nonfinite`, see `presets.opening.Safeguards`.

        Raises:
            ValueError: If the preset does not exist or its files do not fit together.
            TypeError: If an argument is unknown.
        """
        return loading.load_task(cls, source, **arguments)

    @classmethod
    def from_keras_hub(cls, model: keras.Model, **arguments: Any) -> Self:
        """Make a task from one of KerasHub's in memory: weights, tokenizer, classes, dtype policy.

        The head is taken over where it is one for this task; otherwise it is new, so that a
        classifier of KerasHub becomes a token classifier here, which KerasHub does not have.

        KerasHub's tokenizers case-fold instead of lower-casing, so that a few texts, such as those
        with "ß", have other ids there.

        Args:
            model: a task of `keras_hub.models`, or a backbone, of a family that is here too. Of
                one without a preprocessor a task is made that takes prepared inputs only.
            **arguments: as for `from_preset`, such as `labels=[...]`, which KerasHub does not
                know.

        Returns:
            A task that shares no weights with the model. Its outputs are logits, also where
            those of KerasHub's classifier go through a softmax or sigmoid.

        Raises:
            TypeError: If the model is not a model of KerasHub for this task.
            ValueError: If the model is quantized, and as for `from_preset`.

        Example:
            >>> import keras_hub
            >>> from encoder_zoo import SequenceClassifier
            >>> backbone = keras_hub.models.RobertaBackbone(
            ...     vocabulary_size=30, num_layers=1, num_heads=2, hidden_dim=8,
            ...     intermediate_dim=16)
            >>> theirs = keras_hub.models.RobertaTextClassifier(backbone, num_classes=2)
            >>> SequenceClassifier.from_keras_hub(theirs, labels=["ham", "spam"]).num_classes
            2
        """
        return extra("load_from_keras_hub")(cls, model, **arguments)

    def save_to_preset(
        self,
        directory: str | os.PathLike[str],
        dtype: str | None = None,
        format: str = "huggingface",
        **options: Unpack[SaveOptions],
    ) -> None:
        """Save backbone, head, tokenizer and settings as a folder that other libraries open too.

        In the Hugging Face format transformers opens it with the class of the same task, in
        KerasHub's format KerasHub does, with the same outputs. The folder is replaced atomically:
        on failure it is unchanged. Low-rank updates are merged into the weights. What is frozen
        and how the model is compiled is not kept: `.save("model.keras")` keeps both.

        Args:
            directory: folder to write or to replace; files of other kinds in it are kept.
            dtype: "float32", "float16" or "bfloat16"; None stores every weight in its own.
            format: "huggingface", or "keras_hub" for a folder that the task's class in
                `keras_hub.models` opens. KerasHub pads every batch to `sequence_length`, and has
                other ids for texts that it case-folds, such as "ß" to "ss". It keeps no labels:
                this package reads them back from `encoder_zoo.json` in the folder.
            **options: `shard_bytes`, the largest weights file in the Hugging Face format; what is
                more is split.

        Raises:
            ValueError: If the weights are quantized, or KerasHub does not have such a task or would
                compute other outputs.
            OSError: If the disk is full.
        """
        saving.save_task(self, directory, dtype, format, **options)

    @validate_arguments
    def push_to_hub(
        self,
        repository: Repository,
        private: bool | None = None,
        token: str | None = None,
        commit_message: CommitMessage = "Upload with encoder_zoo",
        **options: Any,
    ) -> str:
        """Save the task to a repository of the Hugging Face hub, which is made if there is none.

        All files come in one commit. They replace those of an earlier preset there; other files,
        and a model card that a user wrote, are kept. `HF_ENDPOINT` and `HF_TOKEN` apply.

        Args:
            repository: 'user/name' or 'organisation/name'.
            private: whether a new repository is private; None is the owner's default.
            token: that may write there; None is that of `HF_TOKEN` or of `hf auth login`.
            commit_message: of the commit.
            **options: those of `save_to_preset`, such as `dtype="bfloat16"`.

        Returns:
            The address of the commit, for `from_preset`: "hf://user/name@1a2b...".

        Raises:
            ValueError: If the hub does not accept the model, and as for `save_to_preset`.
        """
        return pushing.push(self, repository, private, token, commit_message, **options)

    @validate_arguments
    def enable_lora(
        self,
        rank: PositiveInt,
        layers: Sequence[str] | None = None,
        alpha: PositiveFloat | None = None,
    ) -> None:
        """Freeze the backbone and train low-rank updates of some of its layers, and the head with
        its pooler.

        Args:
            rank, layers, alpha: see `Backbone.enable_lora`.

        Raises:
            ValueError: If a layer is unknown, or the backbone has low-rank updates already.

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        before = adapters.weights_before_adapters(self)
        self.backbone.enable_lora(rank, layers, alpha)
        self.weights_before_adapters = before
        self.train_pooler()

    def train_pooler(self) -> None:
        """Unfreeze the pooler if the head reads its output and it has no low-rank update."""
        if self.head_record.pooled and not self.backbone.pooler_dense.lora_enabled:
            self.backbone.pooler_dense.trainable = True

    def save_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Save only the low-rank updates, the head and its pooler, as peft's files.

        `peft.PeftModel.from_pretrained` opens them on the model that this one began from, as
        `load_adapters` does.

        Raises:
            ValueError: If the model has no low-rank updates, or peft does not support them or the
                task.
        """
        adapters.save_adapters(self, folder)

    def load_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Load low-rank updates, and the weights saved with them, from peft's files.

        They replace updates that the model has, as another active adapter does in peft: weights
        that the files do not hold are again as before `enable_lora` and `load_adapters`. After an
        error the model is unchanged.

        Args:
            folder: Folder with `adapter_config.json` and `adapter_model.safetensors`.

        Raises:
            ValueError: If the adapters are not plain LoRA or do not fit this model, or the model is
                a copy with the updates of other adapters, which does not know the weights before
                them.
        """
        adapters.load_adapters(self, folder)


class TokenEncoder(Task):
    """Encoder that returns token vectors (B, L, D), for exports of tasks with unsupported layers.

    Args:
        backbone: A `Backbone`.
    """

    record = TaskRecord("encoder", Preprocessor)

    def __init__(self, backbone: Backbone, **kwargs):
        super().__init__(backbone, **kwargs)
        self.built = True

    def logits_of(self, encoded, inputs, training=None):
        return encoded["sequence_output"]
