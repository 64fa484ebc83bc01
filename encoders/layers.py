"""Basic layers for encoders. They extend Keras layers to make computation and tracing faster.

This module contains activations, initializers, dense layers, LayerNorm, dropout, and a mixin to
create these layers.

Comments use these letters for shapes: B batch, L sequence, D inputs, U outputs.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.configuration import get_argument_names
from encoder_zoo.common.context import get_context
from encoder_zoo.common.layers import EMBEDDING_UPDATES
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import Rule
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.low_rank import LowRankMixin

INITIALIZER_RANGE = 0.02  # standard deviation of new weights; Devlin et al. 2019, released code
_dtype_name = functools.cache(keras.backend.standardize_dtype)


def _tanh_gelu(x):
    return ops.gelu(x, approximate=True)


def _gelu(x):
    if keras.config.backend() == "torch":
        return ops.gelu(x, approximate=False)  # one kernel
    # On TensorFlow, this is faster than the implementation in Keras.
    return 0.5 * x * (1 + ops.erf(x * 2**-0.5))


# Names in checkpoints. "gelu" uses the error function. There are several names for the tanh form.
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
# Rules for backbone arguments and for the corresponding fields in config.json.
Size = Annotated[int, Rule(lambda v: type(v) is int and 0 < v < 2**40, "a positive integer")]
Activation = Annotated[
    str, Rule(lambda v: isinstance(v, str) and v in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}")
]
NO_VALUE = Rule(lambda v: not v, "false, 0 or no value")


def get_activation(name: str) -> Callable:
    """Return the activation function with this name.

    Args:
        name: String, one of `ACTIVATIONS`.

    Returns:
        A function of one tensor.

    Raises:
        ValueError: If `name` is not a known activation.

    Example:
        >>> float(get_activation("relu")(-1.0))
        0.0
    """
    if name not in ACTIVATIONS:
        raise invalid("activation", name, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def activate(name: str, x: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
    """Apply an activation. For training on TensorFlow, the exact GELU uses a manual gradient.

    Args:
        name: String, one of `ACTIVATIONS`.
        x: Tensor of any shape.
        training: Boolean. Whether gradients are needed.

    Example:
        >>> float(activate("relu", -1.0))
        0.0
    """
    if name == "gelu" and gradients.uses_manual_gradients(training):
        return gradients.gelu(x, training=True)
    return ACTIVATIONS[name](x)


TENSOR_ALIGNMENT = 64  # in bytes, as required by the kernels of TensorFlow


@keras.saving.register_keras_serializable(package="encoder_zoo")
class UntouchedZeros(keras.initializers.Zeros):
    """Initializer of zeros whose memory is only allocated when the values are used.

    The TensorFlow initializer would write zeros to memory, which is not freed when the weight is
    replaced later. This memory can be as large as the largest weight.

    Example:
        >>> UntouchedZeros()((2,), "float32").numpy().tolist()
        [0.0, 0.0]
    """

    def __call__(self, shape, dtype=None):
        dtype = _dtype_name(dtype)
        if keras.config.backend() != "tensorflow" or dtype not in ("float32", "float16"):
            return super().__call__(shape, dtype)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        pages = np.zeros(size + TENSOR_ALIGNMENT, "uint8")  # zeroed on first read
        start = -pages.ctypes.data % TENSOR_ALIGNMENT
        zeros = pages[start : start + size].view(dtype).reshape(shape)
        return tf.experimental.dlpack.from_dlpack(zeros.__dlpack__())


def make_initializer(stddev: float = INITIALIZER_RANGE) -> keras.initializers.Initializer:
    """Create the initializer of BERT, which is a truncated normal distribution.

    If `Context.draws_weights` is False, zeros are used, because the weights will be loaded later.

    Args:
        stddev: Float. The standard deviation for the normal distribution. Defaults to 0.02.
    """
    if not get_context().draws_weights:
        return UntouchedZeros()
    return keras.initializers.TruncatedNormal(stddev=stddev)


def reshape(x: keras.KerasTensor, shape: Sequence[int]) -> keras.KerasTensor:
    """Reshape a tensor like `keras.ops.reshape`.

    On PyTorch, this is faster because it does not search for symbolic tensors.

    Example:
        >>> import numpy as np
        >>> ops.shape(reshape(np.zeros((2, 3)), (-1, 2)))
        (3, 2)
    """
    if keras.config.backend() == "torch" and ops.is_tensor(x):
        return x.reshape(shape)
    return ops.reshape(x, shape)


class DirectCallMixin:
    """Mixin for layers that skip the checks and conversions of Keras on PyTorch.

    For small layers, the checks in Keras take as long as the computation. The layer must have a
    single input tensor. The Keras method is still used for quantized layers, for layers with
    PyTorch hooks, and in mixed precision for layers that call nested layers.

    Attributes:
        calls_layers: Boolean. Whether the layer calls nested layers.
    """

    calls_layers = False

    if keras.config.backend() == "torch":

        def __call__(self, inputs, *others, **options):
            call = self.call if self._can_skip_checks(inputs, **options) else super().__call__
            return call(inputs, *others, **options)

    def _can_skip_checks(self, inputs, training: bool | None = False, **others) -> bool:
        """Return True if `call` does not need any checks or conversions for these inputs."""
        if training is None or not self.built or not ops.is_tensor(inputs):
            return False
        policy = self.dtype_policy
        if self.calls_layers and policy.compute_dtype != policy.variable_dtype:
            return False
        hooks = self._forward_hooks or self._forward_pre_hooks
        if hooks or getattr(policy, "quantization_mode", None):
            return False
        return _dtype_name(inputs.dtype) == policy.compute_dtype


class QuantizableMixin:
    """Mixin for subclasses of Keras layers that are quantized like these layers."""

    def quantize(self, mode=None, type_check=True, config=None):
        return super().quantize(mode, type_check=False, config=config)  # allow a subclass


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Dense(LowRankMixin, QuantizableMixin, DirectCallMixin, keras.layers.Dense):
    """Keras dense layer. On PyTorch, a single operation computes the product and adds the bias."""

    def call(self, inputs, training=None):
        if keras.config.backend() != "torch" or self.bias is None or len(inputs.shape) != 2:
            return super().call(inputs)
        import torch

        kernel = self.kernel  # for LoRA, this is a tensor
        kernel = kernel.value if isinstance(kernel, keras.Variable) else kernel
        kernel, bias = kernel.to(inputs.dtype), self.bias.value.to(inputs.dtype)
        return self.activation(torch.addmm(bias, inputs, kernel))  # (B L, U)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Embedding(LowRankMixin, QuantizableMixin, keras.layers.Embedding):
    """Keras embedding with support for low-rank updates."""

    update_names = EMBEDDING_UPDATES


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ReversibleEmbedding(LowRankMixin, QuantizableMixin, keras.layers.ReversibleEmbedding):
    """Keras reversible embedding, which is also the output layer for masked LM."""

    update_names = EMBEDDING_UPDATES


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LayerNorm(DirectCallMixin, keras.layers.LayerNormalization):
    """Keras LayerNormalization over the last axis.

    On TensorFlow, a custom gradient is used. On PyTorch, `torch.nn.functional.layer_norm` is used.
    """

    def build(self, input_shape):
        super().build(input_shape)
        self.axis = -1  # Keras 3.16 converts this to a positive axis, but inputs can have more axes

    def call(self, inputs, training=None):
        if keras.config.backend() == "torch":
            from torch.nn.functional import layer_norm

            gamma, beta = (w if w is None else w.value for w in (self.gamma, self.beta))
            x = ops.cast(inputs, self.gamma.dtype)
            # During tracing, the input shape can be a tensor, so use the shape of the weight.
            x = layer_norm(x, tuple(self.gamma.shape), gamma, beta, self.epsilon)
            return ops.cast(x, self.compute_dtype)
        if keras.config.backend() != "tensorflow":
            return super().call(inputs)
        operation = gradients.layer_norm(self.epsilon)
        gamma = ops.cast(self.gamma, "float32")  # formulas require tensors
        beta = ops.zeros_like(gamma) if self.beta is None else ops.cast(self.beta, "float32")
        return operation(inputs, gamma, beta, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Dropout(DirectCallMixin, keras.layers.Dropout):
    """Keras dropout with a faster implementation on TensorFlow and JAX.

    If `noise_shape` is set, the Keras implementation is used.

    Call arguments:
        inputs: Tensor of shape (N, D) or (B, H, L, L), where D and H are static.
        residual: Optional tensor of the same shape to add to the result.
    """

    def call(self, inputs, training=False, residual=None):
        drops = training and self.rate > 0 and self.noise_shape is None
        if drops and keras.config.backend() == "jax":
            dropped = _drop_on_jax(inputs, self.rate, self.seed_generator)
            return dropped if residual is None else residual + dropped
        if not drops or keras.config.backend() != "tensorflow":
            dropped = super().call(inputs, training=training)
            return dropped if residual is None else residual + dropped
        kept = self._make_mask(inputs)
        if residual is None:
            return gradients.apply_mask(inputs, kept, training=True)
        return gradients.residual(residual, inputs, kept, training=True)

    def share_seed(self, training: bool | None) -> Callable:
        """Draw a single seed for several calls, for example for the parts of a batch.

        Args:
            training: Boolean. If False or None, no seed is drawn.

        Returns:
            A function that takes the index of a part, by default 0, and returns a context manager.
            Inside the context, the layer uses a seed that depends on the index. Calls with the same
            index drop the same elements, and calls with different indices drop different elements.
        """
        if not training or not self.rate:
            return lambda part=0: contextlib.nullcontext()
        drawn = self.seed_generator.next()

        def use_part_seed(part=0):
            offset = ops.stack([part * 2**20, 0])  # exceeds the number of draws in any training
            state = drawn + ops.cast(offset, drawn.dtype)
            return keras.StatelessScope(state_mapping=[(self.seed_generator.state, state)])

        return use_part_seed

    def _make_mask(self, x):
        """Create a dropout mask with the same shape as x. The values are 0 or 1 / (1 - rate)."""
        # Random number generation is the slowest part of dropout. As 16 bits per element are
        # enough, each 32-bit number is used for two elements.
        batch, size, *others = ops.shape(x)
        draws = keras.random.randint(
            (batch, (size + 1) // 2, *others), -(2**31), 2**31 - 1, seed=self.seed_generator
        )
        dropped = round(self.rate * 2**16)
        upper = draws >= (dropped - 2**15) * 2**16
        lower = ops.bitwise_and(draws, 2**16 - 1) >= dropped
        kept = ops.concatenate([upper, lower], axis=1)
        kept = kept[:, :size] if size % 2 else kept
        return ops.cast(kept, x.dtype) * (1 / (1 - self.rate))


def _drop_on_jax(x, rate: float, seed_generator):
    """Apply dropout based on a hash of the seed and the index of each element.

    On a CPU, the random generators of JAX take one sixth of a training step. A hash is computed in
    the same operation as the dropout and again for the gradient, so that no mask is stored.
    """
    import jax

    keys = _hash_bits(ops.cast(seed_generator.next(), "uint32") + np.uint32(0x9E3779B9))  # (2,)
    numbers = jax.lax.iota("uint32", x.size).reshape(x.shape)
    kept = _hash_bits(_hash_bits(numbers ^ keys[0]) ^ keys[1]) >= np.uint32(rate * 2**32)
    return ops.where(kept, x / (1 - rate), ops.zeros_like(x))


def _hash_bits(x):
    """Compute the hash of 32-bit integers. The hash function is bijective.

    Source: Wellons 2018, Prospecting for Hash Functions, `lowbias32`.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * np.uint32(factor)
    return x ^ (x >> 16)


class LayerMixin:
    """Mixin with methods that create and build sublayers.

    The attributes `hidden_dim`, `use_bias` and `layer_norm_epsilon` are used as default values.
    """

    dtype_policy: keras.DTypePolicy

    def make_dense(
        self,
        name: str,
        units: int,
        input_dim: int | None = None,
        stddev: float = INITIALIZER_RANGE,
        activation: str | None = None,
        use_bias: bool | None = None,
    ) -> Dense:
        """Create and build a dense layer.

        Args:
            name: String. The name of the layer.
            units: Positive integer. The width of the output.
            input_dim: Positive integer. The width of the input. If None, `hidden_dim` is used.
            stddev: Float. The standard deviation of the initial weights. See `make_initializer`.
                Defaults to 0.02.
            activation: String. The name of a Keras activation. If None, there is no activation.
            use_bias: Boolean. Whether the layer has a bias. If None, the attribute `use_bias`
                determines it.
        """
        layer = Dense(
            units,
            activation,
            use_bias=self.use_bias if use_bias is None else use_bias,
            kernel_initializer=make_initializer(stddev),
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build((None, input_dim or self.hidden_dim))
        return layer

    def make_norm(self, name: str) -> LayerNorm:
        """Create and build a LayerNorm with width `hidden_dim`."""
        layer = LayerNorm(
            epsilon=self.layer_norm_epsilon,
            center=self.use_bias,
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build((None, self.hidden_dim))
        return layer

    def make_table(
        self,
        name: str,
        rows: int,
        kind: type[keras.layers.Embedding] = Embedding,
        width: int | None = None,
    ) -> keras.layers.Embedding | None:
        """Create and build an embedding table, or return None if the number of rows is 0.

        The default width is `hidden_dim`.
        """
        if not rows:
            return None
        table = kind(
            rows,
            width or self.hidden_dim,
            embeddings_initializer=make_initializer(),
            name=name,
            dtype=self.dtype_policy,
        )
        table.build((None, None))
        return table

    def make_dropout(self, rate: float) -> Dropout:
        """Create a dropout layer."""
        return Dropout(rate, dtype=self.dtype_policy)

    def make_layer(
        self, kind: type[keras.layers.Layer], name: str, **arguments
    ) -> keras.layers.Layer:
        """Create a layer. Attributes of this object are used as default arguments.

        Args:
            kind: Class of the layer, a subclass of `ConfigFromSignature`.
            name: String. The name of the layer.
            **arguments: Additional arguments, which override the attributes.
        """
        own = {n: getattr(self, n) for n in get_argument_names(kind) if hasattr(self, n)}
        return kind(**{**own, **arguments}, name=name, dtype=self.dtype_policy)
