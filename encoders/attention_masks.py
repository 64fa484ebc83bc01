"""Who may attend to whom: as a matrix, or in so few numbers that long texts have them too.

Comment letters: B batch, L sequence, Q queries, K keys.
"""

from __future__ import annotations

import dataclasses

import keras
from keras import ops

from encoder_zoo.encoders.positions import text_numbers


@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """Who may attend to whom, in O(L) numbers.

    Attributes:
        real: (B, L) bool, false at padding, to which nobody attends.
        texts: (B, L) int, to which text of its row a token belongs, and whose tokens it attends
            to; None: every row is a text.
        reach: the largest distance at which one attends to another; None: any.
    """

    real: keras.KerasTensor
    texts: keras.KerasTensor | None = None
    reach: int | None = None

    def matrix(self) -> keras.KerasTensor:
        """(B, 1, 1 or L, L), bool: true where the token of the last axis may be attended to."""
        allowed = keys_allowed(self.real, self.texts, self.texts)
        if self.reach is None:
            return allowed
        places = ops.arange(ops.shape(self.real)[1], dtype="int32")
        return near_allowed(allowed, ops.abs(places[:, None] - places), self.reach)


def make_attention_mask(
    padding_mask: keras.KerasTensor,
    text_starts: keras.KerasTensor | None = None,
    reach: int | None = None,
) -> AttentionMask:
    """Which tokens may attend to which: none to padding, and none to another text.

    Args:
        padding_mask: (B, L), true or 1 at real tokens, false or 0 at padding.
        text_starts: (B, K) int, where the texts of packed rows begin, see `text_numbers`.
        reach: see `AttentionMask`.

    Example:
        >>> import numpy as np
        >>> np.array(make_attention_mask(np.array([[1, 1, 0]])).matrix()).tolist()
        [[[[True, True, False]]]]
    """
    texts = None
    if text_starts is not None:
        texts = text_numbers(text_starts, ops.shape(padding_mask)[1])
    return AttentionMask(ops.cast(padding_mask, "bool"), texts, reach)


def keys_allowed(real, query_texts, key_texts) -> keras.KerasTensor:
    """(B, 1, 1 or Q, K) bool: the keys that are real, and of the query's text.

    Args:
        real: (B, K) bool, of the keys.
        query_texts: (B, Q) int, or None.
        key_texts: (B, K) int, or None.
    """
    allowed = ops.expand_dims(real, (1, 2))  # LiteRT knows no such slices of truth values
    if query_texts is None:
        return allowed
    return allowed & (query_texts[:, None, :, None] == key_texts[:, None, None, :])


def near_allowed(allowed, distances, reach: int) -> keras.KerasTensor:
    """(B, 1, Q, K) bool: the allowed keys that are near, and everyone itself.

    Args:
        allowed: see `keys_allowed`.
        distances: (Q, K) int.
        reach: the largest of them that is near.
    """
    # Padding far from all tokens attends to itself: a kernel makes NaN of a mean of nothing.
    return (allowed & (distances <= reach)) | (distances == 0)
