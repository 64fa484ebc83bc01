"""Answers of a reranker: scores, rankings, and how good these are.

Comment letters: N pairs or queries, K texts of a query.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.base.class_names import sigmoid
from encoder_zoo.tasks.preprocessing.checks import check_each
from encoder_zoo.tasks.preprocessing.preprocessor import as_column
from encoder_zoo.tasks.reranking.columns import list_scores, queries_and_texts, two_columns
from encoder_zoo.tasks.retrieval.evaluation import ranking_metrics
from encoder_zoo.tasks.retrieval.ranking import RanksTexts
from encoder_zoo.tasks.training.sources import check_preprocessor

MEASURES = ("ndcg@10", "mrr@10", "map@100")


class Ranking(RanksTexts):
    """Mixin of `Reranker`."""

    @overload
    def score(self, queries: str, texts: str, batch_size: int | None = None) -> float: ...
    @overload
    def score(
        self, queries: tuple[str, str], texts: None = None, batch_size: int | None = None
    ) -> float: ...
    @overload
    def score(
        self, queries: object, texts: object = None, batch_size: int | None = None
    ) -> np.ndarray: ...
    @validate_arguments
    def score(
        self, queries: object, texts: object = None, batch_size: PositiveInt | None = None
    ) -> np.ndarray | float:
        """Return how well each text answers its query; more is better.

        Args:
            queries: (N,); or one query, for all the texts; or, without `texts`, pairs: a list of
                them, `(queries, texts)`, or a table of two columns.
            texts: (N,).
            batch_size: default 32.

        Returns:
            (N,) float32, in the order of the texts, after the model's activation; of a single pair
            a number.

        Raises:
            ValueError: "Row 3 of texts is empty. ...", "The texts of a pair must be equally many.
                Received: 2 queries, 3 texts."

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> reranker.score(["Who sings?", "Where?"], ["She sings.", "Here."]).shape
            (2,)
        """
        queries, texts = two_columns(queries if texts is None else (queries, texts))
        if isinstance(texts, str | bytes):
            return self.score([queries], [texts], batch_size)[0]
        return self._shown(self._logits(queries, texts, batch_size))

    def _logits(self, queries, texts, batch_size: int | None) -> np.ndarray:
        """Return the logits of pairs (N,), which also differ where their probabilities are 1."""
        if isinstance(queries, str | bytes):
            queries = [queries] * as_column(texts).shape[0]
        check_preprocessor(self, queries)
        columns = queries_and_texts((queries, texts))
        if not columns[0].shape[0]:
            return np.zeros(0, "float32")
        return self.predict(columns, batch_size, verbose=0)[:, 0]

    def _scores_of_texts(self, query, texts, batch_size):
        return self._logits(query, texts, batch_size)

    def _shown(self, scores):
        return sigmoid(scores) if self.activation == "sigmoid" else scores

    @validate_arguments
    def evaluate_ranking(
        self,
        queries: object,
        texts: object,
        relevance: object,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Return how well the model ranks the texts of each query.

        Args:
            queries: (N,).
            texts: a list of texts for each query.
            relevance: a list of numbers for each query: of each text 0 if it does not answer the
                query, else more.
            batch_size: default 32.

        Returns:
            "ndcg@10", "mrr@10" and "map@100", means over the queries that have a relevant text.
            Texts are ordered by logits; those of equal ones have no order, and a metric is its mean
            over all orders of them.

        Raises:
            ValueError: "Row 1 has 2 scores for 3 texts. ...", "Row 0 has the relevance -1.0. ...",
                "No query has a relevant text. ..."

        Example:
            >>> from encoder_zoo import Reranker
            >>> reranker = Reranker.from_preset("bert_nano_en_uncased")
            >>> reranker.evaluate_ranking(["Who?"], [["Yes.", "She."]], [[1, 1]])["mrr@10"]
            1.0
        """
        queries, texts = queries_and_texts((queries, texts))
        if not isinstance(texts, tf.RaggedTensor):
            raise ValueError("evaluate_ranking takes a list of texts for each query.")
        relevance = list_scores(relevance, texts.row_lengths())
        row, expected = texts.value_rowids(), ". Expected 0 or more."
        values = relevance.values
        check_each(values, values >= 0, " has the relevance ", values, expected, index=row)
        useful = tf.reduce_any(relevance > 0, axis=1).numpy()
        if not useful.any():
            raise ValueError("No query has a relevant text. Expected numbers above 0 for some.")
        logits = self._logits(tf.gather(queries, row), texts.values, batch_size)
        rows = np.split(logits, texts.row_splits[1:-1].numpy())
        rows = [scores for scores, counts in zip(rows, useful, strict=True) if counts]
        orders = [np.argsort(-scores, kind="stable") for scores in rows]
        scores = [scores[order] for scores, order in zip(rows, orders, strict=True)]
        grades = [dict(enumerate(gains)) for gains in relevance.to_list()]
        grades = [grade for grade, counts in zip(grades, useful, strict=True) if counts]
        found = ranking_metrics(orders, grades, cutoffs=[10], scores=scores)
        return {name: found[name] for name in MEASURES}
