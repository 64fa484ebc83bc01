"""Run an exported folder with NumPy, `tokenizers` and an engine, without Keras.

The folder contains the model file, the tokenizer files, and `encoder_zoo.json` with the settings of
the task's `Answers`, its preprocessor and its tokenizer.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import numpy as np

from encoder_zoo.common.configuration import get_argument_names, get_argument_rules
from encoder_zoo.common.lazy import use_numpy
from encoder_zoo.common.validation import (
    FLAG,
    PositiveInt,
    Rule,
    Verbosity,
    check_argument,
    get_rules,
    one_of,
    validate_arguments,
)
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.tokenizers import ANY_STEPS, TOKENIZERS
from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.file_tokenizer import FileTokenizer
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.files.json_data import from_json_value
from encoder_zoo.presets.files.manifest import MANIFEST_NAME as MANIFEST
from encoder_zoo.presets.files.manifest import read_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.formats.preset_files import TOKENIZER_JSON
from encoder_zoo.presets.formats.stored_tokenizer import read_tokenizer_files
from encoder_zoo.tasks.preprocessing.prepared import check_values, convert_list, is_prepared
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.serving.answers_registry import ANSWERS, get_answers_class
from encoder_zoo.tasks.serving.engines import MASK_INPUTS, EngineRunner, Session, open_session

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.answers import Answers

EXPORT_KIND = "export"  # the task in the manifest
Engine = Literal["onnx", "openvino", "litert"]
# Maps a format to its model files. The first file is opened.
MODEL_FILES = {
    "onnx": ("model.onnx",),
    "openvino": ("model.xml", "model.bin"),
    "litert": ("model.tflite",),
}
READERS = {"onnx": ("onnx", "openvino"), "openvino": ("openvino",), "litert": ("litert",)}
TOKENIZER_CLASSES = {kind.name: kind for kind in (*TOKENIZERS, ANY_STEPS)}
# Tokenizer arguments that are not stored in the files, or not for every class.
TOKENIZER_ARGUMENTS = (
    "special_tokens_in_text",
    "uses_segments",
    "pair_separators",
    "post_processor",
    "truncation_side",
    "padding_side",
    "model_max_length",
)
_PATTERNS = [
    MANIFEST,
    *TOKENIZER_JSON,
    *(name for names in MODEL_FILES.values() for name in names),
    *{name for kind in TOKENIZERS for name in kind.files},
]
Settings = Annotated[dict, Rule(lambda v: isinstance(v, dict), "an object")]


@dataclasses.dataclass(frozen=True)
class ExportedBackbone:
    """Properties of a backbone that preprocessors need. See `Preprocessor.attach`."""

    vocabulary_size: PositiveInt
    max_sequence_length: PositiveInt
    num_segments: PositiveInt
    predicts_in_order: bool
    checkpoint_vocabulary = None

    def input_ranges(self, length: int) -> dict[str, tuple[int, int]]:
        """Return a dict mapping input names to their minimum and maximum values."""
        return {"segment_ids": (0, self.num_segments - 1)}


@dataclasses.dataclass(frozen=True)
class ExportRecord:
    """Contents of the manifest of an export.

    Attributes:
        task: String. Name of the task, from its `Answers` or its `TaskRecord`.
        answers: String. Name of its `Answers` class in `ANSWERS`.
        format: String. Model file format.
        dtype: String. "float32", or "int8" for quantized matrix products.
        agreement: Optional dict. Similarity between the int8 outputs and the float32 outputs. See
            `Task.export`.
        settings: Dict. Settings for `Answers`.
        preprocessor: Dict. Preprocessor arguments.
        tokenizer: Dict. Tokenizer class and arguments.
        backbone: Dict. `ExportedBackbone` fields.
    """

    task: Annotated[str, Rule(lambda v: isinstance(v, str), "a task's name")]
    answers: Annotated[
        str,
        Rule(
            lambda v: isinstance(v, str) and v in ANSWERS,
            "the name of a registered `Answers` class",
        ),
    ]
    format: Engine
    dtype: Literal["float32", "int8"]
    agreement: Settings | None
    settings: Settings
    preprocessor: Settings
    tokenizer: Settings
    backbone: Settings


class OpenedExport:
    """Exported task that runs in an engine. Its predictions are the same as in Keras.

    Use `ez.open_export` to create an instance. It has the prediction methods of its task, such as
    `classify` or `embed`, with the same arguments and results, and the settings of these methods,
    such as `temperature` or `embedding_dim`.

    Attributes:
        task: String. Name of the task, such as "sequence_classifier".
        methods: Tuple of strings. Names of the prediction methods.
        engine: String. "onnx", "openvino" or "litert".
        dtype: String. "float32" or "int8".
        agreement: Optional dict. Similarity between the int8 outputs and the float32 outputs.
        preprocessor: The task's preprocessor.
    """

    def __init__(self, record: ExportRecord, answers: Answers, engine: str):
        self.task = record.task
        self.methods = answers.methods
        self.engine = engine
        self.dtype = record.dtype
        self.agreement = record.agreement
        self.preprocessor = answers.preprocessor
        self._answers = answers
        self._backbone = ExportedBackbone(**record.backbone)

    def __repr__(self) -> str:
        return f"<OpenedExport of {self.task}: {self.dtype} by {self.engine}>"

    def __setattr__(self, name: str, value: object) -> None:
        answers = vars(self).get("_answers")
        if answers is not None and name in answers.get_setting_rules():
            raise AttributeError(
                f"The setting {name!r} of an export cannot be changed. Change the setting of the "
                "task, and export the task again."
            )
        super().__setattr__(name, value)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "An opened export cannot be pickled or copied. Call ez.open_export in each process. "
            "Threads can share an opened export."
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.methods, *self._answers.get_setting_rules()]

    def __getattr__(self, name: str) -> Any:
        answers = vars(self).get("_answers")
        if name in vars(self).get("methods", ()):
            return _run_in_numpy(getattr(answers, name))
        if answers is not None and name in answers.get_setting_rules():
            return getattr(answers, name)
        raise AttributeError(
            f"An export of {vars(self).get('task')} has no {name!r}. Its methods are "
            f"{', '.join(vars(self).get('methods', ()))} and predict.",
            name=name,
        )

    @validate_arguments
    def predict(
        self, x: object, batch_size: PositiveInt | None = None, *, verbose: Verbosity = "auto"
    ) -> Any:
        """Compute the outputs for raw or preprocessed inputs. See `Task.predict`.

        Args:
            x: Texts, as for `predict` of the task, or a dict of preprocessed inputs.
            batch_size: Optional positive integer. Maximum number of examples per batch. Texts of
                different lengths are computed in smaller batches. If None, 32 is used.
            verbose: 0, 1, 2 or "auto", as for `predict` of the task. This argument has no effect,
                because engines do not display progress.

        Returns:
            Array or list of outputs, in the input order.

        Raises:
            ValueError: If preprocessed inputs have a wrong shape or type, or values out of range.
        """
        if not is_prepared(x):
            return _run_in_numpy(self._answers.predict_texts)(x, batch_size)
        x = _check_arrays(x, self._backbone)
        return _run_in_numpy(self._answers.predict_prepared)(x, batch_size)


def _check_arrays(x: Mapping, backbone: ExportedBackbone) -> dict[str, np.ndarray]:
    """Check preprocessed inputs. For invalid inputs, engines crash or compute wrong outputs."""
    arrays = {name: np.asarray(convert_list(name, values)) for name, values in x.items()}
    for name, values in arrays.items():
        if values.size and values.dtype.kind not in "iub":
            raise invalid(f"The dtype of {name}", str(values.dtype), "integers")
    if "token_ids" not in arrays:
        return arrays  # the error message of the runner contains the input names
    shape = arrays["token_ids"].shape
    if len(shape) != 2:
        raise invalid("The shape of token_ids", shape, "(batch, length)")
    if shape[1] > backbone.max_sequence_length:
        raise ValueError(
            f"The length of token_ids is {shape[1]}, but the model supports at most "
            f"{backbone.max_sequence_length}. Truncate the texts, or pass texts to `predict`."
        )
    highest = {
        "token_ids": backbone.vocabulary_size - 1,
        "segment_ids": max(1, backbone.num_segments - 1),  # ignored by models with one segment
        **dict.fromkeys(("padding_mask", *MASK_INPUTS), 1),
    }
    for name, values in arrays.items():
        if name in highest:
            if values.shape != shape:
                raise invalid(f"The shape of {name}", values.shape, f"{shape}, as for token_ids")
            check_values(name, values, 0, highest[name])
    return arrays


def _run_in_numpy(function: Callable) -> Callable:
    """Wrap a function so that it preprocesses texts in NumPy, even if the backend is TensorFlow."""

    @functools.wraps(function)
    def run_in_numpy(*args, **kwargs):
        with use_numpy():
            return function(*args, **kwargs)

    return run_in_numpy


@validate_arguments
def open_export(
    folder: str | os.PathLike[str],
    engine: Engine | None = None,
    verify: bool = True,
    spinning: bool = True,
) -> OpenedExport:
    """Open a folder from `model.export(folder, format=...)` to run the model without Keras.

    Only NumPy, the library `tokenizers` and the engine are imported. The methods, their arguments
    and their results are the same as for the model:

        classifier.export("served", format="onnx")
        opened = ez.open_export("served")  # in another process, without Keras
        opened.classify(["Good film.", "Bad film."])

    Several threads can use the opened model at the same time. The opened model can also be the
    embedder of an index: `ez.load_index("index", embedder=opened)`.

    Args:
        folder: String or path. Folder to open.
        engine: Optional string. "onnx" for ONNX Runtime (package onnxruntime), "openvino" for
            OpenVINO (package openvino), which can also read ONNX exports, or "litert" for LiteRT
            (package ai-edge-litert). If None, the engine with the name of the export format is
            used.
        verify: Boolean. Whether to compare the files with the checksums in `encoder_zoo.json`.
            Defaults to True.
        spinning: Boolean. Whether idle ONNX Runtime threads check for work in a loop before they
            sleep. This makes single texts faster on an idle machine, but takes CPU time from other
            work on the same cores, such as a web server. Defaults to True.

    Returns:
        An `OpenedExport`.

    Raises:
        ValueError: If `folder` is not an export, if a file was changed or damaged, or if `engine`
            does not support the format.
        ImportError: If the package for `engine` is not installed.

    Example:
        >>> import tempfile
        >>> import encoder_zoo as ez
        >>> classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
        >>> folder = tempfile.mkdtemp() + "/served"
        >>> classifier.export(folder, format="onnx")
        >>> ez.open_export(folder).classify("A lovely film.")["label"]
        'positive'
    """
    with OpenFolder(folder, _PATTERNS) as files:
        record = read_record(files, verify)
        readers = READERS[record.format]
        if engine not in (None, *readers):
            raise invalid("engine", engine, f"{' or '.join(readers)}, which read {record.format}")
        engine = engine or record.format
        answers = read_answers(files, record)
        session = _open_model(files, record.format, engine, spinning)
        files.check_unchanged()
    runner = EngineRunner(session, answers.preprocessor)
    cls = answers.opened_class or OpenedExport
    return cls(record, dataclasses.replace(answers, runner=runner), engine)


def read_record(files: FolderFiles, verify: bool) -> ExportRecord:
    """Read and check the manifest of an export.

    Raises:
        ValueError: If the folder is not an export, if a file was changed, or if a field is invalid.
    """
    if MANIFEST not in files:
        raise ValueError(
            f"{files.path} is not an export, because {MANIFEST} is missing. Create an export with "
            "model.export(folder, format='onnx')."
        )
    manifest, path = read_manifest(files, verify), files.path / MANIFEST
    if manifest["task"] != EXPORT_KIND:
        raise ValueError(
            f"{files.path} contains a {manifest['task']:.40} and not an export. Load the folder "
            "with from_preset, or create an export with model.export(folder, format='onnx')."
        )
    fields = check_fields(
        manifest.get(EXPORT_KIND), get_rules(ExportRecord.__init__), f"{path}: {EXPORT_KIND}"
    )
    record = ExportRecord(**fields)
    for name in MODEL_FILES[record.format]:
        if name not in manifest["files"]:
            raise ValueError(
                f"{path}: the field 'files' does not contain {name}, a file of the model. Export "
                "the model again."
            )
    return record


def check_fields(
    fields: object, rules: Mapping[str, Rule | None], where: str, optional: bool = False
) -> dict:
    """Check the names and values of fields from a file, and return the fields.

    Args:
        fields: Object from a JSON file. It should be a dict.
        rules: Dict mapping field names to rules, or to None if any value is allowed.
        where: String. Location to show in error messages.
        optional: Boolean. Whether fields can be missing. Defaults to False.

    Raises:
        ValueError: If a field is missing or unknown, or has a wrong value.

    Example:
        >>> from encoder_zoo.common.validation import PositiveInt, get_rule
        >>> check_fields({"top_k": 0}, {"top_k": get_rule(PositiveInt)}, "encoder_zoo.json")
        Traceback (most recent call last):
        ValueError: encoder_zoo.json: top_k is 0. Expected an integer of 1 or more.
    """
    if not isinstance(fields, dict):
        raise invalid(where, fields, "an object")
    given, known = fields.keys(), rules.keys()
    if wrong := sorted(given - known if optional else given ^ known):
        problem = "has the unknown field" if wrong[0] in given else "lacks the field"
        raise ValueError(f"{where} {problem} {quote(wrong[0])}. Expected {', '.join(rules)}.")
    for name, value in fields.items():
        if (rule := rules[name]) is not None:
            check_argument(f"{where}: {name}", value, rule)
    return fields


def _get_argument_rules(cls: type, names: Iterable[str]) -> dict[str, Rule | None]:
    """Get the rules of some arguments of a class."""
    return {name: get_argument_rules(cls).get(name) for name in names}


def read_answers(files: FolderFiles, record: ExportRecord) -> Answers:
    """Create the `Answers` of an export from its files, without a runner.

    Raises:
        ValueError: If a setting in the manifest is invalid.
    """
    where = f"{files.path / MANIFEST}: {EXPORT_KIND}"
    cls = get_answers_class(record.answers)
    settings = {
        name: from_json_value(value) if isinstance(value, str | float) else value
        for name, value in record.settings.items()
    }
    settings = check_fields(settings, cls.get_setting_rules(), f"{where}.settings")
    tokenizer = _open_tokenizer(files, record.tokenizer, f"{where}.tokenizer")
    preprocessor = _make_preprocessor(
        cls.preprocessor_class, tokenizer, record.preprocessor, f"{where}.preprocessor"
    )
    rules = get_rules(ExportedBackbone.__init__)
    fields = check_fields(record.backbone, rules, f"{where}.backbone")
    with use_numpy():
        preprocessor.attach(ExportedTask(ExportedBackbone(**fields), settings))
    answers = cls(preprocessor=preprocessor, runner=None, **settings)
    try:
        answers.check_settings()
    except ValueError as error:
        raise ValueError(f"{where}.settings: {error}") from error
    return answers


class ExportedTask:
    """Properties of a task that its preprocessor needs. See `Preprocessor.attach`.

    Args:
        backbone: `ExportedBackbone` of this task.
        settings: Dict with the `Answers` settings. They can also be read as attributes.
    """

    expected_scores = query_encoder = None  # for training, and for models that are not exported

    def __init__(self, backbone: ExportedBackbone, settings: Mapping[str, object]):
        self.backbone = backbone
        vars(self).update(settings)


def _make_preprocessor(cls: type[Preprocessor], tokenizer, settings: dict, where: str):
    """Check the arguments in a file, and create a preprocessor from them."""
    rules = _get_argument_rules(cls, get_argument_names(cls))
    del rules["tokenizer"]
    arguments = check_fields(settings, rules, where, optional=True)
    try:
        with use_numpy():
            return cls(tokenizer, **arguments)
    except (TypeError, AttributeError) as error:  # for a setting without a rule
        raise ValueError(f"{where}: {error}") from error


def _open_tokenizer(files: FolderFiles, settings: dict, where: str) -> Tokenizer | FileTokenizer:
    """Create the tokenizer of an export from the files in its folder.

    Args:
        files: Files in the folder.
        settings: Dict with the keys "class" (a name in `TOKENIZER_CLASSES` or "FileTokenizer") and
            "arguments".
        where: String. Location to show in error messages.

    Raises:
        ValueError: If a setting or a file is invalid.
    """
    names = *TOKENIZER_CLASSES, FileTokenizer.__name__
    check_fields(settings, {"class": one_of(*names), "arguments": None}, where)
    name, arguments, where = settings["class"], settings["arguments"], f"{where}.arguments"
    if name == FileTokenizer.__name__:
        arguments = check_fields(arguments, {"keeps_unknown": FLAG}, where)
        return FileTokenizer(files.read_text(TOKENIZER_JSON[0]), **arguments)
    kind = TOKENIZER_CLASSES[name]
    cls = kind.load()
    rules = _get_argument_rules(cls, TOKENIZER_ARGUMENTS)
    arguments = check_fields(arguments, rules, where, optional=True)
    return create_tokenizer(cls, read_tokenizer_files(files, kind), **arguments)


def _open_model(files: FolderFiles, format: str, engine: str, spinning: bool) -> Session:
    """Open the model file. Raise an error if it is not the file whose checksum was compared."""
    names = MODEL_FILES[format]
    options = {"spinning": spinning} if engine == "onnx" else {}
    session = open_session(files.path / names[0], engine, **options)
    for name in names:
        checked = os.fstat(files.open_file(name).fileno())
        if not os.path.samestat(os.stat(files.path / name), checked):
            raise ValueError(f"{files.path} was replaced while it was opened. Open it again.")
    return session
