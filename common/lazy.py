"""Import modules on first use.

Use `keras` for Keras and `tf` for TensorFlow. To support NumPy arrays as well, use the operations
in `xp`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from types import ModuleType
from typing import TYPE_CHECKING, Any

from encoder_zoo.common.backend import backend
from encoder_zoo.common.context import get_context, use_context

NO_TENSORFLOW = (
    "This needs TensorFlow, which is not installed: `pip install tensorflow`. Without TensorFlow, "
    "you can use JAX or PyTorch, with texts, lists and arrays in memory."
)

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}


class LazyModule(types.ModuleType):
    """Placeholder for a module that is imported on first use.

    Args:
        name: String. The module name.
        missing: Optional string. Error message to use if the module is not installed. If None, the
            Python error message will be used.

    Example:
        >>> LazyModule("math").floor(2.5)
        2
    """

    def __init__(self, name: str, missing: str | None = None):
        super().__init__(name)
        self._missing = missing
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # doctest reads this attribute of all objects
            raise AttributeError(name)
        require(self)
        value = getattr(self._module, name)
        setattr(self, name, value)  # this method will not be called again
        return value


def require(module: LazyModule) -> None:
    """Import a module immediately, so that an ImportError is raised early.

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


def use_numpy() -> contextlib.AbstractContextManager[None]:
    """Context manager that uses NumPy for preprocessing, for all backends.

    This is faster than eager execution in TensorFlow.

    Example:
        >>> with use_numpy():
        ...     type(xp.constant([1])).__name__
        'Array'
    """
    return use_context(engine="numpy")


def use_backend() -> contextlib.AbstractContextManager[None]:
    """Context manager that restores the default library of the backend, for example in `use_numpy`.

    Example:
        >>> with use_numpy(), use_backend():
        ...     uses_tensorflow() == (backend() == "tensorflow")
        True
    """
    return use_context(engine=None)


def use_tensorflow() -> contextlib.AbstractContextManager[None]:
    """Context manager that uses TensorFlow for preprocessing, for all backends.

    Example:
        >>> import tensorflow
        >>> with use_tensorflow():
        ...     xp.is_tensor is tensorflow.is_tensor
        True
    """
    return use_context(engine="tensorflow")


def uses_tensorflow() -> bool:
    """Return whether preprocessing uses TensorFlow operations instead of NumPy.

    TensorFlow is used if the backend is TensorFlow, and also to trace TensorFlow graphs on JAX and
    PyTorch. The context managers in this module change the library.
    """
    engine = get_context().engine
    if engine == "tensorflow":
        return True
    if backend() == "tensorflow":
        return engine is None
    eagerly = getattr(sys.modules.get("tensorflow"), "executing_eagerly", None)
    return eagerly is not None and not eagerly()


class ArrayOperations(types.ModuleType):
    """Operations of TensorFlow if `uses_tensorflow()` is True, and of NumPy otherwise.

    All names are the same as in TensorFlow. See `numpy_ops` for the list of operations. Other
    TensorFlow functions, such as `tf.data`, are available in `tf`.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(tf if uses_tensorflow() else numpy_ops, name)


if TYPE_CHECKING:
    import keras
    import tensorflow as tf
    import tensorflow as xp
    from keras import ops
else:
    keras, ops = LazyModule("keras"), LazyModule("keras.ops")
    tf = LazyModule("tensorflow", NO_TENSORFLOW)
    xp = ArrayOperations("xp")


_user: int | None = None  # id of the first process that used the backend


def check_not_forked() -> None:
    """Raise an error if the backend was used before this process was forked.

    TensorFlow, JAX and PyTorch need threads to run. The threads are not available after a fork, so
    a forked process would wait forever.

    Raises:
        RuntimeError: If this process was forked from a process that had already used the backend.
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
            "exist in the forked process, so the process would hang. Start new processes with "
            "multiprocessing.get_context('spawn') or 'forkserver', or load the model only after "
            "the fork and never in the parent process."
        )
