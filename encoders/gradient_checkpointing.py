"""Less memory for longer texts: what a block computes inside is computed again, not kept."""

import keras
from keras import ops

from encoder_zoo.encoders.layers import EncoderBlock


def recomputed(
    block: EncoderBlock, x: keras.KerasTensor, attention_mask: keras.KerasTensor
) -> keras.KerasTensor:
    """`block(x, attention_mask, training=True)`, keeping nothing but `x` for the gradients.

    Args:
        block: whose inner values are computed a second time when gradients are taken.
        x: (B, L, D).
        attention_mask: see `SelfAttention`.

    Returns:
        (B, L, D).

    Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, section 4.
    """
    # Keras's remat repeats a call as it is: a second draw of dropout would be another one. Here
    # the call is a function of the weights and of where the random generators stand.
    generators = [
        layer.seed_generator
        for layer in block._flatten_layers()
        if isinstance(layer, keras.layers.Dropout) and layer.rate
    ]
    states = [(g.state, ops.copy(g.state)) for g in generators]  # before the draws below

    # Not of the mask: TensorFlow asks for a gradient by each argument.
    def call(x, *weights):
        mapping = [*zip(block.weights, weights, strict=True), *states]
        with keras.StatelessScope(state_mapping=mapping):
            return block(x, attention_mask, training=True)

    weights = [ops.convert_to_tensor(weight) for weight in block.weights]
    y = keras.remat(call)(x, *weights)
    for generator in generators:  # each drawn from once
        generator.next()
    return y
