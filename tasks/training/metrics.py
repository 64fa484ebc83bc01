"""Metrics for models that return logits, and metrics over all examples, such as AUC.

By default, Keras metrics expect probabilities, and many expect one-hot labels instead of class
indices. With logits, these metrics would return wrong values without an error. For this reason,
`OfLogits` wraps Keras metrics.

Comments use these letters for shapes: B (batch size), N (stored examples), C (classes or columns).
"""

from __future__ import annotations

import math
import types

import keras
from keras import losses, metrics, ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import (
    HigherIsBetter,
    copy_metric_direction,
    count_torch_processes,
    get_torch_rank,
)
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.losses.batch_loss import (
    FUNCTIONS,
    LOSS_ACTIVATIONS,
    BatchLoss,
    get_keras_function,
    get_name,
    has_indices,
    mark_counted_labels,
    prepare_function_inputs,
    takes_probabilities,
)
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows

SPARSE = (metrics.SparseCategoricalAccuracy, metrics.SparseTopKCategoricalAccuracy)
ONE_HOT = (
    metrics.CategoricalAccuracy,
    metrics.TopKCategoricalAccuracy,
    metrics.CosineSimilarity,
    metrics.OneHotIoU,
    metrics.OneHotMeanIoU,
)
CLASS_INDEX_METRICS = (metrics.Accuracy, metrics.IoU, metrics.MeanIoU)
CAPACITY = 2**14


def flatten_tokens(y_true, y_pred, sample_weight=None) -> tuple:
    """Flatten labels, outputs and weights, so that metrics treat each token as an example.

    Without flattening, Keras metrics would first average over each row including padding, and the
    tokens in longer batches would have smaller weights.

    Args:
        y_true: Tensor of shape (B, L) or (B, L, C).
        y_pred: Tensor of shape (B, L, C).
        sample_weight: Optional tensor of shape (B, L).

    Returns:
        Tuple of the three arguments, reshaped to (B * L, ...).

    Example:
        >>> import numpy as np
        >>> y_true, y_pred, weight = flatten_tokens(np.zeros((2, 3)), np.zeros((2, 3, 5)))
        >>> keras.ops.shape(y_true), keras.ops.shape(y_pred), weight
        ((6,), (6, 5), None)
    """
    given = (x if x is None else ops.convert_to_tensor(x) for x in (y_true, y_pred, sample_weight))
    return tuple(x if x is None else ops.reshape(x, (-1, *x.shape[2:])) for x in given)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassAccuracy(metrics.SparseCategoricalAccuracy):
    """Compute the accuracy for class indices, or for labels that are class probabilities.

    If labels are probabilities, the class with the largest probability is the true class.

    Call arguments:
        y_true: Integer tensor of shape (B,) with class indices, or float tensor of shape (B, C)
            with class probabilities.
        y_pred: Float tensor of shape (B, C). Outputs.
        sample_weight: Optional float tensor of shape (B,). Weights.

    Example:
        >>> metric = ClassAccuracy()
        >>> metric.update_state([[0.1, 0.9], [0.7, 0.3]], [[-1.0, 2.0], [0.0, 1.0]])
        >>> float(metric.result())
        0.5
    """

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(get_class_indices(y_true, y_pred), y_pred, sample_weight)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class OfLogits(ConfigFromSignature, keras.metrics.Metric):
    """Compute a Keras metric from logits.

    This wrapper converts logits to probabilities, and class indices to one-hot labels unless the
    metric is sparse. With two classes, metrics such as Precision, Recall, AUC or F1Score with a
    threshold treat the second class as positive. Metrics with `from_logits=True`, BinaryAccuracy
    with threshold 0 and metrics for hinge losses receive logits. Metrics that average a loss
    receive the inputs of the loss (see `prepare_function_inputs`).

    Args:
        metric: A metric from `keras.metrics`. The wrapper gets the same name.
        activation: "softmax" or "sigmoid".

    Call arguments:
        y_true: Integer tensor of shape (B, ...) with class indices, or tensor of shape (B, ..., C)
            with labels.
        y_pred: Float tensor of shape (B, ..., C). Logits.
        sample_weight: Optional float tensor of shape (B, ...). Weights.

    Example:
        >>> metric = OfLogits(metrics.Precision(), "softmax")
        >>> metric.update_state([1, 0], [[-1.0, 2.0], [-3.0, 2.0]])
        >>> float(metric.result())
        0.5
    """

    def __init__(self, metric: metrics.Metric, activation: str, **kwargs):
        super().__init__(**{"name": metric.name, "dtype": metric.dtype, **kwargs})
        copy_metric_direction(self, metric)
        self.metric = metric
        self.activation = activation

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if self.activation == "softmax" and len(y_pred.shape) > 2:  # tokens are examples
            if sample_weight is not None:
                sample_weight = ops.broadcast_to(sample_weight, ops.shape(y_true))
            y_true, y_pred, sample_weight = flatten_tokens(y_true, y_pred, sample_weight)
        if function := get_keras_function(self.metric):
            logits = not takes_probabilities(self.metric)
            y_true, scores = prepare_function_inputs(
                function, logits, y_true, y_pred, self.activation
            )
        else:
            scores = y_pred if self._needs_logits() else LOSS_ACTIVATIONS[self.activation](y_pred)
            y_true, scores = self._match_shapes(y_true, scores)
        if isinstance(self.metric, metrics.AUC) and self._of_logits:  # AUC applies a sigmoid
            scores = ops.log(scores) - ops.log1p(-scores)
        self.metric.update_state(y_true, scores, sample_weight)

    @property
    def _of_logits(self) -> bool:
        return bool(getattr(self.metric, "from_logits", False))

    def _needs_logits(self) -> bool:
        if isinstance(self.metric, metrics.AUC):
            return False
        is_binary = isinstance(self.metric, metrics.BinaryAccuracy)
        return self._of_logits or (is_binary and self.metric.threshold == 0)

    def _match_shapes(self, y_true, scores):
        """Convert labels and scores to the format that the metric expects."""
        if type(self.metric) in CLASS_INDEX_METRICS:
            if self.activation == "softmax":
                return get_class_indices(y_true, scores), ops.argmax(scores, -1)
            chosen = scores > 0.5
            return y_true, ops.cast(chosen, y_true.dtype)
        if isinstance(self.metric, SPARSE):
            return get_class_indices(y_true, scores), scores
        if not has_indices(y_true, scores):
            return y_true, scores
        classes = scores.shape[-1]
        if classes == 2 and not self._needs_one_hot():
            return y_true[:, None], scores[:, 1:]
        return ops.one_hot(ops.cast(y_true, "int32"), classes, dtype=scores.dtype), scores

    def _needs_one_hot(self) -> bool:
        """Return whether the metric expects one score per class, even for two classes."""
        if isinstance(self.metric, metrics.FBetaScore):
            return self.metric.threshold is None
        chosen = [getattr(self.metric, name, None) for name in ("class_id", "top_k")]
        several = getattr(self.metric, "multi_label", False) or chosen != [None, None]
        return several or isinstance(self.metric, ONE_HOT)

    def result(self):
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MeanOfLoss(metrics.Mean):
    """Compute the mean of a loss, or of a function of labels and outputs.

    The function returns a value for each example, token or label. The mean uses sample weights.

    Args:
        loss: Function or `keras.losses.Loss`.
        activation: Optional string. See `BatchLoss`.

    Example:
        >>> metric = MeanOfLoss(losses.huber)
        >>> metric.update_state([[1.0], [0.0]], [[0.0], [0.0]])
        >>> float(metric.result())
        0.25
    """

    def __init__(self, loss, activation: str | None = None, name: str | None = None, **kwargs):
        super().__init__(name=name or getattr(loss, "name", None) or get_name(loss), **kwargs)
        self.loss = loss
        self.activation = activation
        if isinstance(loss, losses.Loss) or loss in FUNCTIONS:
            copy_metric_direction(self, metrics.MeanSquaredError())  # lower values are better

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        batch_loss = BatchLoss(self.loss, self.activation)
        values = batch_loss.compute_values(y_true, y_pred)
        if len(values.shape) == 0:
            batch_loss.check_single_value(sample_weight is not None)
            return super().update_state(values[None], ops.shape(y_pred)[:1])
        given = [
            w for w in (sample_weight, mark_counted_labels(self.loss, y_true)) if w is not None
        ]
        weights = None
        if given:
            weights = math.prod(batch_loss.broadcast_weights(values, weight) for weight in given)
            weights = ops.reshape(ops.broadcast_to(weights, ops.shape(values)), (-1,))
        return super().update_state(ops.reshape(values, (-1,)), weights)

    def get_config(self) -> dict:
        loss = keras.saving.serialize_keras_object(self.loss)
        return {**super().get_config(), "loss": loss, "activation": self.activation}

    @classmethod
    def from_config(cls, config: dict):
        return cls(**{**config, "loss": keras.saving.deserialize_keras_object(config["loss"])})


def get_class_indices(y_true, scores):
    """Convert labels to class indices. For probabilities, this is the most probable class."""
    y_true, scores = ops.convert_to_tensor(y_true), ops.convert_to_tensor(scores)
    return y_true if has_indices(y_true, scores) else ops.argmax(y_true, -1)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassScore(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Compute the precision, recall or F1 score of the classes, as in scikit-learn.

    Args:
        score: "f1", "precision" or "recall". Defaults to "f1".
        average: One of "binary", "micro", "macro", "macro_all" and "weighted". "binary" is the
            score of the second class. "micro" sums the counts of all classes. "macro" is the mean
            over the classes that occur in labels or predictions, or over all labels in multi-label
            tasks. "macro_all" is the mean over all classes, and "weighted" is the mean weighted by
            the number of examples in each class. A score without examples is 0. Defaults to
            "macro".
        activation: "softmax" to predict the class with the largest output, or "sigmoid" to predict
            every label with an output above 0. Defaults to "softmax".

    Call arguments:
        y_true: Integer tensor of shape (B, ...) with class indices, or tensor of shape (B, ..., C)
            with labels. Negative class indices will be ignored.
        y_pred: Float tensor of shape (B, ..., C). Logits.
        sample_weight: Optional float tensor of shape (B,) or (B, ...). Weights.

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

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        classes = y_pred.shape[-1]
        if self.counts is None:
            # Numbers of true positives, predictions and labels per class.
            self.counts = self.add_variable((3, classes), "zeros", name="counts")
        if self.activation == "softmax":
            y_true = ops.cast(get_class_indices(y_true, y_pred), "int32")
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
        scores = compute_f1_scores(right, found, true)[self.score]
        if self.average in ("binary", "micro"):
            return scores
        weight = ops.ones_like(true)
        if self.average == "weighted":
            weight = true
        elif self.average == "macro" and self.activation == "softmax":
            weight = ops.cast(true + found > 0, self.dtype)
        return divide_or_zero(ops.sum(scores * weight), ops.sum(weight))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Matthews(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Compute the Matthews correlation coefficient for two or more classes, as used for CoLA.

    Call arguments:
        y_true: Integer tensor of shape (B,) with class indices, or tensor of shape (B, C) with
            labels.
        y_pred: Float tensor of shape (B, C). Logits or probabilities.
        sample_weight: Optional float tensor of shape (B,). Weights.

    Source: Matthews 1975, Comparison of the predicted and observed secondary structure of T4 phage
    lysozyme. For several classes: Gorodkin 2004, Comparing two K-category assignments by a
    K-category correlation coefficient.

    Example:
        >>> metric = Matthews()
        >>> metric.update_state([1, 0, 1], [[0, 1], [1, 0], [1, 0]])
        >>> round(float(metric.result()), 3)
        0.5
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "matthews", **kwargs})
        self.counts = None

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_pred = ops.convert_to_tensor(y_pred)
        classes = y_pred.shape[-1]
        if self.counts is None:
            self.counts = self.add_variable((classes, classes), "zeros", name="counts")
        true = ops.reshape(get_class_indices(y_true, y_pred), (-1,))
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
        # The correlation is undefined if only one class occurs. Weights can cause rounding errors.
        varies = (ops.sum(ops.cast(true > 0, "int32")) > 1) & (
            ops.sum(ops.cast(found > 0, "int32")) > 1
        )
        # The formula only uses differences of counts, which float32 can represent exactly.
        neither = (total - true) - (found - both)
        square = ops.maximum(total, 1e-9) ** 2
        covariance = ops.sum((both * neither - (true - both) * (found - both)) / square)
        true, found = (ops.sum(n / square * (total - n)) for n in (true, found))
        spread = ops.where(varies, ops.sqrt(true) * ops.sqrt(found), 0.0)
        return ops.where(spread > 0, covariance / ops.where(spread > 0, spread, 1.0), 0.0)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Perplexity(metrics.SparseCategoricalCrossentropy):
    """Compute the perplexity: the exponential of the mean cross-entropy per token.

    Call arguments:
        y_true: Integer tensor of shape (B, ...). Token ids.
        y_pred: Float tensor of shape (B, ..., C). Logits.
        sample_weight: Optional float tensor of shape (B, ...). Weights. Tokens with weight 0 will
            be ignored.

    Example:
        >>> metric = Perplexity()
        >>> metric.update_state([[1, 0]], [[[0.0, 0.0], [9.0, 9.0]]])
        >>> float(metric.result())
        2.0
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "perplexity", "from_logits": True, **kwargs})

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.reshape(get_class_indices(y_true, y_pred), (-1,))
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1,))
        return super().update_state(
            y_true, ops.reshape(y_pred, (-1, y_pred.shape[-1])), sample_weight
        )

    def result(self):
        return ops.exp(super().result())


def divide_or_zero(part, whole):
    """Return `part / whole`, or 0 if `whole` is 0."""
    return ops.where(whole > 0, part / ops.where(whole > 0, whole, 1.0), 0.0)


def compute_f1_scores(correct, predicted, true) -> dict:
    """Compute precision, recall and F1 from counts.

    Args:
        correct, predicted, true: Tensors of the same shape. Numbers of correct answers, of all
            predicted answers and of all true answers.

    Returns:
        A dict with the keys "precision", "recall" and "f1".
    """
    return {
        "precision": divide_or_zero(correct, predicted),
        "recall": divide_or_zero(correct, true),
        "f1": divide_or_zero(2 * correct, predicted + true),
    }


# -- metrics that cannot be averaged over batches --------------------------------------------------


class ExactMetric(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Base class for metrics that store the labels and outputs of all examples.

    `fit` and `evaluate` increase the capacity to the number of examples. In other uses, the result
    is NaN if there are more examples than the capacity.

    With `tf.distribute` or `torch.distributed`, every replica or process only writes to its own
    part of the variables. The sum of the variables therefore contains all examples.

    Args:
        capacity: Positive integer. Maximum number of examples to store.
    """

    default_name: str | None = None

    @validate_arguments
    def __init__(self, capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(**{"name": self.default_name, **kwargs})
        self.capacity = capacity
        self._forget()

    def _forget(self) -> None:
        """Delete the variables. `update_state` creates new variables."""
        self._kept = types.MappingProxyType({})  # hidden from Keras tracking

    @property
    def variables(self) -> list[keras.Variable]:
        """Return the variables for the stored examples and for the number of examples per replica.

        The list is empty before the first update.
        """
        return list(self._kept.values())

    def reserve(self, count: int) -> bool:
        """Increase the capacity to at least `count`.

        Returns:
            Boolean. Whether existing variables were deleted because they were too small.
        """
        if count <= self.capacity:
            return False
        self.capacity = 2 ** math.ceil(math.log2(count))
        had = bool(self._kept)
        self._forget()
        return had

    def make_columns(self, y_true, y_pred) -> tuple:
        """Convert the labels and outputs of a batch to the values that are stored.

        Args:
            y_true: Tensor with B rows. Labels.
            y_pred: Tensor with B rows. Outputs.

        Returns:
            Tuple of a tensor with labels, shape (B,), (B, 1) or (B, C), and a tensor with outputs,
            shape (B, C).
        """
        return y_true, y_pred

    def score(self, y_true, y_pred, weight):
        """Compute the metric for the stored examples. Examples with weight 0 are ignored.

        Args:
            y_true: Float tensor of shape (N, 1) or (N, C). Labels.
            y_pred: Float tensor of shape (N, C). Outputs.
            weight: Float tensor of shape (N,). Weights.
        """
        raise NotImplementedError

    @ignores_padding_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = self.make_columns(
            ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        )
        y_pred = ops.cast(y_pred, self.dtype)
        y_true = ops.reshape(ops.cast(y_true, self.dtype), (ops.shape(y_pred)[0], -1))
        weight = ops.ones_like(y_pred[:, 0])
        if sample_weight is not None:
            weight *= ops.reshape(ops.cast(sample_weight, self.dtype), (-1,))
        if not self._kept:
            self._make_variables(y_true.shape[-1] or 1, y_pred.shape[-1])
        counts = weight > 0
        kept, number = self.variables
        replica, before = _get_replica_index(), ops.convert_to_tensor(number)
        at = ops.cast(before[replica], "int32") + ops.cumsum(ops.cast(counts, "int32")) - 1
        # The last row of each part stays 0. Ignored examples are written to this row as zeros.
        at = ops.where(counts & (at < self.capacity), at, self.capacity)
        rows = ops.concatenate([y_true, y_pred, weight[:, None]], axis=1)
        rows = ops.where((at < self.capacity)[:, None], rows, 0.0)
        at = (at + replica * (self.capacity + 1))[:, None]
        kept.assign(ops.scatter_update(ops.convert_to_tensor(kept), at, rows))
        mine = ops.cast(ops.arange(before.shape[0]) == replica, self.dtype)
        number.assign(before + mine * ops.sum(ops.cast(counts, self.dtype)))

    def _make_variables(self, *widths: int) -> None:
        self.widths, parts = widths, _count_replicas()
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
    """Base class for metrics that only depend on the ranking of the examples.

    Examples are ranked by log-odds, because many probabilities are rounded to 0 or 1. With two
    classes, the result is the score of the second class. With more classes, or in multi-label
    tasks, each class is compared with the rest, and the result is the mean of the scores. Classes
    whose score is undefined are excluded.

    Args:
        activation: "softmax" or "sigmoid". Output activation function. Defaults to "softmax".
        capacity: Positive integer. See `ExactMetric`.

    Call arguments:
        y_true: Integer tensor of shape (B,) with class indices, or tensor of shape (B, C) with
            labels.
        y_pred: Float tensor of shape (B, C). Logits.
        sample_weight: Optional float tensor of shape (B,). Weights.
    """

    undefined = float("nan")  # result if no class has a score

    def __init__(self, activation: str = "softmax", capacity: PositiveInt = CAPACITY, **kwargs):
        super().__init__(capacity, **kwargs)
        self.activation = activation

    def make_columns(self, y_true, y_pred) -> tuple:
        if self.activation == "sigmoid":
            return y_true, y_pred
        if len(y_true.shape) == len(y_pred.shape) and y_pred.shape[-1] > 1:
            y_true = ops.argmax(y_true, -1)
        if y_pred.shape[-1] == 2:  # equal logits have a difference of exactly 0
            return y_true, y_pred[:, 1:] - y_pred[:, :1]
        return y_true, compute_log_odds(y_pred)

    def score(self, y_true, y_pred, weight):
        if self.widths[0] < self.widths[1]:
            y_true = ops.one_hot(ops.cast(y_true[:, 0], "int32"), self.widths[1], dtype=self.dtype)

        def compute_column_score(column):
            true, scores = column
            positive, negative = true * weight, (1 - true) * weight
            is_defined = self.is_defined(ops.sum(positive), ops.sum(negative))
            found = self.compute_class_score(scores, positive, negative)
            return ops.where(is_defined, found, 0.0), ops.cast(is_defined, self.dtype)

        scores, defined = ops.map(
            compute_column_score, (ops.transpose(y_true), ops.transpose(y_pred))
        )
        count = ops.sum(defined)
        mean = ops.sum(scores) / ops.maximum(count, 1.0)
        return ops.where(count > 0, mean, self.undefined)

    def is_defined(self, positive, negative):
        """Return whether the score of a class is defined.

        Args:
            positive: Scalar. Total weight of the examples in the class.
            negative: Scalar. Total weight of all other examples.
        """
        raise NotImplementedError

    def compute_class_score(self, scores, positive, negative):
        """Compute the score of a class.

        Args:
            scores: Float tensor of shape (N,). Outputs for the class.
            positive: Float tensor of shape (N,). Weights, or 0 for examples in other classes.
            negative: Float tensor of shape (N,). Weights, or 0 for examples in the class.
        """
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AUC(ClassRanking):
    """Compute the exact area under the ROC curve, like `roc_auc_score` in scikit-learn.

    This is the fraction of pairs with a positive and a negative example that are ranked correctly.
    Equal outputs count as one half. Several classes are averaged as with `multi_class="ovr",
    average="macro"`. The result is NaN if no class has both positive and negative examples.

    Source: Hanley and McNeil 1982, The meaning and use of the area under a ROC curve.

    Example:
        >>> metric = AUC()
        >>> metric.update_state([0, 1, 1], [[0.0, 1000.0], [0.0, 2000.0], [0.0, 1000.0]])
        >>> float(metric.result())
        0.75
    """

    default_name = "auc"

    def is_defined(self, positive, negative):
        return (positive > 0) & (negative > 0)

    def compute_class_score(self, scores, positive, negative):
        below, up_to = sum_weights_below(scores, negative)
        pairs = ops.sum(positive / ops.maximum(ops.sum(positive), 1e-30) * (below + up_to) / 2)
        return pairs / ops.maximum(ops.sum(negative), 1e-30)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AveragePrecision(ClassRanking):
    """Compute the average precision, like `average_precision_score` in scikit-learn.

    For every example of the class, the precision is computed over all examples with the same or a
    higher output. The score is the mean of these precisions. If there are no positive examples, the
    result is 0.

    Example:
        >>> metric = AveragePrecision()
        >>> metric.update_state([0, 1, 1], [[0.0, 3.0], [0.0, 2.0], [0.0, 4.0]])
        >>> round(float(metric.result()), 3)  # (1 / 1 + 2 / 3) / 2
        0.833
    """

    default_name = "average_precision"
    undefined = 0.0

    def is_defined(self, positive, negative):
        return positive > 0

    def compute_class_score(self, scores, positive, negative):
        right, wrong = (ops.sum(w) - sum_weights_below(scores, w)[0] for w in (positive, negative))
        precision = right / ops.maximum(right + wrong, 1e-30)
        return ops.sum(positive * precision) / ops.maximum(ops.sum(positive), 1e-30)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Pearson(ExactMetric):
    """Compute the Pearson correlation over all examples, averaged over the columns.

    The result is NaN for constant labels or outputs, as in SciPy. In contrast, the Keras metric
    computes one correlation per batch and averages them.

    Call arguments:
        y_true: Float tensor of shape (B, C). Labels.
        y_pred: Float tensor of shape (B, C). Outputs.
        sample_weight: Optional float tensor of shape (B,). Weights. An example with weight 2 counts
            twice.

    Example:
        >>> metric = Pearson()
        >>> for y_true, y_pred in (([[1.0], [2.0]], [[1.0], [3.0]]), ([[3.0]], [[2.0]])):
        ...     metric.update_state(y_true, y_pred)
        >>> round(float(metric.result()), 3)
        0.5
    """

    default_name = "pearson"

    def score(self, y_true, y_pred, weight):
        return ops.mean(compute_correlation(y_true, y_pred, weight[:, None]))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Spearman(ExactMetric):
    """Compute the Spearman rank correlation over all examples, averaged over the columns.

    Ties get their mean rank. The result is NaN for constant labels or outputs, as in SciPy.

    Call arguments:
        y_true: Float tensor of shape (B, C). Labels.
        y_pred: Float tensor of shape (B, C). Outputs.
        sample_weight: Optional float tensor of shape (B,). Weights. An example with weight 2 counts
            twice.

    Source: Spearman 1904, The proof and measurement of association between two things.

    Example:
        >>> metric = Spearman()
        >>> metric.update_state([[1.0], [2.0], [3.0]], [[0.1], [0.9], [0.8]])
        >>> round(float(metric.result()), 3)
        0.5
    """

    default_name = "spearman"

    def score(self, y_true, y_pred, weight):
        columns = ops.transpose(ops.concatenate([y_true, y_pred], axis=1))
        ranks = ops.transpose(
            ops.map(lambda values: sum(sum_weights_below(values, weight)), columns)
        )
        width = self.widths[0]
        return ops.mean(compute_correlation(ranks[:, :width], ranks[:, width:], weight[:, None]))


def compute_correlation(a, b, weight):
    """Compute the weighted correlation of each column of `a` with the same column of `b`.

    Args:
        a, b: Float tensors of shape (N, C).
        weight: Float tensor of shape (N, 1). Weights of the rows.

    Returns:
        Float tensor of shape (C,). The correlation of a constant column is NaN.
    """
    total, infinite = ops.maximum(ops.sum(weight), 1e-30), float("inf")
    varies = True
    for x in (a, b):
        largest = ops.max(ops.where(weight > 0, x, -infinite), 0)
        varies &= largest > ops.min(ops.where(weight > 0, x, infinite), 0)
    # The mean is subtracted twice, because the rounding error of the first mean can be as large as
    # the difference between close values.
    for _ in range(2):
        a, b = (ops.where(weight > 0, x - ops.sum(weight * x, 0) / total, 0.0) for x in (a, b))
    scales = [ops.max(ops.abs(x), 0) for x in (a, b)]  # prevents the squares from overflowing
    a, b = (x / ops.where(s > 0, s, 1.0) for x, s in zip((a, b), scales, strict=True))
    products = [ops.sum(weight * x * y, 0) for x, y in ((a, b), (a, a), (b, b))]
    spread = ops.sqrt(products[1]) * ops.sqrt(products[2])
    return ops.where(varies, products[0] / ops.where(spread > 0, spread, 1.0), float("nan"))


def sum_weights_below(values, weight) -> tuple:
    """Compute, for each value, the sum of the weights of all smaller values.

    Args:
        values: Float tensor of shape (N,).
        weight: Float tensor of shape (N,). Weights of the values.

    Returns:
        Tuple of two tensors of shape (N,). The first sums the weights of smaller values, the second
        the weights of smaller or equal values.
    """
    values = ops.copy(values)  # to make a column contiguous in PyTorch
    order = ops.argsort(values)
    ordered = ops.take(values, order)
    sums = ops.cumsum(ops.take(weight, order))
    sums = ops.concatenate([ops.zeros_like(sums[:1]), sums])
    sides = (ops.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    below, up_to = (ops.take(sums, side) for side in sides)
    return below, up_to


def compute_log_odds(logits):
    """Compute the log-odds (B, C) of the classes in a softmax, plus log(C - 1).

    With the constant log(C - 1), equal logits have the value 0. Float32 can distinguish values near
    0, even if a model returns close logits at the start of training.

    Example:
        >>> [float(x) for x in compute_log_odds(ops.convert_to_tensor([[1.0, 5001.0]]))[0]]
        [-5000.0, 5000.0]
        >>> small = compute_log_odds(ops.convert_to_tensor([[2e-9, 0.0, 4e-9]]))[0]
        >>> [round(float(x) * 1e9) for x in small]
        [0, -3, 3]
    """
    count, classes = ops.shape(logits)[0], logits.shape[-1]
    # Processors use a different routine to compute exp of the last values in an array, so equal
    # rows could have different results. With padding, no real row is among the last values.
    logits = ops.pad(logits, [[0, 16], [0, 0]])
    first = ops.max(logits, -1, keepdims=True)
    behind = logits - first
    more = ops.expm1(behind)  # exp of each logit minus 1, relative to the best class
    others = (ops.sum(ops.sort(more, axis=-1), -1, keepdims=True) - more) / max(1, classes - 1)
    of_close = behind - ops.log1p(ops.maximum(others, -0.99))
    is_close = ops.min(behind, -1, keepdims=True) > -1
    is_best = ops.cast(ops.one_hot(ops.argmax(logits, -1), classes), "bool")
    rest = ops.where(is_best, -float("inf"), logits)
    second = ops.max(rest, -1, keepdims=True)
    of_best = first - second - ops.log(_sum_exponentials(rest - second))
    # The odds of a class are exp(logit), divided by the sum of exp(logit) over all other classes.
    others = ops.where(is_best, 1.0, _sum_exponentials(behind) - ops.exp(behind))
    found = ops.where(is_best, of_best, behind - ops.log(ops.maximum(others, 1e-30)))
    return ops.where(is_close, of_close, found + math.log(max(1, classes - 1)))[:count]


def _sum_exponentials(logits):
    """Return the sum of exp(logits) over the classes, shape (B, 1).

    The logits are sorted, so that their order does not change rounding errors.
    """
    return ops.sum(ops.exp(ops.sort(logits, axis=-1)), -1, keepdims=True)


def _count_replicas() -> int:
    """Return the number of replicas. Each replica stores its examples in a part of a variable."""
    if keras.config.backend() != "tensorflow":
        return count_torch_processes()
    return tf.distribute.get_strategy().num_replicas_in_sync


def _get_replica_index():
    """Return the index of the current replica."""
    if keras.config.backend() != "tensorflow":
        return get_torch_rank()
    context = tf.distribute.get_replica_context()
    return 0 if context is None else context.replica_id_in_sync_group
