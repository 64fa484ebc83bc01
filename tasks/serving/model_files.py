"""Models as files of ONNX, LiteRT and OpenVINO, from prepared inputs to "logits".

None of the formats has strings enough for a tokenizer. Beside a file is written the tokenizer.json
that the library `tokenizers` makes the ids with. Files of ONNX and OpenVINO name the labels.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import io
import json
import logging
import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.layers import layers_in
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.trace import tracing
from encoder_zoo.presets.files.atomic import replacing_file

if TYPE_CHECKING:
    import openvino
    from onnx import GraphProto

    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")

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
MARK = "Written by encoder_zoo"  # in the description of a file


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
    tokenizer, description = tokenizer_json(task), MARK
    if tokenizer is not None:
        beside, digest = path.with_name("tokenizer.json"), hashlib.sha256(tokenizer).hexdigest()
        description += f", for the tokenizer.json with the SHA-256 {digest}"
        _check_beside(path, beside, tokenizer)
    with contextlib.ExitStack() as files:  # the first is replaced last
        new = files.enter_context(replacing_file(path, _is_marked))
        weights = path.with_suffix(".bin")
        if format == "openvino":
            is_ours = _is_marked(path)
            weights = files.enter_context(replacing_file(weights, lambda _: is_ours))
        write_model(task, new, format, description, weights, **options)
        if tokenizer is not None:
            files.enter_context(replacing_file(beside, lambda _: True)).write_bytes(tokenizer)


def write_model(
    task: Task,
    path: pathlib.Path,
    format: str,
    description: str = MARK,
    weights: pathlib.Path | None = None,
    **options,
) -> None:
    """Write the file of a model.

    Args:
        task: any.
        path: of the file.
        format: "onnx", "litert" or "openvino".
        description: String. Description in the file.
        weights: Path of OpenVINO's weights. Defaults to the file with the suffix ".bin".
        **options: See `export_ids`.

    Raises:
        ValueError, ImportError: See `export_ids`.
    """
    _check_takes(task, format)
    if format == "litert":
        _write_litert(task, path, description, options)
    elif format == "onnx":
        _write_onnx(task, path, description, options)
    else:
        weights = path.with_suffix(".bin") if weights is None else weights
        _write_openvino(task, path, weights, description, options)


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
    with tracing(is_long=False):
        if keras.config.backend() == "torch":
            _write_onnx_of_torch(task, path, options)
        else:
            _teach_tf2onnx()
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
    with tracing(is_long=False), warnings.catch_warnings():
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
    if weights != path.with_suffix(".bin"):
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
    with tracing(is_long=False), warnings_only():
        function = tf.function(logits, autograph=False).get_concrete_function(**specs)
        tf.saved_model.save(module, str(folder), {"serving_default": function})


def tokenizer_json(task: Task) -> bytes | None:
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


def custom_operations(path: pathlib.Path) -> list[str]:
    """Return the names of the operations of a LiteRT file that LiteRT itself does not have."""
    model = _flatbuffer_utils().read_model(str(path))
    names = [operation.customCode for operation in model.operatorCodes]
    return sorted({name.decode() for name in names if name})


def _flatbuffer_utils() -> ModuleType:
    if keras.config.backend() == "tensorflow":
        from tensorflow.lite.tools import flatbuffer_utils
    else:
        from ai_edge_litert.tools import flatbuffer_utils
    return flatbuffer_utils


def _describe_litert(path: pathlib.Path, description: str) -> None:
    """Rename the output of a LiteRT file, "output_0", and describe the file."""
    flatbuffer_utils = _flatbuffer_utils()
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
def _teach_tf2onnx() -> None:
    """Register Erfc, which the exact GELU uses, as 1 - erf(x), and Log1p as log(1 + x)."""
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

    @tf_op("Log1p")
    class Log1p:
        @classmethod
        def version_7(cls, ctx, node, **kwargs):
            one = ctx.make_const(make_name("one"), np.ones((), "float32"))
            total = ctx.make_node("Add", [node.input[0], one.output[0]])
            ctx.remove_node(node.name)
            ctx.make_node("Log", [total.output[0]], outputs=node.output)


def _describe_onnx(path: pathlib.Path, task: Task, description: str) -> None:
    """Name what exporters number, and add the task and its labels as metadata.

    The output becomes "logits"; axes "batch", "length" and "masks". The metadata are in
    config.json's words: "pipeline_tag", and for tasks with classes "id2label", in JSON, and
    "problem_type". `onnxruntime.InferenceSession(...).get_modelmeta()` reads them.

    Args:
        path: of the file that Keras's exporter wrote for the task.
        task: with one output.
        description: of the file.

    Raises:
        ValueError: If the exporter wrote an operation that ONNX does not have.
    """
    import onnx

    model = onnx.load(path)
    _rename(model.graph, model.graph.output[0].name, "logits")
    for value in (*model.graph.input, *model.graph.output):
        _name_axes(value, task)
    onnx.helper.set_model_props(model, _metadata(task))
    model.doc_string = description
    onnx.save(model, path)
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(
            f"ONNX does not have an operation of this {type(task).__name__}. Export it as a "
            f"SavedModel, export('served/1'), on TensorFlow. It was:\n{error}"
        ) from error


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


@contextlib.contextmanager
def warnings_only() -> Iterator[None]:
    """Silence TensorFlow's message about the folder it writes, which is renamed later."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)
