"""Export of tasks to files that run without this package: SavedModel, ONNX, LiteRT, OpenVINO.

A SavedModel goes from raw text to answers. Its signatures are those of `Task.signatures`, which
share their code with `classify`, `extract_entities`, `answer` and `fill_mask`, and "ids", from
prepared token ids to logits. It holds TensorFlow's core operations only. The other formats hold
what "ids" does, as a file (`model_files`), or in a folder that `open_export` answers with
(`export_folder`).
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

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.trace import tracing
from encoder_zoo.common.wording import invalid
from encoder_zoo.presets.files.atomic import Kind, replacing
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.tasks.serving.export_folder import export_folder
from encoder_zoo.tasks.serving.model_files import PACKAGES, export_ids, warnings_only

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")

# Numbers of fields in tensorflow_serving's prediction_log.proto, predict.proto and model.proto.
LOG_PREDICT, PREDICT_REQUEST, REQUEST_MODEL, REQUEST_INPUTS = 6, 1, 1, 2
MODEL_SIGNATURE, ENTRY_KEY, ENTRY_VALUE = 3, 1, 2


def write_warm_up(
    folder: pathlib.Path, requests: list[tuple[str, Mapping[str, tf.Tensor]]]
) -> None:
    """Write `assets.extra/tf_serving_warmup_requests` into a SavedModel's folder.

    Args:
        folder: of the SavedModel.
        requests: a signature's name and its inputs, each.

    Source: TensorFlow Serving's guide "SavedModel Warmup".
    """
    extra = folder / "assets.extra"
    extra.mkdir()
    with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(signature, inputs))


def prediction_log(signature: str, inputs: Mapping[str, tf.Tensor]) -> bytes:
    """Return a `PredictionLog` with one request, in the bytes of protocol buffers.

    Args:
        signature: name of the signature.
        inputs: its inputs by name.

    Example:
        >>> import tensorflow as tf
        >>> prediction_log("serving_default", {"text": tf.constant(["hi"])})[:4]
        b'2+\\n)'
    """
    request = _field(REQUEST_MODEL, _field(MODEL_SIGNATURE, signature.encode()))
    for name, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        entry = _field(ENTRY_KEY, name.encode()) + _field(ENTRY_VALUE, tensor)
        request += _field(REQUEST_INPUTS, entry)
    return _field(LOG_PREDICT, _field(PREDICT_REQUEST, request))


def _field(number: int, content: bytes) -> bytes:
    """Return a field of wire type 2: its number, its length, its bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


SUFFIXES = {"tf_saved_model": "", "onnx": ".onnx", "litert": ".tflite", "openvino": ".xml"}
FORMATS = {suffix: name for name, suffix in SUFFIXES.items() if suffix}
# Files of models that no export writes.
OTHER_FILES = (
    ".keras", ".h5", ".hdf5", ".pb", ".pt", ".pth", ".pte", ".bin", ".safetensors", ".ckpt",
    ".zip", ".lite", ".mlmodel", ".mlpackage", ".gguf",
)  # fmt: skip
# Keras's exporters that write these models. Those for JAX take no sizes that are left open:
# jax2onnx ends in errors, and the others go through TensorFlow.
EXPORTERS = {"tensorflow": tuple(SUFFIXES), "torch": ("onnx", "litert", "openvino"), "jax": ()}
# Written into an export, so that the next one replaces its files and keeps all others.
MANIFEST, KIND = "encoder_zoo_export.json", "saved_model"


def export_task(task: Task, path: str | os.PathLike[str], format: str | None, **options) -> None:
    """Write a task in one of the formats; see `Task.export`.

    Raises:
        ValueError: If the format is unknown, does not belong to the path's suffix, or cannot hold
            this task.
    """
    if format is None:
        format = format_of(path)
    elif format not in SUFFIXES:
        raise invalid("format", format, f"one of {', '.join(SUFFIXES)}")
    if format != "tf_saved_model":
        check_other_formats(task)
    is_file = pathlib.Path(path).suffix.lower() in (*FORMATS, *OTHER_FILES)
    if is_file:
        _check_suffix(path, format)
    check_backend(task, path, format)
    if format == "tf_saved_model":
        export_saved_model(task, path, **options)
    elif is_file:
        export_ids(task, path, format, **options)
    else:
        export_folder(task, path, format, **options)


def format_of(path: str | os.PathLike[str]) -> str:
    """Choose the format of an export by the suffix of its path.

    Raises:
        ValueError: If the path ends like the file of another library.

    Example:
        >>> format_of("served/1"), format_of("served/model.onnx")
        ('tf_saved_model', 'onnx')
    """
    suffix = pathlib.Path(path).suffix.lower()
    if suffix in OTHER_FILES:
        raise invalid("path", str(path), f"a folder, or a file that ends in {', '.join(FORMATS)}")
    return FORMATS.get(suffix, "tf_saved_model")


def check_other_formats(task: Task) -> None:
    """Raise a ValueError for a task that is exported as a SavedModel alone."""
    if task.record.only_saved_model:
        raise ValueError(
            f"{type(task).__name__} computes {task.record.only_saved_model}, which only a "
            "SavedModel holds. Call export('served/1') on TensorFlow."
        )


def _check_suffix(path: str | os.PathLike[str], format: str) -> None:
    suffix = SUFFIXES[format]
    if pathlib.Path(path).suffix != suffix:
        raise invalid("path", str(path), f"a path that ends in {suffix} for the format {format!r}")


def check_backend(task: Task, path: str | os.PathLike[str], format: str) -> None:
    """Raise a ValueError where Keras's backend has no exporter of the format, saying what to do."""
    backend = keras.config.backend()
    if format in EXPORTERS[backend]:
        return
    others = [name for name, formats in EXPORTERS.items() if format in formats]
    other = others[0] if format == "litert" else others[-1]  # whose files take texts of any length
    packages = " ".join((other, *PACKAGES.get((other, format), ())))
    raise ValueError(
        f"The format {format!r} needs Keras's backend {' or '.join(others)}, not {backend!r}. "
        "Save the task with "
        "`save_to_preset('my_preset')`; then, in a process started with "
        f"KERAS_BACKEND={other} (`pip install {packages}`):\n"
        "    import encoder_zoo as ez\n"
        f"    ez.{type(task).__name__}.from_preset('my_preset').export({str(path)!r}, {format!r})"
    )


def export_saved_model(task: Task, path: str | os.PathLike[str], **options) -> None:
    """Write a SavedModel that takes text, with warm-up requests for TensorFlow Serving.

    Args:
        task: with a preprocessor.
        path: the version folder. An older SavedModel in it is replaced atomically, once the new
            one is complete; other files stay. A program that loads it meanwhile may read files of
            both: its first request then raises an error.
        **options: of the task's `signatures`.

    Raises:
        ValueError: If the task has no preprocessor.
    """
    if task.preprocessor is None:
        raise ValueError(
            f"This {type(task).__name__} has no preprocessor, so it cannot take text. Pass "
            "preprocessor=..., load it with from_preset, or export it in another format."
        )
    variables = [variable.value for variable in task.variables]
    write_saved_model(path, task.signatures(**options), task.served_tokenizers, variables, task)


def write_saved_model(
    path: str | os.PathLike[str],
    functions: Mapping[str, Callable],
    tokenizers: Sequence[Tokenizer],
    variables: Sequence[tf.Variable],
    task: Task | None = None,
) -> None:
    """Write functions of string tensors as the signatures of a SavedModel.

    Args:
        path: see `export_saved_model`.
        functions: the function of each signature, as of `Task.signatures`.
        tokenizers: that they use.
        variables: that they use.
        task: for a signature "ids"; None: there is none.
    """
    module = tf.Module()  # the resources of its functions must be its own to be saved
    module.weights = list(variables)
    module.tables = [
        value
        for tokenizer in tokenizers
        for part in (tokenizer.graph, *tokenizer.graph.submodules)
        for value in vars(part).values()
        if isinstance(value, tf.lookup.StaticHashTable)
    ]
    check = _check_of_version(module)
    texts = {name: _of_texts(function, check) for name, function in functions.items()}
    ids = {} if task is None else {"ids": _of_ids(task, check)}
    kind = Kind("an export", lambda manifest: manifest["task"] == KIND, MANIFEST)
    with replacing(path, kind) as folder, warnings_only():
        tf.saved_model.save(module, str(folder), {**texts, **ids})
        mask = tokenizers[0].mask_token
        write_warm_up(folder, [r for n, f in texts.items() for r in _warm_up(n, f, mask)])
        write_manifest(folder, {"task": KIND}, MANIFEST)


def _check_of_version(module: tf.Module) -> Callable[[], tf.Operation]:
    """Return a check that the graph that it is in and the module's variables are of one export.

    TensorFlow reads them by their paths, one after the other: where the folder is replaced in
    between, the graphs of one version would answer with the weights of another.
    """
    number = secrets.randbits(62)
    module.version = tf.Variable(number, trainable=False, dtype=tf.int64)

    def check() -> tf.Operation:
        return _assert(
            tf.equal(module.version, number),
            "The graph and the weights are of two versions: this SavedModel was replaced while it "
            "was loaded. Load it again.",
        )

    return check


def _of_texts(
    function: Callable, check: Callable[[], tf.Operation]
) -> tf.types.experimental.PolymorphicFunction:
    """Return a `tf.function` of string tensors (N,), with the names of its arguments."""
    names = list(inspect.signature(function).parameters)
    ranks = getattr(function, "ranks", {})  # of inputs that are not (N,)
    signature = [tf.TensorSpec([None] * ranks.get(n, 1), tf.string, n) for n in names]

    @functools.wraps(function)  # its names are those of the inputs
    def answer(*args, **kwargs):
        texts = inspect.signature(function).bind(*args, **kwargs).arguments
        alike = [] if getattr(function, "takes_other_shapes", False) else _same_shapes(texts)
        with tf.control_dependencies([check(), *alike]), tracing(serves=True):
            return function(
                **{
                    name: _as_batch(text) if text.shape.rank == 1 else tf.identity(text)
                    for name, text in texts.items()
                }
            )

    return tf.function(answer, input_signature=signature, autograph=False)


def _as_batch(text: tf.Tensor) -> tf.Tensor:
    """Return texts (N,) for (N,) or a single text, which TensorFlow lets pass for (N,) unseen."""
    of_any_rank = tf.raw_ops.PlaceholderWithDefault(input=text, shape=None)
    return tf.reshape(of_any_rank, [-1])  # of a known rank, TensorFlow would remove it


def _same_shapes(inputs: dict[str, tf.Tensor]) -> list[tf.Operation]:
    """Return assertions that inputs have the shape of the first, in a graph."""
    (first, expected), *others = inputs.items()
    shape = tf.shape(expected)
    return [
        _assert(
            tf.reduce_all(tf.equal(tf.shape(value), shape)),
            f"{first} has the shape ",
            shape,
            f", but {name} ",
            tf.shape(value),
            ". Expected the same.",
        )
        for name, value in others
    ]


def _right_numbers(inputs: dict[str, tf.Tensor], task: Task) -> list[tf.Operation]:
    """Return assertions that numbers are in range and rows not too long, in a graph."""
    length, longest = tf.shape(inputs["token_ids"])[1], task.backbone.max_sequence_length
    checks = [
        _assert(
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
        checks.append(_assert(tf.reduce_all(right), *parts))
    return checks


def _assert(right: tf.Tensor, *message: str | tf.Tensor) -> tf.Operation:
    """Return an assertion with an error of one line."""
    parts = [
        part if isinstance(part, str) else tf.strings.format("{}", part, summarize=-1)
        for part in message
    ]
    return tf.debugging.Assert(right, [tf.strings.join(parts)])


def _of_ids(
    task: Task, check: Callable[[], tf.Operation]
) -> tf.types.experimental.PolymorphicFunction:
    """Return the graph from prepared inputs (B, L), both unknown, to logits."""

    def logits(**inputs):
        names = ("token_ids", "padding_mask", "segment_ids")  # (B, L)
        by_token = {name: inputs[name] for name in names if name in inputs}
        checks = [check(), *_same_shapes(by_token), *_right_numbers(inputs, task)]
        with tf.control_dependencies(checks):
            inputs = {name: tf.identity(value) for name, value in inputs.items()}
        return {"logits": task(inputs, training=False)}

    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in task.prepared_inputs()}
    return tf.function(logits, autograph=False).get_concrete_function(**specs)


def _warm_up(name: str, function, mask: str) -> list[tuple[str, dict]]:
    """Return requests to a signature: a single text, and a batch with long texts."""
    short, long = f"Hello {mask}!", "Hello, world! " * 100
    *first, last = function.input_signature
    requests = ([short], [short]), ([short] * 8, [short, long] * 4)

    def inputs(a: list[str], b: list[str]) -> dict[str, tf.Tensor]:
        given = [(spec, a) for spec in first] + [(last, b)]
        shapes = {spec.name: [-1] + [1] * (spec.shape.rank - 1) for spec, _ in given}
        return {spec.name: tf.reshape(texts, shapes[spec.name]) for spec, texts in given}

    return [(name, inputs(a, b)) for a, b in requests]
