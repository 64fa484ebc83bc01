"""Classification of texts by labels that are chosen with each call, by a model of NLI.

Comment letters: N texts, M labels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack, overload

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.lazy import array_ops, tf
from encoder_zoo.common.validation import PositiveInt, Probability, validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.presets.formats.checkpoint import default_labels
from encoder_zoo.presets.formats.preset_task import TaskRecord
from encoder_zoo.tasks.base.classes import validated_labels
from encoder_zoo.tasks.base.confidence import (
    DEFAULT_THRESHOLD,
    ScoredLabels,
    Thresholds,
    abstaining,
    answered_in_order,
    check_abstention,
    threshold_of_each,
    tuned_thresholds,
)
from encoder_zoo.tasks.base.missing_answers import Missing, skips_missing
from encoder_zoo.tasks.classification.class_answers import LabelScore, labels_in_order
from encoder_zoo.tasks.classification.class_labels import multi_label_targets
from encoder_zoo.tasks.classification.sequence_classifier import (
    ClassifierPresetArguments,
    SequenceClassifier,
)
from encoder_zoo.tasks.classification.sequence_classifier_preprocessor import (
    SequenceClassifierPreprocessor,
)
from encoder_zoo.tasks.preprocessing.inputs import as_column

TEMPLATE = "This text is about {}."


class ZeroShotClassifier:
    """Classify texts by labels that are chosen with each call, without training.

        zero_shot = ez.ZeroShotClassifier.from_preset("deberta_v3_base_en_mnli_fever_anli")
        zero_shot.classify("The match went to extra time.", labels=["sports", "politics"])

    A model of natural-language inference (NLI) reads each text with a sentence about each label,
    "This text is about sports.", and says whether the second follows from the first.

    Args:
        classifier: a `SequenceClassifier` of pairs, premise and hypothesis, with a preprocessor.
            Its labels are entailment, neutral and contradiction, or entailment and not_entailment,
            in any order and in capitals or not.

    Attributes:
        classifier: the same, to be trained further on pairs, `fit((premises, hypotheses), y)`, and
            saved, `save_to_preset(folder)`.

    Raises:
        ValueError: If the classes are not those of natural-language inference.
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
        self._asked_models = [classifier]

    @classmethod
    def from_preset(
        cls, source: str | os.PathLike[str], **arguments: Unpack[ClassifierPresetArguments]
    ) -> ZeroShotClassifier:
        """Load a classifier that was trained on NLI.

        Args:
            source: see `SequenceClassifier.from_preset`.
            **arguments: of `SequenceClassifier.from_preset`, such as `window_length` for long
                texts; `labels=["contradiction", "neutral", "entailment"]` names the classes of a
                checkpoint that does not.

        Raises:
            ValueError: If the classes are not those of NLI, and as for
                `SequenceClassifier.from_preset`.
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
        """Return the scores of the labels for each text.

        Args:
            texts: list, array, tensor or column of texts.
            labels, hypothesis_template, multi_label, batch_size: see `classify`.

        Returns:
            (N, M) float32, in the order of the labels. A row adds up to 1, or with `multi_label`
            each label has a probability of its own.
        """
        hypotheses = hypotheses_of(labels, hypothesis_template, multi_label)
        premises, count = np.asarray(as_column(texts)), len(hypotheses)
        if not len(premises):
            return np.zeros((0, count), "float32")
        pairs = np.repeat(premises, count), hypotheses * len(premises)
        logits = self.classifier.predict(pairs, batch_size, verbose=0)
        return ops.convert_to_numpy(label_scores(logits, self.nli_classes, count, multi_label))

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
        threshold: Probability | Thresholds | None = None,
        abstain_below: Probability | None = None,
        missing: Missing = "error",
    ):
        """Return which of the labels fits each text.

        The model reads N x M pairs, those of like length together.

        Args:
            texts: a text, or a list, array, tensor or column of texts.
            labels: the labels to choose from.
            hypothesis_template: the sentence about a label, which goes where {} is.
            multi_label: whether a text may have any number of the labels: then each is judged by
                itself, and not against the others; `multi_label` of transformers' pipeline.
            batch_size: of pairs, default 32.
            top_k: return the best labels, so many, in place of the best one.
            threshold: with `multi_label` the least score of a label that is given, or {label: least
                score} as `tune_thresholds` returns it; default 0.5.
            abstain_below: Least score of an answer, such as 0.9. Texts whose best class has a lower
                score get `{"label": None, "score"}`: a person may look at them. Defaults to
                None, which answers every text.
            missing: What rows without text get, whose text is None, NaN or blank. "none" is for an
                answer of None; "error", the default, for an error that names the first of them.

        Returns:
            For every text `{"label", "score"}` with the best label; with `multi_label` a list of
            those with a score of at least the threshold; with `top_k` a list of the best. The best
            come first. For a single text its answer alone.

        Raises:
            ValueError: If the template or the labels are invalid, or `threshold` is given without
                `multi_label` or with `top_k`.
        """
        if threshold is not None and (not multi_label or top_k is not None):
            raise invalid(
                "threshold",
                threshold,
                f"None with multi_label={multi_label} and top_k={top_k}: it is for several labels "
                "a text",
            )
        check_abstention(abstain_below, "several labels a text" if multi_label else None, top_k)
        options = {
            "hypothesis_template": hypothesis_template,
            "multi_label": multi_label,
            "batch_size": batch_size,
        }
        if isinstance(texts, str | bytes):
            more = {"top_k": top_k, "threshold": threshold, "abstain_below": abstain_below}
            return self.classify([texts], labels, **options, **more)[0]
        labels = validated_labels(labels)  # a list, also of a generator
        scores = self.predict_proba(texts, labels, **options)
        order = np.argsort(-scores, axis=1, kind="stable")
        if multi_label and top_k is None:
            least = threshold_of_each(threshold, labels, DEFAULT_THRESHOLD)
            order = answered_in_order(order, scores >= least)
        ranked = labels_in_order(labels, scores, order)
        if top_k is not None:
            return [row[:top_k] for row in ranked]
        return ranked if multi_label else abstaining([row[0] for row in ranked], abstain_below)

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
        """Return for each label the least score at which it is given, by its F1 on some texts.

            thresholds = zero_shot.tune_thresholds(texts, [["sports"], [], ...], labels)
            zero_shot.classify(more, labels, multi_label=True, threshold=thresholds)

        Args:
            texts: list, array, tensor or column of texts.
            right: for each text a list of those labels that fit it, or a row of 0s and 1s.
            labels, hypothesis_template, batch_size: see `classify`.

        Returns:
            {label: threshold}. A label that fits no text keeps 0.5, which is logged.

        Raises:
            ValueError: If a label is unknown, or the number of texts and of lists of labels differ.
        """
        options = {"hypothesis_template": hypothesis_template, "batch_size": batch_size}
        return tuned_thresholds(self._scored_labels(texts, right, labels, **options))

    def _scored_labels(self, texts, right, labels: Sequence[str], **options) -> ScoredLabels:
        """Return what `tune_thresholds` and `display.thresholds` count, of the same examples."""
        labels = validated_labels(labels)
        scores = self.predict_proba(texts, labels, multi_label=True, **options)
        hot = np.asarray(multi_label_targets(right, labels, len(labels))) > 0
        if len(hot) != len(scores):
            raise invalid(
                "The number of lists of labels", len(hot), f"{len(scores)}, one for each text"
            )
        least = threshold_of_each(None, labels, DEFAULT_THRESHOLD)
        return ScoredLabels(labels, scores.T, hot.T, hot.sum(axis=0), least)

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
        """Write a SavedModel that classifies text by fixed labels, with TensorFlow alone.

        Its signature "serving_default" takes "text" (N,) and returns "label" (N, M) strings, the
        best first, and "score" (N, M).

        Args:
            path: the version folder, such as "served/1", written atomically; other files stay.
            labels, hypothesis_template, multi_label: see `classify`.

        Raises:
            ValueError: If Keras's backend is not TensorFlow, and as for `classify`.
        """
        from encoder_zoo.tasks.serving.export import write_saved_model

        if keras.config.backend() != "tensorflow":
            raise ValueError(
                f"Export needs Keras's TensorFlow backend, not {keras.config.backend()!r}. Save "
                "its `classifier` with `save_to_preset('my_preset')`; then, with TensorFlow (`pip "
                "install tensorflow`) and in a process started with KERAS_BACKEND=tensorflow:\n    "
                "import encoder_zoo as ez\n    "
                f"ez.{type(self).__name__}.from_preset('my_preset').export({str(path)!r}, "
                f"labels={labels!r})"
            )
        function = self.signatures(
            labels, hypothesis_template=hypothesis_template, multi_label=multi_label
        )
        tokenizer = self.classifier.served_tokenizer
        variables = [variable.value for variable in self.classifier.variables]
        write_saved_model(path, {"serving_default": function}, [tokenizer], variables)

    @validate_arguments
    def signatures(
        self,
        labels: Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
    ) -> Callable:
        """Return the function of an export, from "text" (N,) to "label" and "score" (N, M).

        Args:
            labels, hypothesis_template, multi_label: see `classify`.
        """
        labels = validated_labels(labels)
        hypotheses = hypotheses_of(labels, hypothesis_template, multi_label)
        count, names = len(hypotheses), array_ops.constant(labels)

        def answer(text):
            pairs = (
                array_ops.repeat(text, count),
                tf.tile(array_ops.constant(hypotheses), [array_ops.size(text)]),
            )
            logits = self.classifier._logits_in_graph(pairs)
            scores = label_scores(logits, self.nli_classes, count, multi_label)
            scores, order = array_ops.math.top_k(scores, count)
            return {"label": array_ops.gather(names, order), "score": scores}

        return answer


ADVICE = (
    "Name them in the order of the checkpoint's card, such as from_preset(source, "
    'labels=["contradiction", "neutral", "entailment"]).'
)


class NliClasses(NamedTuple):
    """Indices of two classes of an NLI model.

    Attributes:
        entailment: of the class that the hypothesis follows from the premise.
        contradiction: of the class that it cannot be true; of two classes that it does not follow.
    """

    entailment: int
    contradiction: int


def find_nli_classes(labels: Sequence[str] | None, num_classes: int | None) -> NliClasses:
    """Return which classes are entailment and contradiction, whatever their order and capitals.

    Args:
        labels: names of the classes; None if they have none.
        num_classes: C; None if there is no head.

    Raises:
        ValueError: If the classes have no names, or are not those of natural-language inference.

    Example:
        >>> find_nli_classes(["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], 3)
        NliClasses(entailment=0, contradiction=2)
        >>> find_nli_classes(["not_entailment", "entailment"], 2)
        NliClasses(entailment=1, contradiction=0)
    """
    if labels is None and num_classes is not None:
        numbered = ", ".join(default_labels(num_classes))
        raise ValueError(
            f"The classes have no names, {numbered}, so which is entailment is unknown. {ADVICE}"
        )
    names = [label.lower() for label in labels or ()]
    entailing = [i for i, name in enumerate(names) if name.startswith("entail")]
    contrary = [i for i, name in enumerate(names) if name.startswith("contra")]
    if len(names) == 2 and len(entailing) == 1:
        contrary = [1 - entailing[0]]
    if len(entailing) != 1 or len(contrary) != 1:
        found = f"The classes are {', '.join(labels)}" if labels else "There are no classes"
        raise ValueError(
            f"{found}. Expected entailment, neutral and contradiction, or entailment and "
            "not_entailment. Load a checkpoint that was trained on natural-language inference "
            "(NLI), or fit a SequenceClassifier of pairs with these labels."
        )
    return NliClasses(entailing[0], contrary[0])


def label_scores(logits, classes: NliClasses, count: int, multi_label: bool):
    """Return the score of each label for each text, (N, M).

    Args:
        logits: (N * M, C) of the NLI model, of all labels of a text one after the other.
        classes: indices of entailment and contradiction.
        count: M.
        multi_label: whether each label is judged by itself, by entailment against contradiction;
            else the entailments of all labels against each other.

    Source: Yin et al. 2019, section 5, and the zero-shot pipeline of transformers.

    Example:
        >>> import numpy as np
        >>> logits = np.log(np.float32([[1, 1, 2], [1, 1, 6]]))
        >>> classes = NliClasses(entailment=2, contradiction=0)
        >>> for multi_label in (False, True):
        ...     print(ops.convert_to_numpy(label_scores(logits, classes, 2, multi_label)).round(3))
        [[0.25 0.75]]
        [[0.667 0.857]]
    """
    logits = ops.convert_to_tensor(logits)
    entailment = ops.reshape(logits[:, classes.entailment], (-1, count))
    if not multi_label:
        return ops.softmax(entailment, axis=-1)
    contradiction = ops.reshape(logits[:, classes.contradiction], (-1, count))
    return ops.sigmoid(entailment - contradiction)


def hypotheses_of(labels: Sequence[str], hypothesis_template: str, multi_label: bool) -> list[str]:
    """Return the sentence about each label.

    Args:
        labels: two or more; with `multi_label` one or more.
        hypothesis_template: with {} where the label goes.
        multi_label: see `label_scores`.

    Raises:
        ValueError: If the template is not a sentence with one {}, the labels are not a list of
            names, or a single label is given without `multi_label`.

    Example:
        >>> hypotheses_of(["sports", "politics"], "This text is about {}.", False)
        ['This text is about sports.', 'This text is about politics.']
    """
    if not isinstance(hypothesis_template, str) or hypothesis_template.count("{}") != 1:
        raise invalid(
            "hypothesis_template",
            hypothesis_template,
            "a sentence with one {} for the label, such as 'This text is about {}'",
        )
    names = validated_labels(labels)
    if not names or not all(name.strip() for name in names):
        raise invalid("labels", labels, "a list of names, none empty")
    if len(names) == 1 and not multi_label:
        raise invalid(
            "labels",
            names,
            "two or more, as the score of one among all is always 1; or multi_label=True, which "
            "judges each by itself",
        )
    return [hypothesis_template.replace("{}", name) for name in names]
