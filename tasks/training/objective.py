"""Objective of a task: its loss, its metrics, and the outputs that a user's own receive."""

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
    """Return labels, outputs and weights as they are."""
    return y, y_pred, sample_weight


@dataclass(frozen=True)
class Objective:
    """Says what a task learns: `TextModel` computes its losses and metrics by it.

    Args:
        default_loss: Function that returns the loss of `compile(loss="auto")`.
        default_metrics: Function that returns the metrics of `compile`, weighted by sample weights.
            Defaults to none.
        activation: Function that makes probabilities of the outputs, "softmax" or "sigmoid";
            "linear" for numbers. Defaults to None, for which losses and metrics get the outputs as
            they are.
        num_classes: Number of classes, where metrics depend on it.
        labels: List of the names of the classes, if they have names.
        own_metrics: Mapping from names to functions that return the task's own metrics.
        of_tokens: Boolean. Whether there is a label for each token. A loss is then a mean over the
            tokens with a weight, see `BatchLoss`.
        of_examples: Boolean. Whether a loss must have a value for each example, see `BatchLoss`.
        pads_classes: Boolean. Whether the outputs of an example have as many classes as the longest
            example of its batch, such as positions of tokens.
        fills_batches: Boolean. Whether rows that fill a batch can be left out of the loss, where it
            is one of Keras's, see `graphs.real_rows`.
        names_outputs: Boolean. Whether the outputs are a dict. Metrics are then a dict too, and
            taken as they are.
        inputs_of_metrics: Function of inputs, labels, outputs and weights that returns the labels,
            outputs and weights of the metrics.

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
        """Return the loss that is computed for the one that `compile` gets.

        Args:
            loss: See `loss_inputs.resolve_loss`.
        """
        return resolve_loss(loss, self.default_loss(), self.activation, self.pads_classes)

    def batch_loss(self, loss) -> BatchLoss:
        """Return what computes a loss of batches.

        Args:
            loss: Returned by `resolve_loss`.
        """
        return BatchLoss(loss, self.activation, self.of_tokens, self.of_examples)

    def weigh_classes(self, data: Source, class_weight: Mapping | str, loss) -> Source:
        """Return the data with each class weighted.

        Args:
            data: `Source` of the training.
            class_weight: Mapping from classes to their weights, or "balanced".
            loss: The loss that is computed.

        Raises:
            ValueError: If there are no classes, or the loss does not weigh them.
        """
        raise invalid("class_weight", class_weight, "None without classes. Use sample_weight")

    def report_split(self, examples: dict, held_out: dict) -> None:
        """Log what `validation_split` keeps from training."""

    def metrics_for(self, loss) -> list | dict | None:
        """Return the default metrics beside a loss."""
        return self.default_metrics()

    def metrics(self, loss, given, weighted) -> dict:
        """Return the arguments of Keras's `compile` for those of a task's.

        Args:
            loss: That is computed.
            given, weighted: Arguments `metrics` and `weighted_metrics`.
        """
        if isinstance(weighted, str) and weighted == "auto":
            weighted = self.metrics_for(loss) if given is None else None
        else:
            weighted = self.resolve_metrics(weighted)
        given = self.resolve_metrics(given)
        if self.of_tokens and given and not self.names_outputs:  # weights tell which tokens count
            given, weighted = None, [*given, *(weighted or [])]
        return {"metrics": given, "weighted_metrics": weighted}

    def resolve_metrics(self, given):
        """Return the metrics that are computed for those that `compile` gets.

        Args:
            given: See `logit_metrics.metrics_on_logits`; names may also be those of `own_metrics`.
        """
        if given is None or self.activation is None or self.names_outputs:
            return given
        named = (
            self.metric_by_name(metric) if isinstance(metric, str) else metric
            for metric in keras.tree.flatten(given)
        )
        return logit_metrics.metrics_on_logits(list(named), self.activation, self.pads_classes)

    def metric_by_name(self, name: str):
        """Return the metric of a name; a name of Keras is returned unchanged.

        Raises:
            ValueError: If the name is unknown, or the metric has no meaning for the outputs.
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
