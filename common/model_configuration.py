"""The parts of a model's configuration: serialized arguments and the state of all layers."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import keras

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.layers import list_direct_weights, list_layers
from encoder_zoo.common.validation import is_number
from encoder_zoo.common.wording import invalid

# An object that does not belong to any model.
_PROBE = keras.initializers.Zeros()
MAX_COMPRESSION_RATIO = 1032  # maximum compression ratio in a zip archive


def serialize_value(value: object) -> object:
    """Serialize a layer, a model or a preprocessor. Other values are not changed.

    If Keras is saving a model, the layer will be returned without serialization. Otherwise, two
    tasks with a shared backbone could not be saved.
    """
    if isinstance(value, keras.layers.Layer | ConfigFromSignature) and not _is_tracking_objects():
        return keras.saving.serialize_keras_object(value)
    return value


def _is_tracking_objects() -> bool:
    """Return whether Keras is saving a model with a list of shared objects.

    To find shared objects, Keras needs a configuration without serialized objects.
    """
    _, again = (keras.saving.serialize_keras_object(_PROBE) for _ in range(2))
    return "shared_object_id" in again


def _get_weight_bytes() -> int | None:
    """Return the maximum size of the weights in the `.keras` file in bytes, or None without a file.

    Keras builds the model before loading weights, and does not pass the file to the model. For this
    reason, this function looks for the file in the local variables of all callers.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, zipfile.ZipFile):
                return sum(
                    min(member.file_size, MAX_COMPRESSION_RATIO * member.compress_size)
                    for member in value.infolist()
                    if member.filename.startswith("model.weights.")
                )
        frame = frame.f_back
    return None


def check_file_size(cls: Any, config: Mapping) -> None:
    """Check the size of the `.keras` file before allocating memory for weights.

    `cls.count_min_weights(config)` should return a lower bound for the number of weights.

    Raises:
        ValueError: If the file is too small to contain all weights of the model.
    """
    held = _get_weight_bytes() if hasattr(cls, "count_min_weights") else None
    if held is None:
        return
    try:
        weights = cls.count_min_weights(config)
    except (KeyError, TypeError):  # `__init__` raises a better error
        return
    needed = weights // 2 if config.get("quantized") else 2 * weights  # 4 or 16 bits per weight
    if held < needed:
        raise ValueError(
            f"The file can hold at most {held:,} bytes of weights, but this {cls.__name__} needs "
            f"at least {needed:,}. The file is damaged or was modified. Download the file again."
        )


def _find_quantized_layers(model: keras.Model) -> dict[str, dict]:
    """Map the indices of quantized layers to the quantization settings."""
    return {
        str(index): {"mode": layer.quantization_mode, "config": layer.quantization_config}
        for index, layer in enumerate(list_layers(model))
        if getattr(layer, "quantization_mode", None)
    }


def _quantize_layers(model: keras.Model, quantized: dict[str, dict]) -> None:
    """Quantize layers again, except for layers that are already quantized."""
    layers = list_layers(model) if quantized else []
    for index, entry in quantized.items():
        layer = layers[int(index)]
        if layer.quantization_mode is None:
            settings = entry["config"]
            if isinstance(settings, dict):
                settings = keras.saving.deserialize_keras_object(settings)
            keras.Model.quantize(
                model, entry["mode"], settings, filters=lambda each, one=layer: each is one
            )


def _find_low_rank_layers(model: keras.Model) -> dict[str, dict]:
    """Map the indices of layers with low-rank updates to their rank and alpha."""
    return {
        str(index): {"rank": layer.lora_rank, "alpha": layer.lora_alpha}
        for index, layer in enumerate(list_layers(model))
        if getattr(layer, "lora_enabled", False)
    }


MAX_LORA_RANK = 1024  # Maximum rank in a file, unless the layer is larger.


def _add_low_rank_updates(model: keras.Model, updated: dict[str, dict]) -> None:
    """Add low-rank updates again, except for layers that already have low-rank updates."""
    layers = list_layers(model)
    for index, entry in updated.items():
        layer, rank, alpha = layers[int(index)], entry["rank"], entry["alpha"]
        if getattr(layer, "lora_enabled", None) is not False:
            continue
        sizes = [size for weight in list_direct_weights(layer) for size in weight.shape]
        most = max(MAX_LORA_RANK, *sizes)
        if type(rank) is not int or not 0 < rank <= most:
            expected = f"an integer from 1 to {most}"
            raise invalid(f"low_rank_updates: rank of {layer.path}", rank, expected)
        if not is_number(alpha):
            raise invalid(f"low_rank_updates: alpha of {layer.path}", alpha, "a number")
        layer.enable_lora(rank, lora_alpha=alpha)


def _find_frozen_layers(model: keras.Model) -> dict[str, list]:
    """Find all frozen layers, and all frozen weights in trainable layers.

    Each layer is represented by an index. Each weight is represented by a list of two indices, the
    index of the layer and the index of the weight in the layer.
    """
    layers = list_layers(model)
    frozen = [i for i, layer in enumerate(layers) if not layer.trainable]
    weights = [
        [i, j]
        for i, layer in enumerate(layers)
        for j, weight in enumerate(list_direct_weights(layer))
        if weight.trainable != layer.trainable
    ]
    found: dict[str, list] = {"layers": frozen, "weights": weights}
    return {name: values for name, values in found.items() if values}


def _freeze_layers(model: keras.Model, frozen: dict[str, list]) -> None:
    """Freeze layers and weights again."""
    layers, indices = list_layers(model), set(frozen.get("layers", ()))
    for i, layer in enumerate(layers):  # outer layers first, because this also changes inner layers
        layer.trainable = i not in indices
    for i, j in frozen.get("weights", ()):
        weight = list_direct_weights(layers[i])[j]
        weight.trainable = not layers[i].trainable


GRADIENT_CHECKPOINTING = "gradient_checkpointing"
# {configuration key: functions that get and set the state of all layers}
LAYER_STATES: dict[str, tuple[Callable, Callable]] = {
    "quantized": (_find_quantized_layers, _quantize_layers),
    "low_rank_updates": (_find_low_rank_layers, _add_low_rank_updates),
    "frozen": (_find_frozen_layers, _freeze_layers),
    GRADIENT_CHECKPOINTING: (
        lambda model: getattr(model, "_checkpoints_gradients", False),
        lambda model, enabled: model.enable_gradient_checkpointing(),
    ),
}
