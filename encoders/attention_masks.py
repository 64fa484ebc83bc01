"""Masks of attention: as a matrix, or in O(L) numbers for long texts.

Comment letters: B batch, L sequence, Q queries, K keys.
"""

from __future__ import annotations

import dataclasses

from encoder_zoo.common.lazy import keras, ops
from encoder_zoo.encoders.positions import text_indices


@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """Which tokens may attend to which, in O(L) numbers.

    Attributes:
        real: (B, L) bool, false at padding, to which no token attends; None: there is no padding,
            every example is one text, and tokens attend to all others.
        texts: (B, L) int, index of the token's text in a packed example: tokens attend to those of
            the same text; None: every example is one text.
        max_distance: the largest distance at which one attends to another; None: any.
        has_unattended: whether some tokens that are not real have outputs that count.
    """

    real: keras.KerasTensor | None
    texts: keras.KerasTensor | None = None
    max_distance: int | None = None
    has_unattended: bool = False

    def matrix(self) -> keras.KerasTensor | None:
        """Return (B, 1, 1 or L, L), bool: true where the last axis may be attended to; or None."""
        distances = None
        if self.max_distance is not None:
            positions = ops.arange(ops.shape(self.real)[1], dtype="int32")
            distances = ops.abs(positions[:, None] - positions)
        return self.pairs(self.real, self.texts, self.texts, distances)

    def pairs(self, real, query_texts=None, key_texts=None, distances=None):
        """Return which of some keys each of some queries attends to, (B, 1, 1 or Q, K), bool.

        Args:
            real: (B, K) bool, of the keys; None: each query attends to all, and the result is None.
            query_texts: (B, Q) int, or None where every example is one text.
            key_texts: (B, K) int, or None likewise.
            distances: (Q, K) int, where there is a `max_distance`.
        """
        if real is None:
            return None
        allowed = ops.expand_dims(real, (1, 2))  # LiteRT knows no such slices of truth values
        if query_texts is not None:
            allowed = allowed & (query_texts[:, None, :, None] == key_texts[:, None, None, :])
        if self.max_distance is None:
            return allowed
        near, itself = allowed & (distances <= self.max_distance), distances == 0
        # Padding far from all tokens attends to itself: a kernel makes NaN of a mean of nothing.
        if self.has_unattended:
            itself = itself & ~ops.any(near, axis=-1, keepdims=True)
        return near | itself


MASKED_LOGIT = -1e9  # in place of one that does not count: finite, so that 0 times it is 0


def make_attention_mask(
    padding_mask: keras.KerasTensor | None,
    text_starts: keras.KerasTensor | None = None,
    max_distance: int | None = None,
    has_unattended: bool = False,
) -> AttentionMask:
    """Make a mask without attention to padding and to other texts.

    Args:
        padding_mask: (B, L), true or 1 at real tokens, false or 0 at padding; None, without
            `text_starts` and `max_distance`: all tokens are real.
        text_starts: (B, K) int, where the texts of packed examples begin, see `text_indices`.
        max_distance, has_unattended: see `AttentionMask`.

    Example:
        >>> import numpy as np
        >>> np.array(make_attention_mask(np.array([[1, 1, 0]])).matrix()).tolist()
        [[[[True, True, False]]]]
    """
    texts = None
    if text_starts is not None:
        texts = text_indices(text_starts, ops.shape(padding_mask)[1])
    real = None if padding_mask is None else ops.cast(padding_mask, "bool")
    return AttentionMask(real, texts, max_distance, has_unattended)


def as_matrix(mask: AttentionMask | keras.KerasTensor | None) -> keras.KerasTensor | None:
    """Return the mask's matrix; a matrix and None as they are."""
    return mask.matrix() if isinstance(mask, AttentionMask) else mask


def mask_scores(
    scores: keras.KerasTensor, mask: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Make the scores of tokens that may not be attended to much lower than all others.

    Args:
        scores: (B, H, Q, K).
        mask: broadcastable to (B, H, Q, K), bool; None: every token may be attended to.

    Example:
        >>> import numpy as np
        >>> mask_scores(np.ones((1, 1, 1, 2), "float32"), np.array([True, False])).numpy().ravel()
        array([ 1.e+00, -1.e+09], dtype=float32)
    """
    if mask is None:
        return scores
    # Finite, so that an example of padding alone stays finite; within float16's range.
    is_half = keras.backend.standardize_dtype(scores.dtype) == "float16"
    lowest = -3e4 if is_half else MASKED_LOGIT
    return scores + ops.cast(ops.where(mask, 0.0, lowest), scores.dtype)
