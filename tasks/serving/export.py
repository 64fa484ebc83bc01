"""Export of tasks to files that run without this package: SavedModel, ONNX, LiteRT, OpenVINO.

A SavedModel goes from raw text to answers. Its signatures are those of `Task.signatures`, which
share their code with `classify`, `extract_entities`, `answer` and `fill_mask`, and "ids", from
prepared token ids to logits. It holds TensorFlow's core operations only. The other files hold what
"ids" does: none has strings enough for a tokenizer. Beside them is written the tokenizer.json that
the library `tokenizers` makes the ids with. ONNX's and OpenVINO's name the labels.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import io
import json
import logging
import os
import pathlib
import secrets
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.layers import layers_in
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.kernels.long_attention import trace_for_length
from encoder_zoo.presets.files.atomic import Kind, replacing, replacing_file
from encoder_zoo.presets.files.manifest import write_manifest
from encoder_zoo.tasks.preprocessing.checks import serving

if TYPE_CHECKING:
    import openvino
    from onnx import GraphProto

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


def _describe_onnx(path: pathlib.Path, task: Task, description: str) -> None:
    """Name what exporters number, and add the task and its labels as metadata.

    The output becomes "logits"; axes "batch", "length" and "masks". The metadata are in
    config.json's words: "pipeline_tag", and for tasks with classes "id2label", in JSON, and
    "problem_type". `onnxruntime.InferenceSession(...).get_modelmeta()` reads them.

    Args:
        path: of the file that Keras's exporter wrote for the task.
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
    metadata = {"pipeline_tag": task.record.pipeline_tag}
    if task.labels:
        metadata["id2label"] = json.dumps(dict(enumerate(task.labels)), ensure_ascii=False)
    if task.problem_type:
        metadata["problem_type"] = task.problem_type
    return metadata


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
PACKAGES = {  # that they need
    ("tensorflow", "onnx"): ("tf2onnx", "onnx"),
    ("tensorflow", "openvino"): ("openvino",),
    ("torch", "onnx"): ("onnx",),
    ("torch", "openvino"): ("openvino", "onnx"),
    ("torch", "litert"): ("litert_torch",),
}
# Families whose answers by OpenVINO 2026.4 are now and then wrong, by more than 0.2, where a length
# comes for the first time; the same in ONNX is right.
WRONG_IN_OPENVINO = ("mpnet", "deberta-v2")
# Written into an export, so that the next one replaces its files and keeps all others.
MANIFEST, KIND = "encoder_zoo_export.json", "saved_model"
MARK = "Written by encoder_zoo"  # in the description of a file


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
        _check_suffix(path, format)
    check_backend(task, path, format)
    if format == "tf_saved_model":
        export_saved_model(task, path, **options)
    else:
        export_ids(task, path, format, **options)


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
        with tf.control_dependencies([check(), *alike]), serving():
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


def export_ids(task: Task, path: str | os.PathLike[str], format: str, **options) -> None:
    """Write the model from prepared inputs to logits as a file, through Keras's exporter.

    Beside it is written "tokenizer.json", unless the tokenizer cannot be written as one. Files are
    replaced once all are complete, the model last; each of them atomically.

    Args:
        task: any.
        path: ends in ".onnx", ".tflite" or ".xml"; weights of OpenVINO are in a ".bin" beside.
        format: "onnx", "litert" or "openvino".
        **options: of Keras's exporter; of "litert" on PyTorch those of `litert_torch.convert`.

    Raises:
        ValueError: If the format does not support the task, or a tokenizer.json of another export
            lies next to the file.
        ImportError: If a package that the format needs is not installed.
    """
    path = pathlib.Path(path)
    _check_takes(task, format)
    tokenizer, description = _tokenizer_json(task), MARK
    if tokenizer is not None:
        beside, digest = path.with_name("tokenizer.json"), hashlib.sha256(tokenizer).hexdigest()
        description += f", for the tokenizer.json with the SHA-256 {digest}"
        _check_beside(path, beside, tokenizer)
    with contextlib.ExitStack() as files:  # the first is replaced last
        new = files.enter_context(replacing_file(path, _is_marked))
        if format == "litert":
            _write_litert(task, new, description, options)
        elif format == "onnx":
            _write_onnx(task, new, description, options)
        else:
            weights, is_ours = path.with_suffix(".bin"), _is_marked(path)
            replaced = replacing_file(weights, lambda _: is_ours)
            _write_openvino(task, new, files.enter_context(replaced), description, options)
        if tokenizer is not None:
            files.enter_context(replacing_file(beside, lambda _: True)).write_bytes(tokenizer)


def _check_takes(task: Task, format: str) -> None:
    """Raise an error for a task that the exporter of the format does not take, or without it."""
    quantized = any(getattr(layer, "quantization_mode", None) for layer in layers_in(task))
    if quantized and format == "litert":
        raise ValueError(
            "LiteRT takes no quantized task. Export the task as it was before quantize(), with "
            "optimizations=[tf.lite.Optimize.DEFAULT], which stores int8 weights."
        )
    backend = keras.config.backend()
    if (backend, format) == ("torch", "litert") and _only_length(task) is None:
        raise ValueError(
            "LiteRT's files have one shape on PyTorch: one text of `sequence_length` tokens. Set "
            "it, as in from_preset(..., sequence_length=128), or export on the backend tensorflow."
        )
    require_packages(format, f"The format {format!r}")


def require_packages(format: str, what: str) -> None:
    """Raise an ImportError if a package is missing that a format needs on Keras's backend."""
    for name in PACKAGES.get((keras.config.backend(), format), ()):
        if importlib.util.find_spec(name) is None:
            name = name.replace("_", "-")
            raise ImportError(f"{what} needs the package {name}: `pip install {name}`.")


def _only_length(task: Task) -> int | None:
    """Return the length that all inputs are padded to, if they are."""
    return None if task.preprocessor is None else task.preprocessor.sequence_length


def _specs(task: Task, *shape: int | None) -> list[dict[str, keras.InputSpec]]:
    """Return the inputs of Keras's exporters; sizes of None are left open."""
    names = task.prepared_inputs()
    return [{name: keras.InputSpec("int32", shape, name=name) for name in names}]


def _write_onnx(task: Task, path: pathlib.Path, description: str, options: dict) -> None:
    with trace_for_length(long=False):
        if keras.config.backend() == "torch":
            _write_onnx_of_torch(task, path, options)
        else:
            _teach_tf2onnx_erfc()
            _forget_initialized_tables()
            specs = _specs(task, None, None)
            keras.Model.export(
                task, str(path), "onnx", verbose=False, input_signature=specs, **options
            )
    _describe_onnx(path, task, description)


def _write_onnx_of_torch(task: Task, path: pathlib.Path, options: dict) -> None:
    """Write a trace of the model, in which sizes are open.

    Keras's exporter does the same, but with a text of one token, which has no token of number 1
    that "mask_positions" could name.
    """
    import torch

    _teach_torch()
    names = task.prepared_inputs()

    class Positional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.task = task  # whose weights are parameters then, not constants

        def forward(self, *values):
            return self.task(dict(zip(names, values, strict=True)), training=False)

    sample = torch.ones((2, 8), dtype=torch.int32, device=task.weights[0].value.device)
    axes = {0: "batch", 1: "length"}
    with _frozen(task), torch.no_grad(), warnings.catch_warnings():
        # That numbers of Python are constants, and that there is another exporter.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Positional().eval(),
            (sample,) * len(names),
            str(path),
            input_names=names,
            dynamic_axes=dict.fromkeys(names, axes),
            dynamo=False,
            **options,
        )


@contextlib.contextmanager
def _frozen(task: Task) -> Iterator[None]:
    """Return a context in which no weight asks for gradients, of which a trace takes no constants:
    those of layers in lists, which PyTorch does not find, are constants in it."""
    weights = [weight.value for weight in task.weights if weight.value.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def _write_litert(task: Task, path: pathlib.Path, description: str, options: dict) -> None:
    """Write a LiteRT file; from PyTorch it has one shape."""
    with trace_for_length(long=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if keras.config.backend() == "torch":
            _write_litert_of_torch(task, path, options)
        else:
            specs = _specs(task, None, None)
            keras.Model.export(
                task, str(path), "litert", verbose=False, input_signature=specs, **options
            )
    _describe_litert(path, description)


def _write_litert_of_torch(task: Task, path: pathlib.Path, options: dict) -> None:
    """Write a trace of the model for one text of `sequence_length` tokens.

    Keras's exporter does the same, but leaves the ids int32, and litert-torch 0.10 takes functions
    of int32 and of int64 for one another.
    """
    import litert_torch
    import torch

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.task = task

        def forward(self, **inputs):
            inputs = {name: values.long() for name, values in inputs.items()}
            return self.task(inputs, training=False)

    shape, device = (1, _only_length(task)), task.weights[0].value.device
    # A tensor for each input: of one alone a single input would be made.
    samples = {
        name: torch.ones(shape, dtype=torch.int32, device=device) for name in task.prepared_inputs()
    }
    with _frozen(task), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        litert_torch.convert(Named().eval(), (), samples, **options).export(str(path))


def _write_openvino(
    task: Task, path: pathlib.Path, weights: pathlib.Path, description: str, options: dict
) -> None:
    import openvino

    model = openvino_model(task, "Export it as 'onnx'", **options)
    for name, value in {**_metadata(task), "description": description}.items():
        model.set_rt_info(value, ["encoder_zoo", name])
    openvino.save_model(model, path, compress_to_fp16=False)
    os.replace(path.with_suffix(".bin"), weights)


def openvino_model(task: Task, advice: str, **options) -> openvino.Model:
    """Return the model from prepared inputs to "logits" in OpenVINO's form.

    It is read from a file, not made by `convert_model`, which first asks its makers' server for
    leave to count the call.

    Args:
        task: any.
        advice: what to do instead, where OpenVINO cannot compute it.
        **options: of PyTorch's exporter to ONNX, on that backend.

    Raises:
        ValueError: If OpenVINO does not read the task, or computes other outputs for its family.
    """
    import openvino

    family = task.backbone.family.name
    if family in WRONG_IN_OPENVINO:
        raise ValueError(
            f"OpenVINO sometimes computes other numbers for the family {family!r} than this "
            f"package. {advice}, which is right."
        )

    core = openvino.Core()
    core.set_property({"ENABLE_MMAP": False})  # the files are gone afterwards
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.onnx")
        if keras.config.backend() == "torch":
            _write_onnx(task, path, MARK, options)
        else:
            path = path.with_suffix("")
            _write_logits(task, path, **options)
        try:
            return core.read_model(path)
        except RuntimeError as error:
            raise ValueError(
                f"OpenVINO does not read this {type(task).__name__}. {advice}. It was:\n{error}"
            ) from error


def _write_logits(task: Task, folder: pathlib.Path) -> None:
    """Write a SavedModel from prepared inputs to "logits"; OpenVINO reads it 10 times faster than
    tf2onnx converts it."""

    def logits(**inputs):
        return {"logits": task(inputs, training=False)}

    module = tf.Module()
    module.weights = [variable.value for variable in task.variables]
    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in task.prepared_inputs()}
    with trace_for_length(long=False), _warnings_only():
        function = tf.function(logits, autograph=False).get_concrete_function(**specs)
        tf.saved_model.save(module, str(folder), {"serving_default": function})


def _tokenizer_json(task: Task) -> bytes | None:
    """Return tokenizer.json, which also truncates and pads as the task's preprocessor does.

    None without a preprocessor, and for the tokenizers that the library `tokenizers` has no steps
    for, which is logged.
    """
    if task.preprocessor is None:
        return None
    tokenizer = task.preprocessor.tokenizer
    content = tokenizer.to_files().get("tokenizer.json")
    if content is None:
        logger.warning(
            "%s cannot be written as tokenizer.json: make the ids of the exported model with it.",
            type(tokenizer).__name__,
        )
        return None
    length = _only_length(task)
    steps = json.loads(content)
    steps["truncation"] = {
        "direction": tokenizer.truncation_side.capitalize(),
        "max_length": task.preprocessor.max_sequence_length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    steps["padding"] = {
        "strategy": "BatchLongest" if length is None else {"Fixed": length},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": tokenizer.pad_token_id,
        "pad_type_id": 0,
        "pad_token": tokenizer.pad_token,
    }
    return json.dumps(steps, ensure_ascii=False).encode()


def _check_beside(path: pathlib.Path, beside: pathlib.Path, tokenizer: bytes) -> None:
    """Raise a ValueError if there is a tokenizer.json that no export to this path has written."""
    if not os.path.lexists(beside):
        return
    there = _content(beside)
    digest = hashlib.sha256(there or b"").hexdigest()
    is_ours = there is not None and digest.encode() in (_content(path) or b"")
    if there != tokenizer and not is_ours:
        raise ValueError(
            f"{beside} is there and was not written with {path.name}: it is kept. Export into a "
            f"folder of its own, such as {path.parent / path.stem / path.name}."
        )


def _content(path: pathlib.Path) -> bytes | None:
    """Return what a file holds; None of a link, a pipe, or a folder, which are not read."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _is_marked(path: pathlib.Path) -> bool:
    return MARK.encode() in (_content(path) or b"")


def _describe_litert(path: pathlib.Path, description: str) -> None:
    """Rename the output of a LiteRT file, "output_0", and describe the file."""
    if keras.config.backend() == "tensorflow":
        from tensorflow.lite.tools import flatbuffer_utils
    else:
        from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model(str(path))
    [signature] = model.signatureDefs
    [output] = signature.outputs
    output.name = b"logits"
    model.description = description.encode()
    flatbuffer_utils.write_model(model, str(path))


def _forget_initialized_tables() -> None:
    """Remove the None that eager tables leave among initializers, of which tf2onnx warns."""
    graph = tf.compat.v1.get_default_graph()
    initializers = graph.get_collection_ref(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    initializers[:] = [one for one in initializers if one is not None]


@functools.cache
def _teach_torch() -> None:
    """Register the operations of PyTorch that Keras calls and PyTorch's exporter does not know."""
    import torch
    from torch.onnx.symbolic_helper import parse_args

    def numbers(graph, *values):
        return graph.op("Constant", value_t=torch.tensor(values))

    def ravel(graph, x):
        return graph.op("Reshape", x, numbers(graph, -1))

    @parse_args("v", "v", "i")
    def take_along_dim(graph, x, indices, axis):
        """Broadcast the indices to x in all axes but one, and gather."""
        shape = graph.op("Shape", x)
        parts = (
            graph.op("Slice", shape, numbers(graph, 0), numbers(graph, axis)),
            numbers(graph, 1),
            graph.op("Slice", shape, numbers(graph, axis + 1), numbers(graph, 99)),
        )
        wanted = graph.op("Concat", *parts, axis_i=0)
        return graph.op("GatherElements", x, graph.op("Expand", indices, wanted), axis_i=axis)

    torch.onnx.register_custom_op_symbolic("aten::ravel", ravel, 9)
    torch.onnx.register_custom_op_symbolic("aten::take_along_dim", take_along_dim, 11)


@functools.cache
def _teach_tf2onnx_erfc() -> None:
    """Register Erfc, which the exact GELU uses, as 1 - erf(x): ONNX has Erf only."""
    from tf2onnx.handler import tf_op
    from tf2onnx.utils import make_name

    @tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **kwargs):
            one = ctx.make_const(make_name("one"), np.ones((), "float32"))
            erf = ctx.make_node("Erf", node.input)
            ctx.remove_node(node.name)
            ctx.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output)
