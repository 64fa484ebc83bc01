"""What replicas must agree on: the loss of the whole batch, its clipped gradient, overflows.

Keras 3.15 falls short of that in places that are named where they are mended.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.lazy import tf


def check_loss(loss) -> None:
    """Refuses losses of which it is not known how they add up over replicas.

    Raises:
        ValueError: "Under tf.distribute the loss must be ..."
    """
    known = isinstance(loss, str) or callable(loss)
    if isinstance(loss, keras.losses.Loss):
        known = type(loss).__call__ is keras.losses.Loss.__call__ and loss.reduction not in (
            None,
            "none",
        )
    if not known:
        raise ValueError(
            "Under tf.distribute the loss must be one loss of Keras's, a name or a function, with "
            "a reduction to one number: how others add up over replicas is not known. "
            f"Received: {loss!r}."
        )


def global_loss(loss_function, loss, added: list, y_pred, sample_weight):
    """The loss of the whole batch, from the loss of one replica's part of it.

    Keras takes the mean of the replicas' means (losses/loss.py), in which the examples, or labelled
    tokens, of a smaller part weigh more. What it wants in their place: the loss divided by the
    number of replicas, and gradients whose sum over the replicas is right.

    Args:
        loss_function: what `compile` was given.
        loss: Keras's, of this replica.
        added: further losses of the model, such as penalties on weights.
        y_pred: (B, ...) outputs.
        sample_weight: None or (B, ...).
    """
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    added = ops.sum([ops.sum(penalty) for penalty in added]) / count if added else 0.0
    loss = loss - added
    reduction = getattr(loss_function, "reduction", "sum_over_batch_size")
    if reduction != "sum":
        size = ops.cast(ops.shape(y_pred)[0], loss.dtype)
        if reduction == "mean_with_sample_weight" and sample_weight is not None:
            size = ops.cast(ops.sum(sample_weight), loss.dtype)
        share = ops.divide_no_nan(size, context.all_reduce("SUM", size))
        loss = loss * count * share
    whole = context.all_reduce("SUM", ops.stop_gradient(loss)) / count
    return loss + ops.stop_gradient(whole - loss) + added


def overflow_anywhere(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Has all replicas leave out a step whose gradients are not finite in one of them.

    Keras asks the first replica, as if gradients had been added up (loss_scale_optimizer.py).
    """
    check = optimizer.check_finite

    def check_everywhere(grads: list):
        bad = tf.cast(tf.logical_not(check(grads)), tf.float32)
        return tf.distribute.get_replica_context().all_reduce("SUM", bad) == 0

    optimizer.check_finite = check_everywhere


def check_no_accumulation(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if an optimizer of Keras's adds up gradients.

    It does so in the branch of a condition, in which TensorFlow does not sum over replicas
    (optimizers/base_optimizer.py).
    """
    if optimizer.gradient_accumulation_steps:
        raise ValueError(
            "Under tf.distribute Keras's optimizers do not support gradient_accumulation_steps. "
            "Pass compile(gradient_accumulation_steps=...), with optimizer='auto'."
        )


def clip_the_sum(optimizer: keras.optimizers.Optimizer) -> None:
    """Has an optimizer clip the gradient of the whole batch.

    Keras clips the gradients of every replica and sums then (optimizers/base_optimizer.py), and it
    takes the norm of an embedding's gradient before the rows of equal tokens are added up, which
    depends on how a batch is divided.
    """
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    if not clips or "_clip_gradients" in vars(optimizer):
        return
    clip, add = optimizer._clip_gradients, optimizer._all_reduce_sum_gradients

    def clip_sum(grads: list) -> list:
        sums = [grad for grad, _ in add([(grad, None) for grad in grads])]
        return clip([grad if grad is None else tf.convert_to_tensor(grad) for grad in sums])

    optimizer._clip_gradients = clip_sum
    optimizer._all_reduce_sum_gradients = lambda grads_and_variables: grads_and_variables
