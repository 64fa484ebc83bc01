"""Calibrate scores with a temperature, and choose thresholds for labels.

Comments use these letters for shapes: N (examples), C (classes).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, TypedDict

import numpy as np

from encoder_zoo.common.lazy import keras
from encoder_zoo.common.validation import Probability, Rule, get_rule
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.base.classes import compute_sigmoid, compute_softmax

logger = logging.getLogger("encoder_zoo")

COLDEST, HOTTEST = 0.01, 100.0  # minimum and maximum temperature of the search
DEFAULT_THRESHOLD = 0.5
BINS = 15  # number of bins for the calibration error

_PROBABILITY = get_rule(Probability)


def _are_thresholds(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_PROBABILITY.holds, value.values()))


Thresholds = Annotated[
    Mapping[str, float], Rule(_are_thresholds, "a dict mapping labels to numbers between 0 and 1")
]


class Calibration(TypedDict):
    """Result of `calibrate`.

    Attributes:
        temperature: Float. The logits are divided by this value in all later predictions.
        loss_before, loss: Floats. Mean cross-entropy on the held-out labels in nats, before and
            after calibration.
        error_before, error: Floats. Expected calibration error (see `compute_calibration_error`),
            before and after calibration.
    """

    temperature: float
    loss_before: float
    loss: float
    error_before: float
    error: float


class ScoredLabels(NamedTuple):
    """All answers of the model to held-out examples, and whether each answer is correct.

    Attributes:
        names: A list of strings. Names for the C labels that have thresholds.
        scores: List of one array of shape (N,) per label. Scores between 0 and 1. N can differ
            between labels.
        right: List of one boolean array of shape (N,) per label. Whether the answer with the score
            at the same index is correct.
        counts: List of integers. Number of true answers per label, including answers that the model
            did not find.
        thresholds: A list of floats. Current threshold per label.
    """

    names: Sequence[str]
    scores: Sequence[np.ndarray]
    right: Sequence[np.ndarray]
    counts: Sequence[int]
    thresholds: Sequence[float]


def find_calibration(logits: np.ndarray, targets: np.ndarray, activation: str) -> Calibration:
    """Find the temperature with the lowest cross-entropy, and measure its effect.

    Args:
        logits: Float array of shape (N, C).
        targets: Float array of shape (N, C). 1 for true classes and 0 for all other classes, or
            probabilities.
        activation: String, "softmax" or "sigmoid". "sigmoid" is for independent classes.

    Raises:
        ValueError: If `logits` is empty or not finite.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 4.2.

    Example:
        >>> logits = np.float32([[3.0, 0.0], [3.0, 0.0], [0.0, 3.0], [0.0, 3.0]])
        >>> labels = np.eye(2)[[0, 0, 1, 0]]  # three of four are right
        >>> found = find_calibration(logits, labels, "softmax")
        >>> round(found["temperature"], 3), round(found["error"], 3)  # 3 / ln 3
        (2.731, 0.0)
    """
    if not len(logits):
        raise ValueError(
            "Calibration requires labels, but there are no labels in the data. Pass held-out "
            "examples with labels."
        )
    _check_finite("calibrate", logits)
    logits, targets = logits.astype("float64"), targets.astype("float64")
    temperature = _fit_temperature(logits, targets, activation)
    losses, errors = [], []
    for scaled in (logits, logits / temperature):
        losses.append(_compute_loss(scaled, targets, activation))
        errors.append(
            _compute_error(_compute_probabilities(scaled, activation), targets, activation)
        )
    if temperature in (COLDEST, HOTTEST):
        logger.warning(
            "The temperature is set to %g, which is the limit of the search. The predictions for "
            "the held-out examples are %s.",
            temperature,
            "all correct" if temperature == COLDEST else "no better than chance",
        )
    return Calibration(
        temperature=temperature,
        loss_before=losses[0],
        loss=losses[1],
        error_before=errors[0],
        error=errors[1],
    )


def _check_finite(method: str, values: np.ndarray) -> None:
    """Raise a ValueError if outputs are NaN or infinite."""
    if not np.isfinite(values).all():
        wrong = int(np.count_nonzero(~np.isfinite(values)))
        raise ValueError(
            f"{method}: {wrong} of {values.size} outputs of the model are NaN or infinite. Train "
            "the model again, with a lower learning rate or in float32."
        )


def check_weights_finite(task: keras.Model) -> None:
    """Raise a ValueError if a weight of the task is NaN or infinite."""
    for weight in task.weights:
        if not np.isfinite(keras.ops.convert_to_numpy(weight)).all():
            raise ValueError(
                f"tune_thresholds: {weight.path} has values that are NaN or infinite. Train the "
                "model again, with a lower learning rate or in float32."
            )


def _compute_probabilities(logits: np.ndarray, activation: str) -> np.ndarray:
    return compute_sigmoid(logits) if activation == "sigmoid" else compute_softmax(logits)


def _fit_temperature(logits: np.ndarray, targets: np.ndarray, activation: str) -> float:
    """Find the temperature with the lowest cross-entropy by bisection.

    Bisection is possible, because the cross-entropy is convex in the inverse temperature.
    """

    def compute_slope(inverse: float) -> float:
        probabilities = _compute_probabilities(logits * inverse, activation)
        return float(np.sum((probabilities - targets) * logits))

    low, high = 1 / HOTTEST, 1 / COLDEST
    if compute_slope(low) >= 0:
        return HOTTEST
    if compute_slope(high) <= 0:
        return COLDEST
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if compute_slope(middle) > 0 else (middle, high)
    return 1 / low


def _compute_loss(logits: np.ndarray, targets: np.ndarray, activation: str) -> float:
    """Compute the mean cross-entropy. With "sigmoid", compute a binary cross-entropy per class."""
    if activation == "sigmoid":
        return float(np.mean(np.logaddexp(0, logits) - targets * logits))
    highest = logits.max(axis=1, keepdims=True)
    normalizers = np.log(np.exp(logits - highest).sum(axis=1, keepdims=True)) + highest
    return float(np.mean(np.sum(targets * (normalizers - logits), axis=1)))


def _compute_error(probabilities: np.ndarray, targets: np.ndarray, activation: str) -> float:
    if activation == "sigmoid":
        return compute_calibration_error(probabilities.ravel(), targets.ravel())
    best = probabilities.argmax(axis=1)[:, None]
    scores, right = (np.take_along_axis(v, best, axis=1)[:, 0] for v in (probabilities, targets))
    return compute_calibration_error(scores, right)


def compute_calibration_error(scores: np.ndarray, right: np.ndarray) -> float:
    """Compute the expected calibration error: the mean difference between scores and accuracy.

    Args:
        scores: Float array of shape (N,), from 0 to 1. The scores are divided into bins of equal
            width.
        right: Array of shape (N,). 1 or True if the answer with this score is correct.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, equation 3.

    Example:
        >>> round(compute_calibration_error(np.array([0.9, 0.9]), np.array([1, 0])), 3)
        0.4
    """
    bins = np.clip(np.ceil(scores * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, scores, BINS) - np.bincount(bins, right, BINS)
    return float(np.abs(gaps).sum() / len(scores))


def find_best_threshold(scores: np.ndarray, right: np.ndarray, count: int) -> tuple[float, float]:
    """Find the threshold with the highest F1, and return the threshold and the F1.

    If several thresholds have the same F1, the threshold nearest to 0.5 is returned. A threshold
    between two scores is the mean of both scores.

    Args:
        scores: Float array of shape (N,), from 0 to 1. Scores of the answers.
        right: Boolean array of shape (N,). Whether each answer is correct.
        count: Integer. Number of true answers, including answers that were not found.

    Example:
        >>> find_best_threshold(np.array([0.9, 0.4, 0.3, 0.1]), np.array([1, 1, 0, 0]) > 0, 2)
        (0.35, 1.0)
    """
    highs, given, hits = count_answers_at_scores(scores, right)
    lows = np.append(highs[1:], 0.0)
    f1 = 2 * hits / (given + count)
    if not len(f1) or f1.max() == 0:
        return DEFAULT_THRESHOLD, 0.0
    best = f1 == f1.max()
    holds = best & (lows < DEFAULT_THRESHOLD) & (highs >= DEFAULT_THRESHOLD)
    if holds.any():
        return DEFAULT_THRESHOLD, float(f1.max())
    middles = (lows[best] + highs[best]) / 2
    nearest = np.abs(middles - DEFAULT_THRESHOLD).argmin()
    return round(float(middles[nearest]), 12), float(f1.max())


def count_answers_at_scores(
    scores: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count all answers and the correct answers at or above each distinct score.

    Args:
        scores, right: See `find_best_threshold`.

    Returns:
        Three arrays: the distinct scores above 0 in descending order, the number of answers with
        this score or a higher score, and the number of correct answers among them.

    Example:
        >>> found = count_answers_at_scores(np.array([0.25, 0.75, 0.25]), np.array([1, 1, 0]) > 0)
        >>> [values.tolist() for values in found]
        [[0.75, 0.25], [1, 3], [1, 2]]
    """
    order = np.argsort(-scores, kind="stable")
    scores, right = scores[order].astype("float64"), right[order]
    ends = np.append(scores[1:], 0.0) < scores  # equal scores are counted at once
    return scores[ends], np.arange(1, len(scores) + 1)[ends], np.cumsum(right)[ends]


def tune_thresholds(answers: ScoredLabels) -> dict[str, float]:
    """Find the best threshold for each label. The threshold of a label without examples is 0.5.

    Raises:
        ValueError: If there are neither answers nor labels, or if a score is NaN.
    """
    if not any(answers.counts) and not any(map(len, answers.scores)):
        raise ValueError(
            "Tuning thresholds requires labels, but there are no labels in the data. Pass "
            "held-out examples with labels."
        )
    for scores in answers.scores:
        _check_finite("tune_thresholds", np.asarray(scores))
    labels = [str(label) for label in answers.names]
    of_labels = zip(answers.scores, answers.right, answers.counts, strict=True)
    found = {
        label: find_best_threshold(*of_label)[0]
        for label, of_label in zip(labels, of_labels, strict=True)
    }
    absent = [label for label, count in zip(labels, answers.counts, strict=True) if not count]
    if absent:
        logger.warning(
            "There are no held-out examples with the labels %s. Their thresholds are set to %g.",
            ", ".join(map(repr, absent)),
            DEFAULT_THRESHOLD,
        )
    return found


def expand_thresholds(
    given: float | Mapping[str, float] | None, names: Iterable[object], default: float
) -> np.ndarray:
    """Create a float32 array of shape (C,) with one threshold per label.

    Args:
        given: Optional float for all labels, or dict mapping labels to floats.
        names: Label names.
        default: Float. Threshold of labels that are missing in `given`.

    Raises:
        ValueError: If `given` contains a label that is not in `names`.

    Example:
        >>> expand_thresholds({"b": 0.75}, ["a", "b"], 0.5).tolist()
        [0.5, 0.75]
    """
    names = [str(name) for name in names]
    if not isinstance(given, Mapping):
        return np.full(len(names), default if given is None else given, "float32")
    known = {str(label): value for label, value in given.items()}
    own = set(names)
    for label in known:
        if label not in own:
            raise invalid("A key of `thresholds`", label, f"one of {names}")
    return np.array([known.get(name, default) for name in names], "float32")


def select_answer_labels(order: np.ndarray, answered: np.ndarray) -> list[np.ndarray]:
    """Select the label indices in the answer to each text, in the given order.

    Args:
        order: Integer array of shape (N, C). Label indices for each text, in the order of the
            answer.
        answered: Boolean array of shape (N, C). Whether each label is part of the answer.

    Example:
        >>> scores = np.array([[0.25, 0.75, 0.5]])
        >>> select_answer_labels(np.argsort(-scores), scores >= 0.5)[0].tolist()
        [1, 2]
    """
    return [row[given[row]] for row, given in zip(order, answered, strict=True)]


def check_abstention(
    abstain_below: float | None, kind: str | None, top_k: int | None = None
) -> None:
    """Raise a ValueError if `abstain_below` is set, but the answers are not a single class.

    Args:
        abstain_below: Optional float. Minimum score of an answer.
        kind: Optional string. Predictions of the classifier if they are not a single class, such as
            "numbers".
        top_k: Optional integer. Number of requested labels.

    Example:
        >>> check_abstention(0.9, "numbers")
        Traceback (most recent call last):
        ValueError: abstain_below is 0.9, but this classifier predicts numbers. Pass ...
    """
    if abstain_below is None:
        return
    if kind is not None:
        raise ValueError(
            f"abstain_below is {abstain_below}, but this classifier predicts {kind}. Pass "
            "abstain_below=None."
        )
    if top_k is not None:
        raise ValueError(
            f"abstain_below is {abstain_below}, but with top_k={top_k}, labels with any score are "
            "returned. Pass only one of these arguments."
        )


def drop_uncertain_labels(answers: list[dict], least: float | None) -> list[dict]:
    """Replace the labels of answers with None if their scores are below the minimum.

    Args:
        answers: List of `{"label", "score"}`, one per text.
        least: Optional float. Minimum score of an answer. If None, all labels are kept.

    Example:
        >>> found = [{"label": "up", "score": 0.75}, {"label": "up", "score": 0.95}]
        >>> drop_uncertain_labels(found, 0.9)
        [{'label': None, 'score': 0.75}, {'label': 'up', 'score': 0.95}]
    """
    if least is None:
        return answers
    kept = [np.float32(answer["score"]) >= np.float32(least) for answer in answers]
    return [a if keep else {**a, "label": None} for a, keep in zip(answers, kept, strict=True)]
