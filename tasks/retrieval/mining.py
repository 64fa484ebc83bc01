"""Hard negative mining: find documents that are similar to a query but not relevant.

Comments use these letters for shapes: P pairs of a query and its document, K candidates of a pair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from encoder_zoo.tasks.retrieval.evaluation import JudgedQueries

logger = logging.getLogger("encoder_zoo")
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


def mine_hard_negatives(
    texts: JudgedQueries,
    search: Callable[[int], tuple[Sequence, Sequence]],
    score: Score,
    reranks: bool,
    num_negatives: int,
    skip_top: int,
    top_k: int,
    limits: tuple[float | None, float | None, float | None],
) -> tuple[list[str], list[str], list[list[str]]]:
    """Mine hard negatives for pairs of a query and a document. See `Embedder.mine_negatives`.

    Args:
        texts: `JudgedQueries`. Queries and documents with relevance judgements.
        search: Function that is called with k, and returns the indices and scores of the k nearest
            documents of each query.
        score: Function that is called with query indices and document indices, and returns the
            scores of the pairs.
        reranks: Boolean. Whether to also use `score` for the negatives.
        num_negatives, skip_top, top_k: See `Embedder.mine_negatives`.
        limits: Tuple of the maximum score, the absolute margin and the relative margin. Each value
            can be None.
    """
    asked, own = _list_pairs(texts)
    # Search for more documents, because relevant documents cannot be negatives.
    excluded = _find_excluded(texts)
    found, scores = search(top_k + max(map(len, excluded)))
    found, scores = ([part[i] for i in asked] for part in (found, scores))  # (K,) of each pair
    allowed = [
        _mark_candidates(row, excluded[i], top_k) for row, i in zip(found, asked, strict=True)
    ]
    if reranks:
        scores = _score_candidates(score, asked, found, allowed)
    largest = _compute_limits(score(asked, own), *limits)
    rows = zip(scores, allowed, largest, strict=True)
    chosen = [_choose_negatives(*row, skip_top, num_negatives) for row in rows]
    kept = [i for i, columns in enumerate(chosen) if len(columns) == num_negatives]
    _check_kept_pairs(len(kept), len(chosen), num_negatives)
    return (
        [texts.queries[asked[i]] for i in kept],
        [texts.documents[own[i]] for i in kept],
        [[texts.documents[n] for n in found[i][chosen[i]]] for i in kept],
    )


def _list_pairs(texts: JudgedQueries) -> tuple[np.ndarray, np.ndarray]:
    """Return the query indices (P,) and document indices (P,) of all relevant pairs."""
    rows = [(i, n) for i, grades in enumerate(texts.relevant) for n, g in grades.items() if g > 0]
    return tuple(np.array(rows).T)


def _find_excluded(texts: JudgedQueries) -> list[set[int]]:
    """For each query, return the documents that cannot be negatives."""
    number_of = {text: number for number, text in enumerate(texts.documents)}
    right: dict[str, set[int]] = {}
    for query, grades in zip(texts.queries, texts.relevant, strict=True):
        same = {number_of[query]} if query in number_of else set()
        right.setdefault(query, same).update(n for n, grade in grades.items() if grade > 0)
    return [right[query] for query in texts.queries]


def _mark_candidates(found: np.ndarray, excluded: set[int], top_k: int) -> np.ndarray:
    """Return a mask (K,) of the first `top_k` documents that can be negatives."""
    allowed = np.array([number not in excluded for number in found.tolist()], bool)
    return allowed & (allowed.cumsum() <= top_k)


def _score_candidates(
    score: Score, asked: np.ndarray, found: list[np.ndarray], allowed: list[np.ndarray]
) -> list[np.ndarray]:
    """Compute the scores (K,) of the documents found for each pair. Excluded documents get 0."""
    counts = [int(may.sum()) for may in allowed]
    documents = np.concatenate([row[may] for row, may in zip(found, allowed, strict=True)])
    given = np.split(score(np.repeat(asked, counts), documents), np.cumsum(counts)[:-1])
    scores = [np.zeros(len(row), "float32") for row in found]
    for row, may, values in zip(scores, allowed, given, strict=True):
        row[may] = values
    return scores


def _compute_limits(own: np.ndarray, max_score, absolute_margin, relative_margin) -> np.ndarray:
    """Compute the maximum score of the negatives (P,) from the scores of relevant documents."""
    limits = np.full(own.shape, np.inf if max_score is None else max_score)
    if absolute_margin is not None:
        limits = np.minimum(limits, own - absolute_margin)
    if relative_margin is not None:
        limits = np.minimum(limits, own - np.abs(own) * relative_margin)
    return limits


def _choose_negatives(
    scores: np.ndarray, allowed: np.ndarray, limit: float, skip_top: int, count: int
) -> np.ndarray:
    """Return the columns of up to `count` negatives, sorted by descending score."""
    columns = np.flatnonzero(allowed)
    columns = columns[np.argsort(-scores[columns], kind="stable")][skip_top:]
    return columns[scores[columns] <= limit][:count]


def _check_kept_pairs(kept: int, count: int, num_negatives: int) -> None:
    if not kept:
        raise ValueError(
            f"No query has {num_negatives} negatives. Pass more documents, a smaller "
            "`num_negatives`, `skip_top` or margin, or a larger `top_k` or `max_score`."
        )
    if kept < count:
        logger.warning(
            "%d of %d pairs have fewer than %d negatives and are dropped.",
            count - kept,
            count,
            num_negatives,
        )
