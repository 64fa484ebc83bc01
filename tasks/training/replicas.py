"""Computations over all replicas: the loss of the whole batch, and overflows.

The docstrings name the shortcomings of Keras 3.15 that each of them corrects.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.lazy import tf


def check_loss(loss) -> None:
    """Raise a ValueError for losses that may not add up over replicas.

    Raises:
        ValueError: "Under tf.distribute the loss must be ..."
    """
    known = isinstance(loss, str) or callable(loss)
    if isinstance(loss, keras.losses.Loss):
        own_call = type(loss).__call__ is not keras.losses.Loss.__call__
        known = not own_call and loss.reduction not in (None, "none")
    if not known:
        raise ValueError(
            "Under tf.distribute the loss must be one loss of Keras's, a name or a function, with "
            "a reduction to one number: how others add up over replicas is not known. "
            f"Received: {loss!r}."
        )


def global_loss(loss_function, loss, added: list, y_pred, sample_weight):
    """Return the loss of the whole batch, from the loss of one replica's part of it.

    Keras takes the mean of the replicas' means (losses/loss.py), in which the examples, or labelled
    tokens, of a smaller part weigh more. It expects the loss divided by the number of replicas, and
    gradients that are summed over the replicas.

    Args:
        loss_function: given to `compile`.
        loss: Keras's, of this replica.
        added: further losses of the model, such as penalties on weights.
        y_pred: (B, ...) outputs.
        sample_weight: None or (B, ...).
    """
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    added = ops.sum([ops.sum(penalty) for penalty in added]) / count if added else 0.0
    loss = loss - added
    if not is_sum(loss_function):
        size = ops.cast(size_of_loss(loss_function, y_pred, sample_weight), loss.dtype)
        share = ops.divide_no_nan(size, context.all_reduce("SUM", size))
        loss = loss * count * share
    whole = context.all_reduce("SUM", ops.stop_gradient(loss)) / count
    return loss + ops.stop_gradient(whole - loss) + added


def is_sum(loss_function) -> bool:
    """Return whether a loss is the sum over a batch, and not a mean."""
    return getattr(loss_function, "reduction", None) == "sum"


def size_of_loss(loss_function, y_pred, sample_weight, real=None):
    """Return what the mean of a loss over a batch is divided by, a float32 number.

    Args:
        loss_function: given to `compile`.
        y_pred: (B, ...) outputs.
        sample_weight: None or (B, ...).
        real: (B,) which rows count; None: all.

    Example:
        >>> tokens = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        >>> weights = ops.array([[1.0, 1.0], [1.0, 0.0]])
        >>> float(size_of_loss(tokens, ops.zeros((2, 2, 5)), weights))
        3.0
    """
    reduction = getattr(loss_function, "reduction", None)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return ops.sum(ops.cast(sample_weight, "float32"))
    if real is not None:
        return ops.sum(ops.cast(real, "float32"))
    return ops.cast(ops.shape(keras.tree.flatten(y_pred)[0])[0], "float32")


def overflow_anywhere(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Skip a step in all replicas if its gradients are not finite in one of them.

    Keras asks the first replica, as if gradients had been added up (loss_scale_optimizer.py).
    """
    check = optimizer.check_finite

    def check_everywhere(grads: list):
        bad = tf.cast(tf.logical_not(check(grads)), tf.float32)
        return tf.distribute.get_replica_context().all_reduce("SUM", bad) == 0

    optimizer.check_finite = check_everywhere


def check_no_accumulation(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise a ValueError if an optimizer of Keras's accumulates gradients.

    It does so in the branch of a condition, in which TensorFlow does not sum over replicas
    (optimizers/base_optimizer.py).
    """
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "Under tf.distribute Keras's optimizers do not support gradient_accumulation_steps. "
            "Pass compile(gradient_accumulation_steps=...), with optimizer='auto'."
        )
