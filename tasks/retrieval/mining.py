"""Hard negatives: documents near to a query that are not its own.

Comment letters: P pairs of a query and its document, K candidates of each.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.validation import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    validate_arguments,
)
from encoder_zoo.tasks.retrieval.judgments import Judged, embedded, judged, nearest_documents
from encoder_zoo.tasks.retrieval.top_k import pair_scores

logger = logging.getLogger("encoder_zoo")


@validate_arguments
def mine_negatives(
    embedder,
    queries,
    documents,
    relevant: Sequence | None = None,
    num_negatives: PositiveInt = 3,
    skip_top: NonNegativeInt = 0,
    top_k: PositiveInt = 100,
    max_score: float | None = None,
    absolute_margin: NonNegativeFloat | None = None,
    relative_margin: NonNegativeFloat | None = None,
    reranker=None,
    batch_size: PositiveInt | None = None,
    query_prompt: str | None = "query",
    document_prompt: str | None = "document",
) -> tuple[list[str], list[str], list[list[str]]]:
    """Return queries, their documents and negatives of each, for `fit`.

        embedder.fit(embedder.mine_negatives(queries, documents, relative_margin=0.05))

    The negatives are the documents most similar to the query. A document that is relevant to an
    equal query, or equal to a relevant one or to the query, is never one. Rows with too few
    negatives are left out, and their number is logged.

    Args:
        embedder: a `TextEmbedder`, or an object with its `embed` and `similarity_function`.
        queries: texts.
        documents: texts.
        relevant: for each query the index of its document, or a list of indices, one row for
            each; None: the document with the query's own index.
        num_negatives: of each row.
        skip_top: leave out so many of the most similar documents, which may be right too.
        top_k: how many of the most similar documents are looked at.
        max_score: negatives have at most this similarity.
        absolute_margin: negatives have at most the document's similarity less this.
        relative_margin: negatives have at most the document's similarity less this share of it.
        reranker: a `Reranker`, or an object with its `score`: its scores take the place of the
            similarities of those `top_k`.
        batch_size: of `embed`.
        query_prompt: of `embed`, for queries.
        document_prompt: of `embed`, for documents.

    Returns:
        Queries (P,), documents (P,), and negatives, a list of P lists of `num_negatives`, the most
        similar first.

    Raises:
        ValueError: "queries is empty. ...", "relevant[2] has the document 9. ...", "No query
            has 3 negatives. ..."

    Source: Karpukhin et al. 2020, Dense Document Retrieval, section 3.2; margins: Moreira et al.
    2024, NV-Retriever, section 3.

    Example:
        >>> from encoder_zoo import TextEmbedder
        >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
        >>> texts = ["A cat.", "A dog.", "The law."]
        >>> queries, documents, negatives = mine_negatives(embedder, ["A cat?"], texts, [0], 1)
        >>> queries, documents, negatives
        (['A cat?'], ['A cat.'], [['A dog.']])
    """
    texts = judged(queries, documents, relevant)
    asked, own = _pairs(texts)
    queries = embedded(embedder, texts.queries, query_prompt, None, batch_size)
    vectors = embedded(embedder, texts.documents, document_prompt, None, batch_size)
    # Some of those found are the query's own.
    excluded = _excluded(texts)
    most = top_k + max(map(len, excluded))
    found, scores = (x[asked] for x in nearest_documents(embedder, queries, vectors, most))
    allowed = _looked_at(found, [excluded[i] for i in asked], top_k)
    if reranker is None:
        own_scores = pair_scores(queries[asked], vectors[own], embedder.similarity_function)
    else:
        scores = _reranked(reranker, texts, asked, found, allowed)
        own_scores = _scores(reranker, texts, asked, own)
    limits = _limits(own_scores, max_score, absolute_margin, relative_margin)
    chosen = _chosen(scores, allowed, limits, skip_top, num_negatives)
    kept = [i for i, columns in enumerate(chosen) if len(columns) == num_negatives]
    _report(len(kept), len(chosen), num_negatives)
    return (
        [texts.queries[asked[i]] for i in kept],
        [texts.documents[own[i]] for i in kept],
        [[texts.documents[n] for n in found[i, chosen[i]]] for i in kept],
    )


def _pairs(texts: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Return the queries (P,) and the relevant documents (P,), by their indices."""
    rows = [(i, n) for i, grades in enumerate(texts.relevant) for n, g in grades.items() if g > 0]
    return tuple(np.array(rows).T)


def _excluded(texts: Judged) -> list[set[int]]:
    """Return the documents that are no negatives of each query."""
    number_of = {text: number for number, text in enumerate(texts.documents)}
    right: dict[str, set[int]] = {}
    for query, grades in zip(texts.queries, texts.relevant, strict=True):
        same = {number_of[query]} if query in number_of else set()
        right.setdefault(query, same).update(n for n, grade in grades.items() if grade > 0)
    return [right[query] for query in texts.queries]


def _looked_at(found: np.ndarray, excluded: list[set[int]], top_k: int) -> np.ndarray:
    """Return (P, K) bool: true at the first `top_k` documents that may be negatives."""
    rows = zip(found.tolist(), excluded, strict=True)
    allowed = np.array([[number not in wrong for number in row] for row, wrong in rows])
    return allowed & (allowed.cumsum(axis=1) <= top_k)


def _reranked(reranker, texts: Judged, asked, found, allowed) -> np.ndarray:
    """Return the reranker's scores of the documents that may be negatives, (P, K)."""
    rows, columns = np.nonzero(allowed)
    scores = np.zeros(allowed.shape, "float32")
    scores[rows, columns] = _scores(reranker, texts, asked[rows], found[rows, columns])
    return scores


def _scores(reranker, texts: Judged, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    pairs = [texts.queries[i] for i in queries], [texts.documents[i] for i in documents]
    return np.reshape(reranker.score(pairs), (-1,))


def _limits(own: np.ndarray, max_score, absolute_margin, relative_margin) -> np.ndarray:
    """Return the highest score that negatives may have, of documents with these scores, (P,)."""
    limits = np.full(own.shape, np.inf if max_score is None else max_score)
    if absolute_margin is not None:
        limits = np.minimum(limits, own - absolute_margin)
    if relative_margin is not None:
        limits = np.minimum(limits, own - np.abs(own) * relative_margin)
    return limits


def _chosen(scores, allowed, limits, skip_top: int, count: int) -> list[np.ndarray]:
    """Return the columns of each row's negatives, at most `count`, the highest score first."""
    chosen = []
    for row, may, limit in zip(scores, allowed, limits, strict=True):
        columns = np.flatnonzero(may)
        columns = columns[np.argsort(-row[columns], kind="stable")][skip_top:]
        chosen.append(columns[row[columns] <= limit][:count])
    return chosen


def _report(kept: int, count: int, num_negatives: int) -> None:
    if not kept:
        raise ValueError(
            f"No query has {num_negatives} negatives. Expected more documents, a smaller "
            "num_negatives, skip_top or margin, or a larger top_k or max_score."
        )
    if kept < count:
        logger.warning(
            "%d of %d pairs have fewer than %d negatives and are left out.",
            count - kept,
            count,
            num_negatives,
        )
