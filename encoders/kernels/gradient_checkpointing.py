"""Less memory for longer texts: values inside a block are computed again, not kept."""

from collections.abc import Mapping

import keras
from keras import ops

from encoder_zoo.common.keras_private import layers_in


def recomputed(
    block: keras.layers.Layer, x: keras.KerasTensor, context: Mapping
) -> keras.KerasTensor:
    """Return `block(x, training=True, **context)`, and keep only its inputs for the gradients.

    Args:
        block: its inner values are computed a second time when gradients are taken.
        x: (B, L, D).
        context: other arguments of the block, tensors or nested structures of them; those of
            floating point are differentiated too.

    Returns:
        (B, L, D).

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 4.
    """
    # Keras's remat repeats a call as it is: a second draw of dropout would be another one. Here
    # the call is a function of the weights and of the state of the random generators.
    generators = [
        layer.seed_generator
        for layer in layers_in(block)
        if isinstance(layer, keras.layers.Dropout) and layer.rate
    ]
    states = [(g.state, ops.copy(g.state)) for g in generators]  # before the draws below

    # Gradients reach arguments alone, not tensors that the function closes over; and TensorFlow
    # asks for a gradient by each argument, so that masks must not be among them.
    leaves = keras.tree.flatten(dict(context))
    floats = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]

    def call(x, *arguments):
        weights, differentiable = arguments[: len(block.weights)], arguments[len(block.weights) :]
        given = dict(zip(floats, differentiable, strict=True))
        leaves_now = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        mapping = [*zip(block.weights, weights, strict=True), *states]
        with keras.StatelessScope(state_mapping=mapping):
            now = keras.tree.pack_sequence_as(dict(context), leaves_now)
            return block(x, training=True, **now)

    # Copies, as a variable among the arguments would get its gradient twice when run eagerly.
    weights = [ops.copy(weight) for weight in block.weights]
    y = keras.remat(call)(x, *weights, *(ops.copy(leaves[i]) for i in floats))
    for generator in generators:  # each drawn from once
        generator.next()
    return y


def _is_float(leaf) -> bool:
    return hasattr(leaf, "dtype") and "float" in keras.backend.standardize_dtype(leaf.dtype)
