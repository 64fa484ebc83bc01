"""MaxSim of vectors in memory, in NumPy.

Comment letters: Q queries, N documents, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCK = 2**20  # products in memory at a time: 4 MB


def max_sim(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    """Return the score of each query with each document.

    It is the sum over the query's tokens of the largest product with a token of the document.

    Args:
        queries: Q arrays (tokens, D).
        documents: N arrays (tokens, D), of one token or more.

    Returns:
        (Q, N) float32.

    Source: Khattab and Zaharia 2020, ColBERT, equation 3.

    Example:
        >>> queries = [np.array([[1.0, 0.0], [0.0, 2.0]])]
        >>> documents = [np.array([[3.0, -1.0]]), np.array([[4.0, 5.0], [9.0, 0.0]])]
        >>> max_sim(queries, documents).tolist()
        [[1.0, 19.0]]
    """
    scores = np.zeros((len(queries), len(documents)), "float32")
    if not len(documents):
        return scores
    longest = max((len(query) for query in queries), default=0)
    ends = np.cumsum([len(document) for document in documents])
    first = 0
    while first < len(documents):
        begin = ends[first] - len(documents[first])
        last = int(np.searchsorted(ends, begin + BLOCK // max(longest, 1), "right"))
        last = max(last, first + 1)
        part = np.concatenate(documents[first:last])
        starts = ends[first:last] - [len(document) for document in documents[first:last]] - begin
        for i, query in enumerate(queries):
            scores[i, first:last] = np.maximum.reduceat(query @ part.T, starts, axis=1).sum(axis=0)
        first = last
    return scores
