"""Operations with their gradients written out, for training on TensorFlow.

TensorFlow derives gradients operation by operation: at run time it asks how the shapes of each
were broadcast, and it keeps every value in between. Written out, a training step has half the
operations to trace, less to compute and less to keep. JAX's compiler and torch's own kernels do
as well without, so that there gradients are left to them.

Each formula returns its value and the function from the value's gradient to those of its
arguments; `with_gradient` makes an operation of it. Half precision is computed in float32 inside.

Comment letters: B batch, L sequence, D hidden, H heads.
"""

import functools
import math
import weakref
from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.common.lazy import tf

Formula = Callable[..., tuple[keras.KerasTensor, Callable]]


def with_gradient(formula: Formula) -> Callable:
    """Return an operation that has the formula's gradient when it trains on TensorFlow.

    Without training the graph stays free for TensorFlow to merge operations.

    Args:
        formula: from tensors to a value and its gradient's function.

    Returns:
        A function of the same tensors and, by name, `training`, which returns the value.

    Example:
        >>> double = with_gradient(lambda x: (2 * x, lambda dy: 2 * dy))
        >>> float(double(keras.ops.ones(()), training=False))
        2.0
    """

    @functools.wraps(formula)
    def operation(*arguments, training=None):
        if are_used(training):
            return ops.custom_gradient(formula)(*arguments)
        return formula(*arguments)[0]

    return operation


def hold_gradients() -> None:
    """Have the graph that TensorFlow is tracing hold the gradients of its operations.

    TensorFlow's registry of gradients keeps, as long as the process lives, each gradient of a
    `custom_gradient` that is traced, of Keras and TensorFlow themselves too, and with it the whole
    graph, some 60 MB of a small model. Called at the end of a step, it has the graph keep them.
    """
    if keras.config.backend() == "tensorflow" and not tf.executing_eagerly():
        _hold_gradients(tf.compat.v1.get_default_graph())


def _hold_gradients(graph) -> None:
    # TensorFlow has no public names for these.
    from tensorflow.python.framework.ops import gradient_registry

    if hasattr(graph, "gradients_of_operations"):  # a function that was held already
        return
    graph.gradients_of_operations, graphs = {}, weakref.ref(graph)

    def gradient(op, *upstream):
        name = op.get_attr("_gradient_op_type").decode()
        return graphs().gradients_of_operations[name](op, *upstream)

    for op in graph.get_operations():
        if op.type == "IdentityN" and "_gradient_op_type" in op.node_def.attr:
            name = op.get_attr("_gradient_op_type").decode()
            entry = gradient_registry._registry[name]
            graph.gradients_of_operations[name], entry["type"] = entry["type"], gradient
            weakref.finalize(graph, gradient_registry._registry.pop, name, None)
    for function in graph._functions.values():  # of its loops
        _hold_gradients(function.graph)


def are_used(training: bool | None) -> bool:
    """Return whether gradients are written out: in training, on TensorFlow."""
    return bool(training) and keras.config.backend() == "tensorflow"


@with_gradient
def gelu(x: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Return x times the normal distribution's cumulative function at x.

    Source: Hendrycks and Gimpel 2016, Gaussian Error Linear Units.
    """
    z = ops.cast(x, "float32")
    below = 0.5 + 0.5 * ops.erf(z * 2**-0.5)

    def gradient(dy):
        density = ops.exp(-0.5 * ops.square(z)) * (2 * math.pi) ** -0.5
        return ops.cast(ops.cast(dy, "float32") * (below + z * density), x.dtype)

    return ops.cast(z * below, x.dtype), gradient


@with_gradient
def masked(x: keras.KerasTensor, kept: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Return x * kept, where `kept` is a dropout mask."""
    return x * kept, lambda dy: (dy * kept, None)


@with_gradient
def residual(
    x: keras.KerasTensor, update: keras.KerasTensor, kept: keras.KerasTensor
) -> tuple[keras.KerasTensor, Callable]:
    """Return x + kept * update, where `kept` is a dropout mask."""
    return x + kept * update, lambda dy: (dy, kept * dy, None)


def layer_norm(epsilon: float) -> Callable:
    """Return the LayerNorm of x (..., D), gamma (D,) and beta (D,), as an operation.

    Source: Ba et al. 2016, Layer Normalization.
    """

    @with_gradient
    def operation(x, gamma, beta):
        z = ops.cast(x, "float32")
        z = z - ops.mean(z, axis=-1, keepdims=True)
        scale = ops.rsqrt(ops.mean(ops.square(z), axis=-1, keepdims=True) + epsilon)
        z = z * scale

        def gradient(dy):
            dy = ops.cast(dy, "float32")
            dz = dy * gamma
            along = z * ops.mean(dz * z, axis=-1, keepdims=True)
            dx = (dz - ops.mean(dz, axis=-1, keepdims=True) - along) * scale
            others = tuple(range(len(x.shape) - 1))
            return ops.cast(dx, x.dtype), ops.sum(dy * z, axis=others), ops.sum(dy, axis=others)

        return ops.cast(z * gamma + beta, x.dtype), gradient

    return operation


@with_gradient
def matmul(a: keras.KerasTensor, b: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Return the product of (B, H, M, K) and (B, H, K, N)."""

    def gradient(dy):
        return ops.matmul(dy, _transpose(b)), ops.matmul(_transpose(a), dy)

    return ops.matmul(a, b), gradient


@with_gradient
def matmul_transposed(
    a: keras.KerasTensor, b: keras.KerasTensor
) -> tuple[keras.KerasTensor, Callable]:
    """Return the product of (B, H, M, K) and the transpose of (B, H, N, K)."""

    def gradient(dy):
        return ops.matmul(dy, b), ops.matmul(_transpose(dy), a)

    return ops.matmul(a, _transpose(b)), gradient


@with_gradient
def softmax(scores: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Return the softmax over the last axis."""
    p = ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), scores.dtype)

    def gradient(dy):
        weighted = ops.cast(dy * p, "float32")
        total = ops.sum(weighted, axis=-1, keepdims=True)
        return ops.cast(weighted - ops.cast(p, "float32") * total, scores.dtype)

    return p, gradient


def _transpose(x):
    return ops.transpose(x, (0, 1, 3, 2))
