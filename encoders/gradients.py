"""Operations with manual gradients for training on TensorFlow.

In TensorFlow, automatic gradients need an operation for each forward operation, additional
operations for broadcasting at run time, and memory for all intermediate values. With manual
gradients, tracing a training step needs half as many operations. Computation time and memory are
also reduced. On JAX and PyTorch there is no such benefit, so automatic gradients are used.

Each formula returns a value, and a function to compute the gradients of the arguments from the
gradient of the value. Use `add_gradient` to convert a formula to an operation. For inputs in half
precision, float32 is used.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads.
"""

import functools
import math
import weakref
from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.common.lazy import tf

Formula = Callable[..., tuple[keras.KerasTensor, Callable]]


def add_gradient(formula: Formula) -> Callable:
    """Create an operation from a formula. The manual gradient is used for training on TensorFlow.

    Without training, TensorFlow can still fuse the operations of the formula.

    Args:
        formula: Function that takes tensors and returns a value and the function for its gradient.

    Returns:
        A function that takes the same tensors and the keyword argument `training`, and returns the
        value.

    Example:
        >>> double = add_gradient(lambda x: (2 * x, lambda dy: 2 * dy))
        >>> float(double(keras.ops.ones(()), training=False))
        2.0
    """

    @functools.wraps(formula)
    def operation(*arguments, training=None):
        if uses_manual_gradients(training):
            return ops.custom_gradient(formula)(*arguments)
        return formula(*arguments)[0]

    return operation


def keep_gradient_functions() -> None:
    """Store the gradient functions of the current TensorFlow graph in the graph.

    By default, TensorFlow keeps each traced `custom_gradient` until the process ends, including the
    custom gradients in Keras and TensorFlow. Each gradient refers to the whole graph, which needs
    about 60 MB of memory for a small model. If this function is called at the end of a training
    step, the memory of the graph can be freed.
    """
    if keras.config.backend() == "tensorflow" and not tf.executing_eagerly():
        _keep_gradient_functions(tf.compat.v1.get_default_graph())


def _keep_gradient_functions(graph) -> None:
    # TensorFlow has no public API for these parts.
    from tensorflow.python.framework.ops import gradient_registry

    if hasattr(graph, "gradients_of_operations"):  # the function was processed before
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
    for function in graph._functions.values():  # the loops inside the graph
        _keep_gradient_functions(function.graph)


def uses_manual_gradients(training: bool | None) -> bool:
    """Return True for training on TensorFlow, which uses manual gradients."""
    return bool(training) and keras.config.backend() == "tensorflow"


@add_gradient
def gelu(x: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Compute x * Φ(x), where Φ is the cumulative distribution function of the normal distribution.

    Source: Hendrycks and Gimpel 2016, Gaussian Error Linear Units.
    """
    z = ops.cast(x, "float32")
    below = 0.5 + 0.5 * ops.erf(z * 2**-0.5)

    def gradient(dy):
        density = ops.exp(-0.5 * ops.square(z)) * (2 * math.pi) ** -0.5
        return ops.cast(ops.cast(dy, "float32") * (below + z * density), x.dtype)

    return ops.cast(z * below, x.dtype), gradient


@add_gradient
def apply_mask(x: keras.KerasTensor, kept: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Compute x * kept, where `kept` is a dropout mask."""
    return x * kept, lambda dy: (dy * kept, None)


@add_gradient
def residual(
    x: keras.KerasTensor, update: keras.KerasTensor, kept: keras.KerasTensor
) -> tuple[keras.KerasTensor, Callable]:
    """Compute x + kept * update, where `kept` is a dropout mask."""
    return x + kept * update, lambda dy: (dy, kept * dy, None)


def layer_norm(epsilon: float) -> Callable:
    """Create the LayerNorm operation for x (..., D), gamma (D,) and beta (D,).

    Source: Ba et al. 2016, Layer Normalization.
    """

    @add_gradient
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


@add_gradient
def matmul(a: keras.KerasTensor, b: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Multiply a tensor of shape (B, H, M, K) by a tensor of shape (B, H, K, N)."""

    def gradient(dy):
        return ops.matmul(dy, _transpose(b)), ops.matmul(_transpose(a), dy)

    return ops.matmul(a, b), gradient


@add_gradient
def matmul_transposed(
    a: keras.KerasTensor, b: keras.KerasTensor
) -> tuple[keras.KerasTensor, Callable]:
    """Multiply a tensor (B, H, M, K) by the transpose of a tensor (B, H, N, K)."""

    def gradient(dy):
        return ops.matmul(dy, b), ops.matmul(_transpose(dy), a)

    return ops.matmul(a, _transpose(b)), gradient


@add_gradient
def softmax(scores: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Compute the softmax over the last axis."""
    p = ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), scores.dtype)

    def gradient(dy):
        weighted = ops.cast(dy * p, "float32")
        total = ops.sum(weighted, axis=-1, keepdims=True)
        return ops.cast(weighted - ops.cast(p, "float32") * total, scores.dtype)

    return p, gradient


def _transpose(x):
    return ops.transpose(x, (0, 1, 3, 2))
