"""Task objective: its loss, its metrics, and how to interpret the outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import keras

from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.training import logit_metrics
from encoder_zoo.tasks.training.batch_loss import BatchLoss
from encoder_zoo.tasks.training.loss_inputs import resolve_loss

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import Source


def unchanged(x, y, y_pred, sample_weight) -> tuple:
    """Return labels, outputs and weights unchanged."""
    return y, y_pred, sample_weight


@dataclass(frozen=True)
class Objective:
    """Description for the losses and metrics supported by a task.

    Args:
        default_loss: A function to create the loss for `compile(loss="auto")`.
        default_metrics: A function to create the default metrics, which use sample weights. By
            default, there are no metrics.
        activation: "softmax" or "sigmoid" for logits, "linear" for regression, or None to pass the
            outputs to losses and metrics unchanged. Defaults to None.
        num_classes: Integer. Number of classes, for metrics that need it.
        labels: A list of class names, for classes with names.
        own_metrics: A mapping from names to functions used to create task metrics.
        of_tokens: Boolean. Whether every token has a label. Losses will then be averaged over the
            tokens with a weight, see `BatchLoss`.
        of_examples: Boolean. Whether to require a loss value for each example, see `BatchLoss`.
        pads_classes: Boolean. Whether the number of classes depends on the longest example in the
            batch, e.g. for classes that are token positions.
        fills_batches: Boolean. Whether Keras losses can ignore rows used to pad a batch, see
            `graphs.real_rows`.
        names_outputs: Boolean. Whether the outputs are a dict. In this case, metrics are also a
            dict and will be used unchanged.
        inputs_of_metrics: A function to convert inputs, labels, outputs and weights to the labels,
            outputs and weights for the metrics.

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
    inputs_of_metrics: Callable[..., tuple] = unchanged

    def resolve_loss(self, loss):
        """Convert the `loss` argument from `compile` to the loss to be computed.

        Args:
            loss: Loss, see `loss_inputs.resolve_loss`.
        """
        return resolve_loss(loss, self.default_loss(), self.activation, self.pads_classes)

    def batch_loss(self, loss) -> BatchLoss:
        """Return the `BatchLoss` for a loss.

        Args:
            loss: A loss from `resolve_loss`.
        """
        return BatchLoss(loss, self.activation, self.of_tokens, self.of_examples)

    def weigh_classes(self, data: Source, class_weight: Mapping | str, loss) -> Source:
        """Return the data with sample weights based on the classes.

        Args:
            data: `Source` with the training data.
            class_weight: A mapping from classes to weights, or "balanced".
            loss: A loss to be computed.

        Raises:
            ValueError: If the task has no classes, or if class weights are not supported for the
                loss.
        """
        raise invalid("class_weight", class_weight, "None without classes. Use sample_weight")

    def report_split(self, examples: dict, held_out: dict) -> None:
        """Log the properties of examples removed from training by `validation_split`."""

    def metrics_for(self, loss) -> list | dict | None:
        """Return the default metrics for a loss."""
        return self.default_metrics()

    def metrics(self, loss, given, weighted) -> dict:
        """Convert the task metrics to arguments for `keras.Model.compile`.

        Args:
            loss: A loss to be computed.
            given: Argument `metrics`.
            weighted: Argument `weighted_metrics`.
        """
        if isinstance(weighted, str) and weighted == "auto":
            weighted = self.metrics_for(loss) if given is None else None
        else:
            weighted = self.resolve_metrics(weighted)
        given = self.resolve_metrics(given)
        if self.of_tokens and given and not self.names_outputs:  # weights are used to mask tokens
            given, weighted = None, [*given, *(weighted or [])]
        return {"metrics": given, "weighted_metrics": weighted}

    def resolve_metrics(self, given):
        """Convert the metrics passed to `compile` to the metrics to be computed.

        Args:
            given: Metrics, see `logit_metrics.metrics_on_logits`. Names from `own_metrics` are also
                supported.
        """
        if given is None or self.activation is None or self.names_outputs:
            return given
        named = (
            self.metric_by_name(metric) if isinstance(metric, str) else metric
            for metric in keras.tree.flatten(given)
        )
        return logit_metrics.metrics_on_logits(list(named), self.activation, self.pads_classes)

    def metric_by_name(self, name: str):
        """Create a metric from its name. Names of Keras metrics are returned unchanged.

        Raises:
            ValueError: If the name is unknown, or if the metric does not fit the outputs.
        """
        if name in self.own_metrics:
            return self.own_metrics[name]()
        if self.of_tokens and name.lower() in logit_metrics.EXACT:
            raise invalid(
                "A metric",
                name,
                "'f1_macro' or keras.metrics.AUC(multi_label=True, num_labels="
                f"{self.num_classes}): an exact one would keep the outputs of all tokens",
            )
        return logit_metrics.metric_by_name(name, self.activation, self.num_classes)
