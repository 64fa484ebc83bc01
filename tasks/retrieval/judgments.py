"""Queries, documents, and which documents are relevant to each query, checked.

Comment letters: Q queries, N documents, D width.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from encoder_zoo.tasks.retrieval.index_checks import checked_texts
from encoder_zoo.tasks.retrieval.similarity import unit_rows
from encoder_zoo.tasks.retrieval.top_k import nearest
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors, check_finite


class Judged(NamedTuple):
    """Queries and documents, each document once.

    Attributes:
        queries: Q texts.
        documents: N different texts.
        relevant: for each query {index of a document: its grade}, one above 0 at least.
    """

    queries: list[str]
    documents: list[str]
    relevant: list[dict[int, float]]


def judged(queries, documents, relevant: Sequence | None) -> Judged:
    """Return queries, documents and judgements, checked; equal documents become one.

    Args:
        queries: Q texts.
        documents: texts.
        relevant: for each query the index of its document, or a list of indices, or {index:
            grade}; None: the document with the query's own index.

    Raises:
        ValueError: "relevant is a dict. ...", "relevant has 3 entries for 4 queries. ...",
            "relevant[2] has the document 9. Expected indices from 0 to 8.", "relevant[2] has no
            relevant document. ..."

    Example:
        >>> judged(["q", "r"], ["a", "b", "a"], [2, [0, 1]]).relevant
        [{0: 1.0}, {0: 1.0, 1: 1.0}]
    """
    queries = checked_texts(queries, "queries")
    texts = checked_texts(documents, "documents")
    if relevant is None:
        if len(texts) != len(queries):
            raise ValueError(
                f"There are {len(queries)} queries and {len(texts)} documents. Expected as many "
                "documents as queries, one for each; or relevant=, the indices of the documents "
                "for each query."
            )
        relevant = range(len(queries))
    if isinstance(relevant, Mapping | str):
        raise ValueError(
            f"relevant is a {type(relevant).__name__}. Expected one entry for each query, in "
            "their order: the index of a document, a list of indices, or {index: grade}."
        )
    if len(relevant) != len(queries):
        raise ValueError(
            f"relevant has {len(relevant)} entries for {len(queries)} queries. Expected one "
            "for each: the index of a document, a list of indices, or {index: grade}."
        )
    unique = list(dict.fromkeys(texts))
    number_of = {text: number for number, text in enumerate(unique)}
    merged = []
    for i, entry in enumerate(relevant):
        grades: dict[int, float] = {}
        for document, grade in _grades(entry, i, len(texts)).items():
            number = number_of[texts[document]]
            grades[number] = max(grade, grades.get(number, 0.0))
        merged.append(grades)
    return Judged(queries, unique, merged)


def _grades(entry, i: int, count: int) -> dict[int, float]:
    """Return one entry of `relevant` as {index: grade}, checked."""
    if isinstance(entry, Mapping):
        pairs = list(entry.items())
    else:
        several = isinstance(entry, set | frozenset) or np.ndim(entry)
        indices = entry if several else [entry]
        pairs = [(index, 1.0) for index in indices]
    grades = {}
    for index, grade in pairs:
        if isinstance(index, str | bytes | bool | float) or not hasattr(index, "__index__"):
            raise ValueError(
                f"relevant[{i}] has {index!r}. Expected indices of documents, integers."
            )
        if not 0 <= operator.index(index) < count:
            raise ValueError(
                f"relevant[{i}] has the document {index}. Expected indices from 0 to {count - 1}."
            )
        if not math.isfinite(grade) or grade < 0:
            raise ValueError(
                f"relevant[{i}] has the grade {grade} of document {index}. Expected a number of 0 "
                "or more."
            )
        grades[operator.index(index)] = float(grade)
    if not any(grades.values()):
        raise ValueError(
            f"relevant[{i}] has no relevant document. Expected the index of one or more; leave out "
            "queries that have none."
        )
    return grades


def embedded(embedder, texts: list[str], prompt: str | None, dim, batch_size) -> np.ndarray:
    """Return the vectors of texts (N, D) for `nearest`: of unit length if cosines compare them.

    Raises:
        ValueError: for vectors with NaN or infinite numbers.
    """
    vectors = np.asarray(embedder.embed(texts, prompt=prompt, dim=dim, batch_size=batch_size))
    check_finite(vectors, "vectors")
    return unit_rows(vectors) if embedder.similarity_function == "cosine" else vectors


def nearest_documents(
    embedder, queries: np.ndarray, documents: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` documents nearest to each query, and their similarities, (Q, k) each.

    Args:
        embedder: for its `similarity_function`.
        queries: (Q, D), of `embedded`.
        documents: (N, D), of `embedded`.
        k: of each query; with fewer documents all of them.
    """
    k = min(k, len(documents))
    return nearest(Float32Vectors.of(documents), queries, embedder.similarity_function, k)
