"""Attention masks. For long texts, `AttentionMask` is used instead of a matrix to save memory.

Comments use these letters for shapes: B batch, L sequence, Q queries, K keys.
"""

from __future__ import annotations

import dataclasses

from encoder_zoo.common.lazy import keras, ops
from encoder_zoo.encoders.positions import compute_text_indices


@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """Compact attention mask, which needs O(L) memory.

    Attributes:
        real: Boolean tensor of shape (B, L). True for tokens, and False for padding. If None, all
            tokens attend to each other. None can only be used without padding and for single texts.
        texts: Integer tensor of shape (B, L). The text index for each token in packed examples.
            Tokens only attend to tokens in the same text. If None, each example is a single text.
        max_distance: Integer. Maximum distance for attention between two tokens. If None, there is
            no limit.
        has_unattended: Boolean. Whether the outputs of some masked tokens are used.
        global_keys: Boolean tensor of shape (B, L). True for tokens to which all tokens in the same
            text attend, at any distance. If None, there are no such tokens.
        global_positions: Integer tensor of shape (B, S). The positions of the first S global keys.
            Unused values are L. If None, `attend_in_blocks` cannot be used with global keys.
    """

    real: keras.KerasTensor | None
    texts: keras.KerasTensor | None = None
    max_distance: int | None = None
    has_unattended: bool = False
    global_keys: keras.KerasTensor | None = None
    global_positions: keras.KerasTensor | None = None

    @property
    def supports_blocks(self) -> bool:
        """Return True if each block needs only nearby keys and global keys."""
        knows_global_keys = self.global_keys is None or self.global_positions is not None
        return self.max_distance is not None and knows_global_keys

    def make_matrix(self) -> keras.KerasTensor | None:
        """Return a boolean mask of shape (B, 1, 1 or L, L), or None if no token is masked."""
        distances = None
        if self.max_distance is not None:
            positions = ops.arange(ops.shape(self.real)[1], dtype="int32")
            distances = ops.abs(positions[:, None] - positions)
        return self.compare_pairs(self.real, self.texts, self.texts, distances, self.global_keys)

    def compare_pairs(
        self, real, query_texts=None, key_texts=None, distances=None, global_keys=None
    ):
        """Compute the boolean mask of shape (B, 1, 1 or Q, K) for the given queries and keys.

        Args:
            real: Boolean tensor of shape (B, K) for the keys. If None, no token is masked, and None
                is returned.
            query_texts: Integer tensor of shape (B, Q). None if each example is a single text.
            key_texts: Integer tensor of shape (B, K). None if each example is a single text.
            distances: Integer tensor of shape (Q, K). Only needed if `max_distance` is set.
            global_keys: Boolean tensor of shape (B, K). True for keys at any distance.
        """
        if real is None:
            return None
        allowed = ops.expand_dims(real, (1, 2))  # LiteRT does not support slices of booleans
        if query_texts is not None:
            allowed = allowed & (query_texts[:, None, :, None] == key_texts[:, None, None, :])
        if self.max_distance is None:
            return allowed
        near, itself = distances <= self.max_distance, distances == 0
        if global_keys is not None:
            near = near | ops.expand_dims(global_keys, (1, 2))
        near = allowed & near
        # Padding attends to itself if there is no other key, because kernels return NaN for empty
        # rows.
        if self.has_unattended:
            itself = itself & ~ops.any(near, axis=-1, keepdims=True)
        return near | itself


MASKED_LOGIT = -1e9  # used for masked logits. A finite value can be multiplied by 0.


def make_attention_mask(
    padding_mask: keras.KerasTensor | None,
    text_starts: keras.KerasTensor | None = None,
    max_distance: int | None = None,
    has_unattended: bool = False,
) -> AttentionMask:
    """Create an attention mask that excludes padding and, in packed examples, other texts.

    Args:
        padding_mask: Tensor of shape (B, L). 1 or True for tokens, and 0 or False for padding. It
            can be None if there is no padding and if `text_starts` and `max_distance` are also
            None.
        text_starts: Optional integer tensor of shape (B, K). Text start positions in packed
            examples. See `compute_text_indices`.
        max_distance: Optional integer. See `AttentionMask`.
        has_unattended: Boolean. See `AttentionMask`. Defaults to False.

    Example:
        >>> import numpy as np
        >>> np.array(make_attention_mask(np.array([[1, 1, 0]])).make_matrix()).tolist()
        [[[[True, True, False]]]]
    """
    texts = None
    if text_starts is not None:
        texts = compute_text_indices(text_starts, ops.shape(padding_mask)[1])
    real = None if padding_mask is None else ops.cast(padding_mask, "bool")
    return AttentionMask(real, texts, max_distance, has_unattended)


def convert_mask(mask: AttentionMask | keras.KerasTensor | None) -> keras.KerasTensor | None:
    """Convert an `AttentionMask` to a matrix. Other masks are returned unchanged."""
    return mask.make_matrix() if isinstance(mask, AttentionMask) else mask


def mask_scores(
    scores: keras.KerasTensor, mask: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Decrease the attention scores of masked tokens, so that the probabilities are zero.

    Args:
        scores: Tensor of shape (B, H, Q, K).
        mask: Boolean tensor that can be broadcast to (B, H, Q, K). If None, no token is masked.

    Example:
        >>> import numpy as np
        >>> mask_scores(np.ones((1, 1, 1, 2), "float32"), np.array([True, False])).numpy().ravel()
        array([ 1.e+00, -1.e+09], dtype=float32)
    """
    if mask is None:
        return scores
    # Use a finite value that fits into float16. Otherwise, rows with only padding would become NaN.
    is_half = keras.backend.standardize_dtype(scores.dtype) == "float16"
    lowest = -3e4 if is_half else MASKED_LOGIT
    return scores + ops.cast(ops.where(mask, 0.0, lowest), scores.dtype)
