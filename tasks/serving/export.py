"""Export of tasks to files that run without this package: SavedModel, ONNX, LiteRT.

A SavedModel goes from raw text to answers. Its signatures are those of `Task.signatures`, which
share their code with `classify`, `extract_entities`, `answer` and `fill_mask`, and "ids", from
prepared token ids to logits. It holds TensorFlow's core operations only. ONNX and LiteRT files hold
what "ids" does: neither has strings enough for a tokenizer. An ONNX file names its labels.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.keras_private import layers_in
from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.kernels.long_attention import graph_of_texts
from encoder_zoo.presets.files.atomic import Kind, replacing, replacing_file
from encoder_zoo.presets.files.manifest import write_manifest

if TYPE_CHECKING:
    from onnx import GraphProto

    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
    from encoder_zoo.tasks.base.task import Task

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


def name_parts(path: pathlib.Path, task: Task, description: str) -> None:
    """Name what tf2onnx numbers, and add the task and its labels as metadata.

    The output becomes "logits"; axes "batch", "length" and "masks". The metadata are in
    config.json's words: "pipeline_tag", and for tasks with classes "id2label", in JSON, and
    "problem_type". `onnxruntime.InferenceSession(...).get_modelmeta()` reads them.

    Args:
        path: of the file that tf2onnx wrote for the task.
        task: with one output.
        description: of the file.
    """
    import onnx

    model = onnx.load(path)
    _rename(model.graph, model.graph.output[0].name, "logits")
    for value in (*model.graph.input, *model.graph.output):
        _name_axes(value, task)
    onnx.helper.set_model_props(model, _metadata(task))
    model.doc_string = description
    onnx.save(model, path)


def _rename(graph: GraphProto, old: str, new: str) -> None:
    """Rename a tensor wherever it is used."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in graph.output:
        value.name = new if value.name == old else value.name


def _name_axes(value, task: Task) -> None:
    """Name the axes of unknown size of an input or output."""
    of_masks = {"mask_positions", "logits"} if "mask_positions" in task.prepared_inputs() else {}
    for i, axis in enumerate(value.type.tensor_type.shape.dim):
        if axis.dim_param:
            axis.dim_param = ("masks" if value.name in of_masks else "length") if i else "batch"


def _metadata(task: Task) -> dict[str, str]:
    metadata = {"pipeline_tag": task.pipeline_tag}
    if task.labels:
        metadata["id2label"] = json.dumps(dict(enumerate(task.labels)), ensure_ascii=False)
    if task.problem_type:
        metadata["problem_type"] = task.problem_type
    return metadata


SUFFIXES = {"tf_saved_model": "", "onnx": ".onnx", "litert": ".tflite"}
# Written into an export, so that the next one replaces its files and keeps all others.
MANIFEST, KIND = "encoder_zoo_export.json", "saved_model"
MARK = "Written by encoder_zoo"  # in the description of an ONNX or LiteRT file


def export_task(task: Task, path: str | os.PathLike[str], format: str, **options) -> None:
    """Write a task in one of the formats; see `Task.export`.

    Raises:
        ValueError: "Unknown format 'h5'. Expected one of tf_saved_model, onnx, litert."
    """
    if format not in SUFFIXES:
        raise ValueError(f"Unknown format {format!r}. Expected one of {', '.join(SUFFIXES)}.")
    _check_backend(task, format)
    if format == "tf_saved_model":
        export_saved_model(task, path, **options)
    else:
        export_ids(task, path, format, **options)


def _check_backend(task: Task, format: str) -> None:
    if keras.config.backend() == "tensorflow":
        return
    raise ValueError(
        "Export needs Keras's TensorFlow backend. "
        f"Received: a task on the backend {keras.config.backend()!r}. Save it with "
        "`save_to_preset('my_preset')`; then, with TensorFlow (`pip install tensorflow`) and in a "
        "process started with KERAS_BACKEND=tensorflow:\n"
        "    import encoder_zoo as ez\n"
        f"    ez.{type(task).__name__}.from_preset('my_preset').export('...', {format!r})"
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
        ValueError: "... has no preprocessor ..."
    """
    if task.preprocessor is None:
        raise ValueError(
            f"This {type(task).__name__} has no preprocessor, so it cannot take text. Pass "
            "preprocessor=..., load it with from_preset, or export it as 'onnx' or 'litert'."
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
    module.version = _Version()
    check = module.version.check
    texts = {name: _of_texts(function, check) for name, function in functions.items()}
    ids = {} if task is None else {"ids": _of_ids(task, check)}
    kind = Kind("an export", lambda manifest: manifest["task"] == KIND, MANIFEST)
    with replacing(path, kind) as folder, _warnings_only():
        tf.saved_model.save(module, str(folder), {**texts, **ids})
        mask = tokenizers[0].mask_token
        write_warm_up(folder, [r for n, f in texts.items() for r in _warm_up(n, f, mask)])
        write_manifest(folder, {"task": KIND}, MANIFEST)


@contextlib.contextmanager
def _warnings_only() -> Iterator[None]:
    """Silence TensorFlow's message about the folder it writes, which is renamed later."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)


class _Version(tf.Module):
    """A number that an export's graphs and its variables share, which are in different files.

    TensorFlow reads these by their paths, one after the other: where the folder is replaced in
    between, the graphs of one version would answer with the weights of another.
    """

    def __init__(self):
        self._number = secrets.randbits(62)
        self._stored = tf.Variable(self._number, trainable=False, dtype=tf.int64)

    def check(self) -> tf.Operation:
        """Raise an error if the variables are of another export than the graph."""
        return _assert(
            tf.equal(self._stored, self._number),
            "The graph and the weights are of two versions: this SavedModel was replaced while it "
            "was loaded. Load it again.",
        )


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
        with tf.control_dependencies([check(), *alike]):
            return function(**{name: tf.identity(text) for name, text in texts.items()})

    return tf.function(answer, input_signature=signature, autograph=False)


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

    return tf.function(logits, autograph=False).get_concrete_function(**_prepared(task))


def _prepared(task: Task) -> dict[str, tf.TensorSpec]:
    return {name: tf.TensorSpec([None, None], tf.int32, name) for name in task.prepared_inputs()}


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


def export_ids(task: Task, path: str | os.PathLike[str], format: str, **options) -> None:
    """Write the model from prepared inputs to logits as a file, through Keras's exporter.

    Args:
        task: any.
        path: ends in ".onnx" or ".tflite".
        format: "onnx" or "litert".
        **options: of Keras's exporter.

    Raises:
        ValueError: "The file of the format 'onnx' must end in .onnx. ...", "LiteRT takes no
            quantized task. ..."
        ImportError: "The format 'onnx' needs the package tf2onnx: ..."
    """
    path, suffix = pathlib.Path(path), SUFFIXES[format]
    if path.suffix != suffix:
        raise ValueError(
            f"The file of the format {format!r} must end in {suffix}. Received: {path}."
        )
    if format == "onnx":
        _teach_tf2onnx_erfc()
        _forget_initialized_tables()
    elif any(getattr(layer, "quantization_mode", None) for layer in layers_in(task)):
        raise ValueError(
            "LiteRT takes no quantized task. Export the task as it was before quantize(), with "
            "optimizations=[tf.lite.Optimize.DEFAULT], which stores int8 weights."
        )
    with replacing_file(path, _is_marked) as new, graph_of_texts(long=False):
        keras.Model.export(
            task, str(new), format, verbose=False, input_signature=[_prepared(task)], **options
        )
        if format == "onnx":
            name_parts(new, task, MARK)
        else:
            _name_output(new)


def _is_marked(path: pathlib.Path) -> bool:
    return MARK.encode() in path.read_bytes()


def _name_output(path: pathlib.Path) -> None:
    """Rename the only output of a LiteRT file, "output_0"."""
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model(str(path))
    [signature] = model.signatureDefs
    [output] = signature.outputs
    output.name = b"logits"
    model.description = MARK.encode()
    flatbuffer_utils.write_model(model, str(path))


def _forget_initialized_tables() -> None:
    """Remove the None that eager tables leave among initializers, of which tf2onnx warns."""
    graph = tf.compat.v1.get_default_graph()
    initializers = graph.get_collection_ref(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    initializers[:] = [one for one in initializers if one is not None]


@functools.cache
def _teach_tf2onnx_erfc() -> None:
    """Register Erfc, which the exact GELU uses, as 1 - erf(x): ONNX has Erf only."""
    try:
        from tf2onnx.handler import tf_op
        from tf2onnx.utils import make_name
    except ImportError as error:
        raise ImportError(
            "The format 'onnx' needs the package tf2onnx: `pip install tf2onnx`."
        ) from error

    @tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **kwargs):
            one = ctx.make_const(make_name("one"), np.ones((), "float32"))
            erf = ctx.make_node("Erf", node.input)
            ctx.remove_node(node.name)
            ctx.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output)
