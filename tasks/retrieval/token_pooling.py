"""Fewer vectors for a document: tokens with like meanings become one.

Comment letters: T tokens, D width.
"""

from __future__ import annotations

import numpy as np

from encoder_zoo.tasks.retrieval.similarity import unit_rows


def pooled(tokens: np.ndarray, factor: int) -> np.ndarray:
    """Return about one vector for each `factor` tokens of a document.

    The tokens are put into groups by hierarchical clustering, which joins those whose sum of
    squared distances to their mean grows least (Ward's method); a group becomes the direction of
    its mean.

    Args:
        tokens: (T, D) float32, of unit length.
        factor: 1 leaves them as they are.

    Returns:
        At most `ceil(T / factor)` vectors of unit length, in the order of the groups' first tokens.

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
    hierarchy = import_hierarchy()
    labels = hierarchy.fcluster(hierarchy.linkage(tokens, "ward"), groups, "maxclust")
    _, firsts, members = np.unique(labels, return_index=True, return_inverse=True)
    sums = np.zeros((len(firsts), tokens.shape[1]), "float32")
    np.add.at(sums, members, tokens)
    return unit_rows(sums[np.argsort(firsts)])


def import_hierarchy():
    """Return the module scipy.cluster.hierarchy.

    Raises:
        ImportError: "pool_factor needs the package scipy: `pip install scipy`, ..."
    """
    try:
        from scipy.cluster import hierarchy
    except ImportError as error:
        raise ImportError(
            "pool_factor needs the package scipy: `pip install scipy`, or leave it out."
        ) from error
    return hierarchy
