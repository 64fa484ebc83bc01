"""Evaluate classifiers: scores per class, and accuracy above a minimum score.

Comments use these letters for shapes: N texts, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypedDict

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import ForeignName
from encoder_zoo.tasks.base.answers import delegate_to_answers
from encoder_zoo.tasks.base.confidence import ScoredLabels
from encoder_zoo.tasks.classification.class_answers import ClassAnswers, mark_best_classes

_PROBABILITY = validation.get_rule(validation.Probability)
Levels = Annotated[
    Sequence[float],
    validation.Rule(
        lambda v: len(v) > 0 and all(map(_PROBABILITY.holds, v)),
        "a list of numbers between 0 and 1",
    ),
]
LEVELS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


class ClassScores(TypedDict):
    """Scores for a single class, or mean scores over all classes.

    Attributes:
        precision: Float. Fraction of correct answers among the answers with this class.
        recall: Float. Fraction of texts of this class that are answered correctly.
        f1: Float. Harmonic mean of precision and recall.
        support: Integer. Number of texts of this class.
    """

    precision: float
    recall: float
    f1: float
    support: int


class ClassReport(TypedDict, total=False):
    """Result of `evaluate_classes`.

    Attributes:
        accuracy: Float. Fraction of texts with the correct class. Missing for multi-label
            classifiers.
        micro: Scores over all pairs of a text and a label. Only for multi-label classifiers.
        macro: Mean score over all classes.
        weighted: Mean score over all classes, weighted by support.
        per_class: Dict mapping class names to scores.
    """

    accuracy: float
    micro: ClassScores
    macro: ClassScores
    weighted: ClassScores
    per_class: dict[str, ClassScores]


class Coverage(TypedDict):
    """Number and accuracy of the answers whose score is at or above a threshold.

    Attributes:
        threshold: Float. Minimum score.
        answered: Integer. Number of answered texts. The score of their best class is at or above
            the threshold.
        coverage: Float. Fraction of answered texts among all texts.
        accuracy: Float. Fraction of correct answers among the answered texts, or NaN if no text is
            answered.
    """

    threshold: float
    answered: int
    coverage: float
    accuracy: float


def compute_class_report(
    names: Sequence, predicted: np.ndarray, true: np.ndarray, several: bool
) -> ClassReport:
    """Compute precision, recall and F1 for each class, and their means over the classes.

    A score whose denominator is 0 is set to 0, as in scikit-learn's `classification_report`.

    Args:
        names: List of strings. The class names.
        predicted: Boolean array of shape (N, C). Predicted classes.
        true: Boolean array of shape (N, C). True classes.
        several: Boolean. Whether a text can have several classes.

    Example:
        >>> hot = np.eye(2)[[0, 0, 1]] > 0
        >>> true = np.eye(2)[[0, 1, 1]] > 0
        >>> found = compute_class_report(["down", "up"], hot, true, several=False)
        >>> found["per_class"]["down"]
        {'precision': 0.5, 'recall': 1.0, 'f1': 0.6666666666666666, 'support': 1}
    """
    hits = (predicted & true).sum(axis=0)
    given, support = predicted.sum(axis=0), true.sum(axis=0)
    columns = [
        _compute_share(hits, given),
        _compute_share(hits, support),
        _compute_share(2 * hits, given + support),
    ]
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
        report["micro"] = _make_scores([_compute_share(*counts) for counts in of_all], total)
    else:
        report["accuracy"] = float(_compute_share(hits.sum(), len(true)))
    report["macro"] = _make_scores(scores.mean(axis=0), total)
    report["weighted"] = _make_scores(weights @ scores, total)
    of_classes = zip(names, scores, support, strict=True)
    report["per_class"] = {str(name): _make_scores(row, count) for name, row, count in of_classes}
    return report


def _compute_share(part, whole) -> np.ndarray:
    return np.where(np.asarray(whole) > 0, part / np.maximum(whole, 1), 0.0)


def _make_scores(values, support: int) -> ClassScores:
    precision, recall, f1 = map(float, values)
    return ClassScores(precision=precision, recall=recall, f1=f1, support=int(support))


def compute_coverage(
    scores: np.ndarray, right: np.ndarray, levels: Sequence[float]
) -> list[Coverage]:
    """Compute the number of answers and their accuracy at each minimum score.

    Args:
        scores: Float array of shape (N,). Answer scores.
        right: Boolean array of shape (N,). Whether each answer is correct.
        levels: List of floats. Minimum scores.

    Example:
        >>> compute_coverage(np.float32([0.9, 0.6]), np.array([True, False]), [0.9])
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


class ClassScoresMixin:
    """Mixin for classifiers, with evaluation per class and per minimum score.

    A classifier that uses this mixin must implement `_check_held_out` and
    `_compute_held_out_logits`, as in `LabelledTask`. Its answers must be `ClassAnswers`.
    """

    _answers: ClassAnswers
    labels: list[str] | None
    num_classes: int | None
    problem_type: str
    thresholds: Mapping[str, float] | None
    if not TYPE_CHECKING:  # hidden from autocompletion in editors
        classification_report = ForeignName("evaluate_classes(x, y)")

    predict_proba = delegate_to_answers(ClassAnswers.predict_proba)
    classify = delegate_to_answers(ClassAnswers.classify)

    @property
    def class_names(self) -> Sequence:
        """The class names, or the class indices if the classes have no names."""
        return self.labels or range(self.num_classes or 0)

    @property
    def _is_multi_label(self) -> bool:
        return self.problem_type == "multi_label_classification"

    @validation.validate_arguments
    @lock_weights
    def evaluate_classes(
        self, x: object, y: object = None, batch_size: validation.PositiveInt | None = None
    ) -> ClassReport:
        """Compute precision, recall and F1 for each class, as in scikit-learn's report.

        The answers are the same as from `classify` with the model's thresholds, except that
        the model does not abstain. To show the result as a table, use `ez.display.class_report`.

        Args:
            x: Texts or pairs of texts in memory, as for `evaluate`.
            y: True labels, as for `evaluate`.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.

        Returns:
            `{"accuracy", "macro", "weighted", "per_class": {label: {"precision", "recall", "f1",
            "support"}}}`. For multi-label classifiers, "micro" is returned instead of "accuracy".

        Raises:
            ValueError: If the classifier is a regression, or if `x` is a dataset.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> texts, labels = ["A great film.", "A dull film."], ["positive", "negative"]
            >>> classifier.evaluate_classes(texts, labels)["per_class"]["positive"]["recall"]
            1.0
        """
        x, y = self._check_held_out("evaluate_classes", x, y)
        scores, true = self._compute_scores_and_targets(x, y, batch_size)
        answers = self._answers
        answered, several = answers.mark_answered_classes(scores), answers.is_multi_label
        return compute_class_report(answers.class_names, answered, true, several)

    @validation.validate_arguments
    @lock_weights
    def evaluate_coverage(
        self,
        x: object,
        y: object = None,
        thresholds: Levels = LEVELS,
        batch_size: validation.PositiveInt | None = None,
    ) -> list[Coverage]:
        """Compute coverage and accuracy for several values of `abstain_below`.

        To plot coverage and accuracy for all scores, use `ez.display.coverage`.

        Args:
            x: Texts or pairs of texts in memory. They should not be part of the training data.
            y: True labels, as for `evaluate`.
            thresholds: List of floats. Minimum scores for returning an answer.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.

        Returns:
            List of `{"threshold", "answered", "coverage", "accuracy"}`, one per threshold.
            "answered" and "coverage" are the number and share of answered texts, and "accuracy" is
            the share of correct answers for these texts.

        Raises:
            ValueError: If a text can have several labels, or if the classifier is a regression.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> classifier = SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
            >>> texts, labels = ["Great!", "Awful."], ["positive", "negative"]
            >>> classifier.evaluate_coverage(texts, labels, [0.5])
            [{'threshold': 0.5, 'answered': 2, 'coverage': 1.0, 'accuracy': 1.0}]
        """
        return compute_coverage(*self._score_best_classes(x, y, batch_size), thresholds)

    def _score_best_classes(self, x, y, batch_size: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the score of each text's best class, and whether this class is correct, (N,)."""
        if self._is_multi_label:
            raise ValueError(
                "`evaluate_coverage` requires one class per text, but this classifier predicts "
                "several. Use `tune_thresholds` or `ez.display.thresholds`."
            )
        x, y = self._check_held_out("evaluate_coverage", x, y)
        scores, true = self._compute_scores_and_targets(x, y, batch_size)
        best = scores.argmax(axis=1)[:, None]
        return tuple(np.take_along_axis(values, best, axis=1)[:, 0] for values in (scores, true))

    def _compute_scores_and_targets(self, x, y, batch_size) -> tuple[np.ndarray, np.ndarray]:
        """Return class probabilities and a boolean mask of the true classes, both (N, C)."""
        logits, targets = self._compute_held_out_logits(x, y, batch_size)
        true = targets > 0.5 if self._is_multi_label else mark_best_classes(targets)
        return self._answers.compute_probabilities(logits), true

    def _score_labels(self, x, y=None, batch_size: int | None = None) -> ScoredLabels:
        """Compute all scores and labels that `tune_thresholds` and `display.thresholds` need."""
        x, y = self._check_held_out("tune_thresholds", x, y)
        least = self._answers.get_min_scores(self.thresholds)
        first = len(self.class_names) - len(least)  # binary classifiers have one threshold
        scores, right = self._compute_scores_and_targets(x, y, batch_size)
        scores, right, names = scores[:, first:], right[:, first:], self.class_names[first:]
        return ScoredLabels(names, scores.T, right.T, right.sum(axis=0), least)
