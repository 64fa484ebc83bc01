"""LayerNorm and dropout as in Keras, with less to compute and to trace on TensorFlow."""

import contextlib
from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.encoders.kernels import gradients


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras's LayerNorm over the last axis, cheaper on TensorFlow; the same arguments."""

    def call(self, inputs, training=None):
        if keras.config.backend() != "tensorflow":
            return super().call(inputs)
        operation = gradients.layer_norm(self.epsilon)
        gamma = ops.cast(self.gamma, "float32")  # a tensor: formulas take no variables
        beta = ops.zeros_like(gamma) if self.beta is None else ops.cast(self.beta, "float32")
        return operation(inputs, gamma, beta, training=training)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Dropout(keras.layers.Dropout):
    """Keras's dropout, cheaper on TensorFlow; the same arguments.

    Call arguments:
        inputs: (N, D) or (B, H, L, L); D and H are known when the graph is made.
        residual: a tensor of the same shape, to which the dropped inputs are added.
    """

    def call(self, inputs, training=False, residual=None):
        drops = training and self.rate > 0
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
    """Return x with elements dropped by numbers of the device's own generator.

    JAX's default generator computes each number of its own, which takes a tenth of a training step
    on a CPU; 16 bits for each element are enough, as on TensorFlow.
    """
    import jax

    key = jax.random.wrap_key_data(ops.tile(seed_generator.next(), 2), impl="rbg")
    kept = jax.random.bits(key, x.shape, "uint16") >= round(rate * 2**16)
    return ops.where(kept, x / (1 - rate), ops.zeros_like(x))
