"""The answers of a sequence classifier: labels and scores of texts, in memory and in exports.

Comment letters: N texts, W windows, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict, overload

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, Probability, validate_arguments
from encoder_zoo.tasks.base.class_names import sigmoid, softmax
from encoder_zoo.tasks.preprocessing.batching import in_graph_batches
from encoder_zoo.tasks.preprocessing.spacy_docs import is_doc
from encoder_zoo.tasks.sequence_classification.pooling import pooled_by_text
from encoder_zoo.tasks.training.inference import example_outputs, predict_texts

Text = str | tuple[str, str]  # one, or one pair


class LabelScore(TypedDict):
    """A label of a text and its probability; of a regression the number alone, as the score."""

    label: str
    score: float


class Answering:
    """Mixin of `SequenceClassifier`."""

    @validate_arguments
    def predict_proba(self, texts: object, batch_size: PositiveInt | None = None) -> np.ndarray:
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
        return sigmoid(logits) if self._is_multi_label() else softmax(logits)

    @overload
    def classify(
        self,
        texts: Text,
        batch_size: int | None = None,
        top_k: None = None,
        threshold: float | None = None,
    ) -> LabelScore: ...
    @overload
    def classify(
        self,
        texts: Text,
        batch_size: int | None = None,
        *,
        top_k: int,
        threshold: float | None = None,
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self,
        texts: object,
        batch_size: int | None = None,
        top_k: None = None,
        threshold: float | None = None,
    ) -> list[LabelScore]: ...
    @overload
    def classify(
        self,
        texts: object,
        batch_size: int | None = None,
        *,
        top_k: int,
        threshold: float | None = None,
    ) -> list[list[LabelScore]]: ...
    @validate_arguments
    def classify(
        self,
        texts: object,
        batch_size: PositiveInt | None = None,
        top_k: PositiveInt | None = None,
        threshold: Probability | None = None,
    ):
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
        if is_single(texts):
            texts = tuple([t] for t in texts) if isinstance(texts, tuple) else [texts]
            return self.classify(texts, batch_size, top_k, threshold)[0]
        self._check_labels_known()
        self._check_threshold(threshold, top_k)
        if self.problem_type == "regression":
            values = self.predict(texts, batch_size, verbose=0)
            return [{"score": v[0].item() if len(v) == 1 else v.tolist()} for v in values]
        scores = self.predict_proba(texts, batch_size)
        order = np.argsort(-scores, axis=-1, kind="stable")
        if threshold is not None and not self._is_multi_label():
            order = (scores[:, 1:] >= threshold).astype(int)
        ranked = labels_in_order(self.class_names, scores, order)
        if top_k is not None:
            return [row[:top_k] for row in ranked]
        if self._is_multi_label():
            least = 0.5 if threshold is None else threshold
            return [[label for label in row if label["score"] >= least] for row in ranked]
        return [row[0] for row in ranked]

    @property
    def class_names(self) -> Sequence:
        """Return the labels, or the class indices if they have no names."""
        return self.labels or range(self.num_classes)

    def _check_threshold(self, threshold: float | None, top_k: int | None) -> None:
        of_two = self.num_classes == 2 and self.problem_type != "regression"
        fits = (self._is_multi_label() or of_two) and top_k is None
        if threshold is not None and not fits:
            raise ValueError(
                "threshold is of two classes, or of several labels a text, and not of the top_k. "
                f"Received: problem_type={self.problem_type!r}, {self.num_classes} classes, "
                f"top_k={top_k}."
            )

    def _is_multi_label(self) -> bool:
        return self.problem_type == "multi_label_classification"

    # -- logits of texts -----------------------------------------------------------------------

    def _predict_texts(self, x, batch_size: int, predict: Callable) -> np.ndarray:
        """Return the logits of texts in memory, (N, C), in their order."""
        if not self.preprocessor.pools_windows:
            return predict_texts(self, x, batch_size, predict)
        examples = self.preprocessor.encode_windows(x)
        return pooled_predictions(self, examples, batch_size, self.num_classes)

    def _logits_in_graph(self, texts: tuple) -> tf.Tensor:
        """Return the logits of texts (N, C), or pairs of them, inside `tf.function`."""
        if not self.preprocessor.pools_windows:
            examples, index = self.preprocessor.encode(texts), None
        else:
            examples = self.preprocessor.encode_windows(texts)
            index = examples.pop("text_index")
        ones = tf.ones_like(examples["token_ids"].row_lengths())
        logits = in_graph_batches(self._logits_of_examples, examples, ones, self.num_classes)
        logits = logits.flat_values
        return logits if index is None else pooled_by_text(logits, index, self.window_pooling)

    def _logits_of_examples(self, examples: dict):
        return self(self.preprocessor.pad(examples), training=False)

    def signatures(self) -> dict[str, Callable]:
        """Return `classify` of all classes for exports: of "text", and as "pairs" of "first",
        "second".

        Returns:
            Functions whose results are "label" (N, C) strings, the best first, and "score" (N, C);
            for regression "score" alone. A class without a name is called by its number.
        """
        names = tf.constant([str(name) for name in self.class_names])

        def answer(*texts):
            logits = self._logits_in_graph(texts)
            if self.problem_type == "regression":
                return {"score": logits}
            scores = (tf.sigmoid if self._is_multi_label() else tf.nn.softmax)(logits)
            scores, order = tf.math.top_k(scores, self.num_classes)
            return {"label": tf.gather(names, order), "score": scores}

        return {
            "serving_default": lambda text: answer(text),
            "pairs": lambda first, second: answer(first, second),
        }


def pooled_predictions(
    task: keras.Model, examples: dict, batch_size: int, num_classes: int
) -> np.ndarray:
    """Return the logits of texts in memory from those of their windows, (N, C).

    Args:
        task: with a `window_pooling`.
        examples: of all windows, and "text_index" (W,), the text of each.
        batch_size: of windows.
        num_classes: C.
    """
    index = examples.pop("text_index")
    logits = np.zeros((index.shape[0], num_classes), "float32")
    for windows, values in example_outputs(task, examples, batch_size):
        logits[windows] = values
    return pooled_by_text(tf.constant(logits), index, task.window_pooling).numpy()


def labels_in_order(
    names: Sequence, scores: np.ndarray, order: np.ndarray
) -> list[list[LabelScore]]:
    """Return the labels of each text with their scores.

    Args:
        names: of the classes.
        scores: (N, C).
        order: (N, M), the classes of each text, in the order in which they are given.

    Example:
        >>> labels_in_order(["no", "yes"], np.array([[0.25, 0.75]]), np.array([[1, 0]]))
        [[{'label': 'yes', 'score': 0.75}, {'label': 'no', 'score': 0.25}]]
    """
    return [
        [{"label": names[i], "score": row[i].item()} for i in numbers]
        for row, numbers in zip(scores, order.tolist(), strict=True)
    ]


def is_single(texts) -> bool:
    """Return whether this is one text, or one pair of texts, and not a list of them."""
    parts = texts if isinstance(texts, tuple) else (texts,)
    return len(parts) > 0 and all(isinstance(part, str | bytes) or is_doc(part) for part in parts)
