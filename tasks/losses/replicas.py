"""Gather a batch's rows from all replicas, and ignore padding rows.

With `tf.distribute`, every replica has a part of the rows. With `keras.distribution`, a batch is a
single array that is split evenly across devices, so it can contain padding rows.

Comments use these letters for shapes: B (rows on this replica), N (rows on all replicas).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import keras

from encoder_zoo.common.lazy import tf, xp


def compute_loss_values(loss: keras.losses.Loss, y_true, y_pred, rows=None, tokens=None):
    """Compute the values of a loss. Pass `rows` and `tokens` if its `call` has these arguments.

    Args:
        loss: Keras loss. Its `call` can have the optional arguments `rows` and `tokens`.
        y_true: Tensor. Labels.
        y_pred: Tensor of shape (B, ...). Model outputs.
        rows: Optional boolean tensor of shape (B,). False for padding rows. If None, all rows are
            used.
        tokens: Optional tensor of shape (B, L). Token weights. If None, all tokens are used.

    Example:
        >>> import encoder_zoo as ez
        >>> import keras
        >>> y_pred = keras.ops.convert_to_tensor([[[1.0], [1.0]], [[1.0], [-1.0]]])
        >>> rows = keras.ops.convert_to_tensor([True, False])
        >>> y_true = keras.ops.convert_to_tensor([0.0, 1.0])
        >>> compute_loss_values(ez.losses.CoSENT(), y_true, y_pred, rows).numpy()
        array([0., 0.], dtype=float32)
    """
    taken, given = inspect.signature(loss.call).parameters, {"rows": rows, "tokens": tokens}
    return loss.call(y_true, y_pred, **{n: v for n, v in given.items() if n in taken})


def ignores_padding_rows(method: Callable) -> Callable:
    """Decorator for a loss or metric that ignores rows that only pad a batch.

    Small batches can then be padded, so that no program has to be compiled for a new shape. Without
    this decorator, a custom loss or metric receives batches without padding rows.

    Args:
        method: Function. For a loss, the method `call`. The values of real rows must not depend on
            padding rows, which can be masked with an argument `rows`. For a metric, the method
            `update_state` with sample weights.

    Example:
        >>> class Squares(keras.losses.Loss):
        ...     @ignores_padding_rows
        ...     def call(self, y_true, y_pred):
        ...         return keras.ops.mean(keras.ops.square(y_pred - y_true), axis=-1)
        >>> Squares.call.ignores_padding_rows
        True
    """
    method.ignores_padding_rows = True
    return method


def gather_replicas(*values: keras.KerasTensor) -> tuple:
    """Gather tensors from all replicas, and find the first row of this replica in them.

    The gradients of all replicas are propagated to the rows of each replica. A loss that is summed
    over the replicas therefore has the same gradients as on a single device. The number of rows can
    differ between replicas.

    Args:
        *values: Tensors of shape (B, ...).

    Returns:
        Tuple of the gathered tensors with shape (N, ...), followed by the index of the first row of
        this replica. The rows are in the order of the replicas.

    Example:
        >>> gather_replicas(keras.ops.ones((2,)))[1]
        0
    """
    context = get_replica_context()
    if context is None:
        return *values, 0
    size = xp.shape(values[0])[0]
    sizes = context.all_gather(size[None], axis=0)
    most = xp.reduce_max(sizes)
    # All replicas must contribute the same number of rows. Padding rows are added before the
    # tensors are gathered, and removed afterwards.
    rows = xp.where(xp.reshape(xp.sequence_mask(sizes, most), (-1,)))[:, 0]
    found = []
    for value in values:
        padding = [[0, most - size], *([[0, 0]] * (len(value.shape) - 1))]
        gathered = context.all_gather(xp.pad(value, padding), axis=0)
        # `gather` has a sparse gradient, which is not supported by `all_gather`. The gradient for
        # `reshape` is dense.
        gathered = xp.reshape(gathered, xp.shape(gathered))
        found.append(xp.ensure_shape(xp.gather(gathered, rows), (None, *value.shape[1:])))
    return *found, xp.reduce_sum(sizes[: context.replica_id_in_sync_group])


def get_replica_context() -> tf.distribute.ReplicaContext | None:
    """Return the current replica context if there are several replicas, and None otherwise."""
    if keras.config.backend() != "tensorflow" or not tf.distribute.has_strategy():
        return None
    context = tf.distribute.get_replica_context()
    return context if context and context.num_replicas_in_sync > 1 else None


def pad_to_longest(value: keras.KerasTensor, axis: int) -> keras.KerasTensor:
    """Pad an axis with zeros to its largest size on any replica.

    Args:
        value: Tensor of shape (B, ...).
        axis: Positive integer. Axis whose size can differ between replicas.

    Example:
        >>> pad_to_longest(keras.ops.ones((2, 3)), 1).shape
        TensorShape([2, 3])
    """
    context = get_replica_context()
    if context is None:
        return value
    size = xp.shape(value)[axis]
    most = xp.reduce_max(context.all_gather(size[None], axis=0))
    padding = [[0, 0]] * len(value.shape)
    padding[axis] = [0, most - size]
    return xp.pad(value, padding)
