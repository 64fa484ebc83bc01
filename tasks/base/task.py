"""Base class for all tasks. A task consists of a backbone, a head and a preprocessor."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
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
from encoder_zoo.common.extras import load_extra
from encoder_zoo.common.validation import PositiveFloat, PositiveInt, Verbosity, validate_arguments
from encoder_zoo.common.variable_names import SharedVariableNames
from encoder_zoo.common.weights_lock import hold_lock, lock_weights
from encoder_zoo.common.wording import ForeignName, invalid, quote
from encoder_zoo.encoders.backbone import Backbone, BackbonePresetArguments
from encoder_zoo.encoders.family import Family, Head
from encoder_zoo.encoders.inputs import select_backbone_inputs
from encoder_zoo.encoders.packed_batch import encode_packed
from encoder_zoo.presets import adapters, loading, pushing, saving
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.base.inference import KerasRunner
from encoder_zoo.tasks.preprocessing.batch_shapes import PACKED_TOKENS
from encoder_zoo.tasks.preprocessing.batching import BATCH_SIZE
from encoder_zoo.tasks.preprocessing.prepared import is_prepared
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.training.callbacks import Callbacks
from encoder_zoo.tasks.training.sources import InputData, check_preprocessor
from encoder_zoo.tasks.training.streams import suppress_end_warning
from encoder_zoo.tasks.training.text_model import TextModel

if TYPE_CHECKING:
    from typing import Self

    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.formats.checkpoint import Checkpoint
    from encoder_zoo.tasks.base.trimming import VocabularyReport
    from encoder_zoo.tasks.serving.cpu_model import CpuModel
    from encoder_zoo.tasks.training.data import Source

logger = logging.getLogger("encoder_zoo")

MAX_LABELS_SHOWN = 10  # maximum number of labels in `repr`


class TaskPresetArguments(BackbonePresetArguments, TokenizerPresetArguments, total=False):
    """Types of the `from_preset` arguments that all tasks share."""

    sequence_length: int | None
    preprocessor: Preprocessor | None


class TinyData(NamedTuple):
    """Arguments and data for a small task, which `encoder_zoo.testing` uses.

    Attributes:
        arguments: Dict. Constructor arguments, in addition to `backbone` and `preprocessor`.
        x: Raw inputs with the letters a to p.
        y: Optional labels.
        questions: Optional function from the task to the arguments of `record.text_method`, for the
            same number of texts. Defaults to the columns in `x`.
    """

    arguments: dict
    x: object
    y: object = None
    questions: Callable[[Task], tuple] | None = None


class Task(TextModel, metaclass=SharedVariableNames):
    """Base class for the tasks: a backbone, a head and a preprocessor for raw text.

    Args:
        backbone: The task's `Backbone`.
        preprocessor: Optional `Preprocessor`, which converts raw inputs to model inputs. Without a
            preprocessor, `fit`, `evaluate` and `predict` only support preprocessed inputs
            (`{"token_ids", ...}`).

    Attributes:
        record: `TaskRecord` with the task's properties that other modules need.
        new_head: Optional tuple. Initial weights of a head that is missing in the checkpoint. It is
            set to None after the first prediction.
        kept_weights: Dict mapping tensor names to arrays. Checkpoint weights of a head that `fit`
            will build.
        weights_before_adapters: Dict mapping tensor names in adapter files to arrays. Weights of
            the head and the pooler before `enable_lora` or `load_adapters`.
        problem_type: Optional string. The `problem_type` in config.json, for tasks that support
            several problem types.
    """

    problem_type: str | None = None
    fixed_settings = ("dropout", "num_classes", "crf")
    if not TYPE_CHECKING:  # hidden from autocompletion in editors
        from_pretrained = ForeignName("from_preset(source)")
        from_transformers = ForeignName("from_preset(source)")
        save_pretrained = ForeignName("save_to_preset(folder)")
        to_disk = ForeignName("save_to_preset(folder)")
        sequence_length = ForeignName("from_preset(source, sequence_length=...)")
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
    cpu_model: CpuModel | None = None  # set in copies made by `for_cpu`
    head: keras.layers.Layer | None

    def __init__(self, backbone: Backbone, preprocessor: Preprocessor | None = None, **kwargs):
        if not isinstance(backbone, Backbone):
            raise invalid("backbone", backbone, "a Backbone", TypeError)
        loading.check_preprocessor_class(type(self), preprocessor)
        # The dtype policy is passed on, because Keras scales losses in float16.
        super().__init__(**{"dtype": backbone.dtype_policy, **kwargs})
        self.backbone = backbone
        self.head = None  # on PyTorch, a class attribute would hide the layer
        self._preprocessor = copy.copy(preprocessor)
        self._reset_training_state()

    @property
    def preprocessor(self) -> Preprocessor | None:
        """Return the preprocessor that converts raw inputs to model inputs, or None.

        A different preprocessor of the same class can be assigned. The task uses a copy of this
        preprocessor, with the labels and lengths of the task.

        Raises:
            TypeError: If the new value is a preprocessor of another task.
        """
        return self._preprocessor

    @preprocessor.setter
    def preprocessor(self, preprocessor: Preprocessor | None) -> None:
        loading.check_preprocessor_class(type(self), preprocessor)
        self._preprocessor = copy.copy(preprocessor)
        if preprocessor is not None:
            self._preprocessor.attach(self)

    def _finish_building(self) -> None:
        """Build the head if its size is known, and attach the preprocessor."""
        with self.distribution.scope():
            self.head = self.build_head()
        self.built = self.head is not None
        if self.preprocessor is not None:
            self.preprocessor.attach(self)

    def build_head(self) -> keras.layers.Layer | None:
        """Build and return the layers after the backbone, or None if their size is unknown."""
        return self.head

    # -- description ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        backbone, labels = self.backbone, self.labels
        parts = [
            f"{type(backbone).__name__} of {backbone.num_layers} layers of {backbone.hidden_dim}",
            f"{sum(math.prod(weight.shape) for weight in self.weights):,} weights",
            *([f"answers in {self.cpu_model.identity} on the CPU"] if self.cpu_model else []),
            *([f"labels {', '.join(labels[:MAX_LABELS_SHOWN])}"] if labels else []),
        ]
        more = (
            f" and {len(labels) - MAX_LABELS_SHOWN} more"
            if len(labels or []) > MAX_LABELS_SHOWN
            else ""
        )
        return f"<{type(self).__name__}: {'; '.join(parts)}{more}>"

    def encode_inputs(self, inputs: dict, training=None) -> dict:
        """Compute the backbone outputs. Inputs that the backbone does not use are ignored."""
        if self.record.predicts_tokens and self.backbone.predicts_in_order:
            return {"predictions": self.backbone.compute_query_stream(inputs, training)}
        given = self.make_backbone_inputs(inputs)
        if PACKED_TOKENS in inputs:
            return encode_packed(self.backbone, given, inputs[PACKED_TOKENS], training)
        return self.backbone(given, training=training)

    def make_backbone_inputs(self, inputs: Mapping) -> Mapping:
        """Select the inputs of the backbone, and add inputs that the head needs."""
        return self.backbone.add_head_inputs(select_backbone_inputs(inputs), self.head_record)

    def call(self, inputs, training=None):
        if self.cpu_model is not None:
            return self.cpu_model.compute_outputs(self, inputs, training)
        return self.logits_of(self.encode_inputs(inputs, training), inputs, training)

    def logits_of(self, encoded: dict, inputs: dict, training: bool | None = None):
        """Compute the task's outputs from the backbone outputs."""
        raise NotImplementedError

    @classmethod
    def get_family_head(cls, family: Family) -> Head:
        """Return the `Head` of a family for this task.

        Raises:
            ValueError: If `family` has no head for this task.
        """
        record = cls.record
        if record.default_head is not None and record.head not in family.heads:
            return record.default_head
        return family.get_head(record.head)

    @classmethod
    def supports(cls, family: Family) -> bool:
        """Return whether the family has a head for this task."""
        record, head = cls.record, family.heads.get(cls.record.head)
        if head is None:
            return record.head == "Model" or record.default_head is not None
        return record.of_pairs in (None, head.pair is not None)

    @property
    def head_record(self) -> Head:
        """Return the `Head` for this task from the family of the backbone."""
        return self.get_family_head(self.backbone.family)

    @classmethod
    def count_min_weights(cls, config: dict) -> int:
        """Return a lower bound for the number of parameters in the head, given a config."""
        hidden, layers = config["backbone"]["config"]["hidden_dim"], config.get("dense") or ()
        widths = [hidden, *(layer["units"] for layer in layers)]
        of_classes = (1 if config.get("head") else hidden) * (config.get("num_classes") or 0)
        return of_classes + sum(map(operator.mul, widths, widths[1:]))

    @classmethod
    def tiny_data(cls) -> TinyData:
        """Return arguments and data for `encoder_zoo.testing`."""
        return TinyData({}, ["a b ab", "", "c d e a b", "p"])

    def tiny_questions(self) -> tuple:
        """Return arguments for `record.text_method`, for the number of texts in `tiny_data`."""
        data = self.tiny_data()
        if data.questions is not None:
            return data.questions(self)
        return data.x if isinstance(data.x, tuple) else (data.x,)

    @classmethod
    def read_checkpoint_arguments(cls, checkpoint: Checkpoint, given: Mapping) -> dict:
        """Return the constructor arguments from config.json, overridden by the given arguments."""
        field = cls.get_family_head(checkpoint.family).dropout
        stored = {"dropout": checkpoint.config.get(field)} if field else {}
        return {**stored, **given}

    def explain_head_mismatch(self, config: dict, arguments: dict) -> str | None:
        """Explain why the head of a checkpoint must not be loaded, or return None."""
        return None

    def find_kept_classes(self, config: dict) -> list[int | None] | None:
        """Find the index of each label in the outputs of a checkpoint with different labels.

        The index of a new label is None. The result is None if the checkpoint has the same labels
        in the same order, or none of the labels.
        """
        return None

    @property
    def _answers(self) -> Answers:
        """Create the `Answers` object with the current settings."""
        return (self.record.answers_class or Answers).from_task(self, self._runner)

    @property
    def _runner(self) -> KerasRunner:
        return KerasRunner(self)

    @validate_arguments
    @lock_weights
    def predict(
        self,
        x: object,
        batch_size: PositiveInt | None = None,
        *,
        verbose: Verbosity = "auto",
        steps: PositiveInt | None = None,
        callbacks: Callbacks | None = None,
    ) -> Any:
        """Compute the model outputs for raw inputs, such as logits.

        For probabilities, use `predict_proba`. For labels and other answers, use a method such as
        `classify` or `extract_entities`.

        Args:
            x: Inputs, as for `fit`. In a dataset without tags for a `TokenClassifier`, a vector of
                strings is a batch of texts. To pass the words of a single sentence, use a ragged
                tensor or the shape (1, words).
            batch_size: Positive integer. Number of examples per batch. Defaults to 32.
            verbose: 0, 1, 2 or "auto", as in Keras. Defaults to "auto".
            steps: Optional positive integer. Number of batches to predict. If None, all data is
                used.
            callbacks: Optional list of Keras callbacks.

        Returns:
            NumPy arrays with one row per input, such as logits, regression values or embeddings.
            For texts, `TokenClassifier` returns a list with an array of shape (tokens, C) per text,
            without special tokens. The windows of a long text are merged. `SpanQA` returns one list
            per question, with an array of shape (2, tokens) for every window of the context. With a
            beam search, the shape of this array is (1 + start_n_top * end_n_top, 4).
        """
        self._check_can_predict()
        if self.record.instead_of_predict and not is_prepared(x):
            raise ValueError(
                f"x is {quote(x)}, but predict only supports preprocessed inputs, {{'token_ids', "
                "'padding_mask', ...}, because texts would be masked at random. Use "
                f"{self.record.instead_of_predict}, or evaluate(texts)."
            )
        runner = KerasRunner(self, verbose, steps, callbacks)
        with suppress_end_warning(x):
            given = runner.read(x)
            if given.is_prepared:
                return runner.predict_data(given, batch_size)
            answers = dataclasses.replace(self._get_answers(x), runner=runner)
            if not given.is_read_in_batches:
                outputs = answers.predict_texts(given.x, batch_size)
                count = steps and steps * (batch_size or BATCH_SIZE)
                if answers.returns_lists:
                    return outputs[:count]
                return keras.tree.map_structure(lambda output: output[:count], outputs)
            if not answers.returns_lists:
                return runner.predict_data(given, batch_size)
            batches = itertools.islice(runner.read_batches(given, batch_size), steps)
            return [row for batch in batches for row in answers.predict_texts(batch, batch_size)]

    def _get_answers(self, x) -> Any:
        """Return the `Answers` for raw inputs. If there is no preprocessor, raise a ValueError."""
        check_preprocessor(self, x)
        return self._answers

    def _prepare_training(self, given: InputData, data: Source) -> bool:
        settings = self.record.tuned_settings
        changed = [name for name, (value, _) in settings.items() if getattr(self, name) != value]
        for name in changed:
            setattr(self, name, settings[name][0])
        if changed:
            logger.warning(
                "Training changes the weights of this %s, so its %s was reset. Call %s again "
                "after training.",
                type(self).__name__,
                " and its ".join(changed),
                " and ".join(settings[name][1] for name in changed),
            )
        return False

    @lock_weights
    def export(
        self, path: str | os.PathLike[str], format: str | None = None, **options: Any
    ) -> None:
        """Export the task to files that run without Keras.

        Use `classifier.export("served", format="onnx")` to write a folder that `ez.open_export` can
        open in a process without Keras. Use `classifier.export("served/1")` to write a version
        folder for TensorFlow Serving. In this case, the signature
        `tf.saved_model.load("served/1").signatures["serving_default"](text=tf.constant([...]))`
        returns the same answers as `classify`. If a task was quantized by Keras with
        `quantize("int8")`, the int8 weights are kept in the formats "tf_saved_model" and "onnx".

        Args:
            path: String or path. For "tf_saved_model", the version folder, such as "served/1". For
                other formats, a folder for `ez.open_export` or the path of a single model file:
                `....onnx`, `....tflite`, or `....xml` for OpenVINO, whose weights are stored in a
                `.bin` file next to it. Folders and files are written atomically.
            format: Optional string. One of "tf_saved_model", "onnx", "openvino" and "litert". A
                "tf_saved_model" requires the TensorFlow backend, takes raw text, returns answers,
                and only needs TensorFlow to run. The other formats can also be used on the PyTorch
                backend. They take token ids and return the same outputs as `predict`. A
                tokenizer.json is written next to the file, so that the library `tokenizers` can
                compute the token ids. If None, the path suffix selects the format: `.onnx`,
                `.tflite` or `.xml`, and "tf_saved_model" for any other path.
            **options: Options for the format. For a "tf_saved_model", these are the arguments of
                `signatures`, such as `strategy` or `null_threshold`. For a folder, pass
                `dtype="int8"` to quantize matrix products in ONNX and LiteRT, and `texts`, a sample
                of typical inputs, to compare the int8 outputs with the float32 outputs (see
                `agreement` in the opened export). For a single file, these are the options of the
                Keras exporter, such as `optimizations=[tf.lite.Optimize.DEFAULT]` for int8 weights
                in "litert".

        Raises:
            ValueError: If the format is not supported on this backend or for this task, or if the
                folder contains the tokenizer.json of another export.
            ImportError: If a package for the format is not installed.

        The files are described in `tasks/serving/export.py`.
        """
        from encoder_zoo.tasks.serving.export import export_task

        export_task(self, path, format, **options)

    @validate_arguments
    @lock_weights
    def for_cpu(
        self,
        dtype: Literal["int8", "bfloat16", "float32"] = "int8",
        engine: Literal["litert", "openvino"] = "litert",
        texts: object = None,
    ) -> Self:
        """Return a copy that runs faster on a CPU, with LiteRT or OpenVINO.

        The copy keeps the current weights, so later training does not change it. Converting the
        model takes a few seconds. Methods that the engine does not support, such as `explain`, use
        the backbone instead. The backbone is also used in copies, pickles and saved files. For an
        `EntityExtractor`, only the encoder is converted.

        Args:
            dtype: String, "int8", "bfloat16" or "float32". "int8" quantizes matrix products, which
                changes the outputs slightly. "float32" is slower and does not change the outputs.
                "bfloat16" requires OpenVINO and changes the outputs less than "int8". Processors
                without AVX512_BF16 or AMX compute it in float32. Defaults to "int8".
            engine: String, "litert" or "openvino". "litert" requires the package ai-edge-litert and
                the TensorFlow backend. "openvino" requires the extra encoder-zoo[openvino] and can
                be used on the TensorFlow and PyTorch backends. Defaults to "litert".
            texts: Optional list or column of a few hundred typical inputs, as for `predict`. They
                are required for "int8" with OpenVINO, which measures the activation ranges on these
                inputs. LiteRT computes the ranges for each row and does not need texts.

        Returns:
            A task of the same class that shares its backbone with this task. It does not support
            `fit` and `export`.

        Raises:
            ValueError: If the engine does not support the backend, the task or `dtype`, if the task
                does not compute in float32, or if `texts` is missing for "int8" with OpenVINO or
                passed for any other combination.
            ImportError: If a package for the engine is not installed.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
            >>> fast = embedder.for_cpu()
            >>> float(embedder.embed("Good morning!") @ fast.embed("Good morning!")) > 0.97
            True
        """
        from encoder_zoo.tasks.serving import cpu_model

        cpu_model.check_is_original(self)
        converted = TokenEncoder(self.backbone) if self.record.only_saved_model else self
        model = cpu_model.convert_for_cpu(converted, dtype, engine, texts)
        shared = {"backbone": self.backbone, "preprocessor": self.preprocessor}
        copied = type(self).from_config({**self.get_config(), **shared})
        for own, new in zip(self.variables, copied.variables, strict=True):
            if own is not new:
                new.assign(own)
        copied.cpu_model = model
        if texts is not None:
            model.quantize(lambda: copied.predict(texts, 1, verbose=0))
        return copied

    @lock_weights
    def trim_vocabulary(self, texts: object) -> Self:
        """Create a smaller copy whose vocabulary only contains the tokens of the given texts.

            small = embedder.trim_vocabulary(texts)
            small.save_to_preset("small")  # opens in transformers, with equal token ids

        In multilingual models, most of the weights are token embeddings, for example 81% in
        multilingual-e5-small. The copy splits `texts` into the same tokens, with new ids, and the
        encoder computes exactly the same outputs for `texts`. `MaskedLM` and `SparseEncoder`
        compute outputs for fewer tokens, so the probabilities of the remaining tokens are higher.
        Special tokens, added tokens, prompts and tokens of single bytes are always kept. In other
        texts, a word whose token was removed is split into smaller tokens or bytes, or becomes the
        unknown token. Use `compare_vocabulary` to find such texts.

        Args:
            texts: List or column of strings. All texts whose outputs must not change, including
                questions and labels that are passed with each call.

        Returns:
            A task of the same class that does not share weights with this task. It is not compiled.

        Raises:
            ValueError: If the task is quantized, has a `query_encoder`, or is a result of
                `for_cpu`.
            TypeError: If the task has no tokenizer, or if its tokenizer cannot be trimmed, as for
                `GenericTokenizer` and static embedders.

        Source: Abdaoui et al. 2020, Load What You Need: Smaller Versions of Multilingual BERT,
        section 3.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
            >>> small = embedder.trim_vocabulary(["Good morning!", "Good night."])
            >>> small.backbone.vocabulary_size < embedder.backbone.vocabulary_size
            True
            >>> float(abs(small.embed("Good night!") - embedder.embed("Good night!")).max())
            0.0
        """
        from encoder_zoo.tasks.base.trimming import trim_task

        return trim_task(self, texts)

    def compare_vocabulary(self, trimmed: Task, texts: object) -> VocabularyReport:
        """Find texts that a copy from `trim_vocabulary` splits into different tokens.

        Args:
            trimmed: Task. Copy with fewer tokens.
            texts: List or column of strings.

        Returns:
            Dict with three keys. "covered_texts" is the fraction of texts with the same tokens.
            "covered_tokens" is the fraction of tokens that are the same. "uncovered" is a list of
            `{"index", "text", "changed"}` for all other texts. "changed" is the fraction of tokens
            that differ. The list is sorted by "changed" in descending order.

        Raises:
            ValueError: If `texts` is not a list or column of strings, or is empty.
            TypeError: If the task has no tokenizer, or if its tokenizer cannot be trimmed.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased_embedder")
            >>> small = embedder.trim_vocabulary(["Good morning!", "Good night."])
            >>> report = embedder.compare_vocabulary(small, ["Good night!", "Good luck!"])
            >>> report["covered_texts"], report["uncovered"][0]["text"]
            (0.5, 'Good luck!')
        """
        from encoder_zoo.tasks.base.trimming import compare_vocabulary

        return compare_vocabulary(self, trimmed, texts)

    def signatures(self, **options) -> dict[str, Callable]:
        """Return the functions that a SavedModel contains. They convert raw text to answers.

        Args:
            **options: Keyword arguments for the method `record.text_method`, such as `classify`.
                The export uses these values for all texts.

        Returns:
            Dict mapping signature names to functions. Each function takes string tensors of shape
            (N,) and can be run in `tf.function`. The results have the same names and values as the
            results of `record.text_method`, and are padded to tensors.
        """
        raise NotImplementedError

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return a dict mapping input names to their minimum and maximum values.

        Override this method in a task whose preprocessor returns inputs that the backbone does not
        read.

        Args:
            length: Positive integer. Length L of the examples.
        """
        return self.backbone.input_ranges(length)

    def list_input_names(self) -> list[str]:
        """Return the names of the model inputs. In exports, they are int32 with shape (B, ...)."""
        segments = ["segment_ids"] if self.backbone.family.uses_segments else []
        return ["token_ids", "padding_mask", *segments]

    @property
    def served_tokenizers(self) -> list[Tokenizer]:
        """Return the tokenizers that `signatures` uses. The first tokenizer is for the texts."""
        return [self.preprocessor.tokenizer]

    # -- presets -----------------------------------------------------------------------------------

    @classmethod
    def from_preset(cls, source: str | os.PathLike[str], **arguments: Any) -> Self:
        """Load a pretrained model: the backbone, the tokenizer and, if it exists, the head.

        Newly initialized weights and unused checkpoint weights are logged.

        Args:
            source: String or path. A name from `list_presets()`, a folder in the format of Hugging
                Face, KerasHub or Google's BERT code, `hf://organisation/name[@revision]`, or
                `kaggle://...`.
            **arguments: Keyword arguments for the task (`labels=[...]`), for its preprocessor
                (`sequence_length=128`) and for the backbone (`dropout=0.0`,
                `dtype="mixed_bfloat16"`). Use `added_tokens` to add words or markers to the
                vocabulary (see `BertTokenizer`). A new embedding is the mean of all embeddings in
                the checkpoint. Use `preprocessor` to pass a different preprocessor for the same
                preset, or None for a task that only supports preprocessed inputs. Use `verify`,
                `max_bytes` and `allow_nonfinite` to configure the file checks (see
                `presets.files.folder_files.Safeguards`).

        Raises:
            ValueError: If the preset does not exist or its files do not match.
            TypeError: If an argument is unknown.
        """
        return loading.load_task(cls, source, **arguments)

    @classmethod
    def from_keras_hub(cls, model: keras.Model, **arguments: Any) -> Self:
        """Convert a KerasHub model in memory, with weights, tokenizer, classes and dtype policy.

        The head is converted if it matches this task. Otherwise a new head is created. For example,
        a KerasHub text classifier can be converted to a token classifier, which KerasHub does not
        have. Tokenizers in KerasHub apply case folding instead of lowercasing, so the token ids of
        a few texts differ, such as texts with "ß".

        Args:
            model: KerasHub task or backbone, from a family that this package supports. A model
                without a preprocessor is converted to a task that only supports preprocessed
                inputs.
            **arguments: Keyword arguments, as for `from_preset`. For example, `labels=[...]` is not
                stored in KerasHub models.

        Returns:
            A task that does not share weights with the model. Its outputs are logits, even if the
            KerasHub classifier applies a softmax or sigmoid.

        Raises:
            TypeError: If `model` is not a KerasHub model for this task.
            ValueError: If `model` is quantized. See also `from_preset`.

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
        return load_extra("load_from_keras_hub")(cls, model, **arguments)

    @lock_weights
    def save_to_preset(
        self,
        directory: str | os.PathLike[str],
        dtype: str | None = None,
        format: str = "huggingface",
        **options: Unpack[SaveOptions],
    ) -> None:
        """Save the model to a folder that transformers or KerasHub can load.

        The folder contains the backbone, the head, the tokenizer and the settings. The transformers
        class for the same task can load a folder in the Hugging Face format, and KerasHub a folder
        in the KerasHub format. Both compute the same outputs. The folder is replaced atomically, so
        it does not change if an error occurs. Low-rank updates are merged into the weights. Frozen
        layers and the `compile` arguments are not stored. To store them, use
        `.save("model.keras")`.

        Args:
            directory: String or path. Folder to write or replace. Unrelated files in this folder
                are kept.
            dtype: Optional string. Data type for saved weights: "float32", "float16" or "bfloat16".
                If None, all weights keep their data types.
            format: String, "huggingface" or "keras_hub". A "keras_hub" folder can be loaded by the
                corresponding class in `keras_hub.models`. KerasHub pads every batch to
                `sequence_length`, and its token ids differ for texts that case folding changes,
                such as "ß" to "ss". The KerasHub format does not contain labels. This package saves
                them in `encoder_zoo.json` in the same folder. Defaults to "huggingface".
            **options: Only `shard_bytes`, the maximum size of a weights file in the Hugging Face
                format. Larger weights are split into several files.

        Raises:
            ValueError: If the weights are quantized, or if KerasHub does not have this task or
                would compute different outputs.
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
        """Upload the task to a Hugging Face Hub repository, which is created if it does not exist.

        All files are uploaded in one commit. They replace the files of an earlier preset. Other
        files are kept, and so is a model card that was edited by hand. The environment variables
        `HF_ENDPOINT` and `HF_TOKEN` are used if they are set.

        Args:
            repository: String. Repository name, such as "user/name" or "organisation/name".
            private: Optional boolean. Whether to make a new repository private. If None, the
                default of the owner is used.
            token: Optional string. Access token with write permission. If None, `HF_TOKEN` or the
                token from `hf auth login` is used.
            commit_message: String. Commit message. Defaults to "Upload with encoder_zoo".
            **options: Options for `save_to_preset`, such as `dtype="bfloat16"`.

        Returns:
            String. The address of the commit for `from_preset`, such as "hf://user/name@1a2b...".

        Raises:
            ValueError: If the hub rejects the upload. See also `save_to_preset`.
        """
        return pushing.push(self, repository, private, token, commit_message, **options)

    @validate_arguments
    @hold_lock("exclusive")
    def enable_lora(
        self,
        rank: PositiveInt,
        layers: Sequence[str] | None = None,
        alpha: PositiveFloat | None = None,
    ) -> None:
        """Freeze the backbone, and train low-rank updates of its layers.

        The head is also trained, and the pooler if the head uses its output.

        Args:
            rank, layers, alpha: See `Backbone.enable_lora`.

        Raises:
            ValueError: If one of the `layers` is unknown, or if the backbone already has low-rank
                updates.

        Source: Hu et al. 2022, LoRA, sections 4.2 and 7.1.
        """
        before = adapters.get_weights_before_adapters(self)
        self.backbone.enable_lora(rank, layers, alpha)
        self.weights_before_adapters = before
        self.train_pooler()

    def train_pooler(self) -> None:
        """Unfreeze the pooler if the head uses its output, unless it has a low-rank update."""
        if self.head_record.pooled and not self.backbone.pooler_dense.lora_enabled:
            self.backbone.pooler_dense.trainable = True

    @lock_weights
    def save_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Save only the low-rank updates, the head and its pooler, in the peft format.

        Use `load_adapters` or `peft.PeftModel.from_pretrained` to load the files into the model
        that the training started from.

        Args:
            folder: String or path. Folder to write to.

        Raises:
            ValueError: If the model has no low-rank updates, or if peft does not support the
                updates or the task.
        """
        adapters.save_adapters(self, folder)

    @hold_lock("exclusive")
    def load_adapters(self, folder: str | os.PathLike[str]) -> None:
        """Load low-rank updates, and the weights that were saved with them, from peft files.

        The loaded updates replace the current updates of the model, like the active adapter in
        peft. Weights that are missing in the files are reset to their values before `enable_lora`
        or `load_adapters`. If an error occurs, the model does not change.

        Args:
            folder: String or path. Folder with `adapter_config.json` and
                `adapter_model.safetensors`.

        Raises:
            ValueError: If the adapters are not plain LoRA or do not match this model, or if the
                model is a copy with other adapters, because the copy does not store the weights
                before these adapters.
        """
        adapters.load_adapters(self, folder)


class TokenEncoder(Task):
    """Model that only computes token embeddings (B, L, D), for engines that cannot run the task.

    Args:
        backbone: The task's `Backbone`.
    """

    record = TaskRecord("encoder", Preprocessor)

    def __init__(self, backbone: Backbone, **kwargs):
        super().__init__(backbone, **kwargs)
        self.built = True

    def logits_of(self, encoded, inputs, training=None):
        return encoded["sequence_output"]
