"""Convert logits of text pairs to relevance scores and rankings.

Comments use these letters for shapes: N pairs, M texts of a query.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np

from encoder_zoo.common.lazy import use_numpy, xp
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.base.answers import Answers, prepares_in_numpy
from encoder_zoo.tasks.base.classes import compute_sigmoid
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.preprocessing.inputs import convert_column
from encoder_zoo.tasks.ranking.reranker_preprocessor import RerankerPreprocessor
from encoder_zoo.tasks.retrieval.ranking import RankedText, rank_texts
from encoder_zoo.tasks.serving.opened_export import OpenedExport

RankActivation = Literal["sigmoid", "linear"]


class OpenedReranker(OpenedExport):
    """Opened export of a reranker, which can be passed to `search`."""

    def _score_texts(self, query: str, texts: list[str], batch_size: int | None) -> np.ndarray:
        with use_numpy():
            return self._answers.compute_logits(query, texts, batch_size)


@dataclasses.dataclass(frozen=True)
class RankAnswers(Answers):
    """The `Answers` of `Reranker`.

    Attributes:
        activation: String, "sigmoid" or "linear". Activation that converts logits to scores.
    """

    preprocessor_class = RerankerPreprocessor
    opened_class = OpenedReranker
    methods = ("score", "rank")
    activation: RankActivation = "sigmoid"

    @overload
    def score(self: Any, queries: str, texts: str, batch_size: int | None = None) -> float: ...
    @overload
    def score(
        self: Any, queries: tuple[str, str], texts: None = None, batch_size: int | None = None
    ) -> float: ...
    @overload
    def score(
        self: Any, queries: object, texts: object = None, batch_size: int | None = None
    ) -> np.ndarray: ...
    @overload
    def score(
        self: Any,
        queries: object,
        texts: object = None,
        *,
        missing: Literal["none"],
        **options: Any,
    ) -> np.ndarray: ...
    @validate_arguments
    @skips_missing("queries", "texts", one_for_all=True)
    def score(
        self,
        queries: object,
        texts: object = None,
        batch_size: PositiveInt | None = None,
        missing: Missing = "error",
    ) -> np.ndarray | float:
        """Score the relevance of texts to queries. More relevant texts have higher scores.

        Args:
            queries: List, array, tensor or column of N queries, or a single query for all texts. If
                `texts` is None, pass the pairs here: a list of pairs, `(queries, texts)`, or a
                table with two columns.
            texts: Optional list, array, tensor or column of N texts.
            batch_size: Optional positive integer. Batch size, in pairs. If None, 32 is used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return NaN for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            Float32 array of shape (N,). Scores after the activation. For a single pair, a float is
            returned.

        Raises:
            ValueError: If a text is empty, or if `queries` and `texts` differ in length.

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> reranker.score(["Who sings?", "Where?"], ["She sings.", "Here."]).shape
            (2,)
        """
        given = queries if texts is None else (queries, texts)
        queries, texts = self.preprocessor.inputs.get_columns(given)
        if isinstance(texts, str | bytes):
            return self.score([queries], [texts], batch_size)[0]
        return self._activate(self.compute_logits(queries, texts, batch_size))

    @validate_arguments
    def rank(
        self: Any,
        query: str,
        texts: object,
        top_k: PositiveInt | None = None,
        batch_size: PositiveInt | None = None,
    ) -> list[RankedText]:
        """Rank texts by their relevance to a query.

        Args:
            query: String. The query.
            texts: List, array or column of texts to rank.
            top_k: Optional positive integer. Number of texts to return. If None, all texts are
                returned.
            batch_size: Optional positive integer. Batch size, in pairs. If None, 32 is used.

        Returns:
            List of dicts `{"index", "score", "text"}`, sorted by score in descending order. "index"
            is the index in `texts`. Texts with equal scores keep their order.

        Raises:
            ValueError: If `query` is not a single text, or if `texts` is empty or contains an empty
                text.

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> [best] = reranker.rank("Who sings?", ["She sings.", "Here."], top_k=1)
            >>> sorted(best)
            ['index', 'score', 'text']
        """
        return rank_texts(self, query, texts, top_k, batch_size, self._activate)

    def make_score_functions(self, run: Callable) -> dict[str, Callable]:
        """Create the functions to export. See `Reranker.signatures`.

        Args:
            run: Function that computes the logits (N,) from queries (N,) and texts (N,).
        """

        def activate(logits):
            return xp.sigmoid(logits) if self.activation == "sigmoid" else logits

        def score(query, text):
            return {"score": activate(run(query, text))}

        def rank(query, text):
            # Sort by logits, because different logits can have the same score after the sigmoid.
            logits = run(xp.broadcast_to(query, xp.shape(text)), text)
            order = xp.argsort(logits, direction="DESCENDING", stable=True)
            return {"order": order, "score": activate(xp.gather(logits, order))}

        rank.takes_other_shapes = True
        return {"serving_default": score, "rank": rank}

    @prepares_in_numpy
    def compute_logits(self, queries, texts, batch_size: int | None) -> np.ndarray:
        """Compute the logits (N,) of pairs. Different logits can have the same score."""
        if isinstance(queries, str | bytes):
            queries = [queries] * convert_column(texts).shape[0]
        columns = self.preprocessor.read_texts((queries, texts))
        if not columns[0].shape[0]:
            return np.zeros(0, "float32")
        return self.runner.predict(columns, batch_size)[:, 0]

    _score_texts = compute_logits

    def _activate(self, logits: np.ndarray) -> np.ndarray:
        return compute_sigmoid(logits) if self.activation == "sigmoid" else logits
