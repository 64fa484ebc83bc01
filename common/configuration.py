"""Create the configuration of layers and models, based on the `__init__` signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import Rule, check_argument, get_rules

F = TypeVar("F", bound=Callable)


class ConfigFromSignature:
    """Mixin that implements `get_config` and `from_config` for layers and models.

    List this mixin before the Keras class. `__init__` must set an attribute of the same name for
    each argument, so a sublayer needs another name, for example `dropout_layer` instead of
    `dropout`.

    Example:
        >>> class Scale(ConfigFromSignature):
        ...     def __init__(self, factor=2.0):
        ...         self.factor = factor
        >>> Scale.from_config(Scale(3.0).get_config()).factor
        3.0
    """

    # Names of arguments that can only be set once.
    fixed_settings: ClassVar[tuple[str, ...]] = ()

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. The values of arguments are validated.

        Raises:
            ValueError: If `value` is not valid for this argument.
            AttributeError: If `name` is in `fixed_settings` and the layer is already built.
        """
        cls: type = type(self)
        rule = get_argument_rules(cls).get(name)
        if rule is not None:
            check_argument(name, value, rule)
            _check_can_change(self, name, value)
        super().__setattr__(name, value)

    def get_config(self) -> dict:
        """Return a dict with all arguments for `from_config`."""
        parent: Any = super()
        config = parent.get_config() if hasattr(parent, "get_config") else {}
        arguments = {name: getattr(self, name) for name in get_argument_names(type(self))}
        return {**config, **arguments}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        """Create an object from the result of `get_config`."""
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value, custom_objects=custom_objects)
                if isinstance(value, dict) and "class_name" in value
                else value
                for name, value in config.items()
            }
        )


def _check_can_change(thing: ConfigFromSignature, name: str, value: object) -> None:
    """Raise an AttributeError if the argument is fixed and the object is built."""
    is_made = name in vars(thing) and vars(thing).get("built", True)
    if is_made and name in thing.fixed_settings and vars(thing)[name] != value:
        raise AttributeError(
            f"`{name}` cannot be changed after a {type(thing).__name__} is created. The current "
            f"value is {vars(thing)[name]!r}. Create a new object, for example with "
            f"from_preset(..., {name}={value!r})."
        )


def make_repr(thing: object, *first: str) -> str:
    """Format an object as its class name, optional words, and all non-default arguments.

    Example:
        >>> class Scale(ConfigFromSignature):
        ...     def __init__(self, units, factor=2.0, bias=True):
        ...         self.units, self.factor, self.bias = units, factor, bias
        >>> make_repr(Scale(4, factor=3.0), "4 units")
        'Scale(4 units, factor=3.0)'
    """
    settings = [
        f"{name}={getattr(thing, name)!r}"
        for name, default in get_argument_defaults(type(thing)).items()
        if getattr(thing, name) != default
    ]
    return f"{type(thing).__name__}({', '.join([*first, *settings])})"


def get_argument_names(cls: type) -> list[str]:
    """Return the names of all arguments of a class, without arguments of the Keras base class."""
    return list(_collect_arguments(cls))


def get_argument_defaults(cls: type) -> dict[str, object]:
    """Return the default values of all arguments, including inherited arguments.

    If the class has an attribute `defaults`, the values in `defaults` will be used instead.

    Example:
        >>> class Scale(ConfigFromSignature, keras.layers.Layer):
        ...     def __init__(self, units, factor=2.0, **kwargs):
        ...         super().__init__(**kwargs)
        >>> get_argument_defaults(Scale)
        {'factor': 2.0}
    """
    found = {name: parameter.default for name, parameter in _collect_arguments(cls).items()}
    found |= getattr(cls, "defaults", {})
    return {n: default for n, default in found.items() if default is not inspect.Parameter.empty}


def use_class_defaults(initializer: F) -> F:
    """Decorator for an `__init__` whose default values are replaced by the class's `defaults`.

    Example:
        >>> class Scale(ConfigFromSignature):
        ...     defaults = {"factor": 2.0}
        ...     @use_class_defaults
        ...     def __init__(self, factor=1.0):
        ...         self.factor = factor
        >>> Scale().factor, Scale(factor=3.0).factor
        (2.0, 3.0)
    """

    @functools.wraps(initializer)
    def initialize(self, *args, **options):
        initializer(self, *args, **{**self.defaults, **options})

    return cast(F, initialize)


def build_signature(cls: type) -> inspect.Signature:
    """Create the signature of a class, including the arguments of base classes.

    Example:
        >>> class Scale(ConfigFromSignature, keras.layers.Layer):
        ...     def __init__(self, units, factor=2.0, **kwargs):
        ...         super().__init__(**kwargs)
        >>> class Shift(Scale):
        ...     def __init__(self, *args, offset=1.0, **kwargs):
        ...         super().__init__(*args, **kwargs)
        >>> print(build_signature(Shift))
        (units, factor=2.0, *, offset=1.0, **kwargs)
    """
    defaults, found = get_argument_defaults(cls), []
    for name, parameter in _collect_arguments(cls).items():
        default = defaults.get(name, inspect.Parameter.empty)
        found.append(parameter.replace(default=default, annotation=inspect.Parameter.empty))
    positional = [p for p in found if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    required = [p for p in positional if p.default is inspect.Parameter.empty]
    optional = [p for p in positional if p.default is not inspect.Parameter.empty]
    by_name = [p for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY]
    others = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    return inspect.Signature([*required, *optional, *by_name, others])


@functools.cache
def get_argument_rules(cls: type) -> dict[str, Rule]:
    """Return the validation rules of all arguments, including inherited arguments.

    Example:
        >>> class Scale(ConfigFromSignature):
        ...     def __init__(self, factor: float, bias: bool = True): ...
        >>> {name: rule.words for name, rule in get_argument_rules(Scale).items()}
        {'bias': 'True or False'}
    """
    return {
        n: rule for init in _list_initializers(cls)[::-1] for n, rule in get_rules(init).items()
    }


def _list_initializers(cls: type) -> list[Callable]:
    """Return the `__init__` methods of all classes derived from `ConfigFromSignature`."""
    classes = [c for c in cls.__mro__ if issubclass(c, ConfigFromSignature)]
    return [vars(c)["__init__"] for c in classes if "__init__" in vars(c)]


def _collect_arguments(cls: type) -> dict[str, inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found: dict[str, inspect.Parameter] = {}
    for init in _list_initializers(cls):
        for parameter in inspect.signature(init).parameters.values():
            if parameter.kind in named and parameter.name != "self":
                found.setdefault(parameter.name, parameter)
    return found


def make_plain_settings(value):
    """Convert the configuration of a loss to values that JSON supports.

    Functions are converted to names. Keras serialization is not used, because it would log a
    warning for lambda functions, and custom losses might not implement `get_config`.

    Example:
        >>> import operator
        >>> make_plain_settings(functools.partial(operator.mul, 2))
        {'function': '_operator.mul', 'arguments': [2], 'keywords': {}}
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic) or keras.ops.is_tensor(value):
        return keras.ops.convert_to_numpy(value).tolist()
    if isinstance(value, Mapping):
        return {str(name): make_plain_settings(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain_settings(inner) for inner in value]
    if isinstance(value, functools.partial):
        parts = value.func, value.args, value.keywords
        return dict(
            zip(("function", "arguments", "keywords"), map(make_plain_settings, parts), strict=True)
        )
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    settings = vars(value) if isinstance(value, keras.losses.Loss) else {}
    return {"class": make_plain_settings(type(value)), **make_plain_settings(settings)}
