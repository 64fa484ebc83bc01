"""Losses and metrics of Keras, by name or object, for models that return logits.

Those of Keras expect probabilities by default, and many of its metrics expect rows of 0 and 1 for
labels that are numbers here; given logits, they return wrong numbers without an error. Functions
and metrics that are not Keras's get the model's outputs.

Comment letters: B batch, C classes.
"""

from __future__ import annotations

import keras
from keras import losses, metrics, ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import take_direction

ACTIVATIONS = {"softmax": ops.softmax, "sigmoid": ops.sigmoid}
CROSSENTROPIES = {
    losses.sparse_categorical_crossentropy: losses.SparseCategoricalCrossentropy,
    losses.categorical_crossentropy: losses.CategoricalCrossentropy,
    losses.categorical_focal_crossentropy: losses.CategoricalFocalCrossentropy,
    losses.binary_crossentropy: losses.BinaryCrossentropy,
    losses.binary_focal_crossentropy: losses.BinaryFocalCrossentropy,
}
SPARSE = (
    metrics.SparseCategoricalAccuracy,
    metrics.SparseTopKCategoricalAccuracy,
    metrics.SparseCategoricalCrossentropy,
)
ONE_HOT = (
    metrics.CategoricalAccuracy,
    metrics.TopKCategoricalAccuracy,
    metrics.CategoricalCrossentropy,
    metrics.CategoricalHinge,
    metrics.KLDivergence,
    metrics.Poisson,
    metrics.CosineSimilarity,
    metrics.OneHotIoU,
    metrics.OneHotMeanIoU,
)
OF_CLASS_INDICES = (metrics.Accuracy, metrics.IoU, metrics.MeanIoU)


def loss_on_logits(loss, default: losses.Loss, activation: str | None):
    """Return a loss that takes logits, if the given one is a cross-entropy of Keras's.

    Args:
        loss: given to `compile`.
        default: the task's own, which names such as "crossentropy" mean.
        activation: makes probabilities of the outputs: "softmax" or "sigmoid"; "linear" for
            numbers, None for outputs of an unknown kind.

    Raises:
        ValueError: "sparse_categorical_crossentropy is a loss of one class for each text ..."

    Example:
        >>> default = losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> loss_on_logits("sparse_categorical_crossentropy", default, "softmax") is default
        True
        >>> loss_on_logits(losses.SparseCategoricalCrossentropy(), default, "softmax").from_logits
        True
    """
    if activation is None or not (isinstance(loss, str) or callable(loss)):
        return loss
    if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):
        return default
    named = isinstance(loss, str) or loss in CROSSENTROPIES
    known = losses.get(loss) if isinstance(loss, str) else loss
    known = CROSSENTROPIES[known]() if known in CROSSENTROPIES else known
    if type(known) not in CROSSENTROPIES.values():
        return loss
    if isinstance(known, losses.SparseCategoricalCrossentropy) and activation != "softmax":
        raise ValueError(
            "sparse_categorical_crossentropy is a loss of one class for each text, which this "
            f"task does not learn. Expected loss='auto', here {type(default).__name__}, or one of "
            "its kind."
        )
    if named and isinstance(default, type(known)):
        return default
    if activation == "linear" or known.from_logits:
        return known
    return type(known).from_config({**known.get_config(), "from_logits": True})


def labels_for_loss(loss, y, y_pred, activation: str | None):
    """Return class indices (B, ...) as rows (B, ..., C) of 0 and 1, for losses that take those."""
    if activation != "softmax" or not isinstance(loss, str | losses.Loss):
        return y
    if isinstance(loss, losses.SparseCategoricalCrossentropy) or not _are_numbers(y, y_pred):
        return y
    return ops.one_hot(ops.cast(y, "int32"), y_pred.shape[-1], dtype=y_pred.dtype)


def by_token(y_true, y_pred, sample_weight=None) -> tuple:
    """Return labels, outputs and weights of tokens, each as an example of its own, for metrics.

    Keras's metrics take a mean over each row first, padding included, so that a token counts less
    in a longer batch.

    Args:
        y_true: (B, L) or (B, L, C).
        y_pred: (B, L, C).
        sample_weight: (B, L) or None.

    Returns:
        The same as (B * L, ...).

    Example:
        >>> import numpy as np
        >>> y_true, y_pred, weight = by_token(np.zeros((2, 3)), np.zeros((2, 3, 5)))
        >>> keras.ops.shape(y_true), keras.ops.shape(y_pred), weight
        ((6,), (6, 5), None)
    """
    given = (x if x is None else ops.convert_to_tensor(x) for x in (y_true, y_pred, sample_weight))
    return tuple(x if x is None else ops.reshape(x, (-1, *x.shape[2:])) for x in given)


def metrics_on_logits(given, activation: str | None):
    """Return metrics that take logits, if the given ones are Keras's; see `OfLogits`.

    Args:
        given: a list of metrics and their names; None and anything but a list is returned as is.
        activation: as for `loss_on_logits`.

    Raises:
        ValueError: "Accuracy is of classes ...", "F1Score without a threshold ...",
            "PearsonCorrelation(axis=-1) ..."
    """
    if activation is None or not isinstance(given, list | tuple):
        return given
    return [_metric_on_logits(metric, activation) for metric in given]


def _metric_on_logits(metric, activation: str):
    name = metric if isinstance(metric, str) else None
    if name and name.lower() in ("accuracy", "acc"):
        if activation == "linear":
            raise ValueError(
                "Accuracy is of classes, and this task predicts numbers. Expected a metric such as "
                "'mae', 'mse' or keras.metrics.R2Score()."
            )
        kinds = {"softmax": metrics.SparseCategoricalAccuracy, "sigmoid": metrics.BinaryAccuracy}
        metric = kinds[activation]()
    elif name:
        metric = metrics.get(name)
    elif not isinstance(metric, metrics.Metric) and _is_of_keras(metric):
        metric = metrics.get(metric.__name__)
    if not isinstance(metric, metrics.Metric) or not _is_of_keras(type(metric)):
        return metric
    if name:
        metric.name = name
    _check_metric(metric, activation)
    return metric if activation == "linear" else OfLogits(metric, activation)


def _is_of_keras(thing) -> bool:
    return getattr(thing, "__module__", "").startswith("keras.")


def _check_metric(metric: metrics.Metric, activation: str) -> None:
    name = type(metric).__name__
    correlations = (metrics.PearsonCorrelation, metrics.ConcordanceCorrelation)
    if isinstance(metric, correlations) and metric.axis != 0:
        raise ValueError(
            f"{name}(axis={metric.axis}) correlates the outputs for one text with each other, not "
            f"those for different texts. Expected {name}(axis=0); `fit` and `evaluate` report its "
            "mean over the batches."
        )
    is_best_of_all = isinstance(metric, metrics.FBetaScore) and metric.threshold is None
    if is_best_of_all and activation == "sigmoid":
        raise ValueError(
            f"{name} without a threshold counts the best label of a text alone, and here a text "
            f"has any number of them. Expected {name}(threshold=0.5)."
        )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassCrossentropy(losses.SparseCategoricalCrossentropy):
    """Computes the cross-entropy of one class for each example, or of class probabilities.

    Call arguments:
        y_true: (B,) class indices, or (B, C) the probability of each class.
        y_pred: (B, C).

    Source: Szegedy et al. 2016, Rethinking the Inception Architecture, section 7, for
    probabilities as labels.

    Example:
        >>> import numpy as np
        >>> loss, logits = ClassCrossentropy(from_logits=True), np.float32([[0, 2]])
        >>> [round(float(loss(np.array(y), logits)), 3) for y in ([1], [[0.5, 0.5]])]
        [0.127, 1.127]
    """

    def call(self, y_true, y_pred):
        if _are_numbers(y_true, y_pred):
            return super().call(y_true, y_pred)
        return losses.categorical_crossentropy(y_true, y_pred, from_logits=self.from_logits)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LabelCrossentropy(losses.BinaryCrossentropy):
    """Computes the cross-entropy of each label of each example by itself.

    The mean is that of `keras.losses.BinaryCrossentropy`; weights may be of single labels.

    Call arguments:
        y_true: (B, C) 0, 1, or a probability.
        y_pred: (B, C).
        sample_weight: (B,) or (B, C).

    Example:
        >>> loss = LabelCrossentropy(from_logits=True)
        >>> round(float(loss([[1.0, 0.0]], [[0.0, 2.0]], sample_weight=[[1.0, 0.0]])), 3)
        0.347
    """

    def __call__(self, y_true, y_pred, sample_weight=None):
        if sample_weight is not None:
            sample_weight = ops.convert_to_tensor(sample_weight)
            if len(sample_weight.shape) == 1:
                sample_weight = sample_weight[:, None]
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        return ops.binary_crossentropy(y_true, y_pred, from_logits=self.from_logits)  # (B, C)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassAccuracy(metrics.SparseCategoricalAccuracy):
    """Computes the share of the examples with the right class; of probabilities the largest counts.

    Call arguments:
        y_true: (B,) class indices, or (B, C) the probability of each class.
        y_pred: (B, C).
        sample_weight: (B,).

    Example:
        >>> metric = ClassAccuracy()
        >>> metric.update_state([[0.1, 0.9], [0.7, 0.3]], [[-1.0, 2.0], [0.0, 1.0]])
        >>> float(metric.result())
        0.5
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(class_indices_of(y_true, y_pred), y_pred, sample_weight)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class OfLogits(ConfigFromSignature, keras.metrics.Metric):
    """Wraps a metric of Keras's: it gets the probabilities of logits, and labels to match.

    Labels that are class indices are converted: for sparse metrics they are class indices, for
    others rows of 0 and 1. Of two classes the second is the positive one for metrics such as
    Precision, Recall, AUC or F1Score with a threshold. Metrics with `from_logits=True`, and
    BinaryAccuracy with the threshold 0, get the logits.

    Args:
        metric: of `keras.metrics`; it keeps the state and gives the name.
        activation: "softmax" or "sigmoid".

    Call arguments:
        y_true: (B, ...) class indices, or (B, ..., C).
        y_pred: (B, ..., C) logits.
        sample_weight: (B, ...).

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
        scores = y_pred if self._takes_logits() else ACTIVATIONS[self.activation](y_pred)
        y_true, scores = self._matched(y_true, scores)
        self.metric.update_state(y_true, scores, sample_weight)

    def _takes_logits(self) -> bool:
        is_binary = isinstance(self.metric, metrics.BinaryAccuracy)
        return getattr(self.metric, "from_logits", is_binary and self.metric.threshold == 0)

    def _matched(self, y_true, scores):
        """Return labels and scores in the form that the metric takes."""
        if type(self.metric) in OF_CLASS_INDICES:
            if self.activation == "softmax":
                return class_indices_of(y_true, scores), ops.argmax(scores, -1)
            chosen = scores > 0.5
            return y_true, ops.cast(chosen, y_true.dtype)
        if isinstance(self.metric, SPARSE):
            return class_indices_of(y_true, scores), scores
        if not _are_numbers(y_true, scores):
            return y_true, scores
        classes = scores.shape[-1]
        if classes == 2 and not self._wants_one_hot():
            return y_true[:, None], scores[:, 1:]
        return ops.one_hot(ops.cast(y_true, "int32"), classes, dtype=scores.dtype), scores

    def _wants_one_hot(self) -> bool:
        """Return whether the metric is of the first of two classes as well."""
        if isinstance(self.metric, metrics.FBetaScore):
            return self.metric.threshold is None
        chosen = [getattr(self.metric, name, None) for name in ("class_id", "top_k")]
        several = getattr(self.metric, "multi_label", False) or chosen != [None, None]
        return several or isinstance(self.metric, ONE_HOT)

    def result(self):
        return self.metric.result()

    def reset_state(self) -> None:
        self.metric.reset_state()


def _are_numbers(y_true, scores) -> bool:
    """Return whether labels are one number for each row of C scores."""
    return len(y_true.shape) == len(scores.shape) - 1


def class_indices_of(y_true, scores):
    """Return class indices, also for labels that are rows of C probabilities."""
    y_true, scores = ops.convert_to_tensor(y_true), ops.convert_to_tensor(scores)
    return y_true if _are_numbers(y_true, scores) else ops.argmax(y_true, -1)
