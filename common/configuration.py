"""Configuration read from the signature of `__init__`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

import keras

from encoder_zoo.common.keras_private import (
    layers_in,
    notes_shared_objects,
    own_trainable_variables,
    weight_bytes_of_opened_file,
)
from encoder_zoo.common.validation import Rule, check_argument, is_number, rules_of
from encoder_zoo.common.wording import invalid

if TYPE_CHECKING:
    from typing import Self


class ConfigFromSignature:
    """Mixin: reads an object's configuration back from attributes named like its arguments.

    Put it before the Keras class. Every named argument of every `__init__` from the class up to
    this mixin must be stored under its own name, so a sublayer is `dropout_layer`, not `dropout`.
    The configuration of a model also holds the state of the layers that its constructor makes:
    which of them `quantize` has quantized, which have low-rank updates, and which layers and
    weights are frozen. Models and layers among its arguments are configurations too, so that
    `from_config(get_config())` makes a model that shares nothing.

    Example:
        >>> class Scale(ConfigFromSignature, keras.layers.Layer):
        ...     def __init__(self, factor=2.0, **kwargs):
        ...         super().__init__(**kwargs)
        ...         self.factor = factor
        >>> Scale(3.0, name="triple").get_config()["factor"]
        3.0
        >>> class Twice(ConfigFromSignature, keras.Model):
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

    # Arguments that have no effect any more once the object is made.
    fixed_settings: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. What the constructor would refuse of an argument is refused here, too.

        Raises:
            ValueError: If the constructor does not take the value.
            AttributeError: If the object was made with another value, and a new one has no effect.
        """
        rule = _rules(type(self)).get(name)
        if rule is not None:
            check_argument(name, value, rule)
            _check_can_change(self, name, value)
        super().__setattr__(name, value)

    def get_config(self) -> dict:
        """Return the arguments that build this object again."""
        config = super().get_config() if hasattr(super(), "get_config") else {}
        arguments = {name: getattr(self, name) for name in argument_names(type(self))}
        if not isinstance(self, keras.Model):
            return {**config, **arguments}
        arguments = {name: as_configuration(value) for name, value in arguments.items()}
        state = {name: read(self) for name, (read, _) in LAYER_STATES.items()}
        return {**config, **arguments, **{name: value for name, value in state.items() if value}}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        """Build the object, and the objects inside its configuration, from `get_config`.

        Raises:
            ValueError: "The file holds 90,000 bytes of weights, but a BertBackbone of these ..."
        """
        config = dict(config)
        _check_file_holds(cls, config)
        is_model = issubclass(cls, keras.Model)
        states = {name: config.pop(name, None) for name in LAYER_STATES if is_model}
        found = cls(
            **{
                name: keras.saving.deserialize_keras_object(value, custom_objects=custom_objects)
                if isinstance(value, dict) and "class_name" in value
                else value
                for name, value in config.items()
            }
        )
        for name, state in states.items():
            if state:
                LAYER_STATES[name][1](found, state)
        return found


def _check_can_change(thing: ConfigFromSignature, name: str, value: object) -> None:
    """Raise an AttributeError for an argument that layers or lengths were made with."""
    is_made = name in vars(thing) and vars(thing).get("built", True)
    if is_made and name in thing.fixed_settings and vars(thing)[name] != value:
        raise AttributeError(
            f"{name} of a {type(thing).__name__} that was made with {vars(thing)[name]!r} "
            f"cannot be changed. Make another one, such as by from_preset(..., {name}={value!r})."
        )


def as_configuration(value: object) -> object:
    """Return the serialized form of a layer, a model or a preprocessor; others unchanged.

    While Keras saves a model, the layer itself: two tasks on one backbone still share it then.
    """
    if isinstance(value, keras.layers.Layer | ConfigFromSignature) and not notes_shared_objects():
        return keras.saving.serialize_keras_object(value)
    return value


def _check_file_holds(cls: type, config: Mapping) -> None:
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


def make_serializable(cls: type) -> None:
    """Register a class with Keras under the name of its package, unless it is registered.

    Example:
        >>> class Scale(keras.layers.Layer):
        ...     __module__ = "mine.layers"
        >>> make_serializable(Scale)
        >>> keras.saving.get_registered_name(Scale)
        'mine>Scale'
    """
    if keras.saving.get_registered_name(cls) == cls.__name__:
        package = cls.__module__.split(".")[0]
        keras.saving.register_keras_serializable(package=package)(cls)


def repr_from_signature(thing: object, *first: str) -> str:
    """Return a `repr`: the class, some leading words, and the arguments that differ from defaults.

    Example:
        >>> class Scale(ConfigFromSignature):
        ...     def __init__(self, units, factor=2.0, bias=True):
        ...         self.units, self.factor, self.bias = units, factor, bias
        >>> repr_from_signature(Scale(4, factor=3.0), "4 units")
        'Scale(4 units, factor=3.0)'
    """
    settings = [
        f"{name}={getattr(thing, name)!r}"
        for name, default in argument_defaults(type(thing)).items()
        if getattr(thing, name) != default
    ]
    return f"{type(thing).__name__}({', '.join([*first, *settings])})"


def argument_names(cls: type) -> list[str]:
    """Return the named arguments of all `__init__`s between the class and the mixin, without
    repeats."""
    return list(_arguments(cls))


def argument_defaults(cls: type) -> dict[str, object]:
    """Return {argument: default} of those that have one; a subclass's counts before its base's.

    Those in the attribute `defaults` of a class, if there is one, come first.

    Example:
        >>> class Scale(ConfigFromSignature, keras.layers.Layer):
        ...     def __init__(self, units, factor=2.0, **kwargs):
        ...         super().__init__(**kwargs)
        >>> argument_defaults(Scale)
        {'factor': 2.0}
    """
    found = {name: parameter.default for name, parameter in _arguments(cls).items()}
    found |= getattr(cls, "defaults", {})
    return {n: default for n, default in found.items() if default is not inspect.Parameter.empty}


def signature_of_arguments(cls: type) -> inspect.Signature:
    """Return the signature with all named arguments of a class, where `__init__` passes them on.

    Example:
        >>> class Scale(ConfigFromSignature, keras.layers.Layer):
        ...     def __init__(self, units, factor=2.0, **kwargs):
        ...         super().__init__(**kwargs)
        >>> class Shift(Scale):
        ...     def __init__(self, *args, offset=1.0, **kwargs):
        ...         super().__init__(*args, **kwargs)
        >>> print(signature_of_arguments(Shift))
        (units, factor=2.0, *, offset=1.0, **kwargs)
    """
    defaults, found = argument_defaults(cls), []
    for name, parameter in _arguments(cls).items():
        default = defaults.get(name, inspect.Parameter.empty)
        found.append(parameter.replace(default=default, annotation=inspect.Parameter.empty))
    positional = [p for p in found if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    optional = [p for p in positional if p.default is not inspect.Parameter.empty]
    by_name = [p for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY]
    others = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    return inspect.Signature([*required, *optional, *by_name, others])


def argument_rules(cls: type) -> dict[str, Rule]:
    """Return {argument: its rule}; a subclass's counts before its base's.

    Example:
        >>> class Scale(ConfigFromSignature):
        ...     def __init__(self, factor: float, bias: bool = True): ...
        >>> {name: rule.words for name, rule in argument_rules(Scale).items()}
        {'bias': 'True or False'}
    """
    return {n: rule for init in _initializers(cls)[::-1] for n, rule in rules_of(init).items()}


_rules = functools.cache(argument_rules)


def _initializers(cls: type) -> list[Callable]:
    """Return every `__init__` between the class and the mixin, the class's own first."""
    classes = [c for c in cls.__mro__ if issubclass(c, ConfigFromSignature)]
    return [vars(c)["__init__"] for c in classes if "__init__" in vars(c)]


def _arguments(cls: type) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found: dict[str, inspect.Parameter] = {}
    for init in _initializers(cls):
        for parameter in inspect.signature(init).parameters.values():
            if parameter.kind in named and parameter.name != "self":
                found.setdefault(parameter.name, parameter)
    return found
