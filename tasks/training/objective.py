"""A task's objective: its loss, its metrics and the meaning of its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import keras
from keras import losses, metrics

from encoder_zoo.common.keras_private import get_wrapped_function
from encoder_zoo.common.wording import find_close_names, invalid, quote, suggest_names
from encoder_zoo.tasks.losses.batch_loss import (
    CLASS_INDEX_LOSSES,
    FUNCTIONS,
    INCLUDED_ACTIVATIONS,
    LOSS_CLASSES,
    PROBABILITY_LOSSES,
    TRUE_CLASS_LOSSES,
    UNPREDICTED_OUTPUTS,
    BatchLoss,
    get_argument,
    get_keras_function,
    get_name,
    is_computed_by_row,
)
from encoder_zoo.tasks.training.metrics import (
    AUC,
    CLASS_INDEX_METRICS,
    SPARSE,
    AveragePrecision,
    ClassScore,
    Matthews,
    MeanOfLoss,
    OfLogits,
    Pearson,
    Perplexity,
    Spearman,
)

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import Source

# -- metrics by name ------------------------------------------------------------------------------

SCORE_NAMES = ("f1", "precision", "recall")
AVERAGES = ("macro", "macro_all", "micro", "weighted")
CLASS_SCORES = tuple(name for s in SCORE_NAMES for name in (s, *(f"{s}_{a}" for a in AVERAGES)))
EXACT_METRICS = {"auc": AUC, "average_precision": AveragePrecision}
CORRELATIONS = {"pearson": Pearson, "spearman": Spearman}
SINGLE_CLASS_METRICS = {"matthews": Matthews, "perplexity": Perplexity}
METRIC_NAMES = (*CLASS_SCORES, *EXACT_METRICS, *SINGLE_CLASS_METRICS, *CORRELATIONS)

# -- metrics of Keras -----------------------------------------------------------------------------

METRIC_KINDS = {
    cls
    for cls in vars(metrics).values()
    if isinstance(cls, type) and issubclass(cls, metrics.Metric)
}
CLASSIFICATION_METRICS = (
    *(*SPARSE, *CLASS_INDEX_METRICS, metrics.CategoricalAccuracy, metrics.TopKCategoricalAccuracy),
    *(metrics.BinaryAccuracy, metrics.BinaryIoU, metrics.FBetaScore, metrics.AUC),
    *(metrics.Precision, metrics.Recall, metrics.PrecisionAtRecall, metrics.RecallAtPrecision),
    *(metrics.SensitivityAtSpecificity, metrics.SpecificityAtSensitivity),
    *(metrics.TruePositives, metrics.TrueNegatives),
    *(metrics.FalsePositives, metrics.FalseNegatives),
)
# Keras metrics that compare the rows in a batch.
WHOLE_BATCH_METRICS = (metrics.PearsonCorrelation, metrics.ConcordanceCorrelation)
# Maps a function to the Keras metric that computes its mean.
MEANS = {
    get_wrapped_function(metric): type(metric)
    for metric in (
        cls()
        for cls in METRIC_KINDS
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


def return_unchanged(x, y, y_pred, sample_weight) -> tuple:
    """Return labels, outputs and weights unchanged."""
    return y, y_pred, sample_weight


@dataclass(frozen=True)
class Objective:
    """Describes which losses and metrics a task supports.

    Args:
        default_loss: Function that creates the loss for `compile(loss="auto")`.
        default_metrics: Function that creates the default metrics, which use sample weights. By
            default, there are no metrics.
        activation: "softmax" or "sigmoid" for logits, "linear" for regression, or None to pass the
            outputs to losses and metrics unchanged.
        num_classes: Integer. Number of classes, for metrics that need it.
        labels: Optional list of class names.
        own_metrics: Mapping from names to functions that create task-specific metrics.
        of_tokens: Boolean. Whether every token has a label. Losses are then averaged over the
            tokens, weighted by the sample weights. See `BatchLoss`.
        of_examples: Boolean. Whether a loss must return one value per example. See `BatchLoss`.
        pads_classes: Boolean. Whether the number of classes depends on the longest example in the
            batch, for example if the classes are token positions.
        fills_batches: Boolean. Whether batches can be padded with rows that losses and metrics
            ignore.
        names_outputs: Boolean. Whether the outputs are a dict. In this case, metrics are also a
            dict and are used unchanged.
        inputs_of_metrics: Function that converts inputs, labels, outputs and weights to the labels,
            outputs and weights for the metrics.
        learning_rate_shares: Mapping from weight ids to multipliers of the learning rate. Defaults
            to {}.
        class_weighting: Optional function of `(objective, data, class_weight, loss)` that returns
            the data with class weights. None for a task without classes.
        split_report: Optional function of `(objective, examples, held_out)` that logs warnings
            about the examples held out by `validation_split`.

    Example:
        >>> numbers = Objective(keras.losses.MeanSquaredError, activation="linear")
        >>> numbers.resolve_loss("mae").name, numbers.resolve_loss("auto").name
        ('mean_absolute_error', 'mean_squared_error')
    """

    default_loss: Callable[[], keras.losses.Loss]
    default_metrics: Callable[[], list | dict | None] = list
    activation: str | None = None
    num_classes: int | None = None
    labels: list[str] | None = None
    own_metrics: Mapping[str, Callable[[], keras.metrics.Metric]] = field(default_factory=dict)
    of_tokens: bool = False
    of_examples: bool = False
    pads_classes: bool = False
    fills_batches: bool = True
    names_outputs: bool = False
    inputs_of_metrics: Callable[..., tuple] = return_unchanged
    learning_rate_shares: Mapping[int, float] = field(default_factory=dict)
    class_weighting: Callable[..., Source] | None = None
    split_report: Callable[..., None] | None = None

    # -- loss ------------------------------------------------------------------------------------

    def resolve_loss(self, loss):
        """Convert the argument `loss` of `compile` to the loss that is computed.

        Args:
            loss: String, function, loss class or loss instance. A list or dict that contains a
                single loss is also supported.

        Returns:
            A `keras.losses.Loss`, or a function of labels and outputs. A cross-entropy on
            probabilities that matches the task's activation is replaced by the same cross-entropy
            with `from_logits=True`.

        Raises:
            ValueError: If `loss` is unknown, does not match this task, or is not reduced to a
                scalar.

        Example:
            >>> classes = Objective(
            ...     lambda: losses.SparseCategoricalCrossentropy(from_logits=True),
            ...     activation="softmax",
            ... )
            >>> classes.resolve_loss(losses.SparseCategoricalCrossentropy()).from_logits
            True
        """
        found, default = find_loss(loss), self.default_loss()
        if found is None:
            return default
        if isinstance(found, losses.Loss) and found.reduction in (None, "none"):
            raise invalid(
                f"The `reduction` of {get_name(found)}",
                found.reduction,
                "'sum_over_batch_size', 'mean_with_sample_weight' or 'sum'",
            )
        function = get_keras_function(found)
        if function is None or self.activation is None:
            return found
        self._check_fits(found, f"loss='auto', here {type(default).__name__}")
        has_settings = isinstance(_get_only_loss(loss), losses.Loss | partial)
        if function is get_keras_function(default) and not has_settings:
            return default
        includes_activation = INCLUDED_ACTIVATIONS.get(function) == self.activation
        if includes_activation and type(found) is LOSS_CLASSES[function]:
            return type(found).from_config({**found.get_config(), "from_logits": True})
        return found

    def make_batch_loss(self, loss) -> BatchLoss:
        """Create the `BatchLoss` of a loss.

        Args:
            loss: A loss from `resolve_loss`.
        """
        return BatchLoss(loss, self.activation, self.of_tokens, self.of_examples)

    def _check_fits(self, loss, expected: str) -> None:
        """Raise a ValueError if a Keras loss does not match the task's outputs.

        Args:
            loss: A loss instance, function or metric.
            expected: String. The loss or metric to suggest in the error message.
        """
        name, function = get_name(loss), get_keras_function(loss)
        if function in UNPREDICTED_OUTPUTS:
            raise ValueError(
                f"{name} requires {UNPREDICTED_OUTPUTS[function]}, which this task does not "
                f"predict. Expected {expected}."
            )
        if function in CLASS_INDEX_LOSSES and self.activation != "softmax":
            raise ValueError(
                f"{name} requires one class per text, which this task does not predict. Expected "
                f"{expected}."
            )
        of_logits = INCLUDED_ACTIVATIONS.get(function) == "sigmoid" and get_argument(
            loss, "from_logits"
        )
        if self.activation == "linear" and function in PROBABILITY_LOSSES and not of_logits:
            raise ValueError(
                f"{name} requires probabilities, but this task predicts numbers. Expected "
                f"{expected}, or a regression loss such as 'mae' or 'huber'."
            )
        smooths = get_argument(loss, "label_smoothing")
        if self.pads_classes and (function not in TRUE_CLASS_LOSSES or smooths):
            what = "smooths labels over" if smooths else "is a mean over"
            raise ValueError(
                f"{name} {what} all classes, but some classes of this task are padding. Expected "
                f"{expected}, or a cross-entropy without label smoothing."
            )

    # -- data ------------------------------------------------------------------------------------

    def can_fill(self, loss, given: list) -> bool:
        """Return whether the loss and the metrics can ignore rows that only pad a batch."""
        return self.fills_batches and is_computed_by_row(loss) and all(map(_has_row_weights, given))

    def add_class_weights(self, data: Source, class_weight: Mapping | str, loss) -> Source:
        """Multiply the sample weights in the data by class weights.

        Args:
            data: `Source` with the training data.
            class_weight: Mapping from classes to weights, or "balanced".
            loss: Loss from `resolve_loss`.

        Raises:
            ValueError: If the task has no classes, or if `loss` does not support class weights.
        """
        if self.class_weighting is None:
            raise ValueError(
                f"class_weight is {quote(class_weight)}, but this task has no classes. Use "
                "`sample_weight` instead."
            )
        return self.class_weighting(self, data, class_weight, loss)

    def report_split(self, examples: dict, held_out: dict) -> None:
        """Log warnings about the examples held out by `validation_split`."""
        if self.split_report is not None:
            self.split_report(self, examples, held_out)

    # -- metrics ---------------------------------------------------------------------------------

    def make_metrics(self, loss) -> list | dict | None:
        """Create the default metrics for a loss."""
        return self.default_metrics()

    def metrics(self, loss, given, weighted) -> dict:
        """Convert the metric arguments of `TextModel.compile` to arguments for `keras.Model`.

        Args:
            loss: Loss from `resolve_loss`.
            given: Argument `metrics` of `compile`.
            weighted: Argument `weighted_metrics` of `compile`.
        """
        if isinstance(weighted, str) and weighted == "auto":
            weighted = self.make_metrics(loss) if given is None else None
        else:
            weighted = self.resolve_metrics(weighted)
        given = self.resolve_metrics(given)
        if self.of_tokens and given and not self.names_outputs:  # weights are used to mask tokens
            given, weighted = None, [*given, *(weighted or [])]
        return {"metrics": given, "weighted_metrics": weighted}

    def resolve_metrics(self, given):
        """Convert the metrics that are passed to `compile` to metrics for logits.

        Keras metrics are wrapped in `OfLogits`, and functions in `MeanOfLoss`. Custom functions and
        metrics receive the model outputs unchanged.

        Args:
            given: Metric or list of metrics. A metric is a name, function, class or instance. None
                is returned unchanged.

        Raises:
            ValueError: If a metric does not match the outputs of the task.
        """
        if given is None or self.activation is None or self.names_outputs:
            return given
        return [self._wrap_metric(metric) for metric in keras.tree.flatten(given)]

    def make_metric(self, name: str):
        """Create a metric from its name.

        Args:
            name: String. A name from `own_metrics`, from `METRIC_NAMES` or from Keras. With two
                classes, "f1", "precision" and "recall" are computed for the second class. With more
                classes, or in multi-label tasks, they are equal to "f1_macro", "precision_macro"
                and "recall_macro" (see `ClassScore`).

        Raises:
            ValueError: If `name` is unknown, or if the metric does not match the outputs of the
                task.

        Example:
            >>> classes = Objective(
            ...     losses.SparseCategoricalCrossentropy, activation="softmax", num_classes=3
            ... )
            >>> classes.make_metric("f1_macro").average
            'macro'
            >>> classes.make_metric("mse")
            <MeanSquaredError name=mse>
        """
        if name in self.own_metrics:
            return self.own_metrics[name]()
        given, name = name, name.lower() if name.lower() in METRIC_NAMES else name
        if self.of_tokens and name in EXACT_METRICS:
            raise ValueError(
                f"The metric {given!r} would store the outputs for all tokens. Pass 'f1_macro' or "
                f"keras.metrics.AUC(multi_label=True, num_labels={self.num_classes}) instead."
            )
        if name in CORRELATIONS and self.activation != "linear":
            raise ValueError(
                f"The metric {given!r} requires numeric labels, but this task predicts classes. "
                "Choose a metric for classes."
            )
        if name in SINGLE_CLASS_METRICS and self.activation != "softmax":
            raise ValueError(
                f"The metric {given!r} requires one class per example, which this task does not "
                "predict. Choose a different metric."
            )
        of_classes = name in (*CLASS_SCORES, *EXACT_METRICS)
        if of_classes and self.activation not in ("softmax", "sigmoid"):
            raise ValueError(
                f"The metric {given!r} requires classes, which this task does not predict. Choose "
                "a different metric."
            )
        if name in CLASS_SCORES:
            score, _, average = name.partition("_")
            only_second = self.num_classes == 2 and self.activation == "softmax"
            average = average or ("binary" if only_second else "macro")
            return ClassScore(score, average, self.activation, name=given)
        if name in EXACT_METRICS:
            return EXACT_METRICS[name](self.activation, name=given)
        if name in METRIC_NAMES:
            return {**SINGLE_CLASS_METRICS, **CORRELATIONS}[name](name=given)
        if given.lower() in ("accuracy", "acc", "crossentropy", "ce"):
            if self.activation == "linear":
                raise _make_class_metric_error(given)
            if given.lower() in ("crossentropy", "ce"):
                return MeanOfLoss(self.default_loss(), name=given)
            if self.activation == "softmax":
                return metrics.SparseCategoricalAccuracy(name=given)
            return metrics.BinaryAccuracy(name=given)
        try:
            metric = _make_metric(given)
        except ValueError:
            known = [*METRIC_NAMES, "accuracy", *filter(str.islower, dir(metrics))]
            close = find_close_names(given.lower(), known, max_names=2)
            raise ValueError(
                f"Unknown metric {given!r}.{suggest_names(close)} Expected "
                f"{', '.join(METRIC_NAMES)} or the name of a Keras metric."
            ) from None
        metric.name = given
        return metric

    def _wrap_metric(self, metric):
        if isinstance(metric, str):
            metric = self.make_metric(metric)
        elif not isinstance(metric, metrics.Metric):
            metric = _make_metric(metric)
        if isinstance(metric, MeanOfLoss):
            if get_keras_function(metric.loss):
                self._check_fits(metric.loss, "a different metric")
            metric.activation = self.activation
            return metric
        function = get_keras_function(metric)
        if type(metric) not in METRIC_KINDS or (
            type(metric) is metrics.MeanMetricWrapper and not function
        ):
            return metric
        if function:
            self._check_fits(metric, "a different metric")
        self._check_metric(metric)
        return metric if self.activation == "linear" else OfLogits(metric, self.activation)

    def _check_metric(self, metric: metrics.Metric) -> None:
        """Raise a ValueError if a Keras metric does not match the task's outputs."""
        name = type(metric).__name__
        if self.activation == "linear" and isinstance(metric, CLASSIFICATION_METRICS):
            raise _make_class_metric_error(name)
        if isinstance(metric, WHOLE_BATCH_METRICS) and metric.axis != 0:
            raise ValueError(
                f"{name} has axis={metric.axis}, which does not compute a correlation over texts. "
                f"Pass {name}(axis=0). `fit` and `evaluate` report the mean over batches."
            )
        is_best_of_all = isinstance(metric, metrics.FBetaScore) and metric.threshold is None
        if is_best_of_all and self.activation == "sigmoid":
            raise ValueError(
                f"{name} has no threshold, but texts can have several labels. Pass "
                f"{name}(threshold=0.5)."
            )


def _make_class_metric_error(name: str) -> ValueError:
    return ValueError(
        f"The metric {name!r} requires classes, but this task predicts numbers. Choose a metric "
        "for regression, such as 'mae', 'mse' or keras.metrics.R2Score()."
    )


def find_loss(loss):
    """Convert the argument `loss` of `compile` to a loss, or to None for "crossentropy".

    A name, a function or a `functools.partial` of a Keras loss is converted to an instance.

    Raises:
        ValueError: If `loss` is an unknown name or a list of losses.
    """
    loss = _get_only_loss(loss)
    if isinstance(loss, str) and loss.lower() in ("auto", "crossentropy", "ce"):
        return None
    found = _make_loss(loss) if isinstance(loss, str) else loss
    found = found() if inspect.isclass(found) else found
    if not callable(found):
        raise invalid("loss", loss, "a name, a function or a keras.losses.Loss")
    keywords = {}
    if isinstance(found, partial) and not found.args:
        found, keywords = found.func, found.keywords
    is_function = inspect.isfunction(found) and found in LOSS_CLASSES
    return LOSS_CLASSES[found](**keywords) if is_function else loss if keywords else found


def _get_only_loss(loss):
    """Return the loss in a list or dict with a single loss. Other values are returned unchanged."""
    if not isinstance(loss, list | tuple | dict):
        return loss
    values = list(loss.values() if isinstance(loss, dict) else loss)
    if len(values) != 1 or isinstance(values[0], list | tuple | dict):
        raise invalid(
            "loss", loss, "a single loss. To sum losses, pass a function of labels and outputs"
        )
    return values[0]


def _make_loss(name: str):
    try:
        return losses.get(name)
    except ValueError:
        known = ["auto", "crossentropy", *sorted(f.__name__ for f in FUNCTIONS)]
        close = find_close_names(name.lower(), known, max_names=2)
        raise ValueError(
            f"Unknown loss {name!r}.{suggest_names(close)} Expected a name in keras.losses, a "
            "function or a loss instance."
        ) from None


def _make_metric(given) -> metrics.Metric:
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


def _has_row_weights(metric) -> bool:
    if isinstance(metric, str):
        return True  # names of Keras metrics
    metric = getattr(metric, "metric", metric)  # metric inside `OfLogits`
    if not isinstance(metric, metrics.Metric):
        return metric in KERAS_FUNCTIONS
    if type(metric) in METRIC_KINDS:
        return not isinstance(metric, WHOLE_BATCH_METRICS)
    return getattr(type(metric).update_state, "ignores_padding_rows", False)
