"""Scores of distances as scores of pairs, without a gather.

Comment letters: B batch, L sequence, H heads.
"""

import keras
from keras import ops


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
