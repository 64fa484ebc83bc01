"""Joins the texts of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from encoder_zoo.common.lazy import tf


def join_spelling(
    rows: tf.RaggedTensor, spelling: tf.Tensor, skipped: Sequence[int] = ()
) -> tf.Tensor:
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
        special = tf.reduce_any(rows.values[:, None] == list(skipped), 1)
        rows = tf.ragged.boolean_mask(rows, rows.with_values(~special))
    return tf.strings.reduce_join(rows.with_values(tf.gather(spelling, rows.values)), axis=1)
