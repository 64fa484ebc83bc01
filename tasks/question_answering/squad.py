"""Metrics that are equal to the metrics of SQuAD's official scripts.

Source: Rajpurkar et al. 2016, SQuAD, section 6.1 (v1.1). Rajpurkar, Jia and Liang 2018, Know What
You Don't Know, section 5 (v2.0).
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence

import keras
from keras import ops

from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.question_answering.answers import IMPOSSIBLE_LOGIT

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lowercase a text, and remove ASCII punctuation, articles and extra whitespace.

    Example:
        >>> normalize_answer("The  U.S. Army!")
        'us army'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def compute_exact_match(prediction: str, answer: str) -> float:
    """Return 1.0 if both texts are equal after normalization, and 0.0 otherwise.

    Example:
        >>> compute_exact_match("the cat", "Cat.")
        1.0
    """
    return float(normalize_answer(prediction) == normalize_answer(answer))


def compute_word_f1(prediction: str, answer: str, empty_matches: bool = True) -> float:
    """Compute the F1 of the words that two normalized texts share.

    Args:
        prediction: String. Predicted answer.
        answer: String. True answer.
        empty_matches: Boolean. Whether two texts without words match, as in v2.0. In v1.1, their F1
            is 0. Defaults to True.

    Example:
        >>> compute_word_f1("a big black cat", "black cat")
        0.8
    """
    guess, right = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not guess or not right:
        return float(guess == right) if empty_matches else 0.0
    shared = sum((collections.Counter(guess) & collections.Counter(right)).values())
    return 2 * shared / (len(guess) + len(right))


def compute_squad_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Compute the exact match and F1 of SQuAD v1.1 in percent.

    Each prediction gets the best score that it reaches with one of the true answers.

    Args:
        predictions: List with one text per question.
        answers: List with all true answers of each question.

    Returns:
        `{"exact_match", "f1", "total"}`.

    Example:
        >>> compute_squad_scores(["the cat", "red"], [["cat", "a dog"], ["blue"]])
        {'exact_match': 50.0, 'f1': 50.0, 'total': 2}
    """
    _check_count(predictions, answers)
    exact = _compute_best_scores(compute_exact_match, predictions, answers)
    overlap = _compute_best_scores(
        lambda p, a: compute_word_f1(p, a, empty_matches=False), predictions, answers
    )
    return {
        "exact_match": _compute_percent(exact),
        "f1": _compute_percent(overlap),
        "total": len(exact),
    }


def compute_squad_v2_scores(
    predictions: Sequence[str],
    answers: Sequence[Sequence[str]],
    null_scores: Sequence[float] | None = None,
    null_threshold: float = 1.0,
) -> dict[str, float]:
    """Compute the exact match and F1 of SQuAD v2.0 in percent. Questions can have no answer.

    Args:
        predictions: List with one text per question. "" means that there is no answer.
        answers: List with all true answers of each question. An empty list means that there is no
            answer.
        null_scores: Optional list of floats. Score of "no answer" for each question. If given, the
            prediction of questions above `null_threshold` is replaced by "", and the best
            thresholds are computed.
        null_threshold: Float. Maximum score of "no answer" for questions that are answered.
            Defaults to 1.0.

    Returns:
        `{"exact_match", "f1", "total"}`, the same metrics for questions with (`HasAns_`) and
        without (`NoAns_`) an answer, and with `null_scores` `best_exact_match`,
        `best_exact_match_thresh`, `best_f1` and `best_f1_thresh`. The official script uses the name
        "exact" for "exact_match".

    Example:
        >>> scores = compute_squad_v2_scores(["cat", "dog"], [["cat"], []], null_scores=[-3.0, 2.0])
        >>> scores["exact_match"], scores["best_f1"], scores["best_f1_thresh"]
        (100.0, 100.0, -3.0)
    """
    _check_count(predictions, answers)
    answerable = [bool(texts) for texts in answers]
    # Ignore answers that are empty after normalization. If no answer is left, "" is correct.
    answers = [[t for t in texts if normalize_answer(t)] or [""] for texts in answers]
    raw = {
        "exact_match": _compute_best_scores(compute_exact_match, predictions, answers),
        "f1": _compute_best_scores(compute_word_f1, predictions, answers),
    }
    silent = [False] * len(answers)
    if null_scores is not None:
        silent = [score > null_threshold for score in null_scores]
    scores = {
        name: [
            float(not has) if quiet else value
            for value, quiet, has in zip(values, silent, answerable, strict=True)
        ]
        for name, values in raw.items()
    }
    result = _average_scores(scores, range(len(answerable)))
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        rows = [i for i, has in enumerate(answerable) if has == wanted]
        if rows:
            result |= {
                prefix + name: value for name, value in _average_scores(scores, rows).items()
            }
    if null_scores is not None:
        for name, values in raw.items():
            best, threshold = find_best_null_threshold(values, predictions, null_scores, answerable)
            result |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return result


def find_best_null_threshold(
    scores: Sequence[float],
    predictions: Sequence[str],
    null_scores: Sequence[float],
    answerable: Sequence[bool],
) -> tuple[float, float]:
    """Find the threshold for null scores that gives the best result.

    Args:
        scores: List of floats between 0 and 1. Scores of the predictions.
        predictions: List of strings. The predicted texts.
        null_scores: List of floats. Score of "no answer" for each question.
        answerable: List of booleans. Whether each question has an answer.

    Returns:
        The result in percent and the threshold, which is the highest null score of a question that
        is answered. If it is best not to answer any question, it is 0.0, as in the official script.
    """
    current = best = float(len(answerable) - sum(answerable))
    threshold = 0.0
    for i in sorted(range(len(null_scores)), key=null_scores.__getitem__):
        # If this question is also answered, add its score, or remove the point for no answer.
        current += scores[i] if answerable[i] else -float(bool(predictions[i]))
        if current > best:
            best, threshold = current, null_scores[i]
    return 100.0 * best / len(scores), threshold


def _compute_best_scores(
    score: Callable, predictions: Sequence[str], answers: Sequence
) -> list[float]:
    """Compute the highest score of each prediction over the answers to its question."""
    return [
        max((score(prediction, answer) for answer in texts), default=0.0)
        for prediction, texts in zip(predictions, answers, strict=True)
    ]


def _average_scores(scores: dict[str, list[float]], rows: Sequence[int]) -> dict:
    return {
        **{name: _compute_percent([values[i] for i in rows]) for name, values in scores.items()},
        "total": len(rows),
    }


def _compute_percent(values: Sequence[float]) -> float:
    return 100.0 * sum(values) / max(1, len(values))


def _check_count(predictions: Sequence[str], answers: Sequence) -> None:
    if len(predictions) != len(answers):
        raise ValueError(
            f"Received {len(predictions)} predictions, but answers for {len(answers)} questions. "
            "Expected one prediction for each question."
        )


class SpanMetric(HigherIsBetter, keras.metrics.Mean):
    """Compute the mean agreement of the best span with the answer over all windows.

    Call arguments:
        y_true: Integer tensor of shape (B, 2). The answer's first and last token. Without an
            answer, both are the position of the start token (0, or the last position for XLNet).
        y_pred: Float tensor of shape (B, 2, L). Logits. The best first token is selected, and then
            the best last token that is not before the first token. With a beam, the logits of last
            tokens assume the true first token, so this metric is higher than the metric of
            `evaluate_answers`.
        sample_weight: Optional float tensor of shape (B,) or (B, 1).
    """

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        start, end = ops.unstack(ops.cast(y_true, "int32"), axis=1)  # (B,)
        first, last = ops.unstack(ops.convert_to_tensor(y_pred), axis=1)  # (B, L)
        found = ops.cast(ops.argmax(first, axis=1), "int32")
        behind = ops.arange(ops.shape(last)[1], dtype="int32")[None] >= found[:, None]
        found_end = ops.cast(ops.argmax(ops.where(behind, last, -float("inf")), axis=1), "int32")
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1,))
        values = self.compute_agreement(start, end, found, found_end)
        return super().update_state(ops.cast(values, self.dtype), sample_weight)

    def compute_agreement(self, start, end, found, found_end):
        """Return the agreement (B,) of spans, from 0 to 1."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanExactMatch(SpanMetric):
    """Compute the fraction of windows in which the best span has exactly the tokens of the answer.

    See `SpanMetric` for the call arguments. In contrast, `SpanQA.evaluate_answers` compares texts
    like the scripts of SQuAD, and combines a question's windows.

    Example:
        >>> metric = SpanExactMatch()
        >>> metric.update_state([[1, 2]], [[[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 9.0, 8.0]]])
        >>> float(metric.result())
        1.0
    """

    def __init__(self, name: str = "exact_match", **kwargs):
        super().__init__(name=name, **kwargs)

    def compute_agreement(self, start, end, found, found_end):
        return (start == found) & (end == found_end)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AnswerF1(SpanMetric):
    """Compute the token F1 of the best span and the answer, averaged over all windows.

    See `SpanMetric` for the call arguments, and `SpanExactMatch`.

    Source: Rajpurkar et al. 2016, SQuAD, section 6.1, which counts words.

    Example:
        >>> metric = AnswerF1()
        >>> metric.update_state([[1, 2]], [[[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 8.0, 9.0]]])
        >>> round(float(metric.result()), 2)
        0.8
    """

    def __init__(self, name: str = "f1", **kwargs):
        super().__init__(name=name, **kwargs)

    def compute_agreement(self, start, end, found, found_end):
        shared = ops.maximum(ops.minimum(end, found_end) - ops.maximum(start, found) + 1, 0)
        return 2 * shared / (end - start + 1 + found_end - found + 1)


def flatten_bounds(inputs, y_true, y_pred, sample_weight) -> tuple:
    """Return the labels, outputs and weights for the first and last token of each answer.

    The logits of padding are masked, so the loss and metrics do not depend on the batch's length.

    Args:
        inputs: Dict. Inputs of the model.
        y_true: Integer tensor of shape (B, 2). Labels.
        y_pred: Float tensor of shape (B, 2 or more, L). Outputs.
        sample_weight: Optional float tensor of shape (B,).

    Returns:
        Labels (B, 2), outputs (B, 2, L) and weights (B, 1).
    """
    if sample_weight is not None:
        sample_weight = ops.convert_to_tensor(sample_weight)[:, None]
    logits = y_pred[:, :2]
    if isinstance(inputs, dict) and "padding_mask" in inputs:
        real = ops.cast(inputs["padding_mask"], "bool")[:, None]
        logits = ops.where(real, logits, IMPOSSIBLE_LOGIT)
    return y_true, logits, sample_weight
