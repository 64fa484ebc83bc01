"""The encoder. Comment letters: B batch, L sequence, D hidden, H heads."""

import keras

from encoder_zoo.encoders.backbone_base import BackboneBase
from encoder_zoo.encoders.block import EncoderBlock
from encoder_zoo.encoders.embeddings import Embeddings
from encoder_zoo.encoders.inputs import with_padding_mask
from encoder_zoo.encoders.kernels.gradient_checkpointing import recomputed
from encoder_zoo.encoders.positions import first_tokens


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Backbone(BackboneBase):
    """Return `{"sequence_output": (B, L, D), "pooled_output": (B, D)}` of token ids.

    Devlin et al. 2019, BERT, section 3. Arguments, inputs and outputs: `BackboneBase`. A family
    that differs overrides `make_embeddings`, `make_block`, `make_final_layer`, `block_contexts`.
    """

    def build(self, input_shape=None):
        self.embeddings, self.blocks = self.make_embeddings(), []
        for i in range(self.num_layers):
            self.blocks.append(self.make_block(i))  # in ALBERT several are one
        self.final_layer = self.make_final_layer()
        for layer in dict.fromkeys([self.embeddings, *self.blocks, self.final_layer]):
            if layer is not None and not layer.built:
                layer.build((None, None, self.hidden_dim))
        if self.pooler:
            self.pooler_dense = self.make_dense("pooler", self.hidden_dim, activation="tanh")

    def make_embeddings(self, kind: type = Embeddings, **arguments) -> keras.layers.Layer:
        """Return the layer before the blocks, with the backbone's settings and `arguments`."""
        arguments = {"max_positions": self.max_sequence_length, **arguments}
        return self.make_layer(kind, "embeddings", **arguments)

    def make_block(self, i: int, kind: type = EncoderBlock, **arguments) -> keras.layers.Layer:
        """Return block i, from 0, with the backbone's settings and `arguments`."""
        return self.make_layer(kind, f"block_{i}", **arguments)

    def call(self, inputs, training=None, return_hidden_states=False, return_projections=False):
        states, _, contexts = self._encode(inputs, training)
        outputs = self._outputs_of(states[-1], inputs)
        if return_hidden_states:
            outputs["hidden_states"] = states
        if return_projections:
            block, context = self.blocks[-1], contexts[-1]
            outputs["projections"] = block.project(states[-2], training=training, **context)
        return outputs

    def _encode(self, inputs, training=False, return_probabilities=False, embedded=None):
        """Return the inputs and outputs of all blocks, attention probabilities, and contexts."""
        given = with_padding_mask(inputs)
        x = self._embed(given, training) if embedded is None else embedded  # (B, L, D)
        contexts = self.block_contexts(inputs)
        states, probabilities = self._run(self.blocks, contexts, x, training, return_probabilities)
        if self.final_layer is not None:
            states[-1] = self.final_layer(states[-1])
        return states, probabilities, contexts

    def _run(self, blocks, contexts, x, training=False, return_probabilities=False):
        """Return x, (B, L, D), and the outputs of blocks one after another, and probabilities."""
        states, probabilities = [x], []
        for block, context in zip(blocks, contexts, strict=True):
            if return_probabilities:
                x, p = block(x, training=training, return_probabilities=True, **context)
                probabilities.append(p)  # (B, H, L, L)
            elif training and self._checkpoints_gradients:
                x = recomputed(block, x, context)  # the same numbers, with less memory
            else:
                x = block(x, training=training, **context)  # (B, L, D)
            states.append(x)
        return states, probabilities

    def pool(self, sequence_output, inputs):
        """Return tanh(x₀ W + b), (B, D), of each text's first token; packed texts: (B, K, D)."""
        return self.pooler_dense(first_tokens(sequence_output, inputs.get("text_starts")))
