"""Scores of a classifier's answers: of each class, and of those that a person would still check.

Comment letters: N texts, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

import numpy as np

from encoder_zoo.common.validation import (
    PositiveInt,
    Probability,
    Rule,
    rule_of,
    validate_arguments,
)
from encoder_zoo.common.weights_lock import reads_weights
from encoder_zoo.common.wording import ForeignName
from encoder_zoo.tasks.classification.class_answers import ClassAnswers

_PROBABILITY = rule_of(Probability)
Levels = Annotated[
    Sequence[float],
    Rule(lambda v: len(v) > 0 and all(map(_PROBABILITY.holds, v)), "a list of numbers from 0 to 1"),
]
LEVELS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class ClassScores(TypedDict):
    """Scores of one class, or their mean over the classes.

    Attributes:
        precision: Share of the answers with the class that are right.
        recall: Share of the texts of the class that are answered with it.
        f1: Harmonic mean of both.
        support: Number of texts of the class.
    """

    precision: float
    recall: float
    f1: float
    support: int


class ClassReport(TypedDict, total=False):
    """Result of `evaluate_classes`.

    Attributes:
        accuracy: Share of the texts with the right class. Absent with several labels a text.
        micro: Scores of all labels counted together. Absent with one class for each text.
        macro: Mean of the scores of all classes.
        weighted: Mean of the scores of all classes, weighted by their support.
        per_class: Scores of each class by its name.
    """

    accuracy: float
    micro: ClassScores
    macro: ClassScores
    weighted: ClassScores
    per_class: dict[str, ClassScores]


class Coverage(TypedDict):
    """Answers with at least some score.

    Attributes:
        threshold: The least score.
        answered: Number of texts whose best class has this score.
        coverage: Share of all texts that they are.
        accuracy: Share of these answers that are right; NaN without any.
    """

    threshold: float
    answered: int
    coverage: float
    accuracy: float


def class_report(
    names: Sequence, predicted: np.ndarray, true: np.ndarray, several: bool
) -> ClassReport:
    """Compute precision, recall and F1 of each class, and their means.

    A share of nothing is 0, as in scikit-learn's `classification_report`.

    Args:
        names: Names of the classes.
        predicted: Bool array of shape (N, C), the classes that are answered.
        true: Bool array of shape (N, C).
        several: Whether a text may have several classes.

    Example:
        >>> hot = np.eye(2)[[0, 0, 1]] > 0
        >>> found = class_report(["down", "up"], hot, np.eye(2)[[0, 1, 1]] > 0, several=False)
        >>> found["per_class"]["down"]
        {'precision': 0.5, 'recall': 1.0, 'f1': 0.6666666666666666, 'support': 1}
    """
    hits = (predicted & true).sum(axis=0)
    given, support = predicted.sum(axis=0), true.sum(axis=0)
    columns = [_share(hits, given), _share(hits, support), _share(2 * hits, given + support)]
    scores = np.stack(columns, axis=1)  # (C, 3)
    total = support.sum()
    weights = support / total if total else np.zeros(len(support))
    report: ClassReport = {}
    if several:
        of_all = (
            (hits.sum(), given.sum()),
            (hits.sum(), total),
            (2 * hits.sum(), given.sum() + total),
        )
        report["micro"] = _scores([_share(*counts) for counts in of_all], total)
    else:
        report["accuracy"] = float(_share(hits.sum(), len(true)))
    report["macro"] = _scores(scores.mean(axis=0), total)
    report["weighted"] = _scores(weights @ scores, total)
    of_classes = zip(names, scores, support, strict=True)
    report["per_class"] = {str(name): _scores(row, count) for name, row, count in of_classes}
    return report


def _share(part, whole) -> np.ndarray:
    return np.where(np.asarray(whole) > 0, part / np.maximum(whole, 1), 0.0)


def _scores(values, support: int) -> ClassScores:
    precision, recall, f1 = map(float, values)
    return ClassScores(precision=precision, recall=recall, f1=f1, support=int(support))


def coverage_at(scores: np.ndarray, right: np.ndarray, levels: Sequence[float]) -> list[Coverage]:
    """Return how many answers have at least each score, and the share of them that is right.

    Args:
        scores: Float array of shape (N,), the scores of the answers.
        right: Bool array of shape (N,).
        levels: Least scores.

    Example:
        >>> coverage_at(np.float32([0.9, 0.6]), np.array([True, False]), [0.9])
        [{'threshold': 0.9, 'answered': 1, 'coverage': 0.5, 'accuracy': 1.0}]
    """
    rows = []
    for level in levels:
        kept = scores >= np.float32(level)
        count = int(kept.sum())
        rows.append(
            Coverage(
                threshold=float(level),
                answered=count,
                coverage=count / len(scores) if len(scores) else float("nan"),
                accuracy=float(right[kept].mean()) if count else float("nan"),
            )
        )
    return rows


class ScoresClasses:
    """Evaluation of a classifier class by class, and by the score of its answers.

    A classifier has `_class_answers`, its text side, and `_scores_and_classes`.
    """

    _class_answers: ClassAnswers
    if not TYPE_CHECKING:  # so that editors do not offer it
        classification_report = ForeignName("evaluate_classes(x, y)")

    @validate_arguments
    @reads_weights
    def evaluate_classes(
        self, x: object, y: object = None, batch_size: PositiveInt | None = None
    ) -> ClassReport:
        """Compute precision, recall and F1 of each class, as scikit-learn's report has them.

        The answers are those of `classify` with the thresholds of the model, before it abstains.
        `ez.display.class_report` draws the result as a table.

        Args:
            x: Texts or pairs of texts in memory, as for `evaluate`.
            y: Their true labels, as for `evaluate`.
            batch_size: Positive integer. Defaults to 32.

        Returns:
            `{"accuracy", "macro", "weighted", "per_class": {label: {"precision", "recall", "f1",
            "support"}}}`. With several labels a text "micro" stands in place of "accuracy".

        Raises:
            ValueError: If the classifier predicts numbers, or `x` is a dataset.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> texts, labels = ["A great film.", "A dull film."], ["positive", "negative"]
            >>> classifier.evaluate_classes(texts, labels)["per_class"]["positive"]["recall"]
            1.0
        """
        scores, true = self._scores_and_classes("evaluate_classes", x, y, batch_size)
        answers = self._class_answers
        answered, several = answers.answered(scores), answers.is_multi_label
        return class_report(answers.class_names, answered, true, several)

    @validate_arguments
    @reads_weights
    def evaluate_coverage(
        self,
        x: object,
        y: object = None,
        thresholds: Levels = LEVELS,
        batch_size: PositiveInt | None = None,
    ) -> list[Coverage]:
        """Compute how many texts are answered, and how well, for several values of `abstain_below`.

        `ez.display.coverage` draws both over every score.

        Args:
            x: Texts or pairs of texts in memory that the model was not trained on.
            y: Their true labels, as for `evaluate`.
            thresholds: List of least scores of an answer.
            batch_size: Positive integer. Defaults to 32.

        Returns:
            For each threshold `{"threshold", "answered", "coverage", "accuracy"}`: the number and
            the share of the texts that are answered, and the share of these answers that is right.

        Raises:
            ValueError: If a text has several labels, or the classifier predicts numbers.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> texts, labels = ["Great!", "Awful."], ["positive", "negative"]
            >>> classifier.evaluate_coverage(texts, labels, [0.5])
            [{'threshold': 0.5, 'answered': 2, 'coverage': 1.0, 'accuracy': 1.0}]
        """
        return coverage_at(*self._scores_of_best(x, y, batch_size), thresholds)

    def _scores_of_best(self, x, y, batch_size: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of the best classes (N,), and whether each is right (N,)."""
        if self._class_answers.is_multi_label:
            raise ValueError(
                "Coverage needs one class for each text, and this classifier gives several. "
                "See tune_thresholds and ez.display.thresholds."
            )
        scores, true = self._scores_and_classes("evaluate_coverage", x, y, batch_size)
        best = scores.argmax(axis=1)[:, None]
        return tuple(np.take_along_axis(values, best, axis=1)[:, 0] for values in (scores, true))

    def _scores_and_classes(self, method: str, x, y, batch_size) -> tuple[np.ndarray, np.ndarray]:
        """Return the probabilities and the true classes of texts, both (N, C); the second is bool.

        Args:
            method: Name of the method for errors.
        """
        raise NotImplementedError
