"""Ranking of texts by their relevance to a query.

Comment letters: N texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NotRequired, TypedDict

import numpy as np

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.lazy import array_ops, in_numpy
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.preprocessing.columns import plain, single_column
from encoder_zoo.tasks.preprocessing.inputs import as_column

INDEX_AND_SCORE = ("index", "score")


class Hit(TypedDict):
    """A document of an index: its index, its score, and its text, id and fields."""

    index: int
    score: float
    text: str | None
    id: NotRequired[str | int]
    metadata: NotRequired[dict[str, Any]]


class RankedText(TypedDict):
    """A text that was ranked: its index in the given texts, its score, and the text."""

    index: int
    score: float
    text: str


def ranked_texts(
    task: Any,
    query: str,
    texts: object,
    top_k: int | None,
    batch_size: int | None,
    shown: Callable[[np.ndarray], np.ndarray] | None = None,
) -> list[RankedText]:
    """Rank texts by their relevance to a query, from the highest score to the lowest.

    Args:
        task: Object with a method `_scores_of_texts(query, texts, batch_size)`. It returns the
            scores (N,) that determine the order.
        query, texts, top_k, batch_size: See `Reranker.rank`.
        shown: Function that converts these scores to the scores in the result. Defaults to None,
            which returns them unchanged.

    Raises:
        ValueError: If `query` is not a single text, or if `texts` is empty or contains an empty
            text.
    """
    if not isinstance(query, str | bytes):
        raise invalid("query", query, "one text: call rank for each query")
    texts = checked_texts(texts, "texts")
    scores = task._scores_of_texts(query, texts, batch_size)
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    shown_scores = (scores if shown is None else shown(scores)).tolist()
    return [{"index": i, "score": shown_scores[i], "text": texts[i]} for i in order]


def order_and_scores(
    reranker: Any, query: str, texts: list[str]
) -> tuple[Sequence[int], Sequence[float]]:
    """Return the order of texts by a reranker, and their scores in descending order.

    Args:
        reranker: A task of this package, whose logits differ even if the probabilities are 1, or
            another object with `rank`. For other objects, only the order is used, because the
            scores may have been rounded.
        query: String.
        texts: List of N texts.
    """
    if not texts:
        return [], []
    if hasattr(reranker, "_scores_of_texts"):
        scores = reranker._scores_of_texts(query, texts, None)
        order = np.argsort(-scores, kind="stable")
        return order, scores[order]
    ranked = checked_ranking(reranker.rank(query, texts, top_k=len(texts)), len(texts))
    return [index for index, _ in ranked], range(0, -len(ranked), -1)


def reranked(reranker: Any, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
    """Return the best hits in the order of a reranker, with its scores."""
    ranked = reranker.rank(query, [hit["text"] for hit in hits], top_k=top_k)
    best = checked_ranking(ranked, len(hits))[:top_k]
    return [{**hits[index], "score": score} for index, score in best]


def checked_ranking(ranked: Any, count: int) -> list[tuple[int, float]]:
    """Check the result of a reranker and return its indices and scores.

    Args:
        ranked: The result of the reranker.
        count: Integer. Number of texts that the reranker received.

    Raises:
        ValueError: If an entry has no finite "score", if its "index" is invalid, or if an index
            occurs twice.

    Example:
        >>> checked_ranking([{"index": 1, "score": 0.5}], 2)
        [(1, 0.5)]
    """
    found: dict[int, float] = {}
    for one in ranked if isinstance(ranked, Iterable) else [ranked]:
        index, score = (one.get(n) if isinstance(one, Mapping) else None for n in INDEX_AND_SCORE)
        real = isinstance(score, Real) and not isinstance(score, bool) and math.isfinite(score)
        known = isinstance(index, Integral) and not isinstance(index, bool) and 0 <= index < count
        if not real or not known or index in found:
            raise invalid(
                "The answer of the reranker",
                one,
                f"'index', from 0 to {count - 1} and each once, and 'score', finite",
            )
        found[int(index)] = float(score)
    return list(found.items())


def checked_texts(values, name: str, least: int = 1) -> list[str]:
    """Check a column of texts and convert it to a list.

    Raises:
        ValueError: If there are fewer than `least` texts, or if one is empty or not valid Unicode.
    """
    with in_numpy():
        values = plain(values)
        found = as_column(values, name).numpy().tolist()
    texts = [text.decode("utf-8", "replace") for text in found]
    if len(texts) < least:
        raise ValueError(f"{name} is empty. Expected one or more texts.")
    for i, text in enumerate(texts):
        if not text.strip():
            raise ValueError(f"{name}[{i}] is empty. Leave it out, or put a placeholder there.")
        if "\ufffd" in text and not array_ops.is_tensor(values):
            check_writable(list(single_column(values))[i], f"{name}[{i}]")
    return texts
