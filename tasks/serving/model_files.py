"""Export a task's model to ONNX, LiteRT and OpenVINO files.

A model file computes "logits" from preprocessed inputs. The string operations in these formats are
not sufficient for a tokenizer. For this reason, a tokenizer.json for the library `tokenizers` is
written next to the file. ONNX and OpenVINO files contain the label names.
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

from encoder_zoo.common.context import use_context
from encoder_zoo.common.layers import list_layers
from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.core import SelfAttention
from encoder_zoo.presets.files.atomic import replace_file

if TYPE_CHECKING:
    import openvino
    from onnx import GraphProto

    from encoder_zoo.encoders.backbone import Backbone
    from encoder_zoo.presets.formats.preset_task import PresetTask

logger = logging.getLogger("encoder_zoo")

EXPORT_PACKAGES = {  # required packages
    ("tensorflow", "onnx"): ("tf2onnx", "onnx"),
    ("tensorflow", "openvino"): ("openvino",),
    ("torch", "onnx"): ("onnx",),
    ("torch", "openvino"): ("openvino", "onnx"),
    ("torch", "litert"): ("litert_torch",),
}
# For these families, OpenVINO 2026.4 can compute wrong outputs (errors above 0.2) when a length is
# used for the first time. ONNX Runtime computes correct outputs.
WRONG_IN_OPENVINO = ("mpnet", "deberta-v2")
DEFAULT_DESCRIPTION = "Written by encoder_zoo"  # default description in a model file


def export_ids(task: PresetTask, path: pathlib.Path, format: str, **options) -> None:
    """Write the model to a file with the Keras exporter. The model reads preprocessed inputs.

    If the tokenizer can be saved as tokenizer.json, this file is written next to the model. Files
    are only replaced after all new files are complete. The model is replaced last.

    Args:
        task: `Task` to export.
        path: Path that ends in ".onnx", ".tflite" or ".xml". OpenVINO weights are written to a
            ".bin" file next to it.
        format: String, "onnx", "litert" or "openvino".
        **options: Options for the Keras exporter. For "litert" on PyTorch, options for
            `litert_torch.convert`.

    Raises:
        ValueError: If `format` does not support the task, or if the folder contains the
            tokenizer.json of another export.
        ImportError: If a package for `format` is not installed.
    """
    tokenizer, description = make_tokenizer_json(task), DEFAULT_DESCRIPTION
    if tokenizer is not None:
        beside, digest = path.with_name("tokenizer.json"), hashlib.sha256(tokenizer).hexdigest()
        description += f", for the tokenizer.json with the SHA-256 {digest}"
        _check_existing_tokenizer(path, beside, tokenizer)
    with contextlib.ExitStack() as files:  # the first file is replaced last
        new = files.enter_context(replace_file(path, _is_marked))
        weights = path.with_suffix(".bin")
        if format == "openvino":
            is_ours = _is_marked(path)
            weights = files.enter_context(replace_file(weights, lambda _: is_ours))
        write_model(task, new, format, description, weights, **options)
        if tokenizer is not None:
            files.enter_context(replace_file(beside, lambda _: True)).write_bytes(tokenizer)


def write_model(
    task: PresetTask,
    path: pathlib.Path,
    format: str,
    description: str = DEFAULT_DESCRIPTION,
    weights: pathlib.Path | None = None,
    **options,
) -> None:
    """Write the model file.

    Args:
        task: `Task` to export.
        path: File path.
        format: String, "onnx", "litert" or "openvino".
        description: String. Description to store in the file. Defaults to "Written by encoder_zoo".
        weights: Optional path of the OpenVINO weights. Defaults to `path` with the suffix ".bin".
        **options: See `export_ids`.

    Raises:
        ValueError, ImportError: See `export_ids`.
    """
    _check_supports_task(task, format)
    if format == "litert":
        _write_litert(task, path, description, options)
    elif format == "onnx":
        _write_onnx(task, path, description, options)
    else:
        weights = path.with_suffix(".bin") if weights is None else weights
        _write_openvino(task, path, weights, description, options)


def _check_supports_task(task: PresetTask, format: str) -> None:
    """Raise an error if the exporter for the format is missing or does not support the task."""
    quantized = any(getattr(layer, "quantization_mode", None) for layer in list_layers(task))
    if quantized and format == "litert":
        raise ValueError(
            "LiteRT does not support quantized tasks. Export the task before quantize() with "
            "optimizations=[tf.lite.Optimize.DEFAULT], which stores int8 weights."
        )
    backend = keras.config.backend()
    if (backend, format) == ("tensorflow", "onnx") and _has_single_heads(task.backbone):
        # tf2onnx merges a reshape to (B L, D) with one that keeps its first two axes.
        raise ValueError(
            "num_heads is 1, for which the ONNX exporter writes a file that cannot be run. Export "
            "the task as 'openvino' or 'litert', or use an encoder with at least 2 attention heads."
        )
    if (backend, format) == ("torch", "litert") and _get_fixed_length(task) is None:
        raise ValueError(
            "LiteRT files from PyTorch have a fixed shape: one text of `sequence_length` tokens. "
            "Set this length with from_preset(..., sequence_length=128), or use the backend "
            "'tensorflow'."
        )
    require_packages(format, f"The format {format!r}")


def _has_single_heads(backbone: Backbone) -> bool:
    """Return whether the backbone has an attention layer with a single head."""
    layers = list_layers(backbone)
    return any(isinstance(layer, SelfAttention) and layer.num_heads == 1 for layer in layers)


def require_packages(format: str, what: str) -> None:
    """Raise an ImportError if a package is missing that the backend needs for the format."""
    for name in EXPORT_PACKAGES.get((keras.config.backend(), format), ()):
        if importlib.util.find_spec(name) is None:
            name = name.replace("_", "-")
            raise ImportError(f"{what} needs the package {name}: `pip install {name}`.")


def _get_fixed_length(task: PresetTask) -> int | None:
    """Return the fixed length that all inputs are padded to, or None."""
    return None if task.preprocessor is None else task.preprocessor.sequence_length


def _run_keras_exporter(task: PresetTask, path: pathlib.Path, format: str, options: dict) -> None:
    """Write the model with the Keras exporter, for batches of any shape."""
    names = task.list_input_names()
    specs = [{name: keras.InputSpec("int32", (None, None), name=name) for name in names}]
    keras.Model.export(task, str(path), format, verbose=False, input_signature=specs, **options)


def _write_onnx(task: PresetTask, path: pathlib.Path, description: str, options: dict) -> None:
    with use_context(is_long=False):
        if keras.config.backend() == "torch":
            _write_onnx_from_torch(task, path, options)
        else:
            _register_tf2onnx_operations()
            _forget_initialized_tables()
            _run_keras_exporter(task, path, "onnx", options)
    _describe_onnx(path, task, description)


def _write_onnx_from_torch(task: PresetTask, path: pathlib.Path, options: dict) -> None:
    """Trace the model with dynamic shapes, and write the trace to an ONNX file.

    The Keras exporter traces the model with a single token. It cannot be used for models with
    "mask_positions", because there is no token at index 1.
    """
    import torch

    _register_torch_operations()
    names = task.list_input_names()

    class Positional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.task = task  # to make the weights parameters instead of constants

        def forward(self, *values):
            return self.task(dict(zip(names, values, strict=True)), training=False)

    sample = torch.ones((2, 8), dtype=torch.int32, device=task.weights[0].value.device)
    axes = {0: "batch", 1: "length"}
    with _freeze_weights(task), torch.no_grad(), warnings.catch_warnings():
        # PyTorch warns that Python numbers become constants and that a newer exporter exists.
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
def _freeze_weights(task: PresetTask) -> Iterator[None]:
    """Context manager that disables the gradients of the weights.

    PyTorch does not find the weights of layers in lists, so these weights become constants in the
    trace. Constants must not require gradients.
    """
    weights = [weight.value for weight in task.weights if weight.value.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def _write_litert(task: PresetTask, path: pathlib.Path, description: str, options: dict) -> None:
    """Write a LiteRT file. On PyTorch, these files have a fixed shape."""
    with use_context(is_long=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if keras.config.backend() == "torch":
            _write_litert_from_torch(task, path, options)
        else:
            _run_keras_exporter(task, path, "litert", options)
    _describe_litert(path, description)


def _write_litert_from_torch(task: PresetTask, path: pathlib.Path, options: dict) -> None:
    """Trace the model for one text of `sequence_length` tokens, and write the trace.

    The Keras exporter is not used because its token ids are int32. litert-torch 0.10 confuses
    functions for int32 and for int64.
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

    shape, device = (1, _get_fixed_length(task)), task.weights[0].value.device
    # Each input needs its own tensor. A shared tensor would become a single input.
    samples = {
        name: torch.ones(shape, dtype=torch.int32, device=device)
        for name in task.list_input_names()
    }
    with _freeze_weights(task), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        litert_torch.convert(Named().eval(), (), samples, **options).export(str(path))


def _write_openvino(
    task: PresetTask, path: pathlib.Path, weights: pathlib.Path, description: str, options: dict
) -> None:
    import openvino

    model = make_openvino_model(task, "Export it as 'onnx'", **options)
    for name, value in {**_make_metadata(task), "description": description}.items():
        model.set_rt_info(value, ["encoder_zoo", name])
    openvino.save_model(model, path, compress_to_fp16=False)
    if weights != path.with_suffix(".bin"):
        os.replace(path.with_suffix(".bin"), weights)


def make_openvino_model(task: PresetTask, advice: str, **options) -> openvino.Model:
    """Create an OpenVINO model that computes "logits" from preprocessed inputs.

    The model is read from a file. `convert_model` is not used because it sends telemetry to a
    server.

    Args:
        task: `Task` to convert.
        advice: String. Alternative to suggest in error messages.
        **options: Options for the ONNX exporter on the PyTorch backend.

    Raises:
        ValueError: If OpenVINO cannot read the model, or is known to compute wrong outputs for
            models of this family.
    """
    import openvino

    family = task.backbone.family.name
    if family in WRONG_IN_OPENVINO:
        raise ValueError(f"OpenVINO can compute wrong outputs for the family {family!r}. {advice}.")

    core = openvino.Core()
    core.set_property({"ENABLE_MMAP": False})  # the files are deleted afterwards
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.onnx")
        if keras.config.backend() == "torch":
            _write_onnx(task, path, DEFAULT_DESCRIPTION, options)
        else:
            path = path.with_suffix("")
            _write_logits_model(task, path, **options)
        try:
            return core.read_model(path)
        except RuntimeError as error:
            raise ValueError(
                f"OpenVINO cannot read this {type(task).__name__}. {advice}. Error:\n{error}"
            ) from error


def _write_logits_model(task: PresetTask, folder: pathlib.Path) -> None:
    """Write a SavedModel that computes "logits" from preprocessed inputs.

    OpenVINO reads a SavedModel 10 times faster than tf2onnx converts the model.
    """

    def logits(**inputs):
        return {"logits": task(inputs, training=False)}

    module = tf.Module()
    module.weights = [variable.value for variable in task.variables]
    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in task.list_input_names()}
    with use_context(is_long=False), silence_messages():
        function = tf.function(logits, autograph=False).get_concrete_function(**specs)
        tf.saved_model.save(module, str(folder), {"serving_default": function})


def make_tokenizer_json(task: PresetTask) -> bytes | None:
    """Create a tokenizer.json that truncates and pads in the same way as the task's preprocessor.

    Without a preprocessor, None is returned. If the library `tokenizers` does not support the
    tokenizer, a warning is logged and None is returned.
    """
    if task.preprocessor is None:
        return None
    tokenizer = task.preprocessor.tokenizer
    content = tokenizer.to_files().get("tokenizer.json")
    if content is None:
        logger.warning(
            "%s cannot be saved as tokenizer.json. Use this tokenizer to compute the inputs of the "
            "exported model.",
            type(tokenizer).__name__,
        )
        return None
    length = _get_fixed_length(task)
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


def _check_existing_tokenizer(path: pathlib.Path, beside: pathlib.Path, tokenizer: bytes) -> None:
    """Raise a ValueError if tokenizer.json exists and belongs to another export."""
    if not os.path.lexists(beside):
        return
    there = _read_content(beside)
    digest = hashlib.sha256(there or b"").hexdigest()
    is_ours = there is not None and digest.encode() in (_read_content(path) or b"")
    if there != tokenizer and not is_ours:
        raise ValueError(
            f"{beside} exists and does not belong to {path.name}, so it is not replaced. Export "
            f"to an empty folder, such as {path.parent / path.stem / path.name}."
        )


def _read_content(path: pathlib.Path) -> bytes | None:
    """Read a regular file. Return None for links, pipes and folders."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _is_marked(path: pathlib.Path) -> bool:
    return DEFAULT_DESCRIPTION.encode() in (_read_content(path) or b"")


def list_custom_operations(path: pathlib.Path) -> list[str]:
    """List the operations in a LiteRT file that LiteRT does not support."""
    model = _import_flatbuffer_utils().read_model(str(path))
    names = [operation.customCode for operation in model.operatorCodes]
    return sorted({name.decode() for name in names if name})


def _import_flatbuffer_utils() -> ModuleType:
    if keras.config.backend() == "tensorflow":
        from tensorflow.lite.tools import flatbuffer_utils
    else:
        from ai_edge_litert.tools import flatbuffer_utils
    return flatbuffer_utils


def _describe_litert(path: pathlib.Path, description: str) -> None:
    """Rename a LiteRT output to "logits", and set the file description."""
    flatbuffer_utils = _import_flatbuffer_utils()
    model = flatbuffer_utils.read_model(str(path))
    [signature] = model.signatureDefs
    [output] = signature.outputs
    output.name = b"logits"
    model.description = description.encode()
    flatbuffer_utils.write_model(model, str(path))


def _forget_initialized_tables() -> None:
    """Remove None from the initializers of tables, because tf2onnx would log warnings.

    Tables that are created eagerly add None to this collection.
    """
    graph = tf.compat.v1.get_default_graph()
    initializers = graph.get_collection_ref(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    initializers[:] = [one for one in initializers if one is not None]


@functools.cache
def _register_torch_operations() -> None:
    """Register PyTorch operations that Keras calls, but that the PyTorch exporter lacks."""
    import torch
    from torch.onnx.symbolic_helper import parse_args

    def numbers(graph, *values):
        return graph.op("Constant", value_t=torch.tensor(values))

    def ravel(graph, x):
        return graph.op("Reshape", x, numbers(graph, -1))

    @parse_args("v", "v", "i")
    def take_along_dim(graph, x, indices, axis):
        """Broadcast the indices to x in all axes except for one, and gather."""
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
def _register_tf2onnx_operations() -> None:
    """Register Erfc (used in the exact GELU) as 1 - erf(x), and Log1p as log(1 + x)."""
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


def _describe_onnx(path: pathlib.Path, task: PresetTask, description: str) -> None:
    """Name the output and the axes in an ONNX file, and add the task and its labels as metadata.

    The output is named "logits", and the axes are named "batch", "length" and "masks". The metadata
    has the same keys as config.json: "pipeline_tag" and, for tasks with classes, "id2label" as
    JSON and "problem_type". Use `onnxruntime.InferenceSession(...).get_modelmeta()` to read the
    metadata.

    Args:
        path: Path to the file that the Keras exporter has written.
        task: `Task` with one output.
        description: String. File description.

    Raises:
        ValueError: If the exporter wrote an operation that does not exist in ONNX.
    """
    import onnx

    model = onnx.load(path)
    _rename(model.graph, model.graph.output[0].name, "logits")
    for value in (*model.graph.input, *model.graph.output):
        _name_axes(value, task)
    onnx.helper.set_model_props(model, _make_metadata(task))
    model.doc_string = description
    onnx.save(model, path)
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        raise ValueError(
            f"ONNX does not support an operation of this {type(task).__name__}. Use the "
            f"TensorFlow backend, and export a SavedModel with export('served/1'). Error:\n{error}"
        ) from error


def _rename(graph: GraphProto, old: str, new: str) -> None:
    """Rename a tensor and all references to it."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]
    for value in graph.output:
        value.name = new if value.name == old else value.name


def _name_axes(value, task: PresetTask) -> None:
    """Name the dynamic axes of an input or output."""
    of_masks = {"mask_positions", "logits"} if "mask_positions" in task.list_input_names() else {}
    for i, axis in enumerate(value.type.tensor_type.shape.dim):
        if axis.dim_param:
            axis.dim_param = ("masks" if value.name in of_masks else "length") if i else "batch"


def _make_metadata(task: PresetTask) -> dict[str, str]:
    metadata = {"pipeline_tag": task.record.pipeline_tag}
    if task.labels:
        metadata["id2label"] = json.dumps(dict(enumerate(task.labels)), ensure_ascii=False)
    if task.problem_type:
        metadata["problem_type"] = task.problem_type
    return metadata


@contextlib.contextmanager
def silence_messages() -> Iterator[None]:
    """Suppress the TensorFlow message about the temporary export folder."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)
