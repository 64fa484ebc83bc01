"""A batch of texts as flat code points with their spans in the original texts."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.ragged import index_mask
from encoder_zoo.encoders.tokenizers.text.utf8 import decode_utf8


class Characters(NamedTuple):
    """Holds the characters of a batch of texts, concatenated.

    Attributes:
        codes: int32 (N,), code points.
        starts, ends: int32 (N,), spans of the original characters, counted over the batch.
        row_splits: int32 (B + 1,), where each text starts in `codes`.
        original_splits: int32 (B + 1,), where each text starts among the original characters.
    """

    codes: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor
    original_splits: tf.Tensor

    def take(self, indices: tf.Tensor) -> Characters:
        """Return the characters at ascending indices (K,)."""
        codes, starts, ends = (tf.gather(part, indices) for part in self[:3])
        splits = tf.searchsorted(indices, self.row_splits)
        return Characters(codes, starts, ends, splits, self.original_splits)

    def where(self, keep: tf.Tensor) -> Characters:
        """Return the characters where `keep`, boolean (N,), is true."""
        return self.take(tf.cast(tf.where(keep)[:, 0], tf.int32))

    def row_starts(self) -> tf.Tensor:
        """Return a mask (N,) of the first character of each text."""
        return index_mask(self.row_splits[:-1], tf.size(self.codes))


def characters(texts: tf.Tensor) -> Characters:
    """Decode texts (B,); malformed bytes become U+FFFD.

    Example:
        >>> characters(tf.constant(["né", "", "e"])).row_splits.numpy().tolist()
        [0, 2, 2, 3]
    """
    joined = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
    splits = tf.concat([[0], tf.cumsum(tf.strings.length(texts))], 0)
    codes, splits = tf.cond(
        tf.reduce_all(joined < 128),
        lambda: (tf.cast(joined, tf.int32), splits),
        lambda: decode_utf8(texts, joined, splits),
    )
    positions = tf.range(tf.size(codes))
    return Characters(codes, positions, positions + 1, splits, splits)


def insert_spaces(chars: Characters, wanted: tf.Tensor) -> Characters:
    """Insert a space, with the same span, before the characters where `wanted` (N,) is true."""
    added = tf.concat([[0], tf.cumsum(tf.cast(wanted, tf.int32))], 0)  # (N + 1,), before each
    size = tf.size(chars.codes) + added[-1]
    positions = (tf.range(tf.size(chars.codes)) + added[1:])[:, None]
    spaces = tf.boolean_mask(positions, wanted) - 1

    def spread(values: tf.Tensor) -> tf.Tensor:
        return tf.tensor_scatter_nd_update(tf.fill([size], ord(" ")), positions, values)

    return Characters(
        spread(chars.codes),
        *(
            tf.tensor_scatter_nd_update(spread(part), spaces, tf.boolean_mask(part, wanted))
            for part in (chars.starts, chars.ends)
        ),
        chars.row_splits + tf.gather(added, chars.row_splits),
        chars.original_splits,
    )
