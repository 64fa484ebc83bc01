"""Rank texts by their relevance to a query.

Comments use these letters for shapes: N texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NotRequired, TypedDict

import numpy as np

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.lazy import use_numpy, xp
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain, flatten_column
from encoder_zoo.tasks.preprocessing.inputs import convert_column

INDEX_AND_SCORE = ("index", "score")


class Hit(TypedDict):
    """Search result: the index, score and text of a document, and optionally its id and fields."""

    index: int
    score: float
    text: str | None
    id: NotRequired[str | int]
    metadata: NotRequired[dict[str, Any]]


class RankedText(TypedDict):
    """Ranking result: the index, score and text of an input text."""

    index: int
    score: float
    text: str


def rank_texts(
    task: Any,
    query: str,
    texts: object,
    top_k: int | None,
    batch_size: int | None,
    shown: Callable[[np.ndarray], np.ndarray] | None = None,
) -> list[RankedText]:
    """Rank texts by their relevance to a query.

    Args:
        task: Object with a method `_score_texts(query, texts, batch_size)`, which computes
            logits or scores (N,). Texts are sorted by these values.
        query, texts, top_k, batch_size: See `Reranker.rank` for details.
        shown: Optional function that is applied to the sorted scores before they are returned, such
            as a sigmoid.

    Raises:
        ValueError: If `query` is not a single text, or if `texts` is empty or contains an empty
            text.
    """
    if not isinstance(query, str | bytes):
        raise invalid("query", query, "a single string. Call `rank` separately for each query")
    texts = check_texts(texts, "texts")
    scores = task._score_texts(query, texts, batch_size)
    order = np.argsort(-scores, kind="stable")[:top_k].tolist()
    shown_scores = (scores if shown is None else shown(scores)).tolist()
    return [{"index": i, "score": shown_scores[i], "text": texts[i]} for i in order]


def rerank_texts(
    reranker: Any, query: str, texts: list[str]
) -> tuple[Sequence[int], Sequence[float]]:
    """Return the order of the texts from a reranker, and their scores in descending order.

    Args:
        reranker: A task from this package, or any other object with `rank`. Tasks are sorted by
            logits, because different logits can have the same score after the sigmoid. For other
            objects, only the order is used, because scores may be rounded.
        query: String. The query.
        texts: List of N strings. Texts to rank.
    """
    if not texts:
        return [], []
    if hasattr(reranker, "_score_texts"):
        scores = reranker._score_texts(query, texts, None)
        order = np.argsort(-scores, kind="stable")
        return order, scores[order]
    ranked = check_ranking(reranker.rank(query, texts, top_k=len(texts)), len(texts))
    return [index for index, _ in ranked], range(0, -len(ranked), -1)


def rerank(reranker: Any, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
    """Sort hits with a reranker, and return the best hits with the scores of the reranker."""
    ranked = reranker.rank(query, [hit["text"] for hit in hits], top_k=top_k)
    best = check_ranking(ranked, len(hits))[:top_k]
    return [{**hits[index], "score": score} for index, score in best]


def check_ranking(ranked: Any, count: int) -> list[tuple[int, float]]:
    """Check the result of a reranker, and return the indices and scores in it.

    Args:
        ranked: The result of the reranker.
        count: Integer. Number of texts that were passed to the reranker.

    Raises:
        ValueError: If a "score" is missing or not finite, or if an "index" is invalid or not
            unique.

    Example:
        >>> check_ranking([{"index": 1, "score": 0.5}], 2)
        [(1, 0.5)]
    """
    found: dict[int, float] = {}
    for one in ranked if isinstance(ranked, Iterable) else [ranked]:
        index, score = (one.get(n) if isinstance(one, Mapping) else None for n in INDEX_AND_SCORE)
        real = isinstance(score, Real) and not isinstance(score, bool) and math.isfinite(score)
        known = isinstance(index, Integral) and not isinstance(index, bool) and 0 <= index < count
        if not real or not known or index in found:
            raise invalid(
                "The result of `reranker`",
                one,
                f"a unique 'index' from 0 to {count - 1}, and a finite 'score'",
            )
        found[int(index)] = float(score)
    return list(found.items())


def check_texts(values, name: str, least: int = 1) -> list[str]:
    """Convert a column of texts to a list of strings, and check the texts.

    Raises:
        ValueError: If `values` contains fewer than `least` texts, or if a text is empty or not
            valid Unicode.
    """
    with use_numpy():
        values = convert_to_plain(values)
        found = convert_column(values, name).numpy().tolist()
    texts = [text.decode("utf-8", "replace") for text in found]
    if len(texts) < least:
        raise ValueError(f"`{name}` is empty. Expected one or more texts.")
    for i, text in enumerate(texts):
        if not text.strip():
            raise ValueError(f"{name}[{i}] is empty. Remove it, or replace it by a placeholder.")
        if "\ufffd" in text and not xp.is_tensor(values):
            check_encodable(list(flatten_column(values))[i], f"{name}[{i}]")
    return texts
