"""Losses and metrics of batches that are filled with rows which do not count.

Comment letters: B rows of a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
from keras import ops

from encoder_zoo.common.keras_private import compiled_metrics
from encoder_zoo.tasks.preprocessing.filling import REAL_ROWS

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.text_model import TextModel

# Of which each row's value is its own; those of `encoder_zoo.tasks.losses` compare rows.
LOSSES = ("keras.", "encoder_zoo.tasks.training.")
METRICS = ("keras.", "encoder_zoo.")
# Keras's metrics that compare the rows of a batch.
OF_WHOLE_BATCHES = (keras.metrics.PearsonCorrelation, keras.metrics.ConcordanceCorrelation)


def can_be_filled(task: TextModel) -> bool:
    """Return whether rows that only fill a batch can be left out of a task's loss and metrics."""
    loss = task.loss
    known = isinstance(loss, str) or (
        isinstance(loss, keras.losses.Loss)
        and type(loss).__module__.startswith(LOSSES)
        and loss.reduction not in (None, "none")
    )
    return task.fills_batches and known and all(map(_takes_weights, compiled_metrics(task)))


def _takes_weights(metric) -> bool:
    if isinstance(metric, str) or getattr(metric, "__module__", "").startswith("keras."):
        return True  # Keras's by name, or a function of its
    inner = getattr(metric, "metric", metric)
    if isinstance(inner, OF_WHOLE_BATCHES) or not isinstance(metric, keras.metrics.Metric):
        return False
    own = type(metric).__module__.startswith(METRICS)
    return own and "sample_weight" in inspect.signature(metric.update_state).parameters


def real_rows(x):
    """Return which rows of a batch are examples, (B,) bool; None if all are."""
    return x.get(REAL_ROWS) if isinstance(x, Mapping) else None


def without(x, name: str):
    """Return inputs without one of them.

    Example:
        >>> without({"token_ids": 1, "real_rows": 2}, REAL_ROWS)
        {'token_ids': 1}
    """
    if not isinstance(x, Mapping) or name not in x:
        return x
    return {other: values for other, values in x.items() if other != name}


def weights_of_loss(loss, real, y_pred, sample_weight):
    """Return the weights with which a loss of the whole batch is that of the rows that count.

    Args:
        loss: given to `compile`.
        real: (B,) bool.
        y_pred: outputs (B, ...).
        sample_weight: (B, ...) or None.

    Example:
        >>> import numpy as np
        >>> loss = keras.losses.MeanSquaredError()
        >>> y_pred = np.array([[1.0], [3.0]])
        >>> weights = weights_of_loss(loss, np.array([True, False]), y_pred, None)
        >>> float(loss(np.zeros((2, 1)), y_pred, weights))
        1.0
    """
    weights = weights_of_metrics(real, y_pred, sample_weight)
    if getattr(loss, "reduction", "sum_over_batch_size") not in ("sum_over_batch_size", "mean"):
        return weights
    real = ops.cast(real, weights.dtype)  # Keras divides by all rows
    return weights * ops.cast(ops.shape(real)[0], weights.dtype) / ops.sum(real)


def weights_of_metrics(real, y_pred, sample_weight):
    """Return sample weights that are 0 in rows that do not count.

    Args:
        real: (B,) bool.
        y_pred: outputs (B, ...), or (B * M, C) of M tokens in each row.
        sample_weight: (B, ...), (B * M,) or None.
    """
    y_pred = ops.convert_to_tensor(y_pred)
    real = ops.cast(real, "float32")
    rows, count = ops.shape(real)[0], ops.shape(y_pred)[0]
    real = ops.reshape(ops.broadcast_to(real[:, None], (rows, count // rows)), (-1,))
    rank = len(y_pred.shape) - 1 if sample_weight is None else len(sample_weight.shape)
    real = ops.reshape(real, (-1, *[1] * (rank - 1)))
    return real if sample_weight is None else real * ops.cast(sample_weight, "float32")
