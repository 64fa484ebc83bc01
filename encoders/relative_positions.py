"""Relative positions: distances between tokens, their scores, and buckets of them.

Comment letters: B batch, L sequence, H heads, S buckets on either side.
"""

import math

import keras
import numpy as np
from keras import ops


def log_buckets(buckets: int, max_distance: int) -> np.ndarray:
    """Return the bucket of every distance from 0: one for each at first, then ever wider ones.

    Args:
        buckets: S, number of buckets on either side.
        max_distance: from about here on all distances are in the last one.

    Returns:
        (N,) int32, up to the first distance in a bucket behind the last one.

    Raises:
        ValueError: "Half of the 4 position_buckets must be 2 or more, and less than ..."

    Source: He et al. 2021, DeBERTa, released code of version 2.

    Example:
        >>> log_buckets(8, 16).tolist()
        [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7, 8]
    """
    middle = buckets // 2
    if not 2 <= middle < max_distance - 1:
        raise ValueError(
            f"Half of the {buckets} position_buckets must be 2 or more, and less than "
            f"max_relative_positions - 1. Received: max_relative_positions={max_distance}."
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
