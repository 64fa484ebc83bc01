"""A padded batch computed in few rows, each of several texts: hardly any of it is padding.

Comment letters: B texts, L tokens of a padded text and of a row, R rows, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from keras import ops

if TYPE_CHECKING:
    import keras

    from encoder_zoo.encoders.backbone import Backbone


def encode_in_rows(
    backbone: Backbone, inputs: Mapping, row_tokens: keras.KerasTensor, training: bool | None = None
) -> dict:
    """Return a backbone's outputs for a padded batch, computed in rows that texts share.

    Args:
        backbone: computes the rows, as packed examples.
        inputs: of the backbone, each (B, L).
        row_tokens: (R, L) int, which of the batch's B * L tokens is at each position of the rows,
            every real one once, those of a text side by side; B * L where there is none.
        training: as for calling the backbone.

    Returns:
        "sequence_output", (B, L, D), with zeros at padding, and perhaps "pooled_output", (B, D).

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, 1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> inputs = {"token_ids": np.array([[2, 3, 0], [2, 0, 0]])}
        >>> inputs["padding_mask"] = inputs["token_ids"] > 0
        >>> outputs = encode_in_rows(backbone, inputs, np.array([[0, 1, 3]]))
        >>> alone = backbone(inputs)["pooled_output"]
        >>> np.allclose(outputs["pooled_output"], alone, atol=1e-6)
        True
    """
    batch, length = ops.shape(inputs["token_ids"])
    row_tokens = ops.convert_to_tensor(row_tokens, "int32")
    filled = row_tokens < batch * length  # (R, L)
    taken = ops.minimum(row_tokens, batch * length - 1)
    rows = {name: ops.take(ops.reshape(v, (-1,)), taken) for name, v in inputs.items()}
    rows |= {"padding_mask": filled, "text_starts": _text_starts(row_tokens, filled, length)}
    in_rows = backbone(rows, training=training)["sequence_output"]  # (R, L, D)
    x = _to_texts(ops.reshape(in_rows, (-1, in_rows.shape[-1])), row_tokens, batch * length)
    outputs = {"sequence_output": ops.reshape(x, (batch, length, in_rows.shape[-1]))}
    if backbone.pooler:
        outputs["pooled_output"] = backbone.pool(outputs["sequence_output"], inputs)
    return outputs


def _text_starts(row_tokens, filled, length):
    """Return where the texts of each row begin, ascending, (R, L); L in place of further texts."""
    texts = row_tokens // length
    begins = ops.concatenate([filled[:, :1], texts[:, 1:] != texts[:, :-1]], axis=1) & filled
    return ops.sort(ops.where(begins, ops.arange(length, dtype="int32"), length), axis=1)


def _to_texts(x, row_tokens, count: int):
    """Return the vectors (R L, D) in the order of the batch's tokens, (B L, D)."""
    tokens = ops.reshape(row_tokens, (-1,))  # (R L,)
    numbers = ops.arange(ops.shape(tokens)[0], dtype="int32")
    sums = (ops.segment_sum(v, tokens, count + 1)[:-1] for v in (numbers, ops.ones_like(numbers)))
    positions, real = next(sums), next(sums)[:, None] > 0  # of each token in the rows

    @ops.custom_gradient
    def move(x):
        def gradient(dy):  # takes as well, where a backend would add up one by one
            dx = ops.take(dy, ops.minimum(tokens, count - 1), axis=0)
            return ops.where(tokens[:, None] < count, dx, ops.zeros_like(dx))

        y = ops.take(x, positions, axis=0)
        return ops.where(real, y, ops.zeros_like(y)), gradient

    return move(x)
