"""Texts in the order of how well they match a query.

Comment letters: N texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.common.wording import with_type
from encoder_zoo.tasks.preprocessing.columns import plain, single_column
from encoder_zoo.tasks.preprocessing.preprocessor import as_column


class Hit(TypedDict):
    """A document of an index: its number, its score, and its text if the index holds texts."""

    index: int
    score: float
    text: str | None


class RankedText(TypedDict):
    """One of the texts that a reranker was given: its number among them, its score, itself."""

    index: int
    score: float
    text: str


class RanksTexts:
    """Mixin of tasks that rank texts."""

    def _scores_of_texts(self, query: str, texts: list[str], batch_size: int | None) -> np.ndarray:
        """Return the scores (N,) of texts for a query, by which they are ordered."""
        raise NotImplementedError

    def _shown(self, scores: np.ndarray) -> np.ndarray:
        """Return scores as `rank` returns them."""
        return scores

    @validate_arguments
    @reads_weights
    def rank(
        self,
        query: str,
        texts: object,
        top_k: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
    ) -> list[RankedText]:
        """Return the texts in the order of how well they match a query, the best first.

        Args:
            query: a text.
            texts: one or more texts.
            top_k: return so many; None is all.
            batch_size: default 32.

        Returns:
            For each text `{"index", "score", "text"}`: its number among the texts given, and its
            score. Texts of equal scores stay in their order.

        Raises:
            ValueError: "rank takes one query, a text. ...", "texts is empty. ...", "texts[3] is
                empty. ..."

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> [best] = reranker.rank("Who sings?", ["She sings.", "Here."], top_k=1)
            >>> sorted(best)
            ['index', 'score', 'text']
        """
        if not isinstance(query, str | bytes):
            raise ValueError(
                f"rank takes one query, a text. Received: {with_type(query):.80}. Call it for each."
            )
        texts = checked_texts(texts, "texts")
        scores = self._scores_of_texts(query, texts, batch_size)
        order = np.argsort(-scores, kind="stable")[:top_k].tolist()
        shown = self._shown(scores).tolist()
        return [{"index": i, "score": shown[i], "text": texts[i]} for i in order]


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
    if isinstance(reranker, RanksTexts):
        scores = reranker._scores_of_texts(query, texts, None)
        order = np.argsort(-scores, kind="stable")
        return order, scores[order]
    ranked = reranker.rank(query, texts, top_k=len(texts))
    return [one["index"] for one in ranked], range(0, -len(ranked), -1)


def reranked(reranker: Any, query: str, hits: Sequence[Hit], top_k: int) -> list[Hit]:
    """Return the best of some hits in the reranker's order, with its scores."""
    ranked = reranker.rank(query, [hit["text"] for hit in hits], top_k=top_k)
    return [{**hits[one["index"]], "score": one["score"]} for one in ranked]


def checked_texts(values, name: str, least: int = 1) -> list[str]:
    """Return a column of texts as a list.

    Raises:
        ValueError: "documents is empty. Expected one or more texts.", "documents[3] is empty. ...",
            "documents[3] has the lone surrogate '\\ud800', ..."
    """
    values = plain(values)
    texts = [text.decode("utf-8", "replace") for text in as_column(values, name).numpy().tolist()]
    if len(texts) < least:
        raise ValueError(f"{name} is empty. Expected one or more texts.")
    for i, text in enumerate(texts):
        if not text.strip():
            raise ValueError(
                f"{name}[{i}] is empty. Expected some text: leave it out, or put a placeholder "
                "there."
            )
        if "\ufffd" in text and not tf.is_tensor(values):
            check_writable(list(single_column(values))[i], f"{name}[{i}]")
    return texts
