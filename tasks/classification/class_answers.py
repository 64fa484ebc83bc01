"""Convert logits to class labels and scores.

Comments use these letters for shapes: N texts, C classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, overload

import numpy as np

from encoder_zoo.common import validation
from encoder_zoo.common.lazy import use_numpy, xp
from encoder_zoo.common.wording import quote
from encoder_zoo.tasks.base import confidence
from encoder_zoo.tasks.base.answers import Answers
from encoder_zoo.tasks.base.classes import compute_sigmoid, compute_softmax
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.classification.window_pooling import WindowPooling, predict_pooled
from encoder_zoo.tasks.preprocessing.columns import is_doc


class LabelScore(TypedDict):
    """A label and its score. The answer of a regression has no label, only the predicted value.

    The label is None if the classifier abstains (see `abstain_below`).
    """

    label: str
    score: float


ProblemType = Annotated[
    str,
    validation.one_of("single_label_classification", "multi_label_classification", "regression"),
]
ClassNames = Annotated[
    Sequence,
    validation.Rule(
        lambda v: isinstance(v, list | tuple) and v and {*map(type, v)} <= {str, int},
        "a list of classes",
    ),
]
Text = str | tuple[str, str]  # a text or a pair
# What each kind of classifier returns instead of a single class, for error messages.
OTHER_ANSWERS = {"regression": "numbers", "multi_label_classification": "several labels per text"}


@dataclasses.dataclass(frozen=True)
class ClassAnswers(Answers):
    """The `Answers` of `SequenceClassifier`. See `SequenceClassifier` for the settings.

    Attributes:
        class_names: List of C strings, or a range of class indices if the classes have no names.
        problem_type: String. The problem type, as in config.json.
        window_pooling: String, "mean" or "max". How to pool the logits of the windows of a text.
        temperature: Float. Value to divide the logits by.
        thresholds: Optional dict mapping labels to floats.
        abstain_below: Optional float. Minimum score for returning an answer.
    """

    preprocessor_class = SequenceClassifierPreprocessor
    methods = ("classify", "predict_proba")
    class_names: ClassNames
    problem_type: ProblemType
    window_pooling: WindowPooling = "mean"
    temperature: validation.Temperature = 1.0
    thresholds: confidence.Thresholds | None = None
    abstain_below: validation.Probability | None = None

    def predict_texts(self, x: Any, batch_size: int | None = None) -> np.ndarray:
        if not self.preprocessor.pools_windows:
            return super().predict_texts(x, batch_size)
        count, pooling = len(self.class_names), self.window_pooling
        with use_numpy():
            examples = self.preprocessor.encode_windows(x)
            return predict_pooled(self.runner, examples, batch_size, count, pooling)

    @validation.validate_arguments
    @skips_missing("texts")
    def predict_proba(
        self: Any,
        texts: object,
        batch_size: validation.PositiveInt | None = None,
        missing: Missing = "error",
    ) -> np.ndarray:
        """Compute class probabilities for each text.

        Args:
            texts: Texts, as for `predict`.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.
            missing: String. How to handle rows whose text is None, NaN or blank. Use "none" to
                return a row with NaN, or "error" to raise an error for the first such row. Defaults
                to "error".

        Returns:
            Float32 array of shape (N, C), with the classes in the same order as in `labels`. Each
            row sums to 1. For multi-label classifiers, the probabilities are independent.

        Raises:
            ValueError: If the classifier is a regression.
        """
        if self.is_regression:
            raise ValueError(
                "`predict_proba` requires classes, but this classifier predicts numbers. Use "
                "`predict`."
            )
        return self.compute_probabilities(self.predict_texts(texts, batch_size))

    @overload
    def classify(
        self: Any,
        texts: Text,
        batch_size: int | None = None,
        top_k: None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> LabelScore: ...
    @overload
    def classify(
        self: Any,
        texts: Text,
        batch_size: int | None = None,
        *,
        top_k: int,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self: Any,
        texts: object,
        batch_size: int | None = None,
        top_k: None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self: Any,
        texts: object,
        batch_size: int | None = None,
        *,
        top_k: int,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[list[LabelScore]]: ...
    @overload
    def classify(
        self: Any, texts: object, *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validation.validate_arguments
    @skips_missing("texts")
    def classify(
        self,
        texts: object,
        batch_size: validation.PositiveInt | None = None,
        top_k: validation.PositiveInt | None = None,
        threshold: validation.Probability | confidence.Thresholds | None = None,
        abstain_below: validation.Probability | None = None,
        missing: Missing = "error",
    ):
        """Predict labels and probabilities for each text.

        Args:
            texts: Texts, as for `predict`, or a single text, or a tuple of two texts for a single
                pair.
            batch_size: Optional positive integer. Batch size, in texts. If None, 32 will be used.
            top_k: Optional positive integer. Number of labels to return per text, sorted by score.
            threshold: Optional float between 0 and 1, or dict mapping labels to floats. Minimum
                score to return a label for multi-label classifiers. For binary classifiers, this is
                the minimum score for the second label, e.g. "spam" for `labels=["ham", "spam"]`.
                Defaults to None, which uses the thresholds of `tune_thresholds`, or 0.5.
            abstain_below: Optional float between 0 and 1. Minimum score for returning an answer,
                e.g. 0.9. If the best class has a lower score, `{"label": None, "score"}` will be
                returned. For example, uncertain texts can be sent to a person for review. If None,
                the model's setting is used.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            `{"label", "score"}` with the best label per text, or a list with the `top_k` best
            labels, sorted by score. For multi-label classifiers, a list with all labels at or above
            the threshold, or with the `top_k` best labels. For regression, `{"score"}`. Labels are
            returned as names, or as class indices if no names are set. Scores are probabilities. If
            a single text or pair is passed, a single answer will be returned.

        Raises:
            ValueError: If both `threshold` and `top_k` are passed, or if `threshold` is passed to a
                classifier that chooses one of three or more classes.

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> stars = SequenceClassifier.from_preset("bert_nano_en_uncased", labels=[1, 2, 3])
            >>> sorted(stars.classify("Great movie!")), len(stars.classify(["Yes.", "No."]))
            (['label', 'score'], 2)
        """
        if is_single_input(texts):
            texts = tuple([t] for t in texts) if isinstance(texts, tuple) else [texts]
            return self.classify(texts, batch_size, top_k, threshold, abstain_below)[0]
        self._check_threshold(threshold, top_k)
        confidence.check_abstention(abstain_below, OTHER_ANSWERS.get(self.problem_type), top_k)
        outputs = self.predict_texts(texts, batch_size)
        if self.is_regression:
            return [{"score": v[0].item() if len(v) == 1 else v.tolist()} for v in outputs]
        scores = self.compute_probabilities(outputs)
        return self.choose_labels(scores, top_k, threshold, abstain_below)

    def choose_labels(
        self, scores: np.ndarray, top_k: int | None, threshold, abstain_below: float | None
    ) -> list:
        """Convert class probabilities (N, C) to labels. See `classify` for the arguments."""
        if top_k is None and not self.is_multi_label:
            order = self.mark_answered_classes(scores, threshold).argmax(axis=-1)[:, None]
            best = [row[0] for row in sort_labels(self.class_names, scores, order)]
            return confidence.drop_uncertain_labels(
                best, self.abstain_below if abstain_below is None else abstain_below
            )
        order = np.argsort(-scores, axis=-1, kind="stable")[:, :top_k]
        if top_k is None:
            answered = self.mark_answered_classes(scores, threshold)
            order = confidence.select_answer_labels(order, answered)
        return sort_labels(self.class_names, scores, order)

    def make_classify_function(self, run: Callable) -> Callable:
        """Create the function to export. See `SequenceClassifier.signatures`.

        Args:
            run: Function that computes logits (N, C) from text columns (N,).
        """
        names = xp.constant([str(name) for name in self.class_names])

        def classify(*texts):
            logits = run(texts)
            if self.is_regression:
                return {"score": logits}
            activate = xp.sigmoid if self.is_multi_label else xp.nn.softmax
            keys = scores = activate(logits / self.temperature)  # (N, C)
            if self.thresholds is not None:
                answered = self.mark_answered_classes(xp.cast(scores, xp.float64))
                keys = scores if self.is_multi_label else xp.cast(answered, scores.dtype)
            _, order = xp.math.top_k(keys, len(self.class_names))
            scores = xp.gather(scores, order, batch_dims=1)
            answers = {"label": xp.gather(names, order), "score": scores}
            if self.thresholds is not None and self.is_multi_label:
                answers["answered"] = xp.gather(answered, order, batch_dims=1)
            if self.abstain_below is not None:
                answers["abstains"] = scores[:, 0] < self.abstain_below
            return answers

        return classify

    @property
    def is_regression(self) -> bool:
        """True if the model predicts numbers instead of classes."""
        return self.problem_type == "regression"

    @property
    def is_multi_label(self) -> bool:
        """True if a text can have several classes."""
        return self.problem_type == "multi_label_classification"

    def compute_probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Compute class probabilities from logits (..., C)."""
        logits = logits / np.float32(self.temperature)
        return compute_sigmoid(logits) if self.is_multi_label else compute_softmax(logits)

    def mark_answered_classes(self, scores: np.ndarray, threshold=None) -> np.ndarray:
        """Return a boolean mask (N, C) of the classes in the answer for each text.

        With thresholds, this also works in a TensorFlow graph, for scores in float64.
        """
        given = self.thresholds if threshold is None else threshold
        if self.is_multi_label:
            return scores >= self.get_min_scores(given)
        if given is None:
            return mark_best_classes(scores)
        second = scores[:, 1] >= self.get_min_scores(given)
        return second[:, None] == np.array([False, True])

    def get_min_scores(self, given: float | Mapping[str, float] | None) -> np.ndarray:
        """Return the minimum score of each label, or of the second label if there are two."""
        count = len(self.class_names)
        if not self.is_multi_label and (count != 2 or self.is_regression):
            raise ValueError(
                "Thresholds require a classifier with two classes, or with several labels per "
                f"text. This classifier has problem_type={self.problem_type!r} and {count} classes."
            )
        names = list(self.class_names)[0 if self.is_multi_label else 1 :]
        return confidence.expand_thresholds(given, names, confidence.DEFAULT_THRESHOLD)

    def _check_threshold(self, threshold, top_k: int | None) -> None:
        count = len(self.class_names)
        has_thresholds = self.is_multi_label or (count == 2 and not self.is_regression)
        if threshold is not None and not (has_thresholds and top_k is None):
            raise ValueError(
                f"threshold is {quote(threshold)}, but it cannot be combined with "
                f"problem_type={self.problem_type!r}, {count} classes and top_k={top_k}. To omit "
                "uncertain answers, use `abstain_below`."
            )


def mark_best_classes(scores: np.ndarray) -> np.ndarray:
    """Return a boolean mask (N, C) that only contains the best class of each text.

    Example:
        >>> mark_best_classes(np.array([[0.25, 0.75]])).tolist()
        [[False, True]]
    """
    return np.arange(scores.shape[1]) == scores.argmax(axis=1)[:, None]


def sort_labels(
    names: Sequence, scores: np.ndarray, order: Iterable[np.ndarray]
) -> list[list[LabelScore]]:
    """Convert scores to a list of labels with scores for each text.

    Args:
        names: Sequence of class names.
        scores: Float array of shape (N, C).
        order: Integer array of shape (N, M), or N rows of any length. Class indices for each text,
            in the order of the answer.

    Example:
        >>> sort_labels(["no", "yes"], np.array([[0.25, 0.75]]), np.array([[1, 0]]))
        [[{'label': 'yes', 'score': 0.75}, {'label': 'no', 'score': 0.25}]]
    """
    return [
        [{"label": names[i], "score": row[i].item()} for i in numbers.tolist()]
        for row, numbers in zip(scores, order, strict=True)
    ]


def is_single_input(texts) -> bool:
    """Return whether the input is a single text or pair, instead of a list."""
    parts = texts if isinstance(texts, tuple) else (texts,)
    return len(parts) > 0 and all(isinstance(part, str | bytes) or is_doc(part) for part in parts)
