"""Metrics of all examples together, which no mean over batches equals: AUC and correlations.

Comment letters: B batch, N examples that are kept, C classes or columns.
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
    """Base of metrics that keep labels and outputs of all examples until they are reset.

    `fit` and `evaluate` make room for as many examples as they have. With more than there is room
    for the result is NaN.

    In a replica of `tf.distribute`, and in a process of `torch.distributed`, only its own part of
    the variables is written, so that their sum over all of them holds the examples of all.

    Args:
        capacity: number of examples that there is room for.
    """

    @validate_arguments
    def __init__(self, capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(**kwargs)
        self.capacity = capacity
        self._forget()

    def _forget(self) -> None:
        """Forget the variables; `update_state` makes others."""
        self._kept = types.MappingProxyType({})  # past Keras's tracking

    @property
    def variables(self) -> list[keras.Variable]:
        """Return the rows of all examples, and how many each replica has; none before the first."""
        return list(self._kept.values())

    def reserve(self, count: int) -> bool:
        """Make room for so many examples; return whether variables were dropped for it."""
        if count <= self.capacity:
            return False
        self.capacity = 2 ** math.ceil(math.log2(count))
        had = bool(self._kept)
        self._forget()
        return had

    def columns(self, y_true, y_pred) -> tuple:
        """Return what is kept of labels (B, 1) or (B, C), and of outputs (B, C)."""
        return y_true, y_pred

    def score(self, y_true, y_pred, weight):
        """Return the metric of all examples that have a weight (N,) above 0."""
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
        # The last row of each part takes what does not count.
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
    """Base of metrics of how the outputs of a class rank the examples.

    Examples are ranked by log-odds, which do not saturate as probabilities do. Of two classes the
    score is that of the second; of more, and of several labels a text, it is the mean over the
    classes, each against the rest, without those for which it is not defined.

    Args:
        activation: that makes probabilities of the outputs, "softmax" or "sigmoid".
        capacity: see `ExactMetric`.

    Call arguments:
        y_true: (B,) class indices, or (B, C).
        y_pred: (B, C) logits.
        sample_weight: (B,).
    """

    undefined = float("nan")  # where no class has a score

    def __init__(self, activation: str = "softmax", capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(capacity, **kwargs)
        self.activation = activation

    def columns(self, y_true, y_pred) -> tuple:
        if self.activation == "sigmoid":
            return y_true, y_pred
        if len(y_true.shape) == len(y_pred.shape) and y_pred.shape[-1] > 1:
            y_true = ops.argmax(y_true, -1)
        if y_pred.shape[-1] == 2:  # no rounding makes different values of equal ones
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
        """Return whether there is a score for these weights of a class and of the rest."""
        raise NotImplementedError

    def score_of_class(self, scores, positive, negative):
        """Return the score of a class, from scores and weights (N,)."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AUC(ClassRanking):
    """Computes the exact area under the ROC curve, as scikit-learn's `roc_auc_score`.

    It is the share of pairs of an example of the class and another one that are in the right order;
    equal outputs count half. Of several classes see `ClassRanking`, as `multi_class="ovr",
    average="macro"`. NaN where no class has both.

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
    """Computes the average precision, as scikit-learn's `average_precision_score`.

    It is the mean, over the examples of the class, of the precision among the examples with as high
    an output or a higher one. 0 where no class occurs.

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
    """Computes Pearson's correlation over all examples; of several numbers a text the mean.

    NaN where labels or outputs are constant, as in SciPy. Keras's own correlates each batch, and
    reports the mean over the batches.

    Call arguments:
        y_true: (B, C) numbers.
        y_pred: (B, C) numbers.
        sample_weight: (B,); an example of weight 2 counts as two.

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
    """Computes Spearman's rank correlation over all examples; ties get their mean rank.

    Of several numbers a text it is the mean; NaN where labels or outputs are constant, as in SciPy.

    Call arguments:
        y_true: (B, C) numbers.
        y_pred: (B, C) numbers.
        sample_weight: (B,); an example of weight 2 counts as two.

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
    """Return the correlations (C,) of columns (N, C), with weights (N, 1); NaN of constant ones."""
    total, infinite = ops.maximum(ops.sum(weight), 1e-30), float("inf")
    varies = True
    for x in (a, b):
        largest = ops.max(ops.where(weight > 0, x, -infinite), 0)
        varies &= largest > ops.min(ops.where(weight > 0, x, infinite), 0)
    # Twice, as the rounding error of a first mean is not small beside close numbers.
    for _ in range(2):
        a, b = (ops.where(weight > 0, x - ops.sum(weight * x, 0) / total, 0.0) for x in (a, b))
    scales = [ops.max(ops.abs(x), 0) for x in (a, b)]  # squares do not overflow
    a, b = (x / ops.where(s > 0, s, 1.0) for x, s in zip((a, b), scales, strict=True))
    products = [ops.sum(weight * x * y, 0) for x, y in ((a, b), (a, a), (b, b))]
    spread = ops.sqrt(products[1]) * ops.sqrt(products[2])
    return ops.where(varies, products[0] / ops.where(spread > 0, spread, 1.0), float("nan"))


def weight_below(values, weight) -> tuple:
    """Return for each value (N,) the weight of smaller ones, and of smaller or equal ones."""
    values = ops.copy(values)  # those of a column, which PyTorch keeps apart, side by side
    order = ops.argsort(values)
    ordered = ops.take(values, order)
    sums = ops.cumsum(ops.take(weight, order))
    sums = ops.concatenate([ops.zeros_like(sums[:1]), sums])
    sides = (ops.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    below, up_to = (ops.take(sums, side) for side in sides)
    return below, up_to


def log_odds(logits):
    """Return the log-odds (B, C) of the classes of a softmax, plus log(C - 1): equal logits have 0.

    So float32 tells close logits apart, as those of a model that is hardly trained.

    Example:
        >>> [float(x) for x in log_odds(ops.convert_to_tensor([[1.0, 5001.0]]))[0]]
        [-5000.0, 5000.0]
        >>> [round(float(x) * 1e9) for x in log_odds(ops.convert_to_tensor([[2e-9, 0.0, 4e-9]]))[0]]
        [0, -3, 3]
    """
    count, classes = ops.shape(logits)[0], logits.shape[-1]
    # Processors compute exp of the last numbers of an array by another routine, so that equal rows
    # would have unequal results: these rows are there to be the last ones.
    logits = ops.pad(logits, [[0, 16], [0, 0]])
    first = ops.max(logits, -1, keepdims=True)
    behind = logits - first
    more = ops.expm1(behind)  # than an equal logit has, of the best class's share
    others = (ops.sum(ops.sort(more, axis=-1), -1, keepdims=True) - more) / max(1, classes - 1)
    of_close = behind - ops.log1p(ops.maximum(others, -0.99))
    is_close = ops.min(behind, -1, keepdims=True) > -1
    is_best = ops.cast(ops.one_hot(ops.argmax(logits, -1), classes), "bool")
    rest = ops.where(is_best, -float("inf"), logits)
    second = ops.max(rest, -1, keepdims=True)
    of_best = first - second - ops.log(_sum_of_shares(rest - second))
    # Of another class: against the sum without its own share, which has the 1 of the best.
    others = ops.where(is_best, 1.0, _sum_of_shares(behind) - ops.exp(behind))
    found = ops.where(is_best, of_best, behind - ops.log(ops.maximum(others, 1e-30)))
    return ops.where(is_close, of_close, found + math.log(max(1, classes - 1)))[:count]


def _sum_of_shares(logits):
    """Return the sum (B, 1) of exp(logits), which does not depend on the order of the classes."""
    return ops.sum(ops.exp(ops.sort(logits, axis=-1)), -1, keepdims=True)


def _replicas() -> int:
    """Return the number of replicas that have a part of the variables."""
    if keras.config.backend() != "tensorflow":
        return torch_processes()
    return tf.distribute.get_strategy().num_replicas_in_sync


def _replica():
    """Return the number of the replica that this runs in."""
    if keras.config.backend() != "tensorflow":
        return torch_process()
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group
