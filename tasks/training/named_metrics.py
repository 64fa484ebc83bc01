"""Metrics that `compile` knows by name: F1, AUC, Matthews, Pearson, Spearman, perplexity.

Comment letters: B batch, C classes or columns.
"""

from __future__ import annotations

import difflib

import keras
from keras import metrics, ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.common.wording import did_you_mean
from encoder_zoo.tasks.training.logit_metrics import class_indices_of

AVERAGES = {"f1": "macro", "f1_macro": "macro", "f1_micro": "micro", "f1_weighted": "weighted"}
MAX_RANKED = 2**14  # examples that a rank correlation is taken over


def metric_by_name(name: str, activation: str | None, num_classes: int | None):
    """Return the metric of a name; a name of Keras is returned unchanged.

    Args:
        name: "f1" (of two classes that of the second, else the mean over the classes), "f1_macro",
            "f1_micro", "f1_weighted", "auc", "matthews", "pearson", "spearman" or "perplexity".
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
    if name in ("pearson", "spearman") and activation != "linear":
        raise ValueError(f"{name!r} is of numbers, and this task predicts classes.")
    if name in ("matthews", "perplexity") and activation != "softmax":
        raise ValueError(
            f"{name!r} is of one class for each example, which this task does not predict."
        )
    if name in (*AVERAGES, "auc") and activation not in ("softmax", "sigmoid"):
        raise ValueError(f"{name!r} is of classes, which this task does not predict.")
    if name in AVERAGES:
        only_second = name == "f1" and num_classes == 2 and activation == "softmax"
        threshold = 0.5 if only_second or activation == "sigmoid" else None
        return metrics.F1Score(AVERAGES[name], threshold, name=given)
    if name == "auc":
        several = activation == "sigmoid" or num_classes != 2
        options = {"multi_label": True, "num_labels": num_classes} if several else {}
        return metrics.AUC(name=given, **options)
    if name in OWN:
        return OWN[name](name=given)
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
        >>> float(metric.result())
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
        shares = self.counts / ops.maximum(ops.sum(self.counts), 1e-9)
        true, found = ops.sum(shares, 1), ops.sum(shares, 0)
        covariance = ops.trace(shares) - ops.sum(true * found)
        spread = (1 - ops.sum(true**2)) * (1 - ops.sum(found**2))
        return ops.where(spread > 1e-12, covariance / ops.sqrt(ops.maximum(spread, 1e-12)), 0.0)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Pearson(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Computes Pearson's correlation over all examples; of several numbers a text the mean.

    Keras's own correlates each batch, and reports the mean over the batches.

    Call arguments:
        y_true: (B, C) numbers.
        y_pred: (B, C) numbers.
        sample_weight: (B,).

    Source: Chan, Golub and LeVeque 1979, Updating formulae and a pairwise algorithm for computing
    sample variances.

    Example:
        >>> metric = Pearson()
        >>> for y_true, y_pred in (([[1.0], [2.0]], [[1.0], [3.0]]), ([[3.0]], [[2.0]])):
        ...     metric.update_state(y_true, y_pred)
        >>> round(float(metric.result()), 3)
        0.5
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "pearson", **kwargs})
        self.total = self.add_variable((), "zeros", name="total")
        self.moments = None

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_pred = ops.cast(ops.convert_to_tensor(y_pred), self.dtype)
        y_true = ops.reshape(ops.cast(y_true, self.dtype), ops.shape(y_pred))
        if self.moments is None:
            # means of both; sums of squares of both and of products, as deviations from the means
            self.moments = self.add_variable((5, y_pred.shape[-1]), "zeros", name="moments")
        weight = ops.ones_like(y_pred[:, :1])
        if sample_weight is not None:
            weight *= ops.reshape(ops.cast(sample_weight, self.dtype), (-1, 1))
        count = ops.sum(weight)
        means = [ops.sum(v * weight, 0) / ops.maximum(count, 1e-9) for v in (y_true, y_pred)]
        rest = [v - mean for v, mean in zip((y_true, y_pred), means, strict=True)]
        sums = [ops.sum(weight * rest[i] * rest[j], 0) for i, j in ((0, 0), (1, 1), (0, 1))]

        total = self.total + count
        shift = ops.stack(means) - self.moments[:2]
        share = self.total * count / ops.maximum(total, 1e-9)
        products = ops.stack([shift[0] ** 2, shift[1] ** 2, shift[0] * shift[1]]) * share
        shift = shift * count / ops.maximum(total, 1e-9)
        self.moments.assign_add(ops.concatenate([shift, ops.stack(sums) + products], 0))
        self.total.assign(total)

    def result(self):
        if self.moments is None:
            return ops.zeros((), self.dtype)
        _, _, first, second, both = ops.unstack(self.moments, axis=0)
        return ops.mean(_ratio(both, first * second))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Spearman(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Computes Spearman's rank correlation of the last 16,384 examples; ties get their mean rank.

    Call arguments:
        y_true: (B, 1) numbers.
        y_pred: (B, 1) numbers.
        sample_weight: (B,); examples of weight 0 do not count, others count alike.

    Source: Spearman 1904, The proof and measurement of association between two things.

    Example:
        >>> metric = Spearman()
        >>> metric.update_state([[1.0], [2.0], [3.0]], [[0.1], [0.9], [0.8]])
        >>> round(float(metric.result()), 3)
        0.5
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "spearman", **kwargs})
        self.values = self.add_variable((2, MAX_RANKED), "zeros", name="values")
        self.weights = self.add_variable((MAX_RANKED,), "zeros", name="weights")

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        if ops.convert_to_tensor(y_pred).shape[-1] != 1:
            raise ValueError("Spearman is of one number for each text. Use 'pearson' for several.")
        pair = ops.stack([ops.reshape(ops.cast(y, self.dtype), (-1,)) for y in (y_true, y_pred)])
        weight = ops.ones_like(pair[0])
        if sample_weight is not None:
            weight = ops.cast(ops.reshape(sample_weight, (-1,)) > 0, self.dtype)
        for variable, new in ((self.values, pair), (self.weights, weight[None])):
            old = ops.reshape(ops.convert_to_tensor(variable), (-1, MAX_RANKED))
            joined = ops.concatenate([old, new], axis=1)[:, -MAX_RANKED:]
            variable.assign(ops.reshape(joined, variable.shape))

    def result(self):
        weight = ops.convert_to_tensor(self.weights)
        ranks = [self._ranks(values, weight) for values in ops.unstack(self.values, axis=0)]
        count = ops.maximum(ops.sum(weight), 1.0)
        first, second = ((r - ops.sum(r * weight) / count) * weight for r in ranks)
        return _ratio(ops.sum(first * second), ops.sum(first**2) * ops.sum(second**2))

    @staticmethod
    def _ranks(values, weight):
        """Return mean ranks, from 0, among those that count."""
        ordered = ops.sort(ops.where(weight > 0, values, float("inf")))
        sides = (ops.searchsorted(ordered, values, side=side) for side in ("left", "right"))
        return ops.cast(sum(sides), values.dtype) / 2


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


def _ratio(covariance, variances):
    """Return a correlation; 0 where nothing varies."""
    return ops.where(
        variances > 0, covariance / ops.sqrt(ops.where(variances > 0, variances, 1.0)), 0.0
    )


OWN = {"matthews": Matthews, "pearson": Pearson, "spearman": Spearman, "perplexity": Perplexity}
NAMES = (*AVERAGES, "auc", *OWN)
