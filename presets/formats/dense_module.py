"""Reads and writes the Dense modules of sentence-transformers: weights and configurations."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
from safetensors.numpy import save

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.file_bytes import check_floats
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.formats.checkpoint import (
    Checkpoint,
    check_not_quantized,
    copy,
    match,
    named_weights,
    stored_array,
)
from encoder_zoo.presets.formats.embedding_modules import ACTIVATIONS
from encoder_zoo.presets.formats.huggingface import open_weights
from encoder_zoo.presets.formats.preset_files import CONFIG
from encoder_zoo.presets.formats.sentence_transformers import Module

# {attribute of a projection: name in its weights}
_LAYERS = {"dense": "linear", "residual_dense": "residual"}


class ModuleCheckpoint(Checkpoint):
    """The weights of a module in a subfolder.

    Args:
        files: of the whole folder.
        module: with weights.
    """

    def __init__(self, files: FolderFiles, module: Module):
        self.files = Subfolder(files, module.path)
        weights = open_weights(self.files)
        self._tensors = {name: file for file in weights for name in file.shapes}
        self.shapes = {name: file.shapes[name] for name, file in self._tensors.items()}

    def tensor(self, name: str) -> np.ndarray:
        file = self._tensors[name]
        check_floats(file.dtype(name), file.path, name)
        return file.read(name)


def check_weights(files: FolderFiles, module: Module, dense: Mapping, width: int) -> None:
    """Check the shapes of a Dense before a layer is made by its configuration.

    Args:
        files: of the whole folder.
        module: the Dense.
        dense: its settings, of `read_dense`.
        width: of the vectors before it.

    Raises:
        ValueError: "...: the weights are ... Expected ..., as its config.json says."
    """
    units = dense["units"]
    expected = {"linear.weight": (units, width)}
    if dense["use_bias"]:
        expected["linear.bias"] = (units,)
    if dense["residual"] and units != width:
        expected["residual.weight"] = (units, width)
    found = ModuleCheckpoint(files, module).shapes
    if found != expected:
        raise ValueError(
            f"{files.path / module.path}: the weights are {shown(found)}. Expected {expected}, as "
            f"its {CONFIG} says."
        )


def load_dense(
    layer: keras.layers.Layer, files: FolderFiles, module: Module, allow_nonfinite: bool
) -> None:
    """Load the weights of a Dense.

    Args:
        layer: a `Projection`.
        files: of the whole folder.
        module: the Dense.
        allow_nonfinite: see `Safeguards`.

    Raises:
        ValueError: "...: linear.weight is (4, 8), expected (4, 16). ..."
    """
    weights = ModuleCheckpoint(files, module)
    matched, misfits = match(weights, layer, _LAYERS)
    if misfits:
        found = "; ".join(f"{name} {misfit}" for name, misfit in misfits.items())
        raise ValueError(
            f"{weights.folder}: {found}. The pooling given is not the one that its dense "
            "layers take: leave it out, or pass dense=() as well."
        )
    copy(weights, matched, allow_nonfinite)


def dense_config(layer: keras.layers.Layer, width: int, name: str) -> dict[str, object]:
    """Return the configuration of a Dense.

    Args:
        layer: a `Projection`.
        width: of the vectors before it.
        name: of the argument, for the error.

    Raises:
        ValueError: "dense[0]: activation is 'gelu_new', which sentence-transformers does not ..."
    """
    activation = "silu" if layer.activation == "swish" else layer.activation
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{name}: activation is {activation!r}, which sentence-transformers does not read. "
            f"Expected one of {', '.join(ACTIVATIONS)}."
        )
    return {
        "in_features": width,
        "out_features": layer.units,
        "bias": layer.use_bias,
        "activation_function": ACTIVATIONS[activation],
        **({"use_residual": True} if layer.residual else {}),
    }


def dense_weights(layer: keras.layers.Layer, dtype: object) -> bytes:
    """Return the file of a Dense's weights."""
    for path in _LAYERS:
        check_not_quantized(layer, path)
    arrays = {
        name: stored_array(weight, transposed, dtype)
        for name, weight, transposed in named_weights(layer, _LAYERS)
    }
    return save(arrays, metadata={"format": "pt"})
