"""What stands between a block's matrix products, each formula with its gradient written out.

TensorFlow derives gradients operation by operation: at run time it asks how the shapes of each
were broadcast, and it keeps every value in between. Written out, a training step has half the
operations to trace, less to compute and less to keep. JAX's compiler and torch's own kernels do
as well without, so that there gradients are left to them.

Each formula returns its value and the function from the value's gradient to those of its
arguments; `apply` makes one tensor of it. Half precision is left for float32 inside.

Comment letters: B batch, L sequence, D hidden, H heads.
"""

import math
from collections.abc import Callable

import keras
from keras import ops

Formula = Callable[..., tuple[keras.KerasTensor, Callable]]


def apply(formula: Formula, *arguments: keras.KerasTensor, training: bool | None):
    """The formula's value; in training on TensorFlow one whose gradient is the formula's own.

    Args:
        formula: returns a value and its gradient's function, as those below do.
        *arguments: tensors of the formula.
        training: in inference the graph stays free for TensorFlow to merge operations.

    Example:
        >>> round(float(apply(gelu, keras.ops.ones(()), training=False)), 4)
        0.8413
    """
    if are_used(training):
        return ops.custom_gradient(formula)(*arguments)
    return formula(*arguments)[0]


def are_used(training: bool | None) -> bool:
    """Whether gradients are written out: in training, on TensorFlow."""
    return bool(training) and keras.config.backend() == "tensorflow"


def gelu(x: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """x times the normal distribution's cumulative function at x.

    Source: Hendrycks and Gimpel 2016, Gaussian Error Linear Units.
    """
    z = ops.cast(x, "float32")
    below = 0.5 + 0.5 * ops.erf(z * 2**-0.5)

    def gradient(dy):
        density = ops.exp(-0.5 * ops.square(z)) * (2 * math.pi) ** -0.5
        return ops.cast(ops.cast(dy, "float32") * (below + z * density), x.dtype)

    return ops.cast(z * below, x.dtype), gradient


def masked(x: keras.KerasTensor, kept: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """x * kept, a dropout mask."""
    return x * kept, lambda dy: (dy * kept, None)


def residual(
    x: keras.KerasTensor, update: keras.KerasTensor, kept: keras.KerasTensor
) -> tuple[keras.KerasTensor, Callable]:
    """x + kept * update; `kept` is a dropout mask, see `Dropout.mask`."""
    return x + kept * update, lambda dy: (dy, kept * dy, None)


def layer_norm(epsilon: float) -> Formula:
    """Rows of mean 0 and variance 1, scaled and shifted: a formula of x (..., D), gamma, beta (D,).

    Source: Ba et al. 2016, Layer Normalization.
    """

    def formula(x, gamma, beta):
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

    return formula


def product(a: keras.KerasTensor, b: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """(B, H, M, K) times (B, H, K, N)."""
    return ops.matmul(a, b), lambda dy: (ops.matmul(dy, _turned(b)), ops.matmul(_turned(a), dy))


def product_with_transposed(
    a: keras.KerasTensor, b: keras.KerasTensor
) -> tuple[keras.KerasTensor, Callable]:
    """(B, H, M, K) times the transposed of (B, H, N, K)."""
    return ops.matmul(a, _turned(b)), lambda dy: (ops.matmul(dy, b), ops.matmul(_turned(dy), a))


def softmax(scores: keras.KerasTensor) -> tuple[keras.KerasTensor, Callable]:
    """Positive numbers whose sum over the last axis is 1."""
    p = ops.cast(ops.softmax(ops.cast(scores, "float32"), axis=-1), scores.dtype)

    def gradient(dy):
        weighted = ops.cast(dy * p, "float32")
        total = ops.sum(weighted, axis=-1, keepdims=True)
        return ops.cast(weighted - ops.cast(p, "float32") * total, scores.dtype)

    return p, gradient


def _turned(x):
    return ops.transpose(x, (0, 1, 3, 2))
