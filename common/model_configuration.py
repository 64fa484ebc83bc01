"""Configuration of models: their arguments, and the state of the layers that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import (
    layers_in,
    notes_shared_objects,
    own_trainable_variables,
    weight_bytes_of_opened_file,
)
from encoder_zoo.common.validation import is_number
from encoder_zoo.common.wording import invalid

if TYPE_CHECKING:
    from typing import Self


class ModelConfigFromSignature(ConfigFromSignature):
    """Mixin of models: their configuration also holds the state of the layers that they make.

    The state is which of the layers `quantize` has quantized, which have low-rank updates, and
    which layers and weights are frozen. Models and layers among the arguments are configurations
    too, so that `from_config(get_config())` makes a model that shares nothing.

    Example:
        >>> class Twice(ModelConfigFromSignature, keras.Model):
        ...     def __init__(self, units, **kwargs):
        ...         super().__init__(**kwargs)
        ...         self.units, self.dense = units, keras.layers.Dense(units)
        ...         self.dense.build((None, 2))
        ...         self.built = True
        >>> model = Twice(3)
        >>> model.quantize("int8")
        >>> Twice.from_config(model.get_config()).dense.quantization_mode
        'int8'
    """

    def get_config(self) -> dict:
        """Return the arguments that build this model again, and the state of its layers."""
        config = {name: as_configuration(value) for name, value in super().get_config().items()}
        state = {name: read(self) for name, (read, _) in LAYER_STATES.items()}
        return {**config, **{name: value for name, value in state.items() if value}}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        """Build the model, and the objects inside its configuration, from `get_config`.

        Raises:
            ValueError: If the opened file holds fewer bytes than the weights need.
        """
        check_file_holds(cls, config)
        arguments = {name: value for name, value in config.items() if name not in LAYER_STATES}
        model = super().from_config(arguments, custom_objects)
        for name, (_, restore) in LAYER_STATES.items():
            if config.get(name):
                restore(model, config[name])
        return model


def as_configuration(value: object) -> object:
    """Return the serialized form of a layer, a model or a preprocessor; others unchanged.

    While Keras saves a model, the layer itself: two tasks on one backbone still share it then.
    """
    if isinstance(value, keras.layers.Layer | ConfigFromSignature) and not notes_shared_objects():
        return keras.saving.serialize_keras_object(value)
    return value


def check_file_holds(cls: type, config: Mapping) -> None:
    """Raise an error for sizes that an opened `.keras` file has no weights for, before allocating.

    `cls.least_weights(config)` is how many numbers the large matrices have, if not more.
    """
    held = weight_bytes_of_opened_file() if hasattr(cls, "least_weights") else None
    if held is None:
        return
    try:
        weights = cls.least_weights(config)
    except (KeyError, TypeError):  # no configuration: the constructor says what is wrong
        return
    needed = weights // 2 if config.get("quantized") else 2 * weights  # 4 or 16 bits each
    if held < needed:
        raise ValueError(
            f"The file holds {held:,} bytes of weights, but a {cls.__name__} of these sizes has "
            f"at least {needed:,}: it is damaged or was changed. Get it again."
        )


def _quantized_layers(model: keras.Model) -> dict[str, dict]:
    """Return {index among the model's layers: how it was quantized}."""
    return {
        str(index): {"mode": layer.quantization_mode, "config": layer.quantization_config}
        for index, layer in enumerate(layers_in(model))
        if getattr(layer, "quantization_mode", None)
    }


def _quantize_layers(model: keras.Model, quantized: dict[str, dict]) -> None:
    """Quantize layers as `_quantized_layers` says; those given as arguments are already."""
    layers = layers_in(model) if quantized else []
    for index, entry in quantized.items():
        layer = layers[int(index)]
        if layer.quantization_mode is None:
            settings = entry["config"]
            if isinstance(settings, dict):
                settings = keras.saving.deserialize_keras_object(settings)
            keras.Model.quantize(
                model, entry["mode"], settings, filters=lambda each, one=layer: each is one
            )


def _updated_layers(model: keras.Model) -> dict[str, dict]:
    """Return {index among the model's layers: rank and alpha of its low-rank updates}."""
    return {
        str(index): {"rank": layer.lora_rank, "alpha": layer.lora_alpha}
        for index, layer in enumerate(layers_in(model))
        if getattr(layer, "lora_enabled", False)
    }


MOST_RANK = 1024  # of updates in a file; a layer that is wider takes a rank of up to its width


def _update_layers(model: keras.Model, updated: dict[str, dict]) -> None:
    """Enable low-rank updates as `_updated_layers` says, where arguments do not have them yet."""
    layers = layers_in(model)
    for index, entry in updated.items():
        layer, rank, alpha = layers[int(index)], entry["rank"], entry["alpha"]
        if getattr(layer, "lora_enabled", None) is not False:
            continue
        sizes = [size for weight in own_trainable_variables(layer) for size in weight.shape]
        most = max(MOST_RANK, *sizes)
        if type(rank) is not int or not 0 < rank <= most:
            expected = f"an integer from 1 to {most}"
            raise invalid(f"low_rank_updates: rank of {layer.path}", rank, expected)
        if not is_number(alpha):
            raise invalid(f"low_rank_updates: {layer.path}", alpha, "a number as alpha")
        layer.enable_lora(rank, lora_alpha=alpha)


def _frozen_layers(model: keras.Model) -> dict[str, list]:
    """Return the layers that are not trained, and the weights that differ from their layer.

    Layers are indices among the model's, and weights pairs of an index and that of a weight among
    the layer's own.
    """
    layers = layers_in(model)
    frozen = [i for i, layer in enumerate(layers) if not layer.trainable]
    weights = [
        [i, j]
        for i, layer in enumerate(layers)
        for j, weight in enumerate(own_trainable_variables(layer))
        if weight.trainable != layer.trainable
    ]
    found = {"layers": frozen, "weights": weights}
    return {name: values for name, values in found.items() if values}


def _freeze_layers(model: keras.Model, frozen: dict[str, list]) -> None:
    """Freeze layers and weights as `_frozen_layers` says."""
    layers, indices = layers_in(model), set(frozen.get("layers", ()))
    for i, layer in enumerate(layers):  # outer layers first: each sets those inside it
        layer.trainable = i not in indices
    for i, j in frozen.get("weights", ()):
        weight = own_trainable_variables(layers[i])[j]
        weight.trainable = not layers[i].trainable


# {key in a model's configuration: (how it is read off the layers, how they are set by it)}
LAYER_STATES = {
    "quantized": (_quantized_layers, _quantize_layers),
    "low_rank_updates": (_updated_layers, _update_layers),
    "frozen": (_frozen_layers, _freeze_layers),
}
