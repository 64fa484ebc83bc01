"""The base of all indexes: from queries to hits, in the order of a reranker if there is one."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

import numpy as np

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.retrieval.evaluation import checked_cutoffs
from encoder_zoo.tasks.retrieval.index_checks import checked_texts
from encoder_zoo.tasks.retrieval.judgments import judged
from encoder_zoo.tasks.retrieval.metrics import ranking_metrics, search_metrics
from encoder_zoo.tasks.retrieval.options import Hit, RerankOptions
from encoder_zoo.tasks.retrieval.ranking import order_and_scores
from encoder_zoo.tasks.retrieval.top_k import reranked

RERANKED = 50  # documents that a reranker scores


class Index(ABC):
    """Base of the indexes. A subclass finds documents; this class makes hits of them.

    Attributes:
        texts: N of them, or None.

    Example:
        >>> class Longest(PlainIndex):
        ...     def __init__(self, texts):
        ...         self.texts = texts
        ...     def __len__(self):
        ...         return len(self.texts)
        ...     def _find(self, queries, top_k):
        ...         best = sorted(range(len(self)), key=lambda i: -len(self.texts[i]))[:top_k]
        ...         return [(best, [float(len(self.texts[i])) for i in best]) for _ in queries]
        >>> Longest(["a", "abc"]).search("any", top_k=1)
        [{'index': 1, 'score': 3.0, 'text': 'abc'}]
    """

    texts: list[str] | None

    @abstractmethod
    def __len__(self) -> int:
        """Return N."""

    @abstractmethod
    def search(self, *args: Any, **kwargs: Any) -> Any:
        """Return the hits of a query, or of each of several; see `VectorIndex.search`."""

    @abstractmethod
    def _find(
        self, queries: list[str], top_k: int, **options
    ) -> Iterable[tuple[Sequence[int], Sequence[float]]]:
        """Return for each query the indices of its documents, the nearest first, and their scores.

        Args:
            queries: one or more texts.
            top_k: how many documents, at most N.
            **options: of the index's `search`.
        """

    @validate_arguments
    def evaluate(
        self,
        queries: object,
        relevant: Sequence,
        cutoffs: Sequence[int] = (1, 5, 10),
        **options: Unpack[RerankOptions],
    ) -> dict[str, float]:
        """Return how near the top a search has each query's relevant documents.

        Documents with the same text count as one. Those of equal scores have no order: a metric is
        its mean over all orders of them.

        Args:
            queries: texts.
            relevant: for each query the index of its document, or a list of indices, or {index:
                grade}.
            cutoffs: how many of the first documents are looked at.
            **options: of its `search`, such as `reranker`. Documents that a reranker does not read
                are not found.

        Returns:
            For each cutoff k "ndcg@k", "mrr@k", "recall@k" and "accuracy@k", and "map@100".

        Raises:
            ValueError: as `TextEmbedder.evaluate_retrieval`.

        Example:
            >>> from encoder_zoo import TextEmbedder
            >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
            >>> index = embedder.index(["A cat.", "Tax law.", "A dog."])
            >>> index.evaluate(["Tax law.", "A cat."], [1, 2], cutoffs=[1, 2])["recall@1"]
            0.5
        """
        return self._evaluate(queries, relevant, cutoffs, options)

    def _evaluate(
        self, queries: object, relevant: Sequence, cutoffs: Sequence[int], options: Mapping
    ) -> dict[str, float]:
        """Return the metrics of `evaluate`.

        A subclass whose `search` has further options has an `evaluate` that names them.
        """
        cutoffs = checked_cutoffs(cutoffs)
        names = [str(i) for i in range(len(self))] if self.texts is None else self.texts
        texts = judged(queries, names, relevant)
        number_of = {name: number for number, name in enumerate(texts.documents)}
        reranker, candidates = options.get("reranker"), options.get("candidates")

        def search(some: list[int], k: int, **options):
            for hits in self.search([texts.queries[i] for i in some], k, **options):
                numbers = [number_of[names[hit["index"]]] for hit in hits]
                yield numbers, [hit["score"] for hit in hits]

        if reranker is None:
            plain = functools.partial(search, **options)
            return search_metrics(plain, texts.relevant, cutoffs, len(number_of), len(names))
        self._check_reranker(reranker, candidates)
        others = {name: options[name] for name in options.keys() - {"reranker", "candidates"}}
        read = search(range(len(texts.queries)), candidates or RERANKED, **others)
        rankings, scores = [], []
        for query, (numbers, _) in zip(texts.queries, read, strict=True):
            documents = [texts.documents[number] for number in numbers]
            order, ordering = order_and_scores(reranker, query, documents)
            rankings.append([numbers[i] for i in order])
            scores.append(ordering)
        return ranking_metrics(rankings, texts.relevant, cutoffs, scores)

    def _check_reranker(self, reranker: object, candidates: int | None) -> None:
        if candidates is not None and reranker is None:
            raise ValueError(f"candidates={candidates} is for a reranker. Pass reranker=..., too.")
        if reranker is not None and self.texts is None:
            raise ValueError("A reranker reads texts, and this index holds vectors alone.")

    def _search(
        self,
        queries: object,
        top_k: int,
        reranker: object,
        candidates: int | None,
        **options: object,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the hits, for `search`."""
        if isinstance(queries, str | bytes):
            return self._search([queries], top_k, reranker, candidates, **options)[0]
        self._check_reranker(reranker, candidates)
        texts = checked_texts(queries, "queries", least=0)
        if not texts:
            return []
        wanted = top_k if reranker is None else max(top_k, candidates or RERANKED)
        found = self._find(texts, min(wanted, len(self)), **options)
        hits = [self._hits(*one) for one in found]
        if reranker is None:
            return hits
        return [
            reranked(reranker, *one, top_k) if one[1] else []
            for one in zip(texts, hits, strict=True)
        ]

    def _hits(self, indices: Sequence[int], scores: Sequence[float]) -> list[Hit]:
        return [
            {"index": i, "score": score, "text": None if self.texts is None else self.texts[i]}
            for i, score in zip(
                np.asarray(indices).tolist(), np.asarray(scores).tolist(), strict=True
            )
        ]


class PlainIndex(Index):
    """Base of the indexes that embed no queries."""

    @overload
    def search(
        self, queries: str, top_k: int = 10, **options: Unpack[RerankOptions]
    ) -> list[Hit]: ...
    @overload
    def search(
        self, queries: object, top_k: int = 10, **options: Unpack[RerankOptions]
    ) -> list[list[Hit]]: ...
    @validate_arguments
    def search(
        self,
        queries: object,
        top_k: PositiveInt = 10,
        reranker: object = None,
        candidates: PositiveInt | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the documents with the highest scores, the highest first.

        Args:
            queries: a text, or a list, array or column of texts.
            top_k, reranker, candidates: see `VectorIndex.search`.

        Returns:
            Of a single query a list of `{"index", "score", "text"}`, otherwise a list of these for
            each query.

        Raises:
            ValueError: "queries[1] is empty. ...", "A reranker reads texts, and ..."
        """
        return self._search(queries, top_k, reranker, candidates)
