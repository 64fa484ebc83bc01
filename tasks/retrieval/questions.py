"""Questions, passages, and which passages are relevant to each question, checked.

Comment letters: Q questions, N passages, D width.
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
    """Questions and passages, each passage once.

    Attributes:
        questions: Q texts.
        passages: N different texts.
        relevant: for each question {index of a passage: its grade}, one above 0 at least.
    """

    questions: list[str]
    passages: list[str]
    relevant: list[dict[int, float]]


def judged(questions, passages, relevant: Sequence | None) -> Judged:
    """Return questions, passages and judgements, checked; equal passages become one.

    Args:
        questions: Q texts.
        passages: texts.
        relevant: for each question the index of its passage, or a list of indices, or {index:
            grade}; None: the passage with the question's own index.

    Raises:
        ValueError: "relevant is a dict. ...", "relevant has 3 entries for 4 questions. ...",
            "relevant[2] has the passage 9. Expected indices from 0 to 8.", "relevant[2] has no
            relevant passage. ..."

    Example:
        >>> judged(["q", "r"], ["a", "b", "a"], [2, [0, 1]]).relevant
        [{0: 1.0}, {0: 1.0, 1: 1.0}]
    """
    questions = checked_texts(questions, "questions")
    texts = checked_texts(passages, "passages")
    if relevant is None:
        if len(texts) != len(questions):
            raise ValueError(
                f"There are {len(questions)} questions and {len(texts)} passages. Expected as many "
                "passages as questions, one for each; or relevant=, the indices of the passages "
                "for each question."
            )
        relevant = range(len(questions))
    if isinstance(relevant, Mapping | str):
        raise ValueError(
            f"relevant is a {type(relevant).__name__}. Expected one entry for each question, in "
            "their order: the index of a passage, a list of indices, or {index: grade}."
        )
    if len(relevant) != len(questions):
        raise ValueError(
            f"relevant has {len(relevant)} entries for {len(questions)} questions. Expected one "
            "for each: the index of a passage, a list of indices, or {index: grade}."
        )
    unique = list(dict.fromkeys(texts))
    number_of = {text: number for number, text in enumerate(unique)}
    merged = []
    for i, entry in enumerate(relevant):
        grades: dict[int, float] = {}
        for passage, grade in _grades(entry, i, len(texts)).items():
            number = number_of[texts[passage]]
            grades[number] = max(grade, grades.get(number, 0.0))
        merged.append(grades)
    return Judged(questions, unique, merged)


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
                f"relevant[{i}] has {index!r}. Expected indices of passages, whole numbers."
            )
        if not 0 <= operator.index(index) < count:
            raise ValueError(
                f"relevant[{i}] has the passage {index}. Expected indices from 0 to {count - 1}."
            )
        if not math.isfinite(grade) or grade < 0:
            raise ValueError(
                f"relevant[{i}] has the grade {grade} of passage {index}. Expected a number of 0 "
                "or more."
            )
        grades[operator.index(index)] = float(grade)
    if not any(grades.values()):
        raise ValueError(
            f"relevant[{i}] has no relevant passage. Expected the index of one or more; leave out "
            "questions that have none."
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


def nearest_passages(
    embedder, questions: np.ndarray, passages: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the `k` passages nearest to each question, and their similarities, (Q, k) each.

    Args:
        embedder: for its `similarity_function`.
        questions: (Q, D), of `embedded`.
        passages: (N, D), of `embedded`.
        k: of each question; with fewer passages all of them.
    """
    k = min(k, len(passages))
    return nearest(Float32Vectors.of(passages), questions, embedder.similarity_function, k)
