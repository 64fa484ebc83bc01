"""Quantized models in their configuration, so that `.keras` files of them open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import layers_in

if TYPE_CHECKING:
    from typing import Self


class QuantizationInConfig(ConfigFromSignature):
    """Mixin of models: the configuration says which layers `quantize` has quantized.

    Keras notes it in the configuration of each layer; layers that a constructor makes have none.

    Example:
        >>> class Twice(QuantizationInConfig, keras.Model):
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
        """Return the arguments that build this object again, and its quantized layers, if any."""
        config = super().get_config()
        quantized = {
            str(index): {"mode": layer.quantization_mode, "config": layer.quantization_config}
            for index, layer in enumerate(layers_in(self))
            if getattr(layer, "quantization_mode", None)
        }
        return {**config, "quantized": quantized} if quantized else config

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        """Build the object, and the objects inside its configuration, from `get_config`."""
        config = dict(config)
        quantized = config.pop("quantized", {})
        model = super().from_config(config, custom_objects)
        layers = layers_in(model)
        for index, entry in quantized.items():
            layer = layers[int(index)]
            if layer.quantization_mode is None:  # layers given as arguments are quantized already
                settings = entry["config"]
                if isinstance(settings, dict):
                    settings = keras.saving.deserialize_keras_object(settings)
                keras.Model.quantize(
                    model, entry["mode"], settings, filters=lambda each, one=layer: each is one
                )
        return model
