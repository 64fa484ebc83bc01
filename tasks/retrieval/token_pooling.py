"""Fewer vectors for a document: tokens with like meanings become one.

Comment letters: T tokens, D width.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.tasks.retrieval.similarity import grouped_means

hierarchy = LazyModule(
    "scipy.cluster.hierarchy",
    "pool_factor needs the package scipy: `pip install scipy`, or leave it out.",
)


def pooled(tokens: np.ndarray, factor: int) -> np.ndarray:
    """Return about one vector for each `factor` tokens of a document.

    The tokens are put into groups by hierarchical clustering, which joins those whose sum of
    squared distances to their mean grows least (Ward's method); a group becomes a vector in the
    direction of its mean, as long as its tokens on average.

    Args:
        tokens: (T, D) float32.
        factor: 1 leaves them as they are.

    Returns:
        At most `ceil(T / factor)` vectors, in the order of the groups' first tokens.

    Raises:
        ImportError: "pool_factor needs the package scipy: ..."

    Source: Clavié et al. 2024, Reducing the Footprint of Multi-Vector Retrieval with Minimal
    Performance Impact via Token Pooling, section 2.

    Example:
        >>> tokens = np.array([[1, 0], [0, 1], [0.96, 0.28], [0, 1]], "float32")
        >>> pooled(tokens, 2).round(2).tolist()
        [[0.9900000095367432, 0.14000000059604645], [0.0, 1.0]]
    """
    groups = -(-len(tokens) // factor)
    if groups == len(tokens):
        return tokens
    labels = hierarchy.fcluster(hierarchy.linkage(tokens, "ward"), groups, "maxclust")
    _, firsts = np.unique(labels, return_index=True)
    _, means = grouped_means(tokens, labels)
    return means[np.argsort(firsts)]
