"""Activations and initial weights."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import keras
from keras import ops

from encoder_zoo.encoders.kernels import gradients


def _tanh_gelu(x):
    return ops.gelu(x, approximate=True)


def _gelu(x):
    if keras.config.backend() == "torch":
        return ops.gelu(x, approximate=False)  # one kernel
    # Keras's own takes two passes more over the memory on TensorFlow.
    return 0.5 * x * (1 + ops.erf(x * 2**-0.5))


# The names that checkpoints use. "gelu" is exact (erf); the tanh form has several names.
ACTIVATIONS: dict[str, Callable] = {
    "gelu": _gelu,
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "linear": lambda x: x,
    "relu": ops.relu,
    "sigmoid": ops.sigmoid,
    "silu": ops.silu,
    "swish": ops.silu,
    "tanh": ops.tanh,
}


def activation_function(name: str) -> Callable:
    """Return the activation of a name.

    Args:
        name: one of `ACTIVATIONS`.

    Returns:
        A function of one tensor.

    Raises:
        ValueError: "Unknown activation 'gleu'. Expected one of gelu, gelu_new, ..."

    Example:
        >>> float(activation_function("relu")(-1.0))
        0.0
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"Unknown activation {name!r}. Expected one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def activate(name: str, x: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
    """Apply an activation, the exact GELU with its gradient written out.

    Args:
        name: one of `ACTIVATIONS`.
        x: a tensor of any shape.
        training: whether gradients will be needed.

    Example:
        >>> float(activate("relu", -1.0))
        0.0
    """
    if name == "gelu" and gradients.are_used(training):
        return gradients.gelu(x, training=True)
    return ACTIVATIONS[name](x)


_draws_weights = contextvars.ContextVar("draws_weights", default=True)


@contextlib.contextmanager
def skip_initialization() -> Iterator[None]:
    """Initialize weights with zeros, as a checkpoint's weights will replace them: saves seconds.

    Example:
        >>> with skip_initialization():
        ...     initializer()((2,)).numpy().tolist()
        [0.0, 0.0]
    """
    token = _draws_weights.set(False)
    try:
        yield
    finally:
        _draws_weights.reset(token)


INITIALIZER_RANGE = 0.02  # of new weights; Devlin et al. 2019, released code


def initializer(stddev: float = INITIALIZER_RANGE) -> keras.initializers.Initializer:
    """Return BERT's initializer: normal, truncated at two standard deviations.

    Args:
        stddev: the standard deviation of the normal distribution.
    """
    if not _draws_weights.get():
        return keras.initializers.Zeros()
    return keras.initializers.TruncatedNormal(stddev=stddev)
