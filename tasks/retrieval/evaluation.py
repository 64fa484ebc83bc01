"""Evaluation of embedders: of the search for documents, and of similarities beside scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.preprocessing.given_labels import check_given
from encoder_zoo.tasks.retrieval.index_checks import checked_texts
from encoder_zoo.tasks.retrieval.judgments import embedded, judged, nearest_documents
from encoder_zoo.tasks.retrieval.metrics import pearson, search_metrics, spearman
from encoder_zoo.tasks.retrieval.top_k import pair_scores


@validate_arguments
def evaluate_retrieval(
    embedder,
    queries,
    documents,
    relevant: Sequence | None = None,
    cutoffs: Sequence[int] = (1, 5, 10),
    batch_size: PositiveInt | None = None,
    dim: PositiveInt | None = None,
    query_prompt: str | None = "query",
    document_prompt: str | None = "document",
) -> dict[str, float]:
    """Return how near the top each query has its relevant documents, among all documents.

    Documents with the same text count as one. Equally near ones have no order: a metric is its
    mean over all orders of them. The similarities are computed in blocks: beside the vectors,
    memory does not grow with the number of documents.

    Args:
        embedder: a `TextEmbedder`, or an object with its `embed` and `similarity_function`.
        queries: texts.
        documents: texts.
        relevant: for each query the index of its document, or a list of indices, or {index:
            grade}; None: the document with the query's own index.
        cutoffs: how many of the nearest documents are looked at.
        batch_size: of `embed`.
        dim: of `embed`.
        query_prompt: of `embed`, for queries.
        document_prompt: of `embed`, for documents.

    Returns:
        For each cutoff k "ndcg@k", "mrr@k", "recall@k" and "accuracy@k", and "map@100"; see
        `ranking_metrics`.

    Raises:
        ValueError: "queries is empty. ...", "relevant has 3 entries for 4 queries. ...",
            "relevant[2] has the document 9. Expected indices from 0 to 8.", "cutoffs is ..."

    Example:
        >>> from encoder_zoo import TextEmbedder
        >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
        >>> found = evaluate_retrieval(embedder, ["A cat.", "Tax."], ["Tax.", "A cat."], [1, 0])
        >>> found["ndcg@10"], found["recall@1"]
        (1.0, 1.0)
    """
    cutoffs = checked_cutoffs(cutoffs)
    texts = judged(queries, documents, relevant)
    queries = embedded(embedder, texts.queries, query_prompt, dim, batch_size)
    vectors = embedded(embedder, texts.documents, document_prompt, dim, batch_size)

    def search(some: list[int], k: int):
        return zip(*nearest_documents(embedder, queries[some], vectors, k), strict=True)

    return search_metrics(search, texts.relevant, cutoffs, len(vectors))


@validate_arguments
def evaluate_similarity(
    embedder,
    pairs,
    scores,
    batch_size: PositiveInt | None = None,
    dim: PositiveInt | None = None,
    prompt: str | None = None,
) -> dict[str, float]:
    """Return how well the similarities of pairs of texts agree with scores.

    Args:
        embedder: a `TextEmbedder`, or an object with its `embed` and `similarity_function`.
        pairs: `(first, second)`, two columns of texts.
        scores: a number for each pair, larger for pairs that are more similar.
        batch_size: of `embed`.
        dim: of `embed`.
        prompt: of `embed`, for all texts.

    Returns:
        "spearman", the correlation of the ranks, and "pearson", of the numbers.

    Raises:
        ValueError: "There are 3 first texts, 3 second texts and 2 scores. ...", "scores[1] is nan.
            Expected finite numbers.", "All scores are 1.0. Expected different ones, ..."

    Example:
        >>> from encoder_zoo import TextEmbedder
        >>> embedder = TextEmbedder.from_preset("bert_nano_en_uncased")
        >>> pairs = ["A cat.", "A cat.", "A cat."], ["A cat.", "A cats.", "Tax law of 1990."]
        >>> evaluate_similarity(embedder, pairs, [5.0, 4.0, 0.5])["spearman"]
        1.0
    """
    if not isinstance(pairs, tuple) or len(pairs) != 2:
        raise ValueError("pairs is no pair of columns. Expected (first, second), each of texts.")
    first, second = (checked_texts(p, n) for p, n in zip(pairs, ("first", "second"), strict=True))
    scores = _checked_scores(scores, len(first), len(second))
    a, b = (embedded(embedder, texts, prompt, dim, batch_size) for texts in (first, second))
    similarities = pair_scores(a, b, embedder.similarity_function)
    if np.ptp(similarities) == 0:
        raise ValueError(
            f"All pairs have the similarity {similarities[0]:g}, so that there is no correlation."
        )
    return {"spearman": spearman(similarities, scores), "pearson": pearson(similarities, scores)}


def checked_cutoffs(cutoffs) -> list[int]:
    """Return numbers of ranks as a list; raise an error for others than integers above 0."""
    cutoffs = list(cutoffs)
    if not cutoffs or any(type(k) is not int or k < 1 for k in cutoffs):
        raise ValueError(f"cutoffs is {cutoffs!r}. Expected one or more integers above 0.")
    return cutoffs


def _checked_scores(scores, first: int, second: int) -> np.ndarray:
    scores = np.asarray(check_given(scores))
    if scores.dtype.kind not in "fiub" or scores.shape != (first,) or first != second:
        raise ValueError(
            f"There are {first} first texts, {second} second texts and {scores.dtype} scores of "
            f"shape {scores.shape}. Expected equally many, and a number for each pair."
        )
    scores = scores.astype("float64")
    if not np.isfinite(scores).all():
        i = int(np.isfinite(scores).argmin())
        raise ValueError(f"scores[{i}] is {scores[i]}. Expected finite numbers.")
    if np.ptp(scores) == 0:
        raise ValueError(
            f"All scores are {scores[0]}. Expected different ones, as equal ones have no "
            "correlation with anything."
        )
    return scores
