"""Joins the texts of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from encoder_zoo.common.lazy import array_ops


def join_spelling(
    rows: array_ops.RaggedTensor, spelling: array_ops.Tensor, skipped: Sequence[int] = ()
) -> array_ops.Tensor:
    """Return the texts of the tokens of each row, (B,).

    Args:
        rows: ragged (B, None) int32, token ids.
        spelling: (V,) the text of each id.
        skipped: ids that are left out.

    Example:
        >>> import tensorflow as tf
        >>> join_spelling(tf.ragged.constant([[1, 0], [0]]), tf.constant(["a", "b"])).numpy()
        array([b'ba', b'a'], dtype=object)
    """
    if skipped:
        special = array_ops.reduce_any(rows.values[:, None] == list(skipped), 1)
        rows = array_ops.ragged.boolean_mask(rows, rows.with_values(~special))
    return array_ops.strings.reduce_join(
        rows.with_values(array_ops.gather(spelling, rows.values)), axis=1
    )
