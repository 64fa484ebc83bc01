"""Classification of texts or pairs of texts, and regression."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import (
    PositiveInt,
    Probability,
    Rate,
    one_of,
    validate_arguments,
)
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.tasks.base.class_names import labels_from_config, sigmoid, softmax
from encoder_zoo.tasks.base.head import head_dropout
from encoder_zoo.tasks.base.labelled_task import LabelledTask
from encoder_zoo.tasks.base.task import TinyData
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.sequence_classification.class_labels import (
    classes_among,
    labels_of_dataset,
    learn_classes,
)
from encoder_zoo.tasks.sequence_classification.preprocessor import SequenceClassifierPreprocessor
from encoder_zoo.tasks.training.data import TrainingData
from encoder_zoo.tasks.training.logit_metrics import ClassAccuracy, ClassCrossentropy
from encoder_zoo.tasks.training.prepared import is_prepared
from encoder_zoo.tasks.training.sources import is_dataset

logger = logging.getLogger("encoder_zoo")

OUTPUT_ACTIVATIONS = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "linear",
}
ProblemType = Annotated[str, one_of(*OUTPUT_ACTIVATIONS)]


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SequenceClassifier(LabelledTask):
    """Classifies texts or pairs of texts, or maps them to numbers.

    Args:
        backbone: any `Backbone`; for BERT one with a pooler.
        preprocessor: a `SequenceClassifierPreprocessor`, for raw text.
        num_classes: C; with `labels` their number.
        labels: names of the classes, saved with the preset; whole numbers become strings. Where one
            of the names is a whole number, whole numbers in `y` are names and not class numbers.
            Without `labels` and `num_classes`, the first `fit` learns them from its `y`.
        problem_type: "single_label_classification" (one class for each text),
            "multi_label_classification" (any number of classes) or "regression" (numbers).
        dropout: before the output layer, in training; None is the backbone's.

    `fit` takes as y for every text a class, by name or by number, or a row of probabilities of the
    classes, such as 0s and a 1. For "multi_label_classification" a list of names, or a row of 0s
    and 1s; for "regression" a number or a row of them. Errors name the row: "Row 3 has the unknown
    label 'upp'. Expected one of ['down', 'up']."

    Call arguments:
        inputs: the preprocessor's outputs.

    Returns:
        (B, C) float logits, or the numbers themselves for regression.

    Raises:
        ValueError: if `labels` and `num_classes` disagree.

    Source: Devlin et al. 2019, section 4.1; Liu et al. 2019's code for RoBERTa's head, which has
    a tanh layer of its own instead of the pooler.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=1, num_heads=2, hidden_dim=8,
        ...                         intermediate_dim=16)
        >>> classifier = SequenceClassifier(backbone, num_classes=3)
        >>> keras.ops.shape(classifier({"token_ids": np.array([[2, 7, 3]])}))
        (1, 3)
    """

    task_name = "sequence_classifier"
    checkpoint_class_suffix = "ForSequenceClassification"
    pipeline_tag = "text-classification"
    preprocessor_class = SequenceClassifierPreprocessor
    learns_soft_labels = True
    peft_task_type = "SEQ_CLS"
    text_method = "classify"
    expected_labels = "one label for each text"

    @validate_arguments
    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SequenceClassifierPreprocessor | None = None,
        num_classes: PositiveInt | None = None,
        labels: Sequence[str] | None = None,
        problem_type: ProblemType = "single_label_classification",
        dropout: Rate | None = None,
        **kwargs,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.problem_type = problem_type
        record = self.head_record
        if record.pooled and not backbone.pooler:
            raise ValueError(
                f"A {backbone.family.class_prefix} classifier reads the pooler's output. Build "
                "the backbone with pooler=True, or load the classifier with from_preset, which "
                "adds a pooler."
            )
        self.dropout = head_dropout(record, backbone, dropout)
        if labels is None and num_classes is None and problem_type == "regression":
            num_classes = 1
        self._set_classes(num_classes, labels)

    @classmethod
    def tiny_data(cls) -> TinyData:
        labels = ["O", "B-X", "I-X"]
        return TinyData({"labels": labels}, super().tiny_data().x, [*labels, "O"])

    def logits_of(self, encoded, inputs, training=None):
        if self.head_record.pooled:
            x = encoded["pooled_output"]  # (B, D)
        else:
            x = self.backbone.text_vectors(encoded["sequence_output"], inputs)  # (B, D)
        return self.head(x, training=training)  # (B, C)

    def compute_output_spec(self, inputs, training=None):
        self._check_labels_known()
        return keras.KerasTensor((inputs["token_ids"].shape[0], self.num_classes), "float32")

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        stored = {}
        if cls._is_head_of(config) and cls._asks_for_classes_of(config, arguments):
            default = "single_label_classification"
            default = "regression" if len(labels_from_config(config)) == 1 else default
            stored["problem_type"] = config.get("problem_type") or default
        return {**stored, **super().checkpoint_arguments(config, head, arguments)}

    @property
    def output_activation(self) -> str:
        return OUTPUT_ACTIVATIONS[self.problem_type]

    def default_loss(self) -> keras.losses.Loss:
        if self.problem_type == "regression":
            return keras.losses.MeanSquaredError()
        if self.problem_type == "multi_label_classification":
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return ClassCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        if self.problem_type == "regression":
            return [keras.metrics.RootMeanSquaredError()]
        if self.problem_type == "multi_label_classification":
            return [keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")]
        return [ClassAccuracy(name="accuracy")]

    def _labels_in(self, x, y) -> list[str] | int:
        if is_dataset(x):
            y = labels_of_dataset(x, self.preprocessor)
        learned = learn_classes(y, self._takes_several())
        if is_prepared(x) and not isinstance(learned, int):
            raise ValueError(
                f"y holds {learned}. With prepared inputs expected class numbers from 0 on, all "
                "of them present; or pass labels=[...] or num_classes."
            )
        return learned

    def _weigh_classes(self, data: TrainingData, class_weight: Mapping | str) -> TrainingData:
        if self.problem_type != "single_label_classification":
            raise ValueError(
                "class_weight is of classes that exclude each other, which those of problem_type="
                f"{self.problem_type!r} do not. Use sample_weight."
            )
        return super()._weigh_classes(data, class_weight)

    def _warn_unseen_classes(self, examples: dict, held_out: dict) -> None:
        if "labels" not in examples or self.problem_type == "regression":
            return
        seen, wanted = (
            classes_among(part["labels"].numpy(), self._takes_several())
            for part in (examples, held_out)
        )
        unseen = [repr(self.class_names[i]) for i in wanted - seen]
        if unseen:
            count = len(held_out["labels"])
            logger.warning(
                "validation_split holds out the last %d of %d texts, and with them every text of "
                "%s, which training never sees. Shuffle texts and labels before `fit`.",
                count,
                count + len(examples["labels"]),
                ", ".join(sorted(unseen)),
            )

    @validate_arguments
    def predict_proba(self, texts, batch_size: PositiveInt | None = None) -> np.ndarray:
        """Return the probabilities of the classes of each text.

        Args:
            texts: as for `predict`.
            batch_size: default 32.

        Returns:
            (N, C) float32, the classes in the order of `labels`: a row adds up to 1, or with
            several labels a text each has its own probability.

        Raises:
            ValueError: "predict_proba is of classes, and this classifier predicts numbers. ..."
        """
        if self.problem_type == "regression":
            raise ValueError(
                "predict_proba is of classes, and this classifier predicts numbers. Use predict."
            )
        logits = self.predict(texts, batch_size, verbose=0)
        return sigmoid(logits) if self._takes_several() else softmax(logits)

    @validate_arguments
    def classify(
        self,
        texts,
        batch_size: PositiveInt | None = None,
        top_k: PositiveInt | None = None,
        threshold: Probability | None = None,
    ) -> list | dict:
        """Return the labels of each text with their probabilities.

        Args:
            texts: as for `predict`; or a single text, or a tuple of two for a single pair.
            batch_size: default 32.
            top_k: also return the next best labels, so many in all.
            threshold: the least score of a label that is given, with several labels a text;
                default 0.5. Of two classes the least score at which the second, such as "spam"
                of `labels=["ham", "spam"]`, is given.

        Returns:
            For every text `{"label", "score"}` with the best label, or the `top_k` best as a list
            of such, the best first. With several labels a text: a list of those with a score of
            at least the threshold, or the `top_k` best. For regression `{"score"}`. A label is its
            name, or its number where the classifier has no names; scores are probabilities. For a
            single text or pair its answer alone.

        Raises:
            ValueError: "threshold is of two classes, or of several labels a text. ..."

        Example:
            >>> from encoder_zoo import SequenceClassifier
            >>> stars = SequenceClassifier.from_preset("bert_nano_en_uncased", labels=[1, 2, 3])
            >>> sorted(stars.classify("Great movie!")), len(stars.classify(["Yes.", "No."]))
            (['label', 'score'], 2)
        """
        if _is_single(texts):
            texts = tuple([t] for t in texts) if isinstance(texts, tuple) else [texts]
            return self.classify(texts, batch_size, top_k, threshold)[0]
        self._check_labels_known()
        self._check_threshold(threshold, top_k)
        if self.problem_type == "regression":
            values = self.predict(texts, batch_size, verbose=0)
            return [{"score": v[0].item() if len(v) == 1 else v.tolist()} for v in values]
        scores = self.predict_proba(texts, batch_size)
        order = np.argsort(-scores, axis=-1, kind="stable")
        if threshold is not None and not self._takes_several():
            order = (scores[:, 1:] >= threshold).astype(int)
        ranked = [
            [self._answer(row, i) for i in numbers]
            for row, numbers in zip(scores, order, strict=True)
        ]
        if top_k is not None:
            return [row[:top_k] for row in ranked]
        if self._takes_several():
            least = 0.5 if threshold is None else threshold
            return [[label for label in row if label["score"] >= least] for row in ranked]
        return [row[0] for row in ranked]

    def _answer(self, scores: np.ndarray, number: int) -> dict:
        """Return one class of a text and its probability."""
        return {"label": self.class_names[number], "score": scores[number].item()}

    @property
    def class_names(self) -> Sequence:
        """Return the labels, or the class numbers if they have no names."""
        return self.labels or range(self.num_classes)

    def _check_threshold(self, threshold: float | None, top_k: int | None) -> None:
        of_two = self.num_classes == 2 and self.problem_type != "regression"
        fits = (self._takes_several() or of_two) and top_k is None
        if threshold is not None and not fits:
            raise ValueError(
                "threshold is of two classes, or of several labels a text, and not of the top_k. "
                f"Received: problem_type={self.problem_type!r}, {self.num_classes} classes, "
                f"top_k={top_k}."
            )

    def _takes_several(self) -> bool:
        return self.problem_type == "multi_label_classification"

    def served(self) -> dict[str, Callable]:
        """Return `classify` of all classes for exports: of "text", and as "pairs" of "first",
        "second".

        Returns:
            Functions whose results are "label" (N, C) strings, the best first, and "score" (N, C);
            for regression "score" alone. A class without a name is called by its number.
        """
        names = tf.constant([str(name) for name in self.class_names])

        def answer(*texts):
            examples = self.preprocessor.encode(texts)
            ones = tf.ones_like(examples["token_ids"].row_lengths())
            logits = in_graph_batches(self._logits_of_examples, examples, ones, self.num_classes)
            if self.problem_type == "regression":
                return {"score": logits.flat_values}
            scores = (tf.sigmoid if self._takes_several() else tf.nn.softmax)(logits.flat_values)
            scores, order = tf.math.top_k(scores, self.num_classes)
            return {"label": tf.gather(names, order), "score": scores}

        return {
            "serving_default": lambda text: answer(text),
            "pairs": lambda first, second: answer(first, second),
        }

    def _logits_of_examples(self, examples: dict):
        return self(self.preprocessor.pad(examples), training=False)


def _is_single(texts) -> bool:
    """Return whether this is one text, or one pair of texts, and not a list of them."""
    parts = texts if isinstance(texts, tuple) else (texts,)
    return len(parts) > 0 and all(isinstance(part, str | bytes) for part in parts)
