"""Register classes with Keras without importing Keras, which inference does not need."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from encoder_zoo.common.lazy import keras

T = TypeVar("T", bound=type)


def serializable(cls: T) -> T:
    """Class decorator that registers a class with Keras as soon as Keras is imported.

    Example:
        >>> @serializable
        ... class Scale:
        ...     def get_config(self):
        ...         return {}
        >>> keras.saving.get_registered_name(Scale)
        'encoder_zoo>Scale'
    """
    call_after_keras_import(lambda: keras.saving.register_keras_serializable("encoder_zoo")(cls))
    return cls


def make_serializable(cls: type) -> None:
    """Register a class with Keras under the name of its package, unless it is already registered.

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


def call_after_keras_import(function: Callable[[], object]) -> None:
    """Call a function as soon as Keras is imported, or now if Keras is already imported."""
    if "keras" in sys.modules:
        function()
    elif (waiting := next((f for f in sys.meta_path if isinstance(f, ImportHook)), None)) is None:
        sys.meta_path.insert(0, ImportHook("keras", [function]))
    else:
        waiting.functions.append(function)


class ImportHook:
    """Import hook that calls functions after a module is imported.

    The hook wraps all other finders, as described in PEP 369. It does not inherit from
    `importlib.abc.MetaPathFinder`, because `importlib.abc` imports 20 further modules.
    """

    def __init__(self, module: str, functions: list[Callable[[], object]]):
        self.module, self.functions = module, functions
        self._others_are_asked = False

    def find_spec(self, name, path=None, target=None):
        if name != self.module or self._others_are_asked:
            return None
        self._others_are_asked = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._others_are_asked = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_and_call(module):
                execute(module)
                for function in self.functions:
                    function()

            loader.exec_module = execute_and_call
        return spec
