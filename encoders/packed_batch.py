"""Encode a padded batch faster, by packing several texts into each sequence.

Comments use these letters for shapes: B texts, L tokens per padded text and per packed sequence,
S packed sequences, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from keras import ops

if TYPE_CHECKING:
    import keras

    from encoder_zoo.encoders.backbone import Backbone


def encode_packed(
    backbone: Backbone,
    inputs: Mapping,
    packed_tokens: keras.KerasTensor,
    training: bool | None = None,
) -> dict:
    """Encode a padded batch as packed sequences.

    Args:
        backbone: `Backbone` to use. Tokens can only attend to tokens in the same text.
        inputs: Dictionary of tensors of shape (B, L). Inputs for the backbone.
        packed_tokens: Integer tensor of shape (S, L). The index of the token at each packed
            position. Indices refer to the flattened batch of B * L tokens, and B * L stands for
            padding. Each token must occur once, and the tokens of a text must be adjacent.
        training: Optional boolean. Whether to apply dropout.

    Returns:
        Dictionary with "sequence_output" of shape (B, L, D), with zeros for padding. For backbones
        with a pooler, "pooled_output" of shape (B, D) is also included.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> inputs = {"token_ids": np.array([[2, 3, 0], [2, 0, 0]])}
        >>> inputs["padding_mask"] = inputs["token_ids"] > 0
        >>> outputs = encode_packed(backbone, inputs, np.array([[0, 1, 3]]))
        >>> alone = backbone(inputs)["pooled_output"]
        >>> np.allclose(outputs["pooled_output"], alone, atol=1e-6)
        True
    """
    batch, length = ops.shape(inputs["token_ids"])
    packed_tokens = ops.convert_to_tensor(packed_tokens, "int32")
    mask = packed_tokens < batch * length  # (S, L)
    taken = ops.minimum(packed_tokens, batch * length - 1)
    packed = {name: ops.take(ops.reshape(v, (-1,)), taken) for name, v in inputs.items()}
    packed |= {"padding_mask": mask, "text_starts": _find_text_starts(packed_tokens, mask, length)}
    y = backbone(packed, training=training)["sequence_output"]  # (S, L, D)
    x = _restore_texts(ops.reshape(y, (-1, y.shape[-1])), packed_tokens, batch * length)
    return backbone._make_outputs(ops.reshape(x, (batch, length, y.shape[-1])), inputs)


def _find_text_starts(packed_tokens, mask, length):
    """Return the start positions of all texts in each sequence, (S, L). Unused values are L."""
    texts = packed_tokens // length
    begins = ops.concatenate([mask[:, :1], texts[:, 1:] != texts[:, :-1]], axis=1) & mask
    return ops.sort(ops.where(begins, ops.arange(length, dtype="int32"), length), axis=1)


def _restore_texts(x, packed_tokens, count: int):
    """Convert packed outputs (S L, D) to outputs for the padded batch (B L, D)."""
    tokens = ops.reshape(packed_tokens, (-1,))  # (S L,)
    numbers = ops.arange(ops.shape(tokens)[0], dtype="int32")
    sums = (ops.segment_sum(v, tokens, count + 1)[:-1] for v in (numbers, ops.ones_like(numbers)))
    positions, real = next(sums), next(sums)[:, None] > 0  # positions in the packed sequences

    @ops.custom_gradient
    def move(x):
        def gradient(dy):  # the automatic gradient is slower, because rows are added one by one
            dx = ops.take(dy, ops.minimum(tokens, count - 1), axis=0)
            return ops.where(tokens[:, None] < count, dx, ops.zeros_like(dx))

        y = ops.take(x, positions, axis=0)
        return ops.where(real, y, ops.zeros_like(y)), gradient

    return move(x)
