"""Evaluate search with ranking metrics, and similarity with correlations.

Comments use these letters for shapes: Q queries, N documents or pairs, R ranks.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np

from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.tasks.preprocessing.given_labels import check_not_missing
from encoder_zoo.tasks.retrieval.documents import join_title_and_text
from encoder_zoo.tasks.retrieval.ranking import check_texts

MAP_CUTOFF = 100
RANK_WIDTH = 5  # number of statistics per rank, see `_compute_ranks`
MAX_RESULTS_PER_STEP = 2**20  # number of documents that are found for a group of queries at a time


class JudgedQueries(NamedTuple):
    """Queries with relevance judgements on unique documents.

    Attributes:
        queries: List of Q query texts.
        documents: List of N unique document texts.
        relevant: List of Q dicts mapping document indices to grades. At least one grade per query
            is positive.
    """

    queries: list[str]
    documents: list[str]
    relevant: list[dict[int, float]]


def convert_to_columns(
    queries: object, relevant: object, documents: object = None
) -> tuple[object, object, object]:
    """Convert dicts in the BEIR format to columns. Other arguments are returned unchanged.

    Args:
        queries: Dict {id: text}. Queries without judgements are dropped.
        relevant: Dict {query id: {document id: grade}} or {query id: list of document ids}.
        documents: Dict {id: text} or {id: {"title", "text"}}. Titles are prepended to the texts. If
            None, `relevant` keeps its document ids, for documents of an index.

    Raises:
        ValueError: If only `queries` is a dict, or if an id in `relevant` is unknown.

    Example:
        >>> corpus = {"d1": {"title": "Cats", "text": "They sleep."}, "d2": {"text": "Tax."}}
        >>> convert_to_columns({"q1": "tax", "q2": "pet"}, {"q1": {"d2": 1}}, corpus)
        (['tax'], [{1: 1}], ['Cats They sleep.', 'Tax.'])
    """
    if not isinstance(queries, Mapping):
        return queries, relevant, documents
    if not isinstance(relevant, Mapping) or not isinstance(documents, Mapping | None):
        raise ValueError(
            "`queries` is a dict, so `documents` and `relevant` must be dicts, too. Expected "
            "{query: text}, {document: text} and {query: {document: grade}}."
        )
    grades = {query: _map_grades(entry) for query, entry in relevant.items()}
    _check_known(grades, queries, "query")
    if documents is not None:
        number_of = {document: number for number, document in enumerate(documents)}
        _check_known(itertools.chain.from_iterable(grades.values()), number_of, "document")
        for query, entry in grades.items():
            grades[query] = {number_of[document]: grade for document, grade in entry.items()}
        documents = [join_title_and_text(document) for document in documents.values()]
    return [queries[query] for query in grades], list(grades.values()), documents


def _map_grades(entry: object) -> dict:
    if isinstance(entry, Mapping):
        return dict(entry)
    single = isinstance(entry, str) or not isinstance(entry, Iterable)
    return dict.fromkeys([entry] if single else entry, 1)


def _check_known(ids: Iterable, known: Mapping, name: str) -> None:
    for one in ids:
        if one not in known:
            raise ValueError(
                f"`relevant` contains the unknown {name} {quote(one)}. Remove the entry, or add "
                f"the {name}."
            )


def merge_judgements(queries, documents, relevant: Sequence | None) -> JudgedQueries:
    """Check queries, documents and judgements, and merge duplicate documents.

    Args:
        queries: List, array or column of Q texts, or a dict as in `convert_to_columns`.
        documents: List, array or column of texts, or a dict.
        relevant: For each query, the index of the relevant document, a list of indices, or a dict
            {index: grade}. If None, document `i` is relevant for query `i`.

    Raises:
        ValueError: If a query in `queries` has no relevant document.

    Example:
        >>> merge_judgements(["q", "r"], ["a", "b", "a"], [2, [0, 1]]).relevant
        [{0: 1.0}, {0: 1.0, 1: 1.0}]
    """
    queries, relevant, documents = convert_to_columns(queries, relevant, documents)
    queries = check_texts(queries, "queries")
    texts = check_texts(documents, "documents")
    if relevant is None:
        if len(texts) != len(queries):
            raise ValueError(
                f"Received {len(queries)} queries and {len(texts)} documents. Expected one "
                "document per query, or the argument `relevant`."
            )
        relevant = range(len(queries))
    check_by_query(relevant)
    if len(relevant) != len(queries):
        raise ValueError(
            f"`relevant` has {len(relevant)} entries for {len(queries)} queries. Expected one "
            f"entry per query: the index of a document, a list of indices, or {{index: grade}}."
        )
    unique = list(dict.fromkeys(texts))
    number_of = {text: number for number, text in enumerate(unique)}
    merged = []
    for i, entry in enumerate(relevant):
        grades: dict[int, float] = {}
        for document, grade in _check_grades(entry, i, len(texts)).items():
            number = number_of[texts[document]]
            grades[number] = max(grade, grades.get(number, 0.0))
        merged.append(grades)
    return JudgedQueries(queries, unique, merged)


def check_by_query(relevant: object) -> None:
    """Check that the judgements are a sequence of entries, and not a dict or a string.

    Raises:
        ValueError: If `relevant` is a dict or a string, or is not iterable.
    """
    if isinstance(relevant, Mapping | str) or not isinstance(relevant, Iterable):
        raise invalid(
            "relevant",
            relevant,
            "one entry per query: the index of a document, a list of indices, or {index: grade}",
        )


def _check_grades(entry, i: int, count: int) -> dict[int, float]:
    """Convert an entry of `relevant` to a dict {index: grade}, and check it."""
    if isinstance(entry, Mapping):
        pairs = list(entry.items())
    else:
        several = isinstance(entry, set | frozenset) or np.ndim(entry)
        indices = entry if several else [entry]
        pairs = [(index, 1.0) for index in indices]
    grades = {}
    for index, grade in pairs:
        if isinstance(index, str | bytes | bool | float) or not hasattr(index, "__index__"):
            raise invalid(f"An index in relevant[{i}]", index, "an integer")
        if not 0 <= operator.index(index) < count:
            wrong = operator.index(index)
            raise invalid(f"An index in relevant[{i}]", wrong, f"an integer from 0 to {count - 1}")
        if not isinstance(grade, Real) or not math.isfinite(grade) or grade < 0:
            raise invalid(
                f"relevant[{i}]: the grade of document {index}",
                grade,
                "a finite, non-negative number",
            )
        grades[operator.index(index)] = float(grade)
    if not any(grades.values()):
        raise ValueError(
            f"relevant[{i}] is {quote(entry)}, which contains no relevant document. Remove queries "
            "without relevant documents."
        )
    return grades


def check_cutoffs(cutoffs) -> list[int]:
    """Convert the cutoffs to a list of integers, and check that all are positive."""
    found = list(cutoffs) if isinstance(cutoffs, Iterable) else []
    known = (isinstance(k, Integral) and not isinstance(k, bool) and k > 0 for k in found)
    if not found or not all(known):
        raise invalid("cutoffs", cutoffs, "one or more positive integers")
    return [int(k) for k in found]


def check_scores(scores, first: int, second: int) -> np.ndarray:
    """Check the scores of pairs, and convert them to float64 of shape (N,).

    Args:
        scores: Sequence of floats. Scores of the pairs.
        first, second: Integers. Number of first texts and number of second texts.

    Raises:
        ValueError: If `scores` does not contain one finite score per pair, or if all scores are
            equal.
    """
    scores = np.asarray(check_not_missing(scores))
    if scores.dtype.kind not in "fiub" or scores.shape != (first,) or first != second:
        raise ValueError(
            f"Received {first} first texts, {second} second texts, and {scores.dtype} scores with "
            f"shape {scores.shape}. Expected one score per pair."
        )
    scores = scores.astype("float64")
    if not np.isfinite(scores).all():
        i = int(np.isfinite(scores).argmin())
        raise invalid(f"scores[{i}]", scores[i], "a finite number")
    if np.ptp(scores) == 0:
        raise ValueError(f"All scores are {scores[0]}. A correlation requires different scores.")
    return scores


def compute_ranking_metrics(
    rankings: Iterable[Sequence[int]],
    relevant: Sequence[Mapping[int, float]],
    cutoffs: Sequence[int],
    scores: Iterable[Sequence[float]] | None = None,
) -> dict[str, float]:
    """Compute ranking metrics, averaged over the queries.

    For ties, each metric is averaged over all possible orders, so the result does not depend on the
    order of tied documents.

    Args:
        rankings: List of Q sequences of document indices, from nearest to farthest. If an index
            occurs twice, only its first position is used.
        relevant: List of Q dicts mapping document indices to grades. Documents with a positive
            grade are relevant. Each query must have a relevant document.
        cutoffs: Sequence of integers. Values of k, the number of top documents that count.
        scores: Optional list of Q sequences of scores, in descending order. If None, there are no
            ties.

    Returns:
        Dict with the following metrics for each cutoff k. "ndcg@k" is the normalized discounted
        cumulative gain, based on grades as gains. "mrr@k" is the reciprocal rank for the first
        relevant document, or 0 if no relevant document is found. "recall@k" is the fraction of
        relevant documents in the top k. "accuracy@k" is 1 if at least one relevant document is in
        the top k. In addition, "map@100" is the mean precision at the ranks of all relevant
        documents.

    Source: Järvelin and Kekäläinen 2002, Cumulated Gain-based Evaluation of IR Techniques, as in
    trec_eval. McSherry and Najork 2008, Computing Information Retrieval Performance Measures
    Efficiently in the Presence of Tied Scores. nDCG as in `ndcg_score` of scikit-learn.

    Example:
        >>> found = compute_ranking_metrics([[4, 1, 0]], [{1: 1.0, 7: 1.0}], cutoffs=[3])
        >>> {name: round(value, 3) for name, value in found.items()}
        {'ndcg@3': 0.387, 'mrr@3': 0.5, 'recall@3': 0.5, 'accuracy@3': 1.0, 'map@100': 0.25}
        >>> found = compute_ranking_metrics([[4, 1, 0]], [{1: 1.0}], [1], scores=[[0.5, 0.5, 0.5]])
        >>> round(found["mrr@1"], 3)
        0.333
    """
    rankings = list(rankings)
    if scores is None:
        scores = [range(0, -len(ranking), -1) for ranking in rankings]
    depth = max(*cutoffs, MAP_CUTOFF)
    rows = zip(rankings, scores, relevant, strict=True)
    return _compute_metrics(
        np.stack([_compute_ranks(*row, depth) for row in rows]), relevant, cutoffs
    )


def compute_search_metrics(
    search: Callable[[list[int], int], Iterable[tuple[Sequence[int], Sequence[float]]]],
    relevant: Sequence[Mapping[int, float]],
    cutoffs: Sequence[int],
    documents: int,
    deepest: int | None = None,
) -> dict[str, float]:
    """Compute the metrics of `compute_ranking_metrics` for a search function.

    Args:
        search: Function that finds the k nearest documents. It is called with query indices and k,
            and returns document indices and scores for each query. It can return fewer documents.
            For ties at the last cutoff, it is called again with a larger k.
        relevant, cutoffs: See `compute_ranking_metrics`.
        documents: Integer. Number of unique documents.
        deepest: Optional integer. Number of documents, including duplicates. If None, there are no
            duplicates.

    Example:
        >>> def search(queries, k):
        ...     return [([0, 1, 2][:k], [1.0, 1.0, 0.5][:k]) for _ in queries]
        >>> compute_search_metrics(search, [{1: 1.0}], cutoffs=[1], documents=3)["accuracy@1"]
        0.5
    """
    wanted = max(*cutoffs, MAP_CUTOFF)
    deepest = documents if deepest is None else deepest
    depth, left = min(wanted + 1, documents), list(range(len(relevant)))
    ranks = np.zeros((len(relevant), RANK_WIDTH, wanted))
    while left:
        deeper, step = [], max(1, MAX_RESULTS_PER_STEP // depth)
        for start in range(0, len(left), step):
            part = left[start : start + step]
            for i, (found, scores) in zip(part, search(part, depth), strict=True):
                ranks[i] = _compute_ranks(found, scores, relevant[i], wanted)
                if depth < deepest and len(found) >= depth:
                    different = dict(zip(reversed(found), reversed(scores), strict=True))
                    best = sorted(different.values(), reverse=True)[:wanted]
                    cut = len(best) == wanted and best[-1] > scores[-1]
                    if not cut and len(different) < documents:
                        deeper.append(i)
        left, depth = deeper, min(4 * depth, deepest)
    return _compute_metrics(ranks, relevant, cutoffs)


def _compute_ranks(
    ranking: Sequence[int], scores: Sequence[float], grades: Mapping[int, float], depth: int
) -> np.ndarray:
    """Compute statistics of the documents at each rank, shape (RANK_WIDTH, depth).

    Returns:
        Five values per rank. Four values describe the documents with the same score as the document
        at this rank: their mean gain, their number, the number of relevant documents among them,
        and the number of tied documents before this rank. The last value is the number of relevant
        documents with a higher score. A rank without a document counts as not relevant.
    """
    places = {}
    for place, document in enumerate(np.asarray(ranking).tolist()):
        places.setdefault(document, place)
    ranks = np.zeros((RANK_WIDTH, depth))
    ranks[1] = 1
    if not places:
        return ranks
    gains = np.array([grades.get(document, 0.0) for document in places])
    scores = np.asarray(scores)[[*places.values()]]
    # (R,) ranks with equal scores.
    group = np.concatenate([[0], np.cumsum(scores[1:] != scores[:-1])])
    count, hits = np.bincount(group), np.bincount(group, gains > 0)
    gain = np.bincount(group, gains) / count
    inside = np.arange(len(group)) - (count.cumsum() - count)[group]
    before = hits.cumsum() - hits
    known = np.stack([gain[group], count[group], hits[group], inside, before[group]])
    ranks[:, : len(group)] = known[:, :depth]
    return ranks


def _compute_metrics(
    ranks: np.ndarray, relevant: Sequence[Mapping[int, float]], cutoffs: Sequence[int]
) -> dict[str, float]:
    """Compute the mean metrics of queries from the statistics of ranks, (Q, RANK_WIDTH, R)."""
    gain, count, hits, inside, before = ranks.swapaxes(0, 1)  # each of shape (Q, R)
    grades = [np.sort([grade for grade in row.values() if grade > 0])[::-1] for row in relevant]
    totals = np.array([len(row) for row in grades])
    place = np.arange(1, ranks.shape[-1] + 1)
    hit = hits / count  # probability that the document at the rank is relevant
    # `next_hit` is the same probability, if all documents before the rank are irrelevant. `none` is
    # the probability that all documents up to the rank are irrelevant.
    next_hit = np.minimum(hits / (count - inside), 1)
    none = np.cumprod(1 - next_hit, axis=1)
    first = np.concatenate([np.ones((len(none), 1)), none[:, :-1]], axis=1) * next_hit
    # Expected number of relevant documents up to the rank, if the document at the rank is relevant.
    up_to = before + 1 + inside * (hits - 1) / np.maximum(count - 1, 1)
    found = {}
    for k in cutoffs:
        ideal = [_discount_gains(row[:k]) for row in grades]
        found[f"ndcg@{k}"] = _discount_gains(gain[:, :k]) / ideal
        found[f"mrr@{k}"] = (first / place)[:, :k].sum(axis=1)
        found[f"recall@{k}"] = hit[:, :k].sum(axis=1) / totals
        found[f"accuracy@{k}"] = 1 - none[:, k - 1]
    found[f"map@{MAP_CUTOFF}"] = (hit * up_to / place)[:, :MAP_CUTOFF].sum(axis=1) / totals
    return {name: float(np.mean(values)) for name, values in found.items()}


def _discount_gains(gains: np.ndarray) -> np.ndarray:
    """Compute the discounted cumulative gain from gains (..., R), sorted by rank."""
    return (gains / np.log2(np.arange(2, gains.shape[-1] + 2))).sum(axis=-1)


def compute_pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Compute the Pearson correlation of two columns (N,). No column may be constant.

    Example:
        >>> round(compute_pearson(np.array([1, 2, 3]), np.array([2, 4, 9])), 3)
        0.971
    """
    a, b = (x - np.mean(x, dtype="float64") for x in (a, b))
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))


def compute_spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Compute the Spearman rank correlation of two columns (N,).

    Example:
        >>> compute_spearman(np.array([1, 2, 3]), np.array([2, 4, 90]))
        1.0
    """
    return compute_pearson(compute_average_ranks(a), compute_average_ranks(b))


def compute_average_ranks(values: np.ndarray) -> np.ndarray:
    """Compute the ranks of values (N,), starting at 1. Equal values get their mean rank.

    Example:
        >>> compute_average_ranks(np.array([7.0, 3.0, 7.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[index]
