"""Modules that are imported at first use.

`keras` is Keras; `tf` is TensorFlow; `array_ops` are its operations or, in their place, those of
NumPy.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from encoder_zoo.common.backend import backend

NO_TENSORFLOW = (
    "This needs TensorFlow, which is not installed: `pip install tensorflow`. Without it, models "
    "train and answer on JAX and PyTorch with texts, lists and arrays in memory."
)

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


class LazyModule(types.ModuleType):
    """Imports a module when one of its attributes is first used.

    Args:
        name: of the module.
        missing: error message if it is not installed; None for Python's own.

    Example:
        >>> LazyModule("math").floor(2.5)
        2
    """

    def __init__(self, name: str, missing: str | None = None):
        super().__init__(name)
        self._missing, self._module = missing, None

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # doctest asks every member of a module for it
            raise AttributeError(name)
        require(self)
        value = getattr(self._module, name)
        setattr(self, name, value)  # found without this method from now on
        return value


def require(module: LazyModule) -> None:
    """Import a module now, so that it is missed before any work.

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


_in_numpy = contextvars.ContextVar("in_numpy", default=False)
_for_graphs = contextvars.ContextVar("for_graphs", default=False)


@contextlib.contextmanager
def in_numpy() -> Iterator[None]:
    """Preprocess in NumPy on TensorFlow's backend too: faster than its operations one by one.

    Example:
        >>> with in_numpy():
        ...     type(array_ops.constant([1])).__name__
        'Array'
    """
    token = _in_numpy.set(True)
    try:
        yield
    finally:
        _in_numpy.reset(token)


@contextlib.contextmanager
def for_graphs() -> Iterator[None]:
    """Compute in TensorFlow on every backend, eagerly too: the tables of its graphs.

    Example:
        >>> import tensorflow
        >>> with for_graphs():
        ...     array_ops.is_tensor is tensorflow.is_tensor
        True
    """
    token = _for_graphs.set(True)
    try:
        yield
    finally:
        _for_graphs.reset(token)


def in_tensorflow() -> bool:
    """Return whether tensors are TensorFlow's: on its backend, and inside of its graphs.

    Elsewhere, on JAX and PyTorch, they are arrays of NumPy, and TensorFlow need not be installed.
    """
    if _for_graphs.get():
        return True
    if backend() == "tensorflow":
        return not _in_numpy.get()
    eagerly = getattr(sys.modules.get("tensorflow"), "executing_eagerly", None)
    return eagerly is not None and not eagerly()


class ArrayOperations(types.ModuleType):
    """TensorFlow's operations where `in_tensorflow`, else those of `common.numpy_ops`.

    Both have the same names. What TensorFlow alone has, such as `tf.data`, is in `tf` only.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(tf if in_tensorflow() else numpy_ops, name)


if TYPE_CHECKING:
    import keras
    import tensorflow as array_ops
    import tensorflow as tf
    from keras import ops
else:
    keras, ops = LazyModule("keras"), LazyModule("keras.ops")
    tf = LazyModule("tensorflow", NO_TENSORFLOW)
    array_ops = ArrayOperations("array_ops")


_user: int | None = None  # the process in which the backend began to work


def refuse_in_fork() -> None:
    """Record which process uses the backend; raise an error in a fork of it.

    TensorFlow, JAX and PyTorch work with threads, which a fork does not have: it would wait for
    them for ever.

    Raises:
        RuntimeError: If this process was forked from one that had used the backend.
    """
    global _user
    if backend() == "numpy":
        return
    if _user is None:
        _user = os.getpid()
    elif _user != os.getpid():
        name = BACKENDS.get(backend(), backend())
        raise RuntimeError(
            f"This process was forked from one that had used {name}, whose threads are not "
            "here: it would wait for them for ever. Start processes anew, with "
            "multiprocessing.get_context('spawn') or 'forkserver', or load the model after the "
            "fork, and in the first process not at all."
        )
