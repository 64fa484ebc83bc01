"""Names in an ONNX file: its outputs and axes, the task, the labels."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto

    from encoder_zoo.tasks.base.task import Task


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
