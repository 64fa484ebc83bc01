"""Metrics of rankings, and of similarities beside scores.

Comment letters: Q queries, R ranks, N pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

MAP_CUTOFF = 100


def ranking_metrics(
    rankings: np.ndarray, relevant: Sequence[Mapping[int, float]], cutoffs: Sequence[int]
) -> dict[str, float]:
    """Return how well rankings have the relevant documents at their top, means over the queries.

    Args:
        rankings: (Q, R) indices of documents, the nearest first, without repeats.
        relevant: for each query {index of a document: its grade}; above 0 is relevant, and each
            query has such a document.
        cutoffs: numbers k of ranks that are looked at.

    Returns:
        For each cutoff k "ndcg@k", normalized discounted cumulative gain, with the grade as gain;
        "mrr@k", the reciprocal of the first relevant rank, 0 if there is none; "recall@k", the
        share of the relevant documents that are found; "accuracy@k", 1 if one is found; and
        "map@100", the mean, over all relevant documents, of the precision at their ranks.

    Source: Järvelin and Kekäläinen 2002, Cumulated Gain-based Evaluation of IR Techniques; as in
    trec_eval.

    Example:
        >>> found = ranking_metrics(np.array([[4, 1, 0]]), [{1: 1.0, 7: 1.0}], cutoffs=[3])
        >>> {name: round(value, 3) for name, value in found.items()}
        {'ndcg@3': 0.387, 'mrr@3': 0.5, 'recall@3': 0.5, 'accuracy@3': 1.0, 'map@100': 0.25}
    """
    rankings = rankings[:, : max(*cutoffs, MAP_CUTOFF)]
    rows = zip(rankings.tolist(), relevant, strict=True)
    gains = np.array([[grades.get(document, 0.0) for document in row] for row, grades in rows])
    grades = [np.sort([grade for grade in row.values() if grade > 0])[::-1] for row in relevant]
    totals = np.array([len(row) for row in grades])
    found = {}
    for k in cutoffs:
        hits = gains[:, :k] > 0
        ideal = [_discounted(row[:k]) for row in grades]
        ranks = np.arange(1, hits.shape[1] + 1)
        found[f"ndcg@{k}"] = _discounted(gains[:, :k]) / ideal
        found[f"mrr@{k}"] = (hits / ranks).max(axis=1)
        found[f"recall@{k}"] = hits.sum(axis=1) / totals
        found[f"accuracy@{k}"] = hits.any(axis=1)
    found[f"map@{MAP_CUTOFF}"] = _average_precision(gains[:, :MAP_CUTOFF] > 0, totals)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _discounted(gains: np.ndarray) -> np.ndarray:
    """Return the discounted cumulative gain of gains (..., R) in the order of the ranks."""
    return (gains / np.log2(np.arange(2, gains.shape[-1] + 2))).sum(axis=-1)


def _average_precision(hits: np.ndarray, totals: np.ndarray) -> np.ndarray:
    precisions = hits.cumsum(axis=1) / np.arange(1, hits.shape[1] + 1)
    return (precisions * hits).sum(axis=1) / totals


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of two columns of numbers (N,), neither of which is constant.

    Example:
        >>> round(pearson(np.array([1, 2, 3]), np.array([2, 4, 9])), 3)
        0.971
    """
    a, b = (x - np.mean(x, dtype="float64") for x in (a, b))
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of the ranks of two columns of numbers (N,).

    Example:
        >>> spearman(np.array([1, 2, 3]), np.array([2, 4, 90]))
        1.0
    """
    return pearson(average_ranks(a), average_ranks(b))


def average_ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each of some numbers (N,), from 1; equal ones share the mean of theirs.

    Example:
        >>> average_ranks(np.array([7.0, 3.0, 7.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[index]
