"""Texts in the order of how well they match a query.

Comment letters: N texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NotRequired, TypedDict

import numpy as np

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.preprocessing.columns import plain, single_column
from encoder_zoo.tasks.preprocessing.inputs import as_column

INDEX_AND_SCORE = ("index", "score")


class Hit(TypedDict):
    """A document of an index: its number, its score, and what the index holds of it."""

    index: int
    score: float
    text: str | None
    id: NotRequired[str | int]
    metadata: NotRequired[dict[str, Any]]


class RankedText(TypedDict):
    """One of the texts that a reranker was given: its number among them, its score, itself."""

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
    """Return the texts in the order of how well they match a query, the best first.

    Args:
        task: with `_scores_of_texts(query, texts, batch_size)`, which returns the scores (N,) by
            which the texts are ordered.
        query, texts, top_k, batch_size: as for `Reranker.rank`.
        shown: makes the scores in the answers of those; None: they are these.

    Raises:
        ValueError: If `query` is not one text, or if `texts` or one of them is empty.
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
    """Return the order in which a reranker has texts, and the falling scores that order them.

    Args:
        reranker: one of our tasks, whose logits differ also where probabilities are 1; or an object
            with its `rank`, whose order counts and not its scores, which may have been rounded.
        query: a text.
        texts: N of them.
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
    """Return the best of some hits in the reranker's order, with its scores."""
    ranked = reranker.rank(query, [hit["text"] for hit in hits], top_k=top_k)
    best = checked_ranking(ranked, len(hits))[:top_k]
    return [{**hits[index], "score": score} for index, score in best]


def checked_ranking(ranked: Any, count: int) -> list[tuple[int, float]]:
    """Return the indices and scores of a reranker's answer, checked.

    Args:
        ranked: its answer.
        count: of the texts that it was given.

    Raises:
        ValueError: If an entry has no finite "score", or no "index" of a text that no other entry
            has.

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
    """Return a column of texts as a list.

    Raises:
        ValueError: If there are fewer than `least` texts, or if one is empty or not valid Unicode.
    """
    values = plain(values)
    texts = [text.decode("utf-8", "replace") for text in as_column(values, name).numpy().tolist()]
    if len(texts) < least:
        raise ValueError(f"{name} is empty. Expected one or more texts.")
    for i, text in enumerate(texts):
        if not text.strip():
            raise ValueError(f"{name}[{i}] is empty. Leave it out, or put a placeholder there.")
        if "\ufffd" in text and not array_ops.is_tensor(values):
            check_writable(list(single_column(values))[i], f"{name}[{i}]")
    return texts
