"""What the parts of an encoder are made of: activations, weights as drawn, LayerNorm, dropout."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import keras
from keras import ops

from encoder_zoo.encoders.kernels import gradients


def _tanh_gelu(x):
    return ops.gelu(x, approximate=True)


# The names that checkpoints use. "gelu" is exact (erf); the tanh form has several names.
ACTIVATIONS: dict[str, Callable] = {
    # Keras's own takes two passes more over the memory on TensorFlow.
    "gelu": lambda x: 0.5 * x * (1 + ops.erf(x * 2**-0.5)),
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "relu": ops.relu,
    "silu": ops.silu,
    "swish": ops.silu,
    "tanh": ops.tanh,
}


def activation_function(name: str) -> Callable:
    """The function behind an activation's name.

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


_draws_weights = contextvars.ContextVar("draws_weights", default=True)


@contextlib.contextmanager
def skip_initialization() -> Iterator[None]:
    """Spares the drawing of random weights that a checkpoint's replace at once: seconds of a load.

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
    """Weights as BERT draws them: normal, none further from 0 than two standard deviations.

    Args:
        stddev: the standard stddev of the normal distribution.
    """
    if not _draws_weights.get():
        return keras.initializers.Zeros()
    return keras.initializers.TruncatedNormal(stddev=stddev)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's LayerNorm over the last axis, cheaper on TensorFlow; arguments as there."""

    def call(self, inputs, training=None):
        if keras.config.backend() != "tensorflow":
            return super().call(inputs)
        formula = gradients.layer_norm(self.epsilon)
        gamma = ops.cast(self.gamma, "float32")  # a tensor: variables have no place in formulas
        beta = ops.zeros_like(gamma) if self.beta is None else ops.cast(self.beta, "float32")
        return gradients.apply(formula, inputs, gamma, beta, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, cheaper on TensorFlow; arguments as there.

    Call arguments:
        inputs: (N, D) or (B, H, L, L); D and H are known when the graph is made.
        residual: as `inputs`; what is left of these is added to it.
    """

    def call(self, inputs, training=False, residual=None):
        drops = training and self.rate > 0
        if not drops or keras.config.backend() != "tensorflow":
            dropped = super().call(inputs, training=training)
            return dropped if residual is None else residual + dropped
        kept = self._kept(inputs)
        if residual is None:
            return gradients.apply(gradients.masked, inputs, kept, training=True)
        return gradients.apply(gradients.residual, residual, inputs, kept, training=True)

    def drawing_once(self, training: bool | None) -> Callable:
        """One draw from the generator, for layers called part by part or in one of two branches.

        Args:
            training: without it nothing is drawn.

        Returns:
            From a part's number (default: 0) to a context, in which the layer drops by that draw,
            in every part other elements, and in the same part the same ones again.
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
        """In x's shape and type: 0 where an element is dropped, else what makes up for those."""
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
