"""The layers that encoders are made of: Keras's own, with less to compute, to trace and to check.

Activations, initial weights, dense layers, LayerNorm, dropout, and a mixin that makes them.

Comment letters: B batch, L sequence, D inputs, U outputs.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.configuration import argument_names
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import Rule
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.family import INITIALIZER_RANGE
from encoder_zoo.encoders.low_rank import KeepsUpdates

_dtype_name = functools.cache(keras.backend.standardize_dtype)


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
# Rules of a backbone's arguments, which are those of the fields of config.json too.
Size = Annotated[int, Rule(lambda v: type(v) is int and 0 < v < 2**40, "a positive integer")]
Activation = Annotated[
    str, Rule(lambda v: isinstance(v, str) and v in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}")
]
ABSENT = Rule(lambda v: not v, "nothing: encoders here have no such part")


def activation_function(name: str) -> Callable:
    """Return the activation of a name.

    Args:
        name: one of `ACTIVATIONS`.

    Returns:
        A function of one tensor.

    Raises:
        ValueError: If the name is unknown.

    Example:
        >>> float(activation_function("relu")(-1.0))
        0.0
    """
    if name not in ACTIVATIONS:
        raise invalid("activation", name, f"one of {', '.join(ACTIVATIONS)}")
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


TENSOR_ALIGNMENT = 64  # bytes, of the memory that TensorFlow's kernels read


@keras.saving.register_keras_serializable(package="encoder_zoo")
class UntouchedZeros(keras.initializers.Zeros):
    """Zeros that take no memory until they are read.

    TensorFlow's own are written into memory that its allocator keeps, as much as the largest weight
    takes, after the weight is replaced.

    Example:
        >>> UntouchedZeros()((2,), "float32").numpy().tolist()
        [0.0, 0.0]
    """

    def __call__(self, shape, dtype=None):
        dtype = _dtype_name(dtype)
        if keras.config.backend() != "tensorflow" or dtype not in ("float32", "float16"):
            return super().__call__(shape, dtype)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        pages = np.zeros(size + TENSOR_ALIGNMENT, "uint8")  # the system clears pages when read
        start = -pages.ctypes.data % TENSOR_ALIGNMENT
        zeros = pages[start : start + size].view(dtype).reshape(shape)
        return tf.experimental.dlpack.from_dlpack(zeros.__dlpack__())


def initializer(stddev: float = INITIALIZER_RANGE) -> keras.initializers.Initializer:
    """Return BERT's initializer: normal, truncated at two standard deviations.

    Args:
        stddev: the standard deviation of the normal distribution.
    """
    if not _draws_weights.get():
        return UntouchedZeros()
    return keras.initializers.TruncatedNormal(stddev=stddev)


def reshape(x: keras.KerasTensor, shape: Sequence[int]) -> keras.KerasTensor:
    """Return x in another shape, as `keras.ops.reshape`.

    On PyTorch in less time than Keras needs to look for symbolic tensors.

    Example:
        >>> import numpy as np
        >>> ops.shape(reshape(np.zeros((2, 3)), (-1, 2)))
        (3, 2)
    """
    if keras.config.backend() == "torch" and ops.is_tensor(x):
        return x.reshape(shape)
    return ops.reshape(x, shape)


class CalledDirectly:
    """Mixin of layers of one tensor, which on PyTorch does without Keras's checks and conversions.

    They take as long as the work of a small layer. Layers with hooks of PyTorch, quantized ones,
    and those in mixed precision that call other layers, are called as Keras does it.

    Attributes:
        calls_layers: whether the layer calls others.
    """

    calls_layers = False

    if keras.config.backend() == "torch":

        def __call__(self, inputs, *others, **options):
            call = self.call if self._is_right(inputs, **options) else super().__call__
            return call(inputs, *others, **options)

    def _is_right(self, inputs, training: bool | None = False, **others) -> bool:
        """Return whether there is nothing to build, to convert or to find out before `call`."""
        if training is None or not self.built or not ops.is_tensor(inputs):
            return False
        policy = self.dtype_policy
        if self.calls_layers and policy.compute_dtype != policy.variable_dtype:
            return False
        hooks = self._forward_hooks or self._forward_pre_hooks
        if hooks or getattr(policy, "quantization_mode", None):
            return False
        return _dtype_name(inputs.dtype) == policy.compute_dtype


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Dense(KeepsUpdates, CalledDirectly, keras.layers.Dense):
    """Keras's dense layer, with the bias added in the product on PyTorch; the same arguments."""

    def call(self, inputs, training=None):
        if keras.config.backend() != "torch" or self.bias is None or len(inputs.shape) != 2:
            return super().call(inputs)
        import torch

        kernel = self.kernel  # with LoRA a tensor
        kernel = kernel.value if isinstance(kernel, keras.Variable) else kernel
        kernel, bias = kernel.to(inputs.dtype), self.bias.value.to(inputs.dtype)
        return self.activation(torch.addmm(bias, inputs, kernel))  # (B L, U)

    def quantize(self, mode=None, type_check=True, config=None):
        return super().quantize(mode, type_check=False, config=config)  # though a subclass


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LayerNorm(CalledDirectly, keras.layers.LayerNormalization):
    """Keras's LayerNorm over the last axis, cheaper on TensorFlow; the same arguments."""

    def call(self, inputs, training=None):
        if keras.config.backend() == "torch":
            from torch.nn.functional import layer_norm

            gamma, beta = (w if w is None else w.value for w in (self.gamma, self.beta))
            x = ops.cast(inputs, self.gamma.dtype)
            # The weight's shape: that of the inputs is a tensor while a trace is made.
            x = layer_norm(x, tuple(self.gamma.shape), gamma, beta, self.epsilon)
            return ops.cast(x, self.compute_dtype)
        if keras.config.backend() != "tensorflow":
            return super().call(inputs)
        operation = gradients.layer_norm(self.epsilon)
        gamma = ops.cast(self.gamma, "float32")  # a tensor: formulas take no variables
        beta = ops.zeros_like(gamma) if self.beta is None else ops.cast(self.beta, "float32")
        return operation(inputs, gamma, beta, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Dropout(CalledDirectly, keras.layers.Dropout):
    """Keras's dropout, cheaper on TensorFlow and JAX; the same arguments.

    With a `noise_shape` it is Keras's own.

    Call arguments:
        inputs: (N, D) or (B, H, L, L); D and H are known when the graph is made.
        residual: a tensor of the same shape, to which the dropped inputs are added.
    """

    def call(self, inputs, training=False, residual=None):
        drops = training and self.rate > 0 and self.noise_shape is None
        if drops and keras.config.backend() == "jax":
            dropped = _dropped_on_jax(inputs, self.rate, self.seed_generator)
            return dropped if residual is None else residual + dropped
        if not drops or keras.config.backend() != "tensorflow":
            dropped = super().call(inputs, training=training)
            return dropped if residual is None else residual + dropped
        kept = self._kept(inputs)
        if residual is None:
            return gradients.masked(inputs, kept, training=True)
        return gradients.residual(residual, inputs, kept, training=True)

    def drawing_once(self, training: bool | None) -> Callable:
        """Draw from the generator once, for calls part by part or in one of two branches.

        Args:
            training: without it nothing is drawn.

        Returns:
            A function from the index of a part (default: 0) to a context in which the layer drops
            by that draw: in every part other elements, and in the same part the same ones again.
        """
        if not training or not self.rate:
            return lambda part=0: contextlib.nullcontext()
        drawn = self.seed_generator.next()

        def drawing(part=0):
            offset = ops.stack([part * 2**20, 0])  # more than draws follow each other in training
            state = drawn + ops.cast(offset, drawn.dtype)
            return keras.StatelessScope(state_mapping=[(self.seed_generator.state, state)])

        return drawing

    def _kept(self, x):
        """Return 0 where an element is dropped and 1 / (1 - rate) elsewhere, shaped as x."""
        # Random numbers are most of what dropout costs, and 16 bits are enough: each number
        # decides on two elements, by its upper and by its lower half.
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


def _dropped_on_jax(x, rate: float, seed_generator):
    """Return x with elements dropped by a hash of their numbers and the seed.

    JAX's generators take a sixth of a training step on a CPU. A hash is computed in the loop that
    drops, and again for the gradient, in place of a mask in memory.
    """
    import jax

    keys = _hashed(ops.cast(seed_generator.next(), "uint32") + np.uint32(0x9E3779B9))  # (2,)
    numbers = jax.lax.iota("uint32", x.size).reshape(x.shape)
    kept = _hashed(_hashed(numbers ^ keys[0]) ^ keys[1]) >= np.uint32(rate * 2**32)
    return ops.where(kept, x / (1 - rate), ops.zeros_like(x))


def _hashed(x):
    """Return integers of 32 bits with all bits mixed, one to one.

    Source: Wellons 2018, Prospecting for Hash Functions, `lowbias32`.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * np.uint32(factor)
    return x ^ (x >> 16)


class MakesLayers:
    """Mixin of layers and models: makes their parts with their own settings.

    It reads the attributes `hidden_dim`, `use_bias` and `layer_norm_epsilon`.
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
        """Return a built dense layer.

        Args:
            name: of the layer.
            units: width of its output.
            input_dim: width of its input; None: `hidden_dim`.
            stddev: of its initial weights, see `initializer`.
            activation: of its output, by Keras's name.
            use_bias: whether it has a bias; None: as the attribute says.
        """
        layer = Dense(
            units,
            activation,
            use_bias=self.use_bias if use_bias is None else use_bias,
            kernel_initializer=initializer(stddev),
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build((None, input_dim or self.hidden_dim))
        return layer

    def make_norm(self, name: str) -> LayerNorm:
        """Return a built LayerNorm over `hidden_dim` numbers."""
        layer = LayerNorm(
            epsilon=self.layer_norm_epsilon,
            center=self.use_bias,
            name=name,
            dtype=self.dtype_policy,
        )
        layer.build((None, self.hidden_dim))
        return layer

    def make_table(
        self, name: str, rows: int, kind: type[keras.layers.Embedding] = keras.layers.Embedding
    ) -> keras.layers.Embedding | None:
        """Return a built table of `rows` vectors; None for 0 rows."""
        if not rows:
            return None
        table = kind(
            rows,
            self.hidden_dim,
            embeddings_initializer=initializer(),
            name=name,
            dtype=self.dtype_policy,
        )
        table.build((None, None))
        return table

    def make_dropout(self, rate: float) -> Dropout:
        """Return a dropout layer."""
        return Dropout(rate, dtype=self.dtype_policy)

    def make_layer(
        self, kind: type[keras.layers.Layer], name: str, **arguments
    ) -> keras.layers.Layer:
        """Return a layer whose arguments are the attributes of the same names.

        Args:
            kind: class of the layer, a `ConfigFromSignature`.
            name: of the layer.
            **arguments: others, or other values.
        """
        own = {n: getattr(self, n) for n in argument_names(kind) if hasattr(self, n)}
        return kind(**{**own, **arguments}, name=name, dtype=self.dtype_policy)
