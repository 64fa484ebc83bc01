"""Export tasks to files that run without this package: SavedModel, ONNX, LiteRT and OpenVINO.

A SavedModel converts raw text to answers. It has the signatures from `Task.signatures`, which share
their code with `classify`, `extract_entities`, `answer` and `fill_mask`. The additional signature
"ids" converts token ids to logits. A SavedModel only contains core TensorFlow operations. All other
formats only convert token ids to logits, either in a file (`model_files`) or in a folder for
`open_export` (`export_folder`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import pathlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.context import use_context
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import check_path
from encoder_zoo.common.wording import invalid
from encoder_zoo.presets.files.atomic import FolderKind, replace_folder
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.tasks.serving.cpu_model import check_is_original
from encoder_zoo.tasks.serving.export_folder import export_folder
from encoder_zoo.tasks.serving.model_files import EXPORT_PACKAGES, export_ids, silence_messages

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.presets.formats.preset_task import PresetTask

logger = logging.getLogger("encoder_zoo")

# Field numbers in prediction_log.proto, predict.proto and model.proto from tensorflow_serving.
LOG_PREDICT, PREDICT_REQUEST, REQUEST_MODEL, REQUEST_INPUTS = 6, 1, 1, 2
MODEL_SIGNATURE, ENTRY_KEY, ENTRY_VALUE = 3, 1, 2


def write_warm_up(
    folder: pathlib.Path, requests: list[tuple[str, Mapping[str, tf.Tensor]]]
) -> None:
    """Write the file `assets.extra/tf_serving_warmup_requests` in a SavedModel folder.

    Args:
        folder: SavedModel folder path.
        requests: List of tuples (signature name, inputs).

    Source: The guide "SavedModel Warmup" for TensorFlow Serving.
    """
    extra = folder / "assets.extra"
    extra.mkdir()
    with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as writer:
        for signature, inputs in requests:
            writer.write(encode_prediction_log(signature, inputs))


def encode_prediction_log(signature: str, inputs: Mapping[str, tf.Tensor]) -> bytes:
    """Serialize a `PredictionLog` with one request as a protocol buffer.

    Args:
        signature: String. Signature name.
        inputs: Dict mapping input names to tensors.

    Example:
        >>> import tensorflow as tf
        >>> encode_prediction_log("serving_default", {"text": tf.constant(["hi"])})[:4]
        b'2+\\n)'
    """
    request = _encode_field(REQUEST_MODEL, _encode_field(MODEL_SIGNATURE, signature.encode()))
    for name, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        entry = _encode_field(ENTRY_KEY, name.encode()) + _encode_field(ENTRY_VALUE, tensor)
        request += _encode_field(REQUEST_INPUTS, entry)
    return _encode_field(LOG_PREDICT, _encode_field(PREDICT_REQUEST, request))


def _encode_field(number: int, content: bytes) -> bytes:
    """Serialize a field with wire type 2, which consists of its number, length and bytes."""
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _encode_varint(rest) if rest else bytes([low])


SUFFIXES = {"tf_saved_model": "", "onnx": ".onnx", "litert": ".tflite", "openvino": ".xml"}
FORMATS = {suffix: name for name, suffix in SUFFIXES.items() if suffix}
# Suffixes of model files that cannot be exported.
OTHER_FILES = (
    ".keras", ".h5", ".hdf5", ".pb", ".pt", ".pth", ".pte", ".bin", ".safetensors", ".ckpt",
    ".zip", ".lite", ".mlmodel", ".mlpackage", ".gguf",
)  # fmt: skip
# The Keras exporters for these formats. The exporters for JAX do not support dynamic shapes:
# jax2onnx raises errors, and the others require TensorFlow.
EXPORTERS = {"tensorflow": tuple(SUFFIXES), "torch": ("onnx", "litert", "openvino"), "jax": ()}
# The manifest lists the files of an export, so that the next export only replaces these files.
SAVED_MODEL_MANIFEST, SAVED_MODEL_KIND = "encoder_zoo_export.json", "saved_model"


def export_task(
    task: PresetTask, path: str | os.PathLike[str], format: str | None, **options
) -> None:
    """Export a task in one of the formats. See `Task.export`.

    Raises:
        ValueError: If `format` is unknown, does not match the suffix of `path`, or does not support
            this task.
    """
    check_is_original(task)
    path = check_path(path)
    format, is_file = read_target(path, format)
    if format != "tf_saved_model" and task.record.only_saved_model:
        raise ValueError(
            f"{type(task).__name__} computes {task.record.only_saved_model}, which only a "
            "SavedModel supports. Call export('served/1') with the TensorFlow backend."
        )
    check_backend(task, path, format)
    if format == "tf_saved_model":
        export_saved_model(task, path, **options)
    elif is_file:
        export_ids(task, path, format, **options)
    else:
        export_folder(task, path, format, **options)


def read_target(path: pathlib.Path, format: str | None) -> tuple[str, bool]:
    """Return the export format, and whether the path is a file instead of a folder.

    Raises:
        ValueError: If the format is unknown, or if files with this suffix cannot be exported.

    Example:
        >>> read_target(pathlib.Path("served/1"), None)
        ('tf_saved_model', False)
        >>> read_target(pathlib.Path("served/model.onnx"), None)
        ('onnx', True)
    """
    if format not in (None, *SUFFIXES):
        raise invalid("format", format, f"one of {', '.join(SUFFIXES)}")
    allowed = [suffix for suffix, name in FORMATS.items() if format in (None, name)]
    is_file = path.suffix.lower() in (*FORMATS, *OTHER_FILES)
    if is_file and path.suffix not in allowed:
        expected = " or ".join(["a folder", *(f"a file {suffix}" for suffix in allowed)])
        raise invalid("path", str(path), expected)
    return format or FORMATS.get(path.suffix, "tf_saved_model"), is_file


def check_backend(task: PresetTask, path: str | os.PathLike[str], format: str) -> None:
    """Raise a ValueError if the Keras backend has no exporter for the format."""
    backend = keras.config.backend()
    if format in EXPORTERS[backend]:
        return
    others = [name for name, formats in EXPORTERS.items() if format in formats]
    other = others[0] if format == "litert" else others[-1]  # its files support texts of any length
    packages = " ".join((other, *EXPORT_PACKAGES.get((other, format), ())))
    raise ValueError(
        f"The format {format!r} requires the Keras backend {' or '.join(others)}, but the backend "
        f"is {backend!r}. Save the task with `save_to_preset('my_preset')`. Then, in a process "
        f"started with KERAS_BACKEND={other} (`pip install {packages}`):\n"
        "    import encoder_zoo as ez\n    "
        f"ez.{type(task).__name__}.from_preset('my_preset').export({str(path)!r}, {format!r})"
    )


def export_saved_model(task: PresetTask, path: str | os.PathLike[str], **options) -> None:
    """Export a SavedModel for texts, with warm-up requests for TensorFlow Serving.

    Args:
        task: Task with a preprocessor.
        path: String or path. The version folder. An existing SavedModel is replaced atomically when
            the new SavedModel is complete. Unrelated files are kept. If a program loads the model
            during the replacement, it can read files from both versions. In this case, its first
            request raises an error.
        **options: Keyword arguments for the task's `signatures`.

    Raises:
        ValueError: If the task has no preprocessor.
    """
    if task.preprocessor is None:
        raise ValueError(
            f"This {type(task).__name__} has no preprocessor, so a SavedModel could not read "
            "texts. Pass preprocessor=..., load the task with from_preset, or export it in another "
            "format."
        )
    variables = [variable.value for variable in task.variables]
    write_saved_model(path, task.signatures(**options), task.served_tokenizers, variables, task)


def write_saved_model(
    path: str | os.PathLike[str],
    functions: Mapping[str, Callable],
    tokenizers: Sequence[Tokenizer],
    variables: Sequence[tf.Variable],
    task: PresetTask | None = None,
) -> None:
    """Write a SavedModel whose signatures are functions of string tensors.

    Args:
        path: String or path. See `export_saved_model`.
        functions: Dict mapping signature names to functions, as returned by `Task.signatures`.
        tokenizers: List of the tokenizers that the functions use.
        variables: List of the variables that the functions use.
        task: Optional task for the signature "ids". If None, this signature is omitted.
    """
    module = tf.Module()  # resources that the module does not track are not saved
    module.weights = list(variables)
    module.tables = [
        value
        for tokenizer in tokenizers
        for part in (tokenizer.graph, *tokenizer.graph.submodules)
        for value in vars(part).values()
        if isinstance(value, tf.lookup.StaticHashTable)
    ]
    check = _make_version_check(module)
    texts = {name: _make_text_function(function, check) for name, function in functions.items()}
    ids = {} if task is None else {"ids": _make_id_function(task, check)}
    kind = FolderKind(
        "an export", lambda manifest: manifest["task"] == SAVED_MODEL_KIND, SAVED_MODEL_MANIFEST
    )
    with replace_folder(path, kind) as folder, silence_messages():
        tf.saved_model.save(module, str(folder), {**texts, **ids})
        mask = tokenizers[0].mask_token
        write_warm_up(
            folder, [r for n, f in texts.items() for r in _make_warm_up_requests(n, f, mask)]
        )
        write_manifest(folder, {"task": SAVED_MODEL_KIND}, SAVED_MODEL_MANIFEST)


def _make_version_check(module: tf.Module) -> Callable[[], tf.Operation]:
    """Create a check that the graph and the variables of a module come from the same export.

    TensorFlow first reads the graph and then the variables. If the folder is replaced in between,
    the graph of one version would be used with the weights of another version.
    """
    number = secrets.randbits(62)
    module.version = tf.Variable(number, trainable=False, dtype=tf.int64)

    def check() -> tf.Operation:
        return _make_assertion(
            tf.equal(module.version, number),
            "This SavedModel was replaced while it was loaded, so its graph and weights do not "
            "match. Load it again.",
        )

    return check


def _make_text_function(
    function: Callable, check: Callable[[], tf.Operation]
) -> tf.types.experimental.PolymorphicFunction:
    """Convert a function to a `tf.function` of string tensors (N,) with the same argument names."""
    names = list(inspect.signature(function).parameters)
    ranks = getattr(function, "ranks", {})  # ranks of inputs with a shape other than (N,)
    signature = [tf.TensorSpec([None] * ranks.get(n, 1), tf.string, n) for n in names]

    @functools.wraps(function)  # to keep the argument names, which are used as input names
    def answer(*args, **kwargs):
        texts = inspect.signature(function).bind(*args, **kwargs).arguments
        alike = [] if getattr(function, "takes_other_shapes", False) else _assert_same_shapes(texts)
        with tf.control_dependencies([check(), *alike]), use_context(serves=True):
            return function(
                **{
                    name: _convert_to_batch(text) if text.shape.rank == 1 else tf.identity(text)
                    for name, text in texts.items()
                }
            )

    return tf.function(answer, input_signature=signature, autograph=False)


def _convert_to_batch(text: tf.Tensor) -> tf.Tensor:
    """Convert a single text to a batch (N,). A batch is returned unchanged."""
    of_any_rank = tf.raw_ops.PlaceholderWithDefault(input=text, shape=None)
    return tf.reshape(of_any_rank, [-1])  # if the rank were known, TensorFlow would remove this op


def _assert_same_shapes(inputs: dict[str, tf.Tensor]) -> list[tf.Operation]:
    """Create graph assertions that all inputs have the same shape as the first input."""
    (first, expected), *others = inputs.items()
    shape = tf.shape(expected)
    return [
        _make_assertion(
            tf.reduce_all(tf.equal(tf.shape(value), shape)),
            f"{first} has the shape ",
            shape,
            f", but {name} ",
            tf.shape(value),
            ". Expected the same shape.",
        )
        for name, value in others
    ]


def _assert_valid_numbers(inputs: dict[str, tf.Tensor], task: PresetTask) -> list[tf.Operation]:
    """Create graph assertions that values are in range and rows are not too long."""
    length, longest = tf.shape(inputs["token_ids"])[1], task.backbone.max_sequence_length
    checks = [
        _make_assertion(
            length <= longest, "token_ids has ", length, f" positions. Expected at most {longest}."
        )
    ]
    ranges = task.input_ranges(length)
    for name, values in inputs.items():
        least, most = ranges[name]
        right = (values >= least) & (values <= most)
        wrong, most = tf.boolean_mask(values, ~right)[:1], tf.convert_to_tensor(most)
        what = "id" if name.endswith("_ids") else "number"
        parts = f"{name} has the {what} ", wrong, f". Expected {least} to ", most, "."
        checks.append(_make_assertion(tf.reduce_all(right), *parts))
    return checks


def _make_assertion(right: tf.Tensor, *message: str | tf.Tensor) -> tf.Operation:
    """Create a graph assertion whose error message has one line."""
    parts = [
        part if isinstance(part, str) else tf.strings.format("{}", part, summarize=-1)
        for part in message
    ]
    return tf.debugging.Assert(right, [tf.strings.join(parts)])


def _make_id_function(
    task: PresetTask, check: Callable[[], tf.Operation]
) -> tf.types.experimental.PolymorphicFunction:
    """Create a `tf.function` that computes the outputs of preprocessed inputs (B, L)."""

    def compute_logits(**inputs):
        names = ("token_ids", "padding_mask", "segment_ids")  # (B, L)
        by_token = {name: inputs[name] for name in names if name in inputs}
        checks = [check(), *_assert_same_shapes(by_token), *_assert_valid_numbers(inputs, task)]
        with tf.control_dependencies(checks):
            inputs = {name: tf.identity(value) for name, value in inputs.items()}
        return {"logits": task(inputs, training=False)}

    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in task.list_input_names()}
    return tf.function(compute_logits, autograph=False).get_concrete_function(**specs)


def _make_warm_up_requests(name: str, function, mask: str) -> list[tuple[str, dict]]:
    """Create warm-up requests for a signature: a short text, and a batch with long texts."""
    short, long = f"Hello {mask}!", "Hello, world! " * 100
    *first, last = function.input_signature
    requests = ([short], [short]), ([short] * 8, [short, long] * 4)

    def inputs(a: list[str], b: list[str]) -> dict[str, tf.Tensor]:
        given = [(spec, a) for spec in first] + [(last, b)]
        shapes = {spec.name: [-1] + [1] * (spec.shape.rank - 1) for spec, _ in given}
        return {spec.name: tf.reshape(texts, shapes[spec.name]) for spec, texts in given}

    return [(name, inputs(a, b)) for a, b in requests]
