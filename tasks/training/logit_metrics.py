"""Metrics for models that return logits: Keras metrics, custom metrics and metrics by name.

By default, Keras metrics expect probabilities, and many Keras metrics expect one-hot labels instead
of class indices. With logits, they would return wrong values without an error, so they are wrapped.
Custom functions and metrics receive the model outputs unchanged.

Dimensions in comments: B is the batch size and C the number of classes.
"""

from __future__ import annotations

import inspect

import keras
from keras import losses, metrics, ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter, take_direction
from encoder_zoo.common.wording import close_names, did_you_mean, invalid
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.training.batch_loss import BatchLoss
from encoder_zoo.tasks.training.exact_metrics import AUC, AveragePrecision, Pearson, Spearman
from encoder_zoo.tasks.training.loss_inputs import (
    ACTIVATIONS,
    FUNCTIONS,
    are_indices,
    check_meaning,
    computes_rows,
    find_loss,
    function_of,
    inputs_of_function,
    name_of,
    takes_probabilities,
    wrapped_function,
)

KINDS = {
    cls
    for cls in vars(metrics).values()
    if isinstance(cls, type) and issubclass(cls, metrics.Metric)
}
SPARSE = (metrics.SparseCategoricalAccuracy, metrics.SparseTopKCategoricalAccuracy)
ONE_HOT = (
    metrics.CategoricalAccuracy,
    metrics.TopKCategoricalAccuracy,
    metrics.CosineSimilarity,
    metrics.OneHotIoU,
    metrics.OneHotMeanIoU,
)
OF_CLASS_INDICES = (metrics.Accuracy, metrics.IoU, metrics.MeanIoU)
OF_NUMBERS = "a metric of numbers, such as 'mae', 'mse' or keras.metrics.R2Score()"
OF_CLASSES = (
    *(*SPARSE, *OF_CLASS_INDICES, metrics.CategoricalAccuracy, metrics.TopKCategoricalAccuracy),
    *(metrics.BinaryAccuracy, metrics.BinaryIoU, metrics.FBetaScore, metrics.AUC),
    *(metrics.Precision, metrics.Recall, metrics.PrecisionAtRecall, metrics.RecallAtPrecision),
    *(metrics.SensitivityAtSpecificity, metrics.SpecificityAtSensitivity),
    *(metrics.TruePositives, metrics.TrueNegatives),
    *(metrics.FalsePositives, metrics.FalseNegatives),
)
# Keras metrics to compute a function's mean, by function.
MEANS = {
    wrapped_function(metric): type(metric)
    for metric in (
        cls()
        for cls in KINDS
        if issubclass(cls, metrics.MeanMetricWrapper)
        and cls is not metrics.MeanMetricWrapper
        and not issubclass(cls, metrics.MeanIoU)
    )
}


KERAS_FUNCTIONS = {
    function
    for functions in (losses, metrics)
    for function in vars(functions).values()
    if inspect.isfunction(function)
}
# Keras metrics that compare the rows in a batch.
OF_WHOLE_BATCHES = (metrics.PearsonCorrelation, metrics.ConcordanceCorrelation)


def by_token(y_true, y_pred, sample_weight=None) -> tuple:
    """Flatten labels, outputs and weights, to make metrics treat tokens as examples.

    By default, Keras metrics first average over each row including padding. Tokens would then have
    smaller weights in longer batches.

    Args:
        y_true: Tensor of shape (B, L) or (B, L, C).
        y_pred: Tensor of shape (B, L, C).
        sample_weight: Tensor of shape (B, L) or None.

    Returns:
        Tuple with the three arguments, reshaped to (B * L, ...).

    Example:
        >>> import numpy as np
        >>> y_true, y_pred, weight = by_token(np.zeros((2, 3)), np.zeros((2, 3, 5)))
        >>> keras.ops.shape(y_true), keras.ops.shape(y_pred), weight
        ((6,), (6, 5), None)
    """
    given = (x if x is None else ops.convert_to_tensor(x) for x in (y_true, y_pred, sample_weight))
    return tuple(x if x is None else ops.reshape(x, (-1, *x.shape[2:])) for x in given)


def metrics_on_logits(given, activation: str | None, pads_classes: bool = False):
    """Convert metrics to metrics for logits.

    Keras metrics are wrapped in `OfLogits`, and functions in `MeanOfLoss`.

    Args:
        given: Metric or list of metrics. Each metric can be a name, function, class or instance.
            None will be returned unchanged.
        activation: Optional string, see `resolve_loss`.
        pads_classes: Boolean, see `resolve_loss`. Defaults to False.

    Raises:
        ValueError: If a metric does not fit the task outputs.
    """
    if activation is None or given is None:
        return given
    return [
        _metric_on_logits(metric, activation, pads_classes) for metric in keras.tree.flatten(given)
    ]


def _metric_on_logits(metric, activation: str, pads_classes: bool):
    name = metric if isinstance(metric, str) else None
    if name and name.lower() in ("accuracy", "acc"):
        if activation == "linear":
            raise invalid("A metric", metric, OF_NUMBERS)
        kinds = {"softmax": metrics.SparseCategoricalAccuracy, "sigmoid": metrics.BinaryAccuracy}
        metric = kinds[activation]()
    elif not isinstance(metric, metrics.Metric):
        metric = _made(metric)
    if name:
        metric.name = name
    if isinstance(metric, MeanOfLoss):
        if function_of(metric.loss):
            check_meaning(metric.loss, activation, pads_classes, "another metric")
        metric.activation = activation
        return metric
    if type(metric) not in KINDS or (
        type(metric) is metrics.MeanMetricWrapper and not function_of(metric)
    ):
        return metric
    if function_of(metric):
        check_meaning(metric, activation, pads_classes, "another metric")
    _check_metric(metric, activation)
    return metric if activation == "linear" else OfLogits(metric, activation)


def _made(given) -> metrics.Metric:
    """Create a metric from a name, class, function or loss."""
    if isinstance(given, str):
        try:
            given = metrics.get(given)
        except ValueError:
            given = find_loss(given)
    if isinstance(given, type):
        given = given()
    if isinstance(given, metrics.Metric):
        return given
    function = given if inspect.isfunction(given) else None
    return MEANS[function]() if function in MEANS else MeanOfLoss(given)


def _check_metric(metric: metrics.Metric, activation: str) -> None:
    name = type(metric).__name__
    if activation == "linear" and isinstance(metric, OF_CLASSES):
        raise invalid("A metric", name, OF_NUMBERS)
    correlations = (metrics.PearsonCorrelation, metrics.ConcordanceCorrelation)
    if isinstance(metric, correlations) and metric.axis != 0:
        raise invalid(
            f"{name}'s axis",
            metric.axis,
            f"0, to correlate the outputs of different texts: {name}(axis=0). `fit` and "
            "`evaluate` report the mean over the batches",
        )
    is_best_of_all = isinstance(metric, metrics.FBetaScore) and metric.threshold is None
    if is_best_of_all and activation == "sigmoid":
        raise invalid(
            f"{name}'s threshold",
            None,
            f"a number, because texts can have several labels: {name}(threshold=0.5)",
        )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassCrossentropy(losses.SparseCategoricalCrossentropy):
    """Compute the cross-entropy with class indices or class probabilities as labels.

    Call arguments:
        y_true: Class indices with shape (B,), or class probabilities with shape (B, C).
        y_pred: The outputs with shape (B, C).

    Source: Szegedy et al. 2016, Rethinking the Inception Architecture, section 7, for
    probabilities as labels.

    Example:
        >>> import numpy as np
        >>> loss, logits = ClassCrossentropy(from_logits=True), np.float32([[0, 2]])
        >>> [round(float(loss(np.array(y), logits)), 3) for y in ([1], [[0.5, 0.5]])]
        [0.127, 1.127]
    """

    @leaves_out_rows
    def call(self, y_true, y_pred):
        if are_indices(y_true, y_pred):
            return super().call(y_true, y_pred)
        return losses.categorical_crossentropy(y_true, y_pred, from_logits=self.from_logits)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LabelCrossentropy(losses.BinaryCrossentropy):
    """Compute the binary cross-entropy for every label.

    The mean equals `keras.losses.BinaryCrossentropy`. In addition, it is possible to weight every
    label for an example.

    Call arguments:
        y_true: Labels or probabilities between 0 and 1, with shape (B, C).
        y_pred: The outputs with shape (B, C).
        sample_weight: The weights with shape (B,) or (B, C).

    Example:
        >>> loss = LabelCrossentropy(from_logits=True)
        >>> round(float(loss([[1.0, 0.0]], [[0.0, 2.0]], sample_weight=[[1.0, 0.0]])), 3)
        0.347
    """

    @leaves_out_rows
    def call(self, y_true, y_pred):
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        return ops.binary_crossentropy(y_true, y_pred, from_logits=self.from_logits)  # (B, C)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassAccuracy(metrics.SparseCategoricalAccuracy):
    """Compute the accuracy. Labels can be probabilities, whose largest value is the true class.

    Call arguments:
        y_true: Class indices with shape (B,), or class probabilities with shape (B, C).
        y_pred: The outputs with shape (B, C).
        sample_weight: The weights with shape (B,).

    Example:
        >>> metric = ClassAccuracy()
        >>> metric.update_state([[0.1, 0.9], [0.7, 0.3]], [[-1.0, 2.0], [0.0, 1.0]])
        >>> float(metric.result())
        0.5
    """

    @leaves_out_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(class_indices_of(y_true, y_pred), y_pred, sample_weight)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class OfLogits(ConfigFromSignature, keras.metrics.Metric):
    """Compute a Keras metric from logits.

    This wrapper is used to convert logits to probabilities, and class indices to one-hot labels
    unless the metric is sparse. With two classes, metrics such as Precision, Recall, AUC or F1Score
    with a threshold treat the second class as positive. Logits are passed to metrics with
    `from_logits=True`, to BinaryAccuracy with threshold 0 and to metrics for hinge losses. Metrics
    that average a loss receive the loss inputs, see `loss_inputs`.

    Args:
        metric: A metric from `keras.metrics`. The wrapper gets the same name.
        activation: "softmax" or "sigmoid".

    Call arguments:
        y_true: Class indices with shape (B, ...), or labels with shape (B, ..., C).
        y_pred: The logits with shape (B, ..., C).
        sample_weight: The weights with shape (B, ...).

    Example:
        >>> metric = OfLogits(metrics.Precision(), "softmax")
        >>> metric.update_state([1, 0], [[-1.0, 2.0], [-3.0, 2.0]])
        >>> float(metric.result())
        0.5
    """

    def __init__(self, metric: metrics.Metric, activation: str, **kwargs):
        super().__init__(**{"name": metric.name, "dtype": metric.dtype, **kwargs})
        take_direction(self, metric)
        self.metric = metric
        self.activation = activation

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if self.activation == "softmax" and len(y_pred.shape) > 2:  # tokens are examples
            if sample_weight is not None:
                sample_weight = ops.broadcast_to(sample_weight, ops.shape(y_true))
            y_true, y_pred, sample_weight = by_token(y_true, y_pred, sample_weight)
        if function := function_of(self.metric):
            logits = not takes_probabilities(self.metric)
            y_true, scores = inputs_of_function(function, logits, y_true, y_pred, self.activation)
        else:
            scores = y_pred if self._takes_logits() else ACTIVATIONS[self.activation](y_pred)
            y_true, scores = self._matched(y_true, scores)
        if isinstance(self.metric, metrics.AUC) and self._of_logits:  # its sigmoid gives the scores
            scores = ops.log(scores) - ops.log1p(-scores)
        self.metric.update_state(y_true, scores, sample_weight)

    @property
    def _of_logits(self) -> bool:
        return bool(getattr(self.metric, "from_logits", False))

    def _takes_logits(self) -> bool:
        if isinstance(self.metric, metrics.AUC):
            return False
        is_binary = isinstance(self.metric, metrics.BinaryAccuracy)
        return self._of_logits or (is_binary and self.metric.threshold == 0)

    def _matched(self, y_true, scores):
        """Return labels and scores in the format expected by the metric."""
        if type(self.metric) in OF_CLASS_INDICES:
            if self.activation == "softmax":
                return class_indices_of(y_true, scores), ops.argmax(scores, -1)
            chosen = scores > 0.5
            return y_true, ops.cast(chosen, y_true.dtype)
        if isinstance(self.metric, SPARSE):
            return class_indices_of(y_true, scores), scores
        if not are_indices(y_true, scores):
            return y_true, scores
        classes = scores.shape[-1]
        if classes == 2 and not self._wants_one_hot():
            return y_true[:, None], scores[:, 1:]
        return ops.one_hot(ops.cast(y_true, "int32"), classes, dtype=scores.dtype), scores

    def _wants_one_hot(self) -> bool:
        """Return whether the metric needs one score per class, although there are two classes."""
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
    """Compute the mean for a loss or for a function that takes labels and outputs.

    This function returns a value for each example, token or label. Sample weights are used.

    Args:
        loss: Function or `keras.losses.Loss`.
        activation: Optional string, see `BatchLoss`. Defaults to None.

    Example:
        >>> metric = MeanOfLoss(losses.huber)
        >>> metric.update_state([[1.0], [0.0]], [[0.0], [0.0]])
        >>> float(metric.result())
        0.25
    """

    def __init__(self, loss, activation: str | None = None, name: str | None = None, **kwargs):
        super().__init__(name=name or getattr(loss, "name", None) or name_of(loss), **kwargs)
        self.loss = loss
        self.activation = activation
        if isinstance(loss, losses.Loss) or loss in FUNCTIONS:
            take_direction(self, metrics.MeanSquaredError())  # a lower value is better

    @leaves_out_rows
    def update_state(self, y_true, y_pred, sample_weight=None):
        batch_loss = BatchLoss(self.loss, self.activation)
        values = batch_loss.values(y_true, y_pred)
        if len(values.shape) == 0:
            batch_loss.check_single_value(sample_weight is not None)
            return super().update_state(values[None], ops.shape(y_pred)[:1])
        weights = None
        if sample_weight is not None:
            weights = batch_loss.weights_like(values, sample_weight)
            weights = ops.reshape(ops.broadcast_to(weights, ops.shape(values)), (-1,))
        return super().update_state(ops.reshape(values, (-1,)), weights)

    def get_config(self) -> dict:
        loss = keras.saving.serialize_keras_object(self.loss)
        return {**super().get_config(), "loss": loss, "activation": self.activation}

    @classmethod
    def from_config(cls, config: dict):
        return cls(**{**config, "loss": keras.saving.deserialize_keras_object(config["loss"])})


def can_be_filled(loss, given: list) -> bool:
    """Return whether a loss and the given metrics can ignore rows used to pad a batch."""
    return computes_rows(loss) and all(map(_takes_weights, given))


def _takes_weights(metric) -> bool:
    if isinstance(metric, str):
        return True  # name for a Keras metric
    metric = getattr(metric, "metric", metric)  # metric inside `OfLogits`
    if not isinstance(metric, metrics.Metric):
        return metric in KERAS_FUNCTIONS
    if type(metric) in KINDS:
        return not isinstance(metric, OF_WHOLE_BATCHES)
    return getattr(type(metric).update_state, "leaves_out_rows", False)


def class_indices_of(y_true, scores):
    """Convert labels to class indices. Labels can be class indices or rows with C probabilities."""
    y_true, scores = ops.convert_to_tensor(y_true), ops.convert_to_tensor(scores)
    return y_true if are_indices(y_true, scores) else ops.argmax(y_true, -1)


SCORES = ("f1", "precision", "recall")
AVERAGES = ("macro", "macro_all", "micro", "weighted")
CLASS_SCORES = tuple(name for s in SCORES for name in (s, *(f"{s}_{a}" for a in AVERAGES)))


def metric_by_name(name: str, activation: str | None, num_classes: int | None):
    """Create a metric from its name. Names of Keras metrics are returned unchanged.

    Args:
        name: String. A name from `NAMES` or from Keras. With two classes, "f1", "precision" and
            "recall" are computed for the second class. Otherwise they are equal to "f1_macro",
            "precision_macro" and "recall_macro", see `ClassScore`.
        activation: Optional string, see `metrics_on_logits`.
        num_classes: Optional integer. Number of classes, when it is known.

    Raises:
        ValueError: If the name is unknown, or if the metric does not fit the task outputs.

    Example:
        >>> metric_by_name("f1_macro", "softmax", 3).average, metric_by_name("mse", "linear", 1)
        ('macro', 'mse')
    """
    given, name = name, name.lower() if name.lower() in NAMES else name
    if name in CORRELATIONS and activation != "linear":
        raise invalid("A metric", given, "a metric of classes, which this task predicts")
    if name in OF_ONE_CLASS and activation != "softmax":
        raise invalid(
            "A metric", given, "another one: it needs one class for each example, unlike this task"
        )
    if name in (*CLASS_SCORES, *EXACT) and activation not in ("softmax", "sigmoid"):
        raise invalid("A metric", given, "another one: it needs classes, unlike this task")
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
    """Raise a ValueError if Keras has no metric or loss with this name."""
    if name.lower() in ("accuracy", "acc", "crossentropy", "ce"):
        return
    try:
        _made(name)
    except ValueError:
        known = [*NAMES, "accuracy", *filter(str.islower, dir(metrics))]
        close = close_names(name.lower(), known, most=2)
        raise ValueError(
            f"Unknown metric {name!r}.{did_you_mean(close)} Expected {', '.join(NAMES)} or the "
            "name of a Keras metric."
        ) from None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassScore(HigherIsBetter, ConfigFromSignature, metrics.Metric):
    """Compute the precision, recall or F1 score for classes, as in scikit-learn.

    Args:
        score: "f1", "precision" or "recall". Defaults to "f1".
        average: One of "binary", "micro", "macro", "macro_all" and "weighted". Use "binary" to
            compute the score for the second class, and "micro" to sum the counts for all classes.
            Use "macro" to average over the classes that occur in labels or predictions, or over all
            labels in multi-label tasks. Use "macro_all" to average over all classes, and "weighted"
            to weight this average by the number of examples in each class. A score without examples
            is 0. Defaults to "macro".
        activation: "softmax" to predict the class with the largest output, or "sigmoid" to predict
            every label with an output above 0. Defaults to "softmax".

    Call arguments:
        y_true: Class indices with shape (B, ...), or labels with shape (B, ..., C). Negative class
            indices will be ignored.
        y_pred: The logits with shape (B, ..., C).
        sample_weight: The weights with shape (B,) or (B, ...).

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

    @leaves_out_rows
    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        classes = y_pred.shape[-1]
        if self.counts is None:
            # Number of true positives, predictions and labels per class.
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
    """Compute the Matthews correlation coefficient for two or more classes, as used for CoLA.

    Call arguments:
        y_true: Class indices with shape (B,), or labels with shape (B, C).
        y_pred: Logits or probabilities with shape (B, C).
        sample_weight: The weights with shape (B,).

    Source: Matthews 1975. For several classes: Gorodkin 2004, Comparing two K-category assignments
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

    @leaves_out_rows
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
        # The correlation is undefined when only one class occurs. Weights cause rounding errors.
        varies = (ops.sum(ops.cast(true > 0, "int32")) > 1) & (
            ops.sum(ops.cast(found > 0, "int32")) > 1
        )
        # Only use differences between counts, because float32 can represent them exactly.
        neither = (total - true) - (found - both)
        square = ops.maximum(total, 1e-9) ** 2
        covariance = ops.sum((both * neither - (true - both) * (found - both)) / square)
        true, found = (ops.sum(n / square * (total - n)) for n in (true, found))
        spread = ops.where(varies, ops.sqrt(true) * ops.sqrt(found), 0.0)
        return ops.where(spread > 0, covariance / ops.where(spread > 0, spread, 1.0), 0.0)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Perplexity(metrics.SparseCategoricalCrossentropy):
    """Compute the perplexity, which is the exponential of the mean token cross-entropy.

    Call arguments:
        y_true: Token ids with shape (B, ...).
        y_pred: The logits with shape (B, ..., C).
        sample_weight: The weights with shape (B, ...). Tokens with weight 0 will be ignored.

    Example:
        >>> metric = Perplexity()
        >>> metric.update_state([[1, 0]], [[[0.0, 0.0], [9.0, 9.0]]])
        >>> float(metric.result())
        2.0
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "perplexity", "from_logits": True, **kwargs})

    @leaves_out_rows
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
    """Return part / whole, or 0 when the whole is 0."""
    return ops.where(whole > 0, part / ops.where(whole > 0, whole, 1.0), 0.0)


EXACT = {"auc": AUC, "average_precision": AveragePrecision}
CORRELATIONS = {"pearson": Pearson, "spearman": Spearman}
OF_ONE_CLASS = {"matthews": Matthews, "perplexity": Perplexity}
NAMES = (*CLASS_SCORES, *EXACT, *OF_ONE_CLASS, *CORRELATIONS)
