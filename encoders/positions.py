"""Positions of tokens in examples of one text or several, and rotary positions.

Comment letters: B batch, L sequence, D hidden, K texts of an example, M chosen positions.
"""

from __future__ import annotations

import math

import numpy as np

from encoder_zoo.common.lazy import keras, ops
from encoder_zoo.common.wording import invalid


def text_indices(text_starts: keras.KerasTensor, length: int) -> keras.KerasTensor:
    """Return the index of the text that each position of a packed example belongs to.

    Args:
        text_starts: (B, K) int, the positions where the texts begin, the first of them 0; in an
            example of fewer than K texts the rest are `length` or more.
        length: L.

    Returns:
        (B, L) int, from 0; padding belongs to the last text.

    Example:
        >>> import numpy as np
        >>> np.array(text_indices(np.array([[0, 3, 9]]), 5)).tolist()
        [[0, 0, 0, 1, 1]]
    """
    batch = ops.shape(text_starts)[0]
    offsets = ops.arange(batch, dtype="int32")[:, None] * (length + 1)
    starts = offsets + ops.minimum(ops.cast(text_starts, "int32"), length)  # of all examples in one
    begun = ops.segment_sum(
        ops.ones_like(ops.reshape(starts, (-1,))),
        ops.reshape(starts, (-1,)),
        num_segments=batch * (length + 1),
    )
    begun = ops.reshape(begun, (batch, length + 1))[:, :length]  # (B, L)
    return ops.cumsum(begun, axis=1) - 1


def positions_in_texts(text_starts: keras.KerasTensor | None, length: int) -> keras.KerasTensor:
    """Return how far each token is from the start of its text.

    Args:
        text_starts: (B, K) int, see `text_indices`; None: every example is one text.
        length: L.

    Returns:
        (B, L) int, or (1, L) where every example is one text.

    Example:
        >>> import numpy as np
        >>> np.array(positions_in_texts(np.array([[0, 3, 9]]), 5)).tolist()
        [[0, 1, 2, 0, 1]]
    """
    positions = ops.arange(length, dtype="int32")[None, :]
    return positions if text_starts is None else positions - _own_starts(text_starts, length)


def _own_starts(text_starts, length):
    """Return where the text of each position of a packed example begins, (B, L) int32."""
    starts = ops.take_along_axis(text_starts, text_indices(text_starts, length), axis=1)
    return ops.cast(starts, "int32")


def text_lengths(
    padding_mask: keras.KerasTensor, text_starts: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Return the number of real tokens of the text that each position belongs to.

    Args:
        padding_mask: (B, L), true or 1 at real tokens.
        text_starts: (B, K) int, see `text_indices`; None: every example is one text.

    Returns:
        (B, L) int, or (B, 1) where every example is one text.

    Example:
        >>> import numpy as np
        >>> real = np.array([[1, 1, 1, 1, 0]])
        >>> np.array(text_lengths(real, np.array([[0, 3]]))).tolist()
        [[3, 3, 3, 1, 1]]
        >>> np.array(text_lengths(real)).tolist()
        [[4]]
    """
    real = ops.cast(padding_mask, "int32")
    if text_starts is None:
        return ops.sum(real, axis=1, keepdims=True)
    batch, length = ops.shape(real)
    offsets = ops.arange(batch, dtype="int32")[:, None] * length
    texts = ops.reshape(text_indices(text_starts, length) + offsets, (-1,))  # of all examples
    counts = ops.segment_sum(ops.reshape(real, (-1,)), texts, num_segments=batch * length)
    return ops.reshape(ops.take(counts, texts), (batch, length))


def first_tokens(
    x: keras.KerasTensor, text_starts: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Return the vectors of the first tokens of all texts.

    Args:
        x: (B, L, D).
        text_starts: (B, K) int, see `text_indices`; None: every example is one text.

    Returns:
        (B, D), or of packed examples (B, K, D).

    Example:
        >>> import numpy as np
        >>> np.array(first_tokens(np.arange(3.0).reshape(1, 3, 1), np.array([[0, 2]]))).tolist()
        [[[0.0], [2.0]]]
    """
    first = x[:, 0]
    if text_starts is None:
        return first
    return take_positions(x, ops.minimum(text_starts, ops.shape(x)[1] - 1))


def last_tokens(
    x: keras.KerasTensor, padding_mask: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Return the vectors of the last real tokens, wherever the padding is.

    Args:
        x: (B, L, D).
        padding_mask: (B, L), true or 1 at real tokens; None: all are.

    Returns:
        (B, D).

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0).reshape(2, 3, 1)
        >>> last_tokens(x, np.array([[1, 1, 0], [0, 1, 1]])).numpy().ravel().tolist()
        [1.0, 5.0]
    """
    if padding_mask is None:
        return x[:, -1]
    return take_positions(x, last_positions(padding_mask))[:, 0]


def last_positions(padding_mask: keras.KerasTensor) -> keras.KerasTensor:
    """Return the positions of the last real tokens, wherever the padding is.

    Args:
        padding_mask: (B, L), true or 1 at real tokens.

    Returns:
        (B, 1) int32.

    Example:
        >>> import numpy as np
        >>> last_positions(np.array([[1, 1, 0], [0, 1, 1]])).numpy().ravel().tolist()
        [1, 2]
    """
    real = ops.cast(padding_mask, "int32")
    numbers = ops.arange(ops.shape(real)[1], dtype="int32") * real
    return ops.max(numbers, axis=1, keepdims=True)


def first_of_texts(
    x: keras.KerasTensor, text_starts: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Return for each position the vector of its text's first token.

    Args:
        x: (B, L, D).
        text_starts: (B, K) int, see `text_indices`; None: every example is one text.

    Returns:
        (B, L, D), or (B, 1, D) where every example is one text.

    Example:
        >>> import numpy as np
        >>> x = np.arange(3.0).reshape(1, 3, 1)
        >>> np.array(first_of_texts(x, np.array([[0, 2]]))).ravel().tolist()
        [0.0, 0.0, 2.0]
    """
    if text_starts is None:
        return x[:, :1]
    return take_positions(x, _own_starts(text_starts, ops.shape(x)[1]))


def take_positions(x: keras.KerasTensor, positions: keras.KerasTensor) -> keras.KerasTensor:
    """Return the vectors at some positions of every example.

    Args:
        x: (B, L, D).
        positions: (B, M) int.

    Returns:
        (B, M, D).

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0).reshape(1, 3, 2)
        >>> np.array(take_positions(x, np.array([[2, 0]]))).tolist()
        [[[4.0, 5.0], [0.0, 1.0]]]
    """
    batch, length, hidden_dim = ops.shape(x)
    # One flat gather: (B * L, D) by (B, M).
    offsets = ops.arange(batch, dtype="int32")[:, None] * length
    return ops.take(
        ops.reshape(x, (-1, hidden_dim)), ops.cast(positions, "int32") + offsets, axis=0
    )


def mean_of_tokens(x: keras.KerasTensor, padding_mask: keras.KerasTensor) -> keras.KerasTensor:
    """Return the mean over the real tokens of every example.

    Args:
        x: (B, L, D).
        padding_mask: (B, L), true or 1 at real tokens.

    Returns:
        (B, D), 0 where there is no real token.

    Example:
        >>> import numpy as np
        >>> x = np.array([[[1.0], [2.0], [9.0]]])
        >>> np.array(mean_of_tokens(x, np.array([[1, 1, 0]]))).tolist()
        [[1.5]]
    """
    # In float32: thousands of tokens are too many for the sum in half precision.
    # LiteRT has `expand_dims`, but not the slice with a new axis at the end.
    real = ops.expand_dims(ops.cast(padding_mask, "float32"), -1)  # (B, L, 1)
    total = ops.sum(ops.cast(x, "float32") * real, axis=1)
    return ops.cast(total / ops.maximum(ops.sum(real, axis=1), 1.0), x.dtype)


def rotation(
    positions: keras.KerasTensor, base: float | keras.KerasTensor, head_dim: int
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Return cosines and sines of the angles by which a position rotates pairs of numbers.

    Args:
        positions: (1 or B, L) numbers.
        base: the angle of a position falls from 1 for the first pair to almost 1 / base; for
            texts with bases of their own (B, 1 or L, 1, 1).
        head_dim: numbers of a head, twice as many as pairs.

    Returns:
        Two (1 or B, L, 1, head_dim / 2) float32.

    Source: Su et al. 2021, RoFormer, section 3.2.2.

    Example:
        >>> import numpy as np
        >>> cosines, sines = rotation(np.array([[0, 1]]), 10_000.0, 4)
        >>> np.array(sines)[0, :, 0].round(2).tolist()
        [[0.0, 0.0], [0.8399999737739563, 0.009999999776482582]]
    """
    speeds = base ** (-ops.arange(0, head_dim, 2, dtype="float32") / head_dim)
    angles = ops.cast(positions, "float32")[:, :, None, None] * speeds
    return ops.cos(angles), ops.sin(angles)


def rotate(x: keras.KerasTensor, rotation: tuple) -> keras.KerasTensor:
    """Rotate pairs of numbers: each of a head's first half with its counterpart in the second.

    Args:
        x: (B, L, H, D/H).
        rotation: see `rotation`.

    Source: Su et al. 2021, RoFormer, equation 34; pairs as in GPT-NeoX.

    Example:
        >>> import numpy as np
        >>> x = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
        >>> turned = rotate(x, rotation(np.array([[1]]), 10_000.0, 2))
        >>> np.array(turned).ravel().round(2).tolist()
        [0.54, 0.84]
    """
    cosines, sines = (ops.cast(part, "float32") for part in rotation)
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    return ops.cast(ops.concatenate(turned, axis=-1), x.dtype)


def log_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """Return the bucket of every distance from 0: one for each at first, then ever wider ones.

    Args:
        buckets: S, number of buckets on either side.
        max_distance: from about here on all distances are in the last one.

    Returns:
        (N,) int32, up to the first distance in a bucket behind the last one.

    Raises:
        ValueError: If half of `buckets` is less than 2, or not less than `max_distance - 1`.

    Source: He et al. 2021, DeBERTa, released code of version 2.

    Example:
        >>> log_buckets(8, 16).tolist()
        [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 8]
    """
    middle = buckets // 2
    if not 2 <= middle < max_distance - 1:
        raise invalid(
            "position_buckets",
            buckets,
            f"4 or more, with a half less than max_relative_positions - 1 = {max_distance - 1}",
        )
    # In float32, as it was in training: which side of a border a distance falls on.
    base = np.log(np.float32((max_distance - 1) / middle))
    last = math.ceil(middle * ((max_distance - 1) / middle) ** (middle / (middle - 1))) + 1
    distances = np.arange(last + 1)
    scaled = np.log(np.maximum(distances, middle).astype("float32") / np.float32(middle))
    far = np.ceil(scaled / base * np.float32(middle - 1)) + middle
    found = np.where(distances <= middle, distances, far).astype("int32")
    return found[: int(np.argmax(found >= buckets)) + 1]


def buckets_of_distances(length: int, magnitudes: np.ndarray) -> keras.KerasTensor:
    """Return the buckets of all distances in a text.

    Args:
        length: L.
        magnitudes: see `log_buckets`.

    Returns:
        (2, 2 L) int32: for the distances from L - 1 down to -L, and for their opposites. A
        distance is the position of the query minus that of the key.

    Example:
        >>> buckets_of_distances(2, log_buckets(4, 16)).numpy().tolist()
        [[5, 4, 3, 2], [3, 4, 5, 6]]
    """
    span = int(magnitudes[-1])
    down = length - 1 - ops.arange(2 * length, dtype="int32")
    distances = ops.stack([down, -down])
    found = ops.take(magnitudes, ops.minimum(ops.abs(distances), len(magnitudes) - 1))
    return ops.clip(ops.sign(distances) * found + span, 0, 2 * span - 1)


def by_distance(scores: keras.KerasTensor) -> keras.KerasTensor:
    """Return scores of tokens with tokens, of scores of tokens with distances.

    Args:
        scores: (B, H, L, 2 L), of token i with distance L - 1 - j at index j; a distance is i
            minus the position of the other token.

    Returns:
        (B, H, L, L): row i is the part of that row which begins at index L - 1 - i.

    Source: Dai et al. 2019, Transformer-XL, appendix B.

    Example:
        >>> import numpy as np
        >>> by_distance(np.arange(8).reshape(1, 1, 2, 4)).numpy().tolist()
        [[[[1, 2], [4, 5]]]]
    """
    batch, heads, length = ops.shape(scores)[:3]
    # Rows that are shorter by one shift each row by one against the row before it.
    flat = ops.reshape(scores, (batch, heads, 2 * length * length))
    flat = flat[:, :, length - 1 : length - 1 + length * (2 * length - 1)]
    return ops.reshape(flat, (batch, heads, length, 2 * length - 1))[..., :length]
