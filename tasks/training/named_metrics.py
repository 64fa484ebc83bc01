"""Metrics that `compile` knows by name, equal to those of scikit-learn and SciPy.

Comment letters: B batch, C classes or columns.
"""

from __future__ import annotations

import difflib

import keras
from keras import metrics, ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.common.wording import did_you_mean
from encoder_zoo.tasks.training.exact_metrics import AUC, AveragePrecision, Pearson, Spearman
from encoder_zoo.tasks.training.logit_metrics import class_indices_of

SCORES = ("f1", "precision", "recall")
AVERAGES = ("macro", "macro_all", "micro", "weighted")
CLASS_SCORES = tuple(name for s in SCORES for name in (s, *(f"{s}_{a}" for a in AVERAGES)))


def metric_by_name(name: str, activation: str | None, num_classes: int | None):
    """Return the metric of a name; a name of Keras is returned unchanged.

    Args:
        name: one of `NAMES`, or Keras's. "f1", "precision" and "recall" are, of two classes, those
            of the second, else "f1_macro" and so on, see `ClassScore`.
        activation: see `logit_metrics.metrics_on_logits`.
        num_classes: C, if it is known.

    Raises:
        ValueError: "Unknown metric 'f1_makro'. Did you mean 'f1_macro'?", "'pearson' is of
            numbers, ...", "'matthews' is of one class for each example, ..."

    Example:
        >>> metric_by_name("f1_macro", "softmax", 3).average, metric_by_name("mse", "linear", 1)
        ('macro', 'mse')
    """
    given, name = name, name.lower() if name.lower() in NAMES else name
    if name in CORRELATIONS and activation != "linear":
        raise ValueError(f"{given!r} is of numbers, and this task predicts classes.")
    if name in OF_ONE_CLASS and activation != "softmax":
        raise ValueError(
            f"{given!r} is of one class for each example, which this task does not predict."
        )
    if name in (*CLASS_SCORES, *EXACT) and activation not in ("softmax", "sigmoid"):
        raise ValueError(f"{given!r} is of classes, which this task does not predict.")
    if name in CLASS_SCORES:
        score, _, average = name.partition("_")
        only_second = num_classes == 2 and activation == "softmax"
        average = average or ("binary" if only_second else "macro")
        return ClassScore(score, average, activation, name=given)
    if name in EXACT:
        return EXACT[name](activation, name=given)
    if name in NAMES:
        return {**OF_ONE_CLASS, **CORRELATIONS}[name](name=given)
    _check_known(name)
    return name


def _check_known(name: str) -> None:
    """Raise a ValueError if Keras has no metric or loss of this name."""
    if name.lower() in ("accuracy", "acc", "crossentropy", "ce"):
        return
    try:
        metrics.get(name)
    except ValueError:
        known = [*NAMES, "accuracy", *filter(str.islower, dir(metrics))]
        close = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.6)
        raise ValueError(
            f"Unknown metric {name!r}.{did_you_mean(close)} Names are {', '.join(NAMES)} and those "
            "of Keras."
        ) from None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassScore(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Computes precision, recall or F1 of classes, as scikit-learn's functions of these names.

    Args:
        score: "f1", "precision" or "recall".
        average: "binary" is the score of the second class; "micro" counts all classes together;
            "macro" is the mean over the classes that occur in labels or predictions, with several
            labels a text over all labels, "macro_all" always over all; "weighted" is the mean
            weighted by how many examples have the class. A score without examples is 0.
        activation: "softmax", where the class with the largest output is predicted, or "sigmoid",
            where each label with an output above 0 is.

    Call arguments:
        y_true: (B, ...) class indices, those below 0 do not count, or (B, ..., C).
        y_pred: (B, ..., C) logits.
        sample_weight: (B,) or (B, ...).

    Example:
        >>> metric = ClassScore("recall", "macro")
        >>> metric.update_state([0, 0, 1], [[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [1.0, 2.0, 0.0]])
        >>> float(metric.result())  # (1 / 2 + 1 / 1) / 2
        0.75
    """

    def __init__(
        self, score: str = "f1", average: str = "macro", activation: str = "softmax", **kwargs
    ):
        super().__init__(**{"name": score, **kwargs})
        self.score, self.average, self.activation = score, average, activation
        self.counts = None

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        classes = y_pred.shape[-1]
        if self.counts is None:
            # of what is right, predicted and true
            self.counts = self.add_variable((3, classes), "zeros", name="counts")
        if self.activation == "softmax":
            y_true = ops.cast(class_indices_of(y_true, y_pred), "int32")
            weight = ops.cast(y_true >= 0, self.dtype)
            true = ops.one_hot(y_true, classes, dtype=self.dtype)
            found = ops.one_hot(ops.argmax(y_pred, -1), classes, dtype=self.dtype)
        else:
            true, found = (
                ops.cast(x, self.dtype) for x in (ops.cast(y_true, self.dtype) > 0.5, y_pred > 0)
            )
            weight = ops.ones_like(true[..., 0])
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            while len(sample_weight.shape) < len(weight.shape):
                sample_weight = sample_weight[..., None]
            weight *= sample_weight
        weighted = ops.stack([true * found, found, true]) * weight[..., None]
        self.counts.assign_add(ops.sum(ops.reshape(weighted, (3, -1, classes)), axis=1))

    def result(self):
        if self.counts is None:
            return ops.zeros((), self.dtype)
        right, found, true = ops.unstack(ops.convert_to_tensor(self.counts), axis=0)
        if self.average == "binary":
            right, found, true = right[-1], found[-1], true[-1]
        if self.average == "micro":
            right, found, true = ops.sum(right), ops.sum(found), ops.sum(true)
        scores = {
            "f1": lambda: _ratio(2 * right, found + true),
            "precision": lambda: _ratio(right, found),
            "recall": lambda: _ratio(right, true),
        }[self.score]()
        if self.average in ("binary", "micro"):
            return scores
        weight = ops.ones_like(true)
        if self.average == "weighted":
            weight = true
        elif self.average == "macro" and self.activation == "softmax":
            weight = ops.cast(true + found > 0, self.dtype)
        return _ratio(ops.sum(scores * weight), ops.sum(weight))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Matthews(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Computes Matthews's correlation coefficient of two classes or more, the metric of CoLA.

    Call arguments:
        y_true: (B,) class indices, or (B, C).
        y_pred: (B, C) logits or probabilities.
        sample_weight: (B,).

    Source: Matthews 1975; for several classes Gorodkin 2004, Comparing two K-category assignments
    by a K-category correlation coefficient.

    Example:
        >>> metric = Matthews()
        >>> metric.update_state([1, 0, 1], [[0, 1], [1, 0], [1, 0]])
        >>> round(float(metric.result()), 3)
        0.5
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "matthews", **kwargs})
        self.counts = None

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_pred = ops.convert_to_tensor(y_pred)
        classes = y_pred.shape[-1]
        if self.counts is None:
            self.counts = self.add_variable((classes, classes), "zeros", name="counts")
        true = ops.reshape(class_indices_of(y_true, y_pred), (-1,))
        found = ops.reshape(ops.argmax(y_pred, -1), (-1,))
        true, found = (
            ops.one_hot(ops.cast(numbers, "int32"), classes, dtype=self.dtype)
            for numbers in (true, found)
        )  # (B, C)
        if sample_weight is not None:
            true *= ops.reshape(ops.cast(sample_weight, self.dtype), (-1, 1))
        self.counts.assign_add(ops.matmul(ops.transpose(true), found))

    def result(self):
        if self.counts is None:
            return ops.zeros((), self.dtype)
        counts = ops.convert_to_tensor(self.counts)
        total = ops.sum(counts)
        both, true, found = ops.diagonal(counts), ops.sum(counts, 1), ops.sum(counts, 0)
        # Differences of counts alone, which float32 has exactly.
        neither = (total - true) - (found - both)
        square = ops.maximum(total, 1e-9) ** 2
        covariance = ops.sum((both * neither - (true - both) * (found - both)) / square)
        true, found = (ops.sum(n / square * (total - n)) for n in (true, found))
        spread = ops.sqrt(true) * ops.sqrt(found)
        return ops.where(spread > 0, covariance / ops.where(spread > 0, spread, 1.0), 0.0)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Perplexity(metrics.SparseCategoricalCrossentropy):
    """Computes the exponentiated cross-entropy of all tokens that count.

    Call arguments:
        y_true: (B, ...) int.
        y_pred: (B, ..., C) logits.
        sample_weight: (B, ...).

    Example:
        >>> metric = Perplexity()
        >>> metric.update_state([[1, 0]], [[[0.0, 0.0], [9.0, 9.0]]])
        >>> float(metric.result())
        2.0
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "perplexity", "from_logits": True, **kwargs})

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.reshape(class_indices_of(y_true, y_pred), (-1,))
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1,))
        return super().update_state(
            y_true, ops.reshape(y_pred, (-1, y_pred.shape[-1])), sample_weight
        )

    def result(self):
        return ops.exp(super().result())


def _ratio(part, whole):
    """Return part / whole, or 0 if the whole is 0."""
    return ops.where(whole > 0, part / ops.where(whole > 0, whole, 1.0), 0.0)


EXACT = {"auc": AUC, "average_precision": AveragePrecision}
CORRELATIONS = {"pearson": Pearson, "spearman": Spearman}
OF_ONE_CLASS = {"matthews": Matthews, "perplexity": Perplexity}
NAMES = (*CLASS_SCORES, *EXACT, *OF_ONE_CLASS, *CORRELATIONS)
