"""Pooling, dense layers and normalization to convert token vectors to a text vector.

Comments use these letters for shapes: B batch, L sequence, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.layers import get_activation, make_initializer


def _pool_first(x, mask):
    """Return the vector of the first token that the mask includes, (B, D)."""
    return _gather_tokens(x, _find_first(mask))


def _pool_last(x, mask):
    return _gather_tokens(x, ops.shape(mask)[1] - 1 - _find_first(ops.flip(mask, axis=1)))


def _pool_max(x, mask):
    """Compute the maximum (B, D) over the tokens. For ties, the first token gets the gradient."""
    # The gradient for `max` in TensorFlow is divided by the number of equal values. XLA recomputes
    # these values with different rounding, so this can lead to a division by 0.
    tokens = ops.argmax(ops.where(ops.expand_dims(mask, 2) > 0, x, -1e9), axis=1)
    return ops.take_along_axis(x, ops.expand_dims(tokens, 1), axis=1)[:, 0]


def _pool_mean(x, mask):
    return _compute_weighted_sum(x, mask) / _clip_to_positive(ops.sum(mask, axis=1, keepdims=True))


def _pool_mean_sqrt(x, mask):
    return _compute_weighted_sum(x, mask) / ops.sqrt(
        _clip_to_positive(ops.sum(mask, axis=1, keepdims=True))
    )


def _compute_weighted_mean(x, mask):
    """Compute the position-weighted mean (Muennighoff 2022, SGPT, section 3.1)."""
    return _pool_mean(x, mask * ops.arange(1, ops.shape(mask)[1] + 1, dtype="float32"))


# Functions from x (B, L, D) float32 and a mask (B, L) float32, named as in sentence-transformers.
POOLINGS: dict[str, Callable] = {
    "cls": _pool_first,
    "max": _pool_max,
    "mean": _pool_mean,
    "mean_sqrt_len_tokens": _pool_mean_sqrt,
    "weightedmean": _compute_weighted_mean,
    "lasttoken": _pool_last,
}


def _find_first(mask):
    # Cast to integers. For floats, `argmax` in Keras compares bits, which is not supported by ONNX
    # and OpenVINO.
    return ops.argmax(ops.cast(mask, "int32"), axis=1)


def _gather_tokens(x, positions):
    index = ops.expand_dims(ops.cast(positions, "int32"), (1, 2))
    return ops.take_along_axis(x, index, axis=1)[:, 0]


def _compute_weighted_sum(x, weights):
    """Compute the weighted sum of the token vectors, (B, D)."""
    return ops.matmul(ops.expand_dims(weights, 1), x)[:, 0]


def _clip_to_positive(x):
    return ops.maximum(x, 1e-9)


def pool(x: keras.KerasTensor, mask: keras.KerasTensor, modes: Sequence[str]) -> keras.KerasTensor:
    """Pool token vectors into a single float32 vector per text.

    Args:
        x: Float tensor of shape (B, L, D). Token vectors.
        mask: Boolean or float tensor of shape (B, L). True or 1 for tokens that are pooled.
        modes: Sequence of keys from `POOLINGS`. The results are concatenated if there are several
            modes.

    Returns:
        Float32 tensor of shape (B, number of modes * D).

    Source: Reimers and Gurevych 2019, Sentence-BERT, section 3.

    Example:
        >>> import numpy as np
        >>> x = np.array([[[1.0], [3.0], [9.0]]], "float32")
        >>> pool(x, np.array([[1, 1, 0]]), ["cls", "mean", "max"]).numpy().tolist()
        [[1.0, 2.0, 3.0]]
    """
    x, mask = ops.cast(x, "float32"), ops.cast(mask, "float32")
    pooled = [POOLINGS[mode](x, mask) for mode in modes]
    return pooled[0] if len(pooled) == 1 else ops.concatenate(pooled, axis=-1)


def check_modes(pooling: str | Sequence[str]) -> str | list[str]:
    """Check the pooling modes and return them as a string or a list.

    Example:
        >>> check_modes(("cls", "mean"))
        ['cls', 'mean']
    """
    pooling = pooling if isinstance(pooling, str) else list(pooling)
    modes = list_modes(pooling)
    if not modes or any(mode not in POOLINGS for mode in modes):
        raise invalid("pooling", pooling, f"one of {', '.join(POOLINGS)}, or a list of these")
    return pooling


def list_modes(pooling: str | list[str]) -> list[str]:
    """Return the pooling modes as a list."""
    return [pooling] if isinstance(pooling, str) else pooling


def normalize(x: keras.KerasTensor) -> keras.KerasTensor:
    """Normalize vectors (..., D) to unit length.

    Example:
        >>> import numpy as np
        >>> normalize(np.array([[3.0, 4.0]], "float32")).numpy().round(1).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    return x * ops.rsqrt(ops.maximum(squares, 1e-24))


def compute_principal_components(x: np.ndarray, count: int) -> np.ndarray:
    """Project vectors (N, D) onto their first principal components, (N, count).

    Example:
        >>> x = np.array([[0.0, 0.0], [4.0, 0.1], [8.0, 0.0]])
        >>> compute_principal_components(x, 1).round(1).tolist()
        [[-4.0], [0.0], [4.0]]
    """
    x = x - x.mean(axis=0)
    _, directions = np.linalg.eigh(x.T @ x)  # sorted in ascending order
    directions = directions[:, ::-1][:, :count]
    largest = np.abs(directions).argmax(axis=0)
    return x @ (directions * np.sign(directions[largest, np.arange(count)]))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Projection(ConfigFromSignature, keras.layers.Layer):
    """Dense layer after pooling, in float32.

    Args:
        units: Integer. The output dimension.
        activation: String. The activation to use, from `encoders.layers.ACTIVATIONS`. Defaults to
            "tanh".
        use_bias: Boolean. Whether to use a bias in the dense layer. Defaults to True.
        residual: Boolean. Whether to add the input to the output. If the dimensions are different,
            a linear layer without bias will be applied to the input first. Defaults to False.

    Call arguments:
        x: Float tensor of shape (B, D).

    Returns:
        Float32 tensor of shape (B, units).

    Example:
        >>> import numpy as np
        >>> keras.ops.shape(Projection(3, "tanh")(np.zeros((1, 4), "float32")))
        (1, 3)
    """

    def __init__(
        self,
        units: int,
        activation: str = "tanh",
        use_bias: bool = True,
        residual: bool = False,
        **kwargs,
    ):
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.units = units
        self.activation = activation
        self.use_bias = use_bias
        self.residual = residual
        self.activation_function = get_activation(activation)
        self.dense = keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=make_initializer(),
            name="dense",
            dtype="float32",  # by default, the global Keras policy would be used here
        )
        self.residual_dense = None

    def build(self, input_shape):
        self.dense.build(input_shape)
        if self.residual and input_shape[-1] != self.units:
            self.residual_dense = keras.layers.Dense(
                self.units,
                use_bias=False,
                kernel_initializer=make_initializer(),
                name="residual",
                dtype="float32",
            )
            self.residual_dense.build(input_shape)

    def call(self, x):
        y = self.activation_function(self.dense(x))
        if not self.residual:
            return y
        return y + (x if self.residual_dense is None else self.residual_dense(x))


def build_projections(
    width: int, settings: Iterable[Mapping[str, Any]], name: str
) -> list[Projection]:
    """Create dense layers that are applied one after the other, and build their weights.

    Args:
        width: Integer. The input dimension of the first layer.
        settings: List of dicts with the arguments of each layer. See `Projection`.
        name: String. Prefix of the layer names.

    Example:
        >>> [layer.name for layer in build_projections(8, [{"units": 4}, {"units": 2}], "dense")]
        ['dense_0', 'dense_1']
    """
    layers = []
    for i, arguments in enumerate(settings):
        layers.append(Projection(**arguments, name=f"{name}_{i}"))
        layers[-1].build((None, width))
        width = layers[-1].units
    return layers
