"""Metrics that cannot be averaged over batches, such as AUC and correlations.

Dimensions in comments: B is the batch size, N the number of stored examples and C the number of
classes or columns.
"""

from __future__ import annotations

import math
import types

import keras
from keras import metrics, ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter, torch_process, torch_processes
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.losses.replicas import leaves_out_rows

CAPACITY = 2**14


class ExactMetric(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Base class for metrics that store labels and outputs for all examples until they are reset.

    `fit` and `evaluate` set the capacity to the number of examples. If there are more examples than
    this, the result will be NaN.

    With `tf.distribute` or `torch.distributed`, every replica or process only writes to its own
    part of the variables. All examples will therefore be included when the variables are summed.

    Args:
        capacity: Positive integer. Maximum number of examples to store.
    """

    @validate_arguments
    def __init__(self, capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(**kwargs)
        self.capacity = capacity
        self._forget()

    def _forget(self) -> None:
        """Delete the variables. New variables will be created in `update_state`."""
        self._kept = types.MappingProxyType({})  # hidden from Keras tracking

    @property
    def variables(self) -> list[keras.Variable]:
        """Variables with the stored examples and the number of examples per replica.

        This list will be empty before the first update.
        """
        return list(self._kept.values())

    def reserve(self, count: int) -> bool:
        """Set the capacity to at least `count`. Return whether variables were deleted."""
        if count <= self.capacity:
            return False
        self.capacity = 2 ** math.ceil(math.log2(count))
        had = bool(self._kept)
        self._forget()
        return had

    def columns(self, y_true, y_pred) -> tuple:
        """Return the columns to store: labels (B, 1) or (B, C), and outputs (B, C)."""
        return y_true, y_pred

    def score(self, y_true, y_pred, weight):
        """Compute the metric for all examples with weights (N,) above 0."""
        raise NotImplementedError

    @leaves_out_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = self.columns(ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred))
        y_pred = ops.cast(y_pred, self.dtype)
        y_true = ops.reshape(ops.cast(y_true, self.dtype), (ops.shape(y_pred)[0], -1))
        weight = ops.ones_like(y_pred[:, 0])
        if sample_weight is not None:
            weight *= ops.reshape(ops.cast(sample_weight, self.dtype), (-1,))
        if not self._kept:
            self._make_variables(y_true.shape[-1] or 1, y_pred.shape[-1])
        counts = weight > 0
        kept, number = self.variables
        replica, before = _replica(), ops.convert_to_tensor(number)
        at = ops.cast(before[replica], "int32") + ops.cumsum(ops.cast(counts, "int32")) - 1
        # Ignored examples are written to the last row in each part.
        at = ops.where(counts & (at < self.capacity), at, self.capacity)
        rows = ops.concatenate([y_true, y_pred, weight[:, None]], axis=1)
        rows = ops.where((at < self.capacity)[:, None], rows, 0.0)
        at = (at + replica * (self.capacity + 1))[:, None]
        kept.assign(ops.scatter_update(ops.convert_to_tensor(kept), at, rows))
        mine = ops.cast(ops.arange(before.shape[0]) == replica, self.dtype)
        number.assign(before + mine * ops.sum(ops.cast(counts, self.dtype)))

    def _make_variables(self, *widths: int) -> None:
        self.widths, parts = widths, _replicas()
        shape = (parts * (self.capacity + 1), sum(widths) + 1)
        shapes = {"examples": shape, "counts": (parts,)}
        made = {
            name: keras.Variable(
                "zeros",
                shape,
                self.dtype,
                trainable=False,
                aggregation="sum",
                synchronization="on_read",
                name=name,
            )
            for name, shape in shapes.items()
        }
        self._kept = types.MappingProxyType(made)

    def result(self):
        if not self._kept:
            return ops.zeros((), self.dtype)
        width = self.widths[0]
        rows, number = map(ops.convert_to_tensor, self.variables)
        score = self.score(rows[:, :width], rows[:, width:-1], rows[:, -1])
        is_whole = ops.all(number <= self.capacity)
        is_valid = is_whole & ~ops.any(ops.isnan(rows))
        return ops.where(is_valid, score, float("nan"))


class ClassRanking(ExactMetric):
    """Base class for metrics to evaluate how the outputs for a class rank the examples.

    Examples are ranked by log-odds, which do not saturate like probabilities. With two classes, the
    score for the second class is used. With more classes or in multi-label tasks, each class is
    compared with the rest, and the scores are averaged. Classes will be excluded from this average
    when their score is undefined.

    Args:
        activation: "softmax" or "sigmoid". Output activation function. Defaults to "softmax".
        capacity: Positive integer, see `ExactMetric`.

    Call arguments:
        y_true: Class indices with shape (B,), or labels with shape (B, C).
        y_pred: The logits with shape (B, C).
        sample_weight: The weights with shape (B,).
    """

    undefined = float("nan")  # result to return when no class has a score

    def __init__(self, activation: str = "softmax", capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(capacity, **kwargs)
        self.activation = activation

    def columns(self, y_true, y_pred) -> tuple:
        if self.activation == "sigmoid":
            return y_true, y_pred
        if len(y_true.shape) == len(y_pred.shape) and y_pred.shape[-1] > 1:
            y_true = ops.argmax(y_true, -1)
        if y_pred.shape[-1] == 2:  # this difference is exact for equal outputs
            return y_true, y_pred[:, 1:] - y_pred[:, :1]
        return y_true, log_odds(y_pred)

    def score(self, y_true, y_pred, weight):
        if self.widths[0] < self.widths[1]:
            y_true = ops.one_hot(ops.cast(y_true[:, 0], "int32"), self.widths[1], dtype=self.dtype)

        def score_of(column):
            true, scores = column
            positive, negative = true * weight, (1 - true) * weight
            is_defined = self.is_defined(ops.sum(positive), ops.sum(negative))
            found = self.score_of_class(scores, positive, negative)
            return ops.where(is_defined, found, 0.0), ops.cast(is_defined, self.dtype)

        scores, defined = ops.map(score_of, (ops.transpose(y_true), ops.transpose(y_pred)))
        count = ops.sum(defined)
        mean = ops.sum(scores) / ops.maximum(count, 1.0)
        return ops.where(count > 0, mean, self.undefined)

    def is_defined(self, positive, negative):
        """Return whether the score is defined for the weights in the class and in the rest."""
        raise NotImplementedError

    def score_of_class(self, scores, positive, negative):
        """Compute the score for a class from outputs and weights with shape (N,)."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AUC(ClassRanking):
    """Compute the exact area under the ROC curve, like `roc_auc_score` in scikit-learn.

    This is the fraction of pairs with a positive and a negative example that are ranked correctly.
    Equal outputs count as one half. Several classes are averaged as with `multi_class="ovr",
    average="macro"`. The result will be NaN when no class has both positive and negative examples.

    Source: Hanley and McNeil 1982, The meaning and use of the area under a ROC curve.

    Example:
        >>> metric = AUC()
        >>> metric.update_state([0, 1, 1], [[0.0, 1000.0], [0.0, 2000.0], [0.0, 1000.0]])
        >>> float(metric.result())
        0.75
    """

    def __init__(self, activation: str = "softmax", capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(activation, capacity, **{"name": "auc", **kwargs})

    def is_defined(self, positive, negative):
        return (positive > 0) & (negative > 0)

    def score_of_class(self, scores, positive, negative):
        below, up_to = weight_below(scores, negative)
        pairs = ops.sum(positive / ops.maximum(ops.sum(positive), 1e-30) * (below + up_to) / 2)
        return pairs / ops.maximum(ops.sum(negative), 1e-30)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AveragePrecision(ClassRanking):
    """Compute the average precision, like `average_precision_score` in scikit-learn.

    For every example in the class, the precision is computed among the examples with the same or a
    higher output. These values are averaged. The result will be 0 when no class occurs.

    Example:
        >>> metric = AveragePrecision()
        >>> metric.update_state([0, 1, 1], [[0.0, 3.0], [0.0, 2.0], [0.0, 4.0]])
        >>> round(float(metric.result()), 3)  # (1 / 1 + 2 / 3) / 2
        0.833
    """

    undefined = 0.0

    def __init__(self, activation: str = "softmax", capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(activation, capacity, **{"name": "average_precision", **kwargs})

    def is_defined(self, positive, negative):
        return positive > 0

    def score_of_class(self, scores, positive, negative):
        right, wrong = (ops.sum(w) - weight_below(scores, w)[0] for w in (positive, negative))
        precision = right / ops.maximum(right + wrong, 1e-30)
        return ops.sum(positive * precision) / ops.maximum(ops.sum(positive), 1e-30)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Pearson(ExactMetric):
    """Compute the Pearson correlation over all examples, averaged over the columns.

    The result will be NaN for constant labels or outputs, as in SciPy. In contrast, the Keras
    metric averages the correlations per batch.

    Call arguments:
        y_true: The labels with shape (B, C).
        y_pred: The outputs with shape (B, C).
        sample_weight: The weights with shape (B,). An example with weight 2 counts twice.

    Example:
        >>> metric = Pearson()
        >>> for y_true, y_pred in (([[1.0], [2.0]], [[1.0], [3.0]]), ([[3.0]], [[2.0]])):
        ...     metric.update_state(y_true, y_pred)
        >>> round(float(metric.result()), 3)
        0.5
    """

    def __init__(self, capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(capacity, **{"name": "pearson", **kwargs})

    def score(self, y_true, y_pred, weight):
        return ops.mean(correlation(y_true, y_pred, weight[:, None]))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Spearman(ExactMetric):
    """Compute the Spearman rank correlation over all examples, averaged over the columns.

    Ties get their mean rank. The result will be NaN for constant labels or outputs, as in SciPy.

    Call arguments:
        y_true: The labels with shape (B, C).
        y_pred: The outputs with shape (B, C).
        sample_weight: The weights with shape (B,). An example with weight 2 counts twice.

    Source: Spearman 1904, The proof and measurement of association between two things.

    Example:
        >>> metric = Spearman()
        >>> metric.update_state([[1.0], [2.0], [3.0]], [[0.1], [0.9], [0.8]])
        >>> round(float(metric.result()), 3)
        0.5
    """

    def __init__(self, capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(capacity, **{"name": "spearman", **kwargs})

    def score(self, y_true, y_pred, weight):
        columns = ops.transpose(ops.concatenate([y_true, y_pred], axis=1))
        ranks = ops.transpose(ops.map(lambda values: sum(weight_below(values, weight)), columns))
        width = self.widths[0]
        return ops.mean(correlation(ranks[:, :width], ranks[:, width:], weight[:, None]))


def correlation(a, b, weight):
    """Return the weighted correlations (C,) for columns (N, C), or NaN for constant columns."""
    total, infinite = ops.maximum(ops.sum(weight), 1e-30), float("inf")
    varies = True
    for x in (a, b):
        largest = ops.max(ops.where(weight > 0, x, -infinite), 0)
        varies &= largest > ops.min(ops.where(weight > 0, x, infinite), 0)
    # The mean is subtracted twice, because the rounding error in the first mean can be as large as
    # the difference between close values.
    for _ in range(2):
        a, b = (ops.where(weight > 0, x - ops.sum(weight * x, 0) / total, 0.0) for x in (a, b))
    scales = [ops.max(ops.abs(x), 0) for x in (a, b)]  # prevents the squares from overflowing
    a, b = (x / ops.where(s > 0, s, 1.0) for x, s in zip((a, b), scales, strict=True))
    products = [ops.sum(weight * x * y, 0) for x, y in ((a, b), (a, a), (b, b))]
    spread = ops.sqrt(products[1]) * ops.sqrt(products[2])
    return ops.where(varies, products[0] / ops.where(spread > 0, spread, 1.0), float("nan"))


def weight_below(values, weight) -> tuple:
    """Return for each value (N,) the total weight of smaller, and of smaller or equal values."""
    values = ops.copy(values)  # to make a column contiguous in PyTorch
    order = ops.argsort(values)
    ordered = ops.take(values, order)
    sums = ops.cumsum(ops.take(weight, order))
    sums = ops.concatenate([ops.zeros_like(sums[:1]), sums])
    sides = (ops.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    below, up_to = (ops.take(sums, side) for side in sides)
    return below, up_to


def log_odds(logits):
    """Return the log-odds (B, C) for the classes in a softmax, plus log(C - 1).

    With this constant, equal logits get the value 0. This allows float32 to distinguish the close
    logits that a model returns when training starts.

    Example:
        >>> [float(x) for x in log_odds(ops.convert_to_tensor([[1.0, 5001.0]]))[0]]
        [-5000.0, 5000.0]
        >>> [round(float(x) * 1e9) for x in log_odds(ops.convert_to_tensor([[2e-9, 0.0, 4e-9]]))[0]]
        [0, -3, 3]
    """
    count, classes = ops.shape(logits)[0], logits.shape[-1]
    # Processors use a different routine to compute exp for the last values in an array, so equal
    # rows could have different results. The padding makes sure that no real row is among the last
    # rows.
    logits = ops.pad(logits, [[0, 16], [0, 0]])
    first = ops.max(logits, -1, keepdims=True)
    behind = logits - first
    more = ops.expm1(behind)  # each class's share minus 1, relative to the best class
    others = (ops.sum(ops.sort(more, axis=-1), -1, keepdims=True) - more) / max(1, classes - 1)
    of_close = behind - ops.log1p(ops.maximum(others, -0.99))
    is_close = ops.min(behind, -1, keepdims=True) > -1
    is_best = ops.cast(ops.one_hot(ops.argmax(logits, -1), classes), "bool")
    rest = ops.where(is_best, -float("inf"), logits)
    second = ops.max(rest, -1, keepdims=True)
    of_best = first - second - ops.log(_sum_of_shares(rest - second))
    # Other classes are compared with the summed shares without their own share.
    others = ops.where(is_best, 1.0, _sum_of_shares(behind) - ops.exp(behind))
    found = ops.where(is_best, of_best, behind - ops.log(ops.maximum(others, 1e-30)))
    return ops.where(is_close, of_close, found + math.log(max(1, classes - 1)))[:count]


def _sum_of_shares(logits):
    """Return the sum (B, 1) of exp(logits). The result does not depend on the class order."""
    return ops.sum(ops.exp(ops.sort(logits, axis=-1)), -1, keepdims=True)


def _replicas() -> int:
    """Return the number of replicas that each store a part of the variables."""
    if keras.config.backend() != "tensorflow":
        return torch_processes()
    return tf.distribute.get_strategy().num_replicas_in_sync


def _replica():
    """Return the current replica index."""
    if keras.config.backend() != "tensorflow":
        return torch_process()
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group
