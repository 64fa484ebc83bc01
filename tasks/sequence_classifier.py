"""Sentences, or pairs of sentences, to classes or a number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import keras
import numpy as np

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Head
from encoder_zoo.lazy import tf
from encoder_zoo.tasks.head import head_dropout, make_head
from encoder_zoo.tasks.labels import (
    LabelledTask,
    label_names,
    named_labels,
    number_of_classes,
    numbers_are_names,
    sigmoid,
    softmax,
)
from encoder_zoo.tasks.rows.batching import in_graph_batches
from encoder_zoo.tasks.rows.checks import assert_right
from encoder_zoo.tasks.rows.preprocessor import Preprocessor

logger = logging.getLogger("encoder_zoo")

OUTPUT_ACTIVATIONS = {
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "linear",
}
PROBLEM_TYPES = tuple(OUTPUT_ACTIVATIONS)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SequenceClassifierPreprocessor(Preprocessor):
    """Texts or pairs of texts to `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, in RoBERTa's form
    `<s> a </s>` or `<s> a </s></s> b </s>`.

    What is too long is truncated, of a pair the longer text first. See `Preprocessor` for the
    arguments. Labels may be class numbers or, once a task with `labels` has the preprocessor,
    their names. Where one of the names is a whole number, such as "1", whole numbers are names
    too: of the classes "1" to "5" the label 1 is the first.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"])
        >>> x = SequenceClassifierPreprocessor(tokenizer)((["hello"], ["hello hello"]))
        >>> x["token_ids"].numpy().tolist(), x["segment_ids"].numpy().tolist()
        ([[2, 5, 3, 5, 5, 3]], [[0, 0, 0, 1, 1, 1]])
    """

    problem_type: str | None = None
    num_classes: int | None = None
    labels: list[str] | None = None

    def attach(self, task: SequenceClassifier) -> None:
        super().attach(task)
        self.problem_type = task.problem_type
        self.num_classes = task.num_classes
        self.labels = task.labels

    def encode_labels(self, y) -> tf.Tensor:
        """Class numbers (B,), for several labels or regression a float matrix (B, C).

        Args:
            y: numbers or names; for several labels a list of names for every text, or rows of
                0 and 1.

        Raises:
            ValueError: naming the first label that is unknown and the row it stands in.
        """
        if self.problem_type == "multi_label_classification":
            return self._multi_hot(y)
        if self.problem_type == "regression":
            return self._targets(y)
        if tf.is_tensor(y) and not hasattr(y, "numpy"):
            return self._numbers_in_graph(y)
        y = np.asarray(y)
        if y.dtype.kind in "iu" and y.ndim == 1 and numbers_are_names(self.labels):
            y = y.astype(str)
        if y.dtype.kind in "OSUT":
            y = self._numbers_of_names(y.tolist())
        if y.dtype.kind not in "iu" or y.ndim != 1:
            raise ValueError(
                "Expected one class number or name for each text. "
                f"Received: labels of type {y.dtype} and shape {y.shape}."
            )
        wrong = np.flatnonzero((y < 0) | (y >= (self.num_classes or np.inf)))
        if wrong.size:
            raise ValueError(
                f"Row {wrong[0]} has the label {y[wrong[0]]}, but there are "
                f"{self.num_classes} classes: labels go from 0 to {self.num_classes - 1}."
            )
        return tf.constant(y, tf.int32)

    def _numbers_of_names(self, names: list) -> np.ndarray:
        if not self.labels:
            raise ValueError(
                f"Received the label {names[0]!r}, but the classifier has no names for its "
                "classes. Build it with labels=[...]."
            )
        numbers = {label: i for i, label in enumerate(self.labels)}
        names = [n.decode() if isinstance(n, bytes) else n for n in names]
        if numbers_are_names(self.labels):
            names = [n if isinstance(n, str) else str(n) for n in names]
        for row, name in enumerate(names):
            if name not in numbers:
                raise ValueError(
                    f"Row {row} has the unknown label {name!r}. Expected one of {self.labels}."
                )
        return np.array([numbers[name] for name in names], int)

    def _numbers_in_graph(self, y: tf.Tensor) -> tf.Tensor:
        if y.dtype.is_integer and numbers_are_names(self.labels):
            y = tf.strings.as_string(y)
        if y.dtype == tf.string:
            matches = tf.equal(y[:, None], tf.constant(self.labels or [""]))  # (B, C)
            y = tf.where(tf.reduce_any(matches, axis=1), tf.argmax(matches, axis=1), -1)
        y = tf.cast(y, tf.int32)
        if self.num_classes is None:
            return y
        inside = tf.reduce_all((y >= 0) & (y < self.num_classes))
        expected = f"{self.labels or list(range(self.num_classes))}"
        with tf.control_dependencies(
            [tf.debugging.Assert(inside, ["Labels outside", expected, y])]
        ):
            return tf.identity(y)

    def _multi_hot(self, y) -> tf.Tensor:
        if tf.is_tensor(y) and not hasattr(y, "numpy"):
            return self._multi_hot_in_graph(y)
        y = np.asarray(y) if hasattr(y, "columns") or tf.is_tensor(y) else y
        self._check_rows(y)
        if any(isinstance(v, str) for row in y for v in row) or not any(len(row) for row in y):
            hot = np.zeros((len(y), self.num_classes), "float32")
            for row, names in enumerate(y):
                hot[row, self._numbers_of_names(list(names))] = 1.0
            return tf.constant(hot)
        for i, row in enumerate(y):
            right = len(row) == self.num_classes and all(0 <= value <= 1 for value in row)
            if not right:
                raise ValueError(
                    f"Row {i} is {list(row)!r}. Expected {self.num_classes} numbers, 0 or 1 for "
                    "each class or a probability between them, or a list of names."
                )
        return tf.constant(np.array(y, "float32"))

    def _check_rows(self, y) -> None:
        """That there is a list for every text, and not one name or number."""
        for i, row in enumerate(y):
            if isinstance(row, str | bytes) or not hasattr(row, "__len__"):
                raise ValueError(
                    f"Row {i} is {row!r}. With several labels a text, expected a list for each: of "
                    f"names, or of {self.num_classes} numbers, 0 or 1 for each class."
                )

    def _multi_hot_in_graph(self, y: tf.Tensor) -> tf.Tensor:
        y = tf.ensure_shape(tf.cast(y, "float32"), (None, self.num_classes))
        right = tf.reduce_all((y >= 0) & (y <= 1), axis=1)
        row = tf.range(tf.shape(y)[0])
        message = ("Row ", row, " of the batch has other numbers than 0 and 1 for its classes.")
        with tf.control_dependencies([assert_right(right, *message)]):
            return tf.identity(y)

    def _targets(self, y) -> tf.Tensor:
        """Numbers to predict, float (B, C)."""
        count = self.num_classes
        in_graph = tf.is_tensor(y) and not hasattr(y, "numpy")
        y = y if in_graph else np.asarray(y)
        numbers = y.dtype.is_floating or y.dtype.is_integer if in_graph else y.dtype.kind in "fiub"
        shapes = [(None, count), *([(None,)] if count == 1 else [])]
        if not numbers or not any(map(tf.TensorShape(y.shape).is_compatible_with, shapes)):
            raise ValueError(
                f"Expected {count} number{'s' * (count > 1)} for each text, in the shape (texts, "
                f"{count}). Received: labels of type {y.dtype} and shape {tuple(y.shape)}."
            )
        if not in_graph:
            for row in np.argwhere(~np.isfinite(y))[:1]:
                raise ValueError(f"Row {row[0]} has the label {y[tuple(row)]}. Expected a number.")
        return tf.reshape(tf.cast(y, "float32"), (-1, count))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SequenceClassifier(LabelledTask):
    """Classifies texts or pairs of texts, or maps them to numbers.

    Args:
        backbone: any `Backbone`; for BERT one with a pooler.
        preprocessor: a `SequenceClassifierPreprocessor`, for raw text.
        num_classes: C; with `labels` their number.
        labels: names of the classes, saved with the preset; whole numbers become strings. Where one
            of the names is a whole number, whole numbers in `y` are names and not class numbers.
        problem_type: "single_label_classification" (one class for each text),
            "multi_label_classification" (any number of classes) or "regression" (numbers).
        dropout: before the output layer, in training; None is the backbone's.

    Call arguments:
        inputs: what the preprocessor makes.

    Returns:
        (B, C) float logits, or the numbers themselves for regression.

    Raises:
        ValueError: if neither `num_classes` nor `labels` is given, or they disagree.

    Source: Devlin et al. 2019, section 4.1; Liu et al. 2019's code for RoBERTa's head, which has
    a tanh layer of its own in the pooler's place.

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

    def __init__(
        self,
        backbone: Backbone,
        preprocessor: SequenceClassifierPreprocessor | None = None,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        problem_type: str = "single_label_classification",
        dropout: float | None = None,
        **kwargs,
    ):
        super().__init__(backbone, preprocessor, **kwargs)
        self.problem_type = _check_problem_type(problem_type)
        self.labels = named_labels(labels)
        self.num_classes = number_of_classes(num_classes, self.labels)
        if self.num_classes is None and problem_type == "regression":
            self.num_classes = 1
        if self.num_classes is None:
            raise ValueError(
                "Pass labels=[...] or num_classes: the checkpoint does not state them."
            )
        record = self.head_record
        if record.pooled and not backbone.pooler:
            raise ValueError(
                f"A {backbone.family.class_prefix} classifier reads the pooler's output. Build "
                "the backbone with pooler=True, or load the classifier with from_preset, which "
                "adds a pooler."
            )
        self.dropout = head_dropout(record, backbone, dropout)
        self.head = make_head(record, backbone, self.num_classes, self.dropout, self.dtype_policy)
        self.built = True
        if preprocessor is not None:
            self.preprocessor.attach(self)

    def call(self, inputs, training=None):
        outputs = self.backbone(inputs, training=training)
        if self.head_record.pooled:
            x = outputs["pooled_output"]  # (B, D)
        else:
            x = self.backbone.text_vectors(outputs["sequence_output"], inputs)  # (B, D)
        return self.head(x, training=training)  # (B, C)

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor((inputs["token_ids"].shape[0], self.num_classes), "float32")

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        stored = {}
        if cls._is_head_of(config) and cls._asks_for_classes_of(config, arguments):
            usual = "regression" if len(label_names(config)) == 1 else PROBLEM_TYPES[0]
            stored["problem_type"] = config.get("problem_type") or usual
        return {**stored, **super().checkpoint_arguments(config, head, arguments)}

    @property
    def output_activation(self) -> str:
        return OUTPUT_ACTIVATIONS[self.problem_type]

    def default_loss(self) -> keras.losses.Loss:
        if self.problem_type == "regression":
            return keras.losses.MeanSquaredError()
        if self.problem_type == "multi_label_classification":
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_metrics(self) -> list:
        if self.problem_type == "regression":
            return [keras.metrics.RootMeanSquaredError()]
        if self.problem_type == "multi_label_classification":
            return [keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")]
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def _tell_of_unseen(self, rows: dict, held_out: dict) -> None:
        if "labels" not in rows or self.problem_type == "regression":
            return
        seen, wanted = (self._classes_among(part["labels"].numpy()) for part in (rows, held_out))
        unseen = [repr((self.labels or range(self.num_classes))[i]) for i in wanted - seen]
        if unseen:
            count = len(held_out["labels"])
            logger.warning(
                "validation_split holds out the last %d of %d texts, and with them every text of "
                "%s, which training never sees. Shuffle texts and labels before `fit`.",
                count,
                count + len(rows["labels"]),
                ", ".join(sorted(unseen)),
            )

    def _classes_among(self, labels: np.ndarray) -> set[int]:
        """The classes that occur, by number."""
        return set((labels.nonzero()[1] if self._takes_several() else labels).tolist())

    def classify(self, texts, batch_size: int | None = None, top_k: int | None = None) -> list:
        """Texts to labels and probabilities.

        Args:
            texts: as for `predict`; a tuple of two for pairs.
            batch_size: default 32.
            top_k: also return the next best labels, so many in all.

        Returns:
            For every text `{"label", "score"}` with the best label, or the `top_k` best as a list
            of such, the best first. With several labels a text: a list of those with a score of
            at least 0.5, or the `top_k` best. For regression `{"score"}`. A label is its name, or
            its number where the classifier has no names; scores are probabilities.
        """
        values = self.predict(texts, batch_size, verbose=0)
        if self.problem_type == "regression":
            return [{"score": v[0].item() if len(v) == 1 else v.tolist()} for v in values]
        names = self.labels or range(self.num_classes)
        scores = sigmoid(values) if self._takes_several() else softmax(values)
        order = np.argsort(-scores, axis=-1, kind="stable")
        scores = np.take_along_axis(scores, order, axis=-1)
        ranked = [
            [{"label": names[i], "score": s.item()} for i, s in zip(*row, strict=True)]
            for row in zip(order, scores, strict=True)
        ]
        if top_k is not None:
            return [row[:top_k] for row in ranked]
        if self._takes_several():
            return [[label for label in row if label["score"] >= 0.5] for row in ranked]
        return [row[0] for row in ranked]

    def _takes_several(self) -> bool:
        return self.problem_type == "multi_label_classification"

    def served(self) -> dict[str, Callable]:
        """`classify` of all classes, for exports: of "text", and as "pairs" of "first", "second".

        Returns:
            Functions whose results are "label" (N, C) strings, the best first, and "score" (N, C);
            for regression "score" alone. A class without a name is called by its number.
        """
        names = tf.constant([str(name) for name in self.labels or range(self.num_classes)])

        def answer(*texts):
            rows = self.preprocessor.encode(texts)
            ones = tf.ones_like(rows["token_ids"].row_lengths())
            logits = in_graph_batches(self._logits_of_rows, rows, ones, self.num_classes)
            if self.problem_type == "regression":
                return {"score": logits.flat_values}
            scores = (tf.sigmoid if self._takes_several() else tf.nn.softmax)(logits.flat_values)
            scores, order = tf.math.top_k(scores, self.num_classes)
            return {"label": tf.gather(names, order), "score": scores}

        return {
            "serving_default": lambda text: answer(text),
            "pairs": lambda first, second: answer(first, second),
        }

    def _logits_of_rows(self, rows: dict):
        return self(self.preprocessor.pad(rows), training=False)


def _check_problem_type(problem_type: str) -> str:
    if problem_type not in PROBLEM_TYPES:
        raise ValueError(
            f"Unknown problem_type {problem_type!r}. Expected one of {', '.join(PROBLEM_TYPES)}."
        )
    return problem_type
