"""Zero-shot classification of texts with an NLI model.

Comments use these letters for shapes: N texts, M labels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack, overload

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.common.validation import PositiveInt, Probability, validate_arguments
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.formats.checkpoint import make_default_labels
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base import confidence
from encoder_zoo.tasks.base.classes import validate_labels
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.classification.class_answers import ClassAnswers, LabelScore
from encoder_zoo.tasks.classification.class_labels import convert_multi_label_targets
from encoder_zoo.tasks.classification.sequence_classifier import (
    ClassifierPresetArguments,
    SequenceClassifier,
)
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.preprocessing.inputs import convert_column

TEMPLATE = "This text is about {}."


class ZeroShotClassifier:
    """Classify texts with labels that are passed with each call, without training.

        zero_shot = ez.ZeroShotClassifier.from_preset("deberta_v3_base_en_mnli_fever_anli")
        zero_shot.classify("The match went to extra time.", labels=["sports", "politics"])

    Zero-shot classification uses a natural language inference (NLI) model. For each label, the text
    is passed to the model together with a hypothesis, e.g. "This text is about sports." The model
    predicts whether the text entails the hypothesis.

    Args:
        classifier: The `SequenceClassifier` to use, with a preprocessor. This model should be
            trained on premise-hypothesis pairs. The labels should be entailment, neutral and
            contradiction, or entailment and not_entailment, in any order and capitalization.

    Attributes:
        classifier: The `SequenceClassifier`. To train this model on more pairs, use `fit((premises,
            hypotheses), y)`. To save it, use `save_to_preset(folder)`.

    Raises:
        ValueError: If the classes of `classifier` are not the classes of an NLI model.
        TypeError: If `classifier` is not a SequenceClassifier.

    Source: Yin, Hay and Roth 2019, Benchmarking Zero-shot Text Classification, section 5.

    Example:
        >>> import encoder_zoo as ez
        >>> nli = ez.SequenceClassifier.from_preset(  # of a new head: its answers mean nothing yet
        ...     "bert_nano_en_uncased", labels=["contradiction", "neutral", "entailment"])
        >>> answer = ez.ZeroShotClassifier(nli).classify("It rained.", labels=["weather", "food"])
        >>> sorted(answer)
        ['label', 'score']
    """

    record = TaskRecord(
        "zero_shot_classifier",
        SequenceClassifierPreprocessor,
        text_method="classify",
        answer_type=LabelScore,
    )

    def __init__(self, classifier: SequenceClassifier):
        if not isinstance(classifier, SequenceClassifier):
            raise invalid("classifier", classifier, "a SequenceClassifier", TypeError)
        self.classifier = classifier
        self.nli_classes = find_nli_classes(classifier.labels, classifier.num_classes)
        self._models_to_lock = [classifier]

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[ClassifierPresetArguments]
    ) -> ZeroShotClassifier:
        """Load a classifier that was trained on NLI.

        Args:
            source: String or path. See `SequenceClassifier.from_preset`.
            **arguments: Keyword arguments for `SequenceClassifier.from_preset`, such as
                `window_length` for long texts. `labels=["contradiction", "neutral", "entailment"]`
                sets the names of the classes if the checkpoint does not have names.

        Raises:
            ValueError: If the classes are not valid for NLI. See `SequenceClassifier.from_preset`
                for other errors.
        """
        return cls(SequenceClassifier.from_preset(source, **arguments))

    def __repr__(self) -> str:
        return f"<ZeroShotClassifier of {self.classifier!r}>"

    @validate_arguments
    def predict_proba(
        self,
        texts: object,
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        batch_size: PositiveInt | None = None,
    ) -> np.ndarray:
        """Compute label scores for each text.

        Args:
            texts: List, array, tensor or column of texts.
            labels, hypothesis_template, multi_label, batch_size: See `classify`.

        Returns:
            Float32 array of shape (N, M), with the labels in the given order. Each row sums to 1.
            With `multi_label`, the probabilities are independent.
        """
        hypotheses = make_hypotheses(labels, hypothesis_template, multi_label)
        premises, count = np.asarray(convert_column(texts)), len(hypotheses)
        if not len(premises):
            return np.zeros((0, count), "float32")
        pairs = np.repeat(premises, count), hypotheses * len(premises)
        logits = self.classifier.predict(pairs, batch_size, verbose=0)
        return ops.convert_to_numpy(
            compute_label_scores(logits, self.nli_classes, count, multi_label)
        )

    @overload
    def classify(
        self,
        texts: str,
        labels: Sequence[str],
        *,
        hypothesis_template: str = ...,
        multi_label: Literal[False] = ...,
        batch_size: int | None = None,
        top_k: None = None,
        threshold: None = None,
    ) -> LabelScore: ...
    @overload
    def classify(
        self,
        texts: str,
        labels: Sequence[str],
        *,
        hypothesis_template: str = ...,
        multi_label: bool = ...,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self,
        texts: object,
        labels: Sequence[str],
        *,
        hypothesis_template: str = ...,
        multi_label: Literal[False] = ...,
        batch_size: int | None = None,
        top_k: None = None,
        threshold: None = None,
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self,
        texts: object,
        labels: Sequence[str],
        *,
        hypothesis_template: str = ...,
        multi_label: bool = ...,
        batch_size: int | None = None,
        top_k: int | None = None,
        threshold: float | Mapping[str, float] | None = None,
    ) -> list[list[LabelScore]]: ...
    @overload
    def classify(
        self, texts: object, labels: Sequence[str], *, missing: Literal["none"], **options: Any
    ) -> list[Any]: ...
    @validate_arguments
    @skips_missing("texts")
    def classify(
        self,
        texts: object,
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        batch_size: PositiveInt | None = None,
        top_k: PositiveInt | None = None,
        threshold: Probability | confidence.Thresholds | None = None,
        abstain_below: Probability | None = None,
        missing: Missing = "error",
    ):
        """Predict labels for each text.

        For N texts and M labels, the model reads N * M pairs. Each batch contains pairs of similar
        length.

        Args:
            texts: A text, or a list, array, tensor or column of texts.
            labels: List of strings. The candidate labels to choose from.
            hypothesis_template: String. Template of a sentence in which {} is replaced by the
                label. Defaults to "This text is about {}.".
            multi_label: Boolean. Whether to allow any number of labels per text. If True, each
                label will be scored independently, as with `multi_label` in the transformers
                pipeline. Defaults to False.
            batch_size: Optional positive integer. Batch size, in pairs. If None, 32 will be used.
            top_k: Optional positive integer. Number of labels to return per text. If None, only the
                best label will be returned.
            threshold: Optional float between 0 and 1, or dict mapping labels to floats. Minimum
                score to return a label when using `multi_label`. The dict can be computed with
                `tune_thresholds`. If None, 0.5 will be used.
            abstain_below: Optional float between 0 and 1. Minimum score for returning an answer,
                e.g. 0.9. If the best class has a lower score, `{"label": None, "score"}` will be
                returned. This can be used to send uncertain texts to a person for review. If None,
                all texts will be answered.
            missing: String. How to handle rows with a missing text (None, NaN or blank). Use "none"
                to return None for these rows, or "error" to raise an error for the first such row.
                Defaults to "error".

        Returns:
            `{"label", "score"}` with the best label per text. With `multi_label`, a list with all
            labels at or above the threshold. With `top_k`, a list with the best labels. All lists
            are sorted by score. If a single text is passed, a single answer will be returned.

        Raises:
            ValueError: If `hypothesis_template` or `labels` is invalid, or if `threshold` is passed
                without `multi_label` or together with `top_k`.
        """
        if threshold is not None and (not multi_label or top_k is not None):
            raise ValueError(
                f"threshold is {threshold}, but multi_label={multi_label} and top_k={top_k}. Pass "
                "multi_label=True without `top_k`."
            )
        confidence.check_abstention(
            abstain_below, "several labels per text" if multi_label else None, top_k
        )
        options = {
            "hypothesis_template": hypothesis_template,
            "multi_label": multi_label,
            "batch_size": batch_size,
        }
        if isinstance(texts, str | bytes):
            more = {"top_k": top_k, "threshold": threshold, "abstain_below": abstain_below}
            return self.classify([texts], labels, **options, **more)[0]
        labels = validate_labels(labels)  # converts a generator to a list
        scores = self.predict_proba(texts, labels, **options)
        kind = "multi_label_classification" if multi_label else "single_label_classification"
        answers = ClassAnswers(self.classifier.preprocessor, self.classifier._runner, labels, kind)
        return answers.choose_labels(scores, top_k, threshold, abstain_below)

    @validate_arguments
    def tune_thresholds(
        self,
        texts: object,
        right: object,
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        batch_size: PositiveInt | None = None,
    ) -> dict[str, float]:
        """Find the threshold with the highest F1 for each label.

            thresholds = zero_shot.tune_thresholds(texts, [["sports"], [], ...], labels)
            zero_shot.classify(more, labels, multi_label=True, threshold=thresholds)

        Args:
            texts: List, array, tensor or column of texts.
            right: List with the correct labels for each text, or with rows of 0s and 1s.
            labels, hypothesis_template, batch_size: See `classify`.

        Returns:
            Dict mapping labels to thresholds. A label without texts keeps 0.5, and a warning is
            logged.

        Raises:
            ValueError: If `right` contains an unknown label, or if `right` and `texts` differ in
                length.
        """
        options = {"hypothesis_template": hypothesis_template, "batch_size": batch_size}
        return confidence.tune_thresholds(self._score_labels(texts, right, labels, **options))

    def _score_labels(
        self, texts, right, labels: Sequence[str], **options
    ) -> confidence.ScoredLabels:
        """Compute all scores and labels that `tune_thresholds` and `display.thresholds` need."""
        labels = validate_labels(labels)
        scores = self.predict_proba(texts, labels, multi_label=True, **options)
        hot = np.asarray(convert_multi_label_targets(right, labels, len(labels))) > 0
        if len(hot) != len(scores):
            raise invalid("The length of `right`", len(hot), f"{len(scores)}, one item per text")
        least = confidence.expand_thresholds(None, labels, confidence.DEFAULT_THRESHOLD)
        return confidence.ScoredLabels(labels, scores.T, hot.T, hot.sum(axis=0), least)

    # -- exports -------------------------------------------------------------------------------

    @validate_arguments
    def export(
        self,
        path: str | os.PathLike[str],
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
    ) -> None:
        """Export a SavedModel that classifies texts with fixed labels and only needs TensorFlow.

        The signature "serving_default" takes "text" of shape (N,) and returns "label", strings of
        shape (N, M) sorted by score, and "score" of shape (N, M).

        Args:
            path: String or path. Version folder to write to, e.g. "served/1". It is written
                atomically. Unrelated files in the folder are kept.
            labels, hypothesis_template, multi_label: See `classify`.

        Raises:
            ValueError: If the Keras backend is not TensorFlow, or if an argument is invalid (see
                `classify`).
        """
        from encoder_zoo.tasks.serving.export import write_saved_model

        if keras.config.backend() != "tensorflow":
            raise ValueError(
                "`export` requires the TensorFlow backend of Keras. The current backend is "
                f"{keras.config.backend()!r}. Save the attribute `classifier` with "
                "`save_to_preset('my_preset')`. Then install TensorFlow (`pip install "
                "tensorflow`), and run in a process started with KERAS_BACKEND=tensorflow:\n"
                "    import encoder_zoo as ez\n    "
                f"ez.{type(self).__name__}.from_preset('my_preset').export({str(path)!r}, "
                f"labels={labels!r})"
            )
        function = self.signatures(
            labels, hypothesis_template=hypothesis_template, multi_label=multi_label
        )
        variables = [variable.value for variable in self.classifier.variables]
        write_saved_model(
            path, {"serving_default": function}, self.classifier.served_tokenizers, variables
        )

    @validate_arguments
    def signatures(
        self,
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
    ) -> Callable:
        """Return the function to export, which maps "text" (N,) to "label" and "score" (N, M).

        Args:
            labels, hypothesis_template, multi_label: See `classify`.
        """
        labels = validate_labels(labels)
        hypotheses = make_hypotheses(labels, hypothesis_template, multi_label)
        count, names = len(hypotheses), xp.constant(labels)

        def answer(text):
            pairs = (xp.repeat(text, count), tf.tile(xp.constant(hypotheses), [xp.size(text)]))
            logits = self.classifier._compute_logits_in_graph(pairs)
            scores = compute_label_scores(logits, self.nli_classes, count, multi_label)
            scores, order = xp.math.top_k(scores, count)
            return {"label": xp.gather(names, order), "score": scores}

        return answer


LABEL_ORDER_ADVICE = (
    "Pass the names in the order of the model card, for example from_preset(source, "
    'labels=["contradiction", "neutral", "entailment"]).'
)


class NliClasses(NamedTuple):
    """Class indices of an NLI model.

    Attributes:
        entailment: Integer. Class index for premises entailing the hypothesis.
        contradiction: Integer. Class index for premises contradicting the hypothesis. For models
            with two classes, the class for premises not entailing the hypothesis.
    """

    entailment: int
    contradiction: int


def find_nli_classes(labels: Sequence[str] | None, num_classes: int | None) -> NliClasses:
    """Find the class indices for entailment and contradiction.

    Args:
        labels: Optional list of strings. Class names, in any order and capitalization. Use None for
            classes without names.
        num_classes: Optional positive integer. Number of classes C. Use None for models without a
            head.

    Raises:
        ValueError: If the classes have no names or are not valid for natural language inference.

    Example:
        >>> find_nli_classes(["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], 3)
        NliClasses(entailment=0, contradiction=2)
        >>> find_nli_classes(["not_entailment", "entailment"], 2)
        NliClasses(entailment=1, contradiction=0)
    """
    if labels is None and num_classes is not None:
        numbered = ", ".join(make_default_labels(num_classes))
        raise ValueError(
            f"The classes have no names ({numbered}), so the index of the entailment class is "
            f"unknown. {LABEL_ORDER_ADVICE}"
        )
    names = [label.lower() for label in labels or ()]
    entailing = [i for i, name in enumerate(names) if name.startswith("entail")]
    contrary = [i for i, name in enumerate(names) if name.startswith("contra")]
    if len(names) == 2 and len(entailing) == 1:
        contrary = [1 - entailing[0]]
    if len(entailing) != 1 or len(contrary) != 1:
        found = (
            f"The classes are {', '.join(labels)}" if labels else "The classifier has no classes"
        )
        raise ValueError(
            f"{found}. Expected entailment, neutral and contradiction, or entailment and "
            "not_entailment. Load a checkpoint that was trained on natural language inference "
            "(NLI), or train a SequenceClassifier on pairs with these labels."
        )
    return NliClasses(entailing[0], contrary[0])


def compute_label_scores(logits, classes: NliClasses, count: int, multi_label: bool):
    """Compute the score of each label for each text, shape (N, M).

    Args:
        logits: Float tensor of shape (N * M, C). Outputs of the NLI model, for the first text with
            all labels, then for the second text with all labels, and so on.
        classes: `NliClasses`. Indices of entailment and contradiction.
        count: Positive integer. Number of labels M.
        multi_label: Boolean. If True, each label is scored with a softmax over entailment and
            contradiction. If False, a softmax over the entailment logits for all labels is used.

    Source: Yin, Hay and Roth 2019, Benchmarking Zero-shot Text Classification, section 5, and the
    zero-shot pipeline of transformers.

    Example:
        >>> import numpy as np
        >>> logits = np.log(np.float32([[1, 1, 2], [1, 1, 6]]))
        >>> classes = NliClasses(entailment=2, contradiction=0)
        >>> for multi_label in (False, True):
        ...     scores = compute_label_scores(logits, classes, 2, multi_label)
        ...     print(ops.convert_to_numpy(scores).round(3))
        [[0.25 0.75]]
        [[0.667 0.857]]
    """
    logits = ops.convert_to_tensor(logits)
    entailment = ops.reshape(logits[:, classes.entailment], (-1, count))
    if not multi_label:
        return ops.softmax(entailment, axis=-1)
    contradiction = ops.reshape(logits[:, classes.contradiction], (-1, count))
    return ops.sigmoid(entailment - contradiction)


def make_hypotheses(
    labels: Sequence[str], hypothesis_template: str, multi_label: bool
) -> list[str]:
    """Create a hypothesis sentence for each label.

    Args:
        labels: List of two or more strings. With `multi_label`, a single string is enough.
        hypothesis_template: String in which {} is replaced by the label.
        multi_label: Boolean. See `compute_label_scores`.

    Raises:
        ValueError: If `hypothesis_template` is not a string with exactly one {}, if `labels` is not
            a list of strings, if a label is empty, or if a single label is passed without
            `multi_label`.

    Example:
        >>> make_hypotheses(["sports", "politics"], "This text is about {}.", False)
        ['This text is about sports.', 'This text is about politics.']
    """
    if not isinstance(hypothesis_template, str) or hypothesis_template.count("{}") != 1:
        raise invalid(
            "hypothesis_template",
            hypothesis_template,
            "a sentence that contains {} once, such as 'This text is about {}'",
        )
    names = validate_labels(labels)
    if not names or not all(name.strip() for name in names):
        raise invalid("labels", labels, "a list of non-empty strings")
    if len(names) == 1 and not multi_label:
        raise ValueError(
            f"labels is {quote(names)}, and the score of a single label is always 1. Pass at least "
            "two labels, or use multi_label=True."
        )
    return [hypothesis_template.replace("{}", name) for name in names]
