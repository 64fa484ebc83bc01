"""Token positions, in examples with one or several texts, and rotary positions.

Comments use these letters for shapes: B batch, L sequence, D hidden, K texts per example,
M chosen positions.
"""

from __future__ import annotations

import math

import numpy as np

from encoder_zoo.common.lazy import keras, ops
from encoder_zoo.common.wording import invalid


def compute_text_indices(text_starts: keras.KerasTensor, length: int) -> keras.KerasTensor:
    """Compute a text index for each position in packed examples.

    Args:
        text_starts: Integer tensor of shape (B, K). The start position for each text, beginning
            with 0. If an example has fewer than K texts, unused entries must be `length` or larger.
        length: Integer. The sequence length L.

    Returns:
        Integer tensor of shape (B, L). Indices start at 0. Padding is assigned to the last text.

    Example:
        >>> import numpy as np
        >>> np.array(compute_text_indices(np.array([[0, 3, 9]]), 5)).tolist()
        [[0, 0, 0, 1, 1]]
    """
    batch = ops.shape(text_starts)[0]
    offsets = ops.arange(batch, dtype="int32")[:, None] * (length + 1)
    starts = offsets + ops.minimum(ops.cast(text_starts, "int32"), length)  # in the whole batch
    begun = ops.segment_sum(
        ops.ones_like(ops.reshape(starts, (-1,))),
        ops.reshape(starts, (-1,)),
        num_segments=batch * (length + 1),
    )
    begun = ops.reshape(begun, (batch, length + 1))[:, :length]  # (B, L)
    return ops.cumsum(begun, axis=1) - 1


def compute_text_positions(text_starts: keras.KerasTensor | None, length: int) -> keras.KerasTensor:
    """Compute token positions within each text.

    Args:
        text_starts: Integer tensor of shape (B, K). See `compute_text_indices`. None can be used
            if each example is a single text.
        length: Integer. The sequence length L.

    Returns:
        Integer tensor of shape (B, L), or (1, L) if each example is a single text.

    Example:
        >>> import numpy as np
        >>> np.array(compute_text_positions(np.array([[0, 3, 9]]), 5)).tolist()
        [[0, 1, 2, 0, 1]]
    """
    positions = ops.arange(length, dtype="int32")[None, :]
    return positions if text_starts is None else positions - _find_starts(text_starts, length)


def _find_starts(text_starts, length):
    """Compute the start position of the text for each token in a packed example, (B, L) int32."""
    starts = ops.take_along_axis(text_starts, compute_text_indices(text_starts, length), axis=1)
    return ops.cast(starts, "int32")


def compute_text_lengths(
    padding_mask: keras.KerasTensor, text_starts: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Compute the length of the text for each token.

    Args:
        padding_mask: Tensor of shape (B, L). 1 or True for tokens, and 0 or False for padding.
        text_starts: Integer tensor of shape (B, K). See `compute_text_indices`. None can be used
            if each example is a single text.

    Returns:
        Integer tensor of shape (B, L), or (B, 1) if each example is a single text.

    Example:
        >>> import numpy as np
        >>> real = np.array([[1, 1, 1, 1, 0]])
        >>> np.array(compute_text_lengths(real, np.array([[0, 3]]))).tolist()
        [[3, 3, 3, 1, 1]]
        >>> np.array(compute_text_lengths(real)).tolist()
        [[4]]
    """
    real = ops.cast(padding_mask, "int32")
    if text_starts is None:
        return ops.sum(real, axis=1, keepdims=True)
    batch, length = ops.shape(real)
    offsets = ops.arange(batch, dtype="int32")[:, None] * length
    # In the whole batch.
    texts = ops.reshape(compute_text_indices(text_starts, length) + offsets, (-1,))
    counts = ops.segment_sum(ops.reshape(real, (-1,)), texts, num_segments=batch * length)
    return ops.reshape(ops.take(counts, texts), (batch, length))


def take_first_tokens(
    x: keras.KerasTensor, text_starts: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Select the vector of the first token in each text.

    Args:
        x: Tensor of shape (B, L, D).
        text_starts: Integer tensor of shape (B, K). See `compute_text_indices`. None can be used
            if each example is a single text.

    Returns:
        Tensor of shape (B, D), or (B, K, D) for packed examples.

    Example:
        >>> import numpy as np
        >>> x = np.arange(3.0).reshape(1, 3, 1)
        >>> np.array(take_first_tokens(x, np.array([[0, 2]]))).tolist()
        [[[0.0], [2.0]]]
    """
    first = x[:, 0]
    if text_starts is None:
        return first
    return take_positions(x, ops.minimum(text_starts, ops.shape(x)[1] - 1))


def take_last_tokens(
    x: keras.KerasTensor, padding_mask: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Select the vector of the last token, ignoring padding on both sides.

    Args:
        x: Tensor of shape (B, L, D).
        padding_mask: Tensor of shape (B, L). 1 or True for tokens, and 0 or False for padding. None
            can be used for examples without padding.

    Returns:
        Tensor of shape (B, D).

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0).reshape(2, 3, 1)
        >>> take_last_tokens(x, np.array([[1, 1, 0], [0, 1, 1]])).numpy().ravel().tolist()
        [1.0, 5.0]
    """
    if padding_mask is None:
        return x[:, -1]
    return take_positions(x, find_last_positions(padding_mask))[:, 0]


def find_last_positions(padding_mask: keras.KerasTensor) -> keras.KerasTensor:
    """Compute the position of the last token, ignoring padding on both sides.

    Args:
        padding_mask: Tensor of shape (B, L). 1 or True for tokens, and 0 or False for padding.

    Returns:
        Int32 tensor of shape (B, 1).

    Example:
        >>> import numpy as np
        >>> find_last_positions(np.array([[1, 1, 0], [0, 1, 1]])).numpy().ravel().tolist()
        [1, 2]
    """
    real = ops.cast(padding_mask, "int32")
    numbers = ops.arange(ops.shape(real)[1], dtype="int32") * real
    return ops.max(numbers, axis=1, keepdims=True)


def select_first_tokens(
    x: keras.KerasTensor, text_starts: keras.KerasTensor | None = None
) -> keras.KerasTensor:
    """Return, for each token, the vector of the first token in the same text.

    Args:
        x: Tensor of shape (B, L, D).
        text_starts: Integer tensor of shape (B, K). See `compute_text_indices`. None can be used
            if each example is a single text.

    Returns:
        Tensor of shape (B, L, D), or (B, 1, D) if each example is a single text.

    Example:
        >>> import numpy as np
        >>> x = np.arange(3.0).reshape(1, 3, 1)
        >>> np.array(select_first_tokens(x, np.array([[0, 2]]))).ravel().tolist()
        [0.0, 0.0, 2.0]
    """
    if text_starts is None:
        return x[:, :1]
    return take_positions(x, _find_starts(text_starts, ops.shape(x)[1]))


def take_positions(x: keras.KerasTensor, positions: keras.KerasTensor) -> keras.KerasTensor:
    """Gather vectors at given positions.

    Args:
        x: Tensor of shape (B, L, ...).
        positions: Integer tensor of shape (B, M).

    Returns:
        Tensor of shape (B, M, ...).

    Example:
        >>> import numpy as np
        >>> x = np.arange(6.0).reshape(1, 3, 2)
        >>> np.array(take_positions(x, np.array([[2, 0]]))).tolist()
        [[[4.0, 5.0], [0.0, 1.0]]]
    """
    batch, length, *sizes = ops.shape(x)
    # A single gather operation on the flattened batch, (B * L, ...).
    offsets = ops.arange(batch, dtype="int32")[:, None] * length
    return ops.take(ops.reshape(x, (-1, *sizes)), ops.cast(positions, "int32") + offsets, axis=0)


def average_tokens(x: keras.KerasTensor, padding_mask: keras.KerasTensor) -> keras.KerasTensor:
    """Compute the mean over all tokens, ignoring padding.

    Args:
        x: Tensor of shape (B, L, D).
        padding_mask: Tensor of shape (B, L). 1 or True for tokens, and 0 or False for padding.

    Returns:
        Tensor of shape (B, D). The vector of an example without tokens is zero.

    Example:
        >>> import numpy as np
        >>> x = np.array([[[1.0], [2.0], [9.0]]])
        >>> np.array(average_tokens(x, np.array([[1, 1, 0]]))).tolist()
        [[1.5]]
    """
    # Use float32, because a sum over thousands of tokens is inaccurate in half precision. LiteRT
    # supports `expand_dims`, but not a slice that adds an axis at the end.
    real = ops.expand_dims(ops.cast(padding_mask, "float32"), -1)  # (B, L, 1)
    total = ops.sum(ops.cast(x, "float32") * real, axis=1)
    return ops.cast(total / ops.maximum(ops.sum(real, axis=1), 1.0), x.dtype)


def compute_rotation(
    positions: keras.KerasTensor, base: float | keras.KerasTensor, head_dim: int
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Compute the cosines and sines of rotary positions for `rotate`.

    Args:
        positions: Tensor of shape (1 or B, L).
        base: Float, or a tensor of shape (B, 1 or L, 1, 1) to use a different base for each text.
            The angle per position decreases from 1 for the first pair of dimensions to almost
            1 / base for the last pair.
        head_dim: Even integer. The head width. One angle is used per pair of dimensions.

    Returns:
        Two float32 tensors of shape (1 or B, L, 1, head_dim / 2).

    Source: Su et al. 2021, RoFormer, section 3.2.2.

    Example:
        >>> import numpy as np
        >>> cosines, sines = compute_rotation(np.array([[0, 1]]), 10_000.0, 4)
        >>> np.array(sines)[0, :, 0].round(2).tolist()
        [[0.0, 0.0], [0.8399999737739563, 0.009999999776482582]]
    """
    speeds = base ** (-ops.arange(0, head_dim, 2, dtype="float32") / head_dim)
    angles = ops.cast(positions, "float32")[:, :, None, None] * speeds
    return ops.cos(angles), ops.sin(angles)


def rotate(x: keras.KerasTensor, rotation: tuple) -> keras.KerasTensor:
    """Apply rotary positions to queries or keys.

    A dimension in the first half of each head is rotated together with the dimension at the same
    index in the second half.

    Args:
        x: Tensor of shape (B, L, H, D/H).
        rotation: Tuple of cosines and sines. See `compute_rotation`.

    Source: Su et al. 2021, RoFormer, equation 34, with the pairs of GPT-NeoX.

    Example:
        >>> import numpy as np
        >>> x = np.array([1.0, 0.0]).reshape(1, 1, 1, 2)
        >>> turned = rotate(x, compute_rotation(np.array([[1]]), 10_000.0, 2))
        >>> np.array(turned).ravel().round(2).tolist()
        [0.54, 0.84]
    """
    cosines, sines = (ops.cast(part, "float32") for part in rotation)
    first, second = ops.split(ops.cast(x, "float32"), 2, axis=-1)
    turned = [first * cosines - second * sines, second * cosines + first * sines]
    return ops.cast(ops.concatenate(turned, axis=-1), x.dtype)


def compute_log_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """Compute a bucket for each distance. Larger distances share a bucket (logarithmic scale).

    Args:
        buckets: Integer. The number of buckets S on each side.
        max_distance: Integer. Distances above approximately this value share the last bucket.

    Returns:
        Int32 array of shape (N,). The bucket of each distance from 0 to the first distance beyond
        the last bucket.

    Raises:
        ValueError: If half of `buckets` is less than 2, or not less than `max_distance - 1`.

    Source: He et al. 2021, DeBERTa, the released code of version 2.

    Example:
        >>> compute_log_buckets(8, 16).tolist()
        [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 8]
    """
    middle = buckets // 2
    if not 2 <= middle < max_distance - 1:
        raise invalid(
            "position_buckets",
            buckets,
            f"at least 4 and less than 2 * (max_relative_positions - 1) = {2 * (max_distance - 1)}",
        )
    # Use float32 as in training, because rounding affects the bucket for some distances.
    base = np.log(np.float32((max_distance - 1) / middle))
    last = math.ceil(middle * ((max_distance - 1) / middle) ** (middle / (middle - 1))) + 1
    distances = np.arange(last + 1)
    scaled = np.log(np.maximum(distances, middle).astype("float32") / np.float32(middle))
    far = np.ceil(scaled / base * np.float32(middle - 1)) + middle
    found = np.where(distances <= middle, distances, far).astype("int32")
    return found[: int(np.argmax(found >= buckets)) + 1]


def compute_buckets(length: int, magnitudes: np.ndarray) -> keras.KerasTensor:
    """Return the buckets for all distances between tokens in a text.

    Args:
        length: Integer. The sequence length L.
        magnitudes: Integer array. See `compute_log_buckets`.

    Returns:
        Int32 tensor of shape (2, 2 L). The first row contains buckets for distances from L - 1 down
        to -L, and the second row contains buckets for the negated distances. Distances are computed
        as the query position minus the key position.

    Example:
        >>> compute_buckets(2, compute_log_buckets(4, 16)).numpy().tolist()
        [[5, 4, 3, 2], [3, 4, 5, 6]]
    """
    span = int(magnitudes[-1])
    down = length - 1 - ops.arange(2 * length, dtype="int32")
    distances = ops.stack([down, -down])
    found = ops.take(magnitudes, ops.minimum(ops.abs(distances), len(magnitudes) - 1))
    return ops.clip(ops.sign(distances) * found + span, 0, 2 * span - 1)


def align_distance_scores(scores: keras.KerasTensor) -> keras.KerasTensor:
    """Convert scores for tokens and distances to scores for pairs of tokens.

    Args:
        scores: Tensor of shape (B, H, L, 2 L). In row i, index j contains the score between token i
            and the distance L - 1 - j. Distances are computed as position i minus the position of
            the other token.

    Returns:
        Tensor of shape (B, H, L, L). Row i of the result starts at index L - 1 - i in row i of
        `scores`.

    Source: Dai et al. 2019, Transformer-XL, appendix B.

    Example:
        >>> import numpy as np
        >>> align_distance_scores(np.arange(8).reshape(1, 1, 2, 4)).numpy().tolist()
        [[[[1, 2], [4, 5]]]]
    """
    batch, heads, length = ops.shape(scores)[:3]
    # Reshaping to shorter rows shifts each row by one, compared to the previous row.
    flat = ops.reshape(scores, (batch, heads, 2 * length * length))
    flat = flat[:, :, length - 1 : length - 1 + length * (2 * length - 1)]
    return ops.reshape(flat, (batch, heads, length, 2 * length - 1))[..., :length]
