"""Modules that are imported on first use.

`keras` is Keras and `tf` is TensorFlow. `array_ops` contains TensorFlow operations, or equivalent
functions for NumPy.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
import sys
import types
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from encoder_zoo.common.backend import backend

NO_TENSORFLOW = (
    "This needs TensorFlow, which is not installed: `pip install tensorflow`. Without TensorFlow, "
    "you can use JAX or PyTorch, with texts, lists and arrays in memory."
)

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


class LazyModule(types.ModuleType):
    """Placeholder for a module, which is imported when one of its attributes is first used.

    Args:
        name: String. The module name.
        missing: String. Error message if the module is not installed. Defaults to None, which keeps
            the original Python message.

    Example:
        >>> LazyModule("math").floor(2.5)
        2
    """

    def __init__(self, name: str, missing: str | None = None):
        super().__init__(name)
        self._missing = missing
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # doctest looks up this attribute for every object
            raise AttributeError(name)
        require(self)
        value = getattr(self._module, name)
        setattr(self, name, value)  # avoids calling this method again
        return value


def require(module: LazyModule) -> None:
    """Import a module immediately, so that a missing package is reported before any work is done.

    Example:
        >>> require(LazyModule("cannot_be_found", "This needs the package cannot-be-found."))
        Traceback (most recent call last):
        ImportError: This needs the package cannot-be-found.
    """
    if module._module is None:
        try:
            module._module = importlib.import_module(module.__name__)
        except ImportError as error:
            if module._missing is None:
                raise
            raise ImportError(module._missing) from error


numpy_ops = LazyModule("encoder_zoo.common.numpy_ops")


# "numpy", "tensorflow" or None, the backend's. This is not an argument, because then every
# `array_ops` operation and every function that calls one would need it.
_engine: contextvars.ContextVar[str | None] = contextvars.ContextVar("engine", default=None)


@contextlib.contextmanager
def _use_engine(engine: str | None) -> Iterator[None]:
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)


def use_numpy() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that uses NumPy for preprocessing on every backend.

    NumPy is faster than eager TensorFlow operations.

    Example:
        >>> with use_numpy():
        ...     type(array_ops.constant([1])).__name__
        'Array'
    """
    return _use_engine("numpy")


def use_backend() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that uses the arrays of the backend, even inside `use_numpy`.

    Example:
        >>> with use_numpy(), use_backend():
        ...     uses_tensorflow() == (backend() == "tensorflow")
        True
    """
    return _use_engine(None)


def use_tensorflow() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that uses TensorFlow on every backend, for tables in its graphs.

    Example:
        >>> import tensorflow
        >>> with use_tensorflow():
        ...     array_ops.is_tensor is tensorflow.is_tensor
        True
    """
    return _use_engine("tensorflow")


def uses_tensorflow() -> bool:
    """Check whether preprocessing should use TensorFlow: as the backend, or inside its graphs.

    Otherwise, on JAX and PyTorch, it uses NumPy arrays and does not need TensorFlow.
    """
    engine = _engine.get()
    if engine == "tensorflow":
        return True
    if backend() == "tensorflow":
        return engine is None
    eagerly = getattr(sys.modules.get("tensorflow"), "executing_eagerly", None)
    return eagerly is not None and not eagerly()


class ArrayOperations(types.ModuleType):
    """Array operations of TensorFlow if `uses_tensorflow()` is True, otherwise of `numpy_ops`.

    Both modules use the same names. Operations without a NumPy version, such as `tf.data`, are only
    available in `tf`.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(tf if uses_tensorflow() else numpy_ops, name)


if TYPE_CHECKING:
    import keras
    import tensorflow as array_ops
    import tensorflow as tf
    from keras import ops
else:
    keras, ops = LazyModule("keras"), LazyModule("keras.ops")
    tf = LazyModule("tensorflow", NO_TENSORFLOW)
    array_ops = ArrayOperations("array_ops")


_user: int | None = None  # id of the process that first used the backend


def refuse_in_fork() -> None:
    """Remember which process uses the backend, and raise an error in forked processes.

    TensorFlow, JAX and PyTorch use threads, which do not exist in forked processes. A forked
    process would wait for them forever.

    Raises:
        RuntimeError: If this process was forked from a process that used the backend.
    """
    global _user
    if backend() == "numpy":
        return
    if _user is None:
        _user = os.getpid()
    elif _user != os.getpid():
        name = BACKENDS.get(backend(), backend())
        raise RuntimeError(
            f"This process was forked from a process that used {name}. The {name} threads do not "
            "exist in the forked process, so it would hang. Start new processes with "
            "multiprocessing.get_context('spawn') or 'forkserver', or load the model only after "
            "the fork and never in the parent process."
        )
