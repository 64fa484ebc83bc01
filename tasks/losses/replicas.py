"""The rows of a batch, for losses that compare them: those of all replicas, and which count.

Under `tf.distribute` every replica has some of the rows. Under `keras.distribution` a batch is one
array, which may be filled with rows that are no examples, so that the devices divide it.

Comment letters: B rows of this replica, N of all.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import keras

from encoder_zoo.common.lazy import array_ops, tf

# Which rows of the batch are examples, and the weights of its tokens; None is all.
_counted = contextvars.ContextVar("counted", default=(None, None))


@contextlib.contextmanager
def counting(
    rows: keras.KerasTensor | None = None, tokens: keras.KerasTensor | None = None
) -> Iterator[None]:
    """Make losses in the block leave out rows that only fill a batch, and tokens without weight.

    A loss of Keras's only gets labels and outputs.

    Args:
        rows: Boolean tensor of shape (B,). The rows that are examples. Defaults to None, all rows.
        tokens: Tensor of weights of shape (B, L). Defaults to None, all tokens.
    """
    token = _counted.set((rows, tokens))
    try:
        yield
    finally:
        _counted.reset(token)


def rows_that_count() -> keras.KerasTensor | None:
    """Return which rows of the batch are examples, (B,) bool; None: all.

    Example:
        >>> with counting(rows=keras.ops.convert_to_tensor([True, False])):
        ...     rows_that_count().numpy().tolist()
        [True, False]
    """
    return _counted.get()[0]


def leaves_out_rows(method: Callable) -> Callable:
    """Declare that a loss or a metric leaves out the rows that only fill a batch.

    Batches are then filled where every new shape is compiled. Without it a loss or a metric that is
    not Keras's own gets batches as they are.

    Args:
        method: `call` of a loss, whose values of other rows do not depend on those rows, as by
            `rows_that_count`; or `update_state` of a metric, which takes sample weights.

    Example:
        >>> class Squares(keras.losses.Loss):
        ...     @leaves_out_rows
        ...     def call(self, y_true, y_pred):
        ...         return keras.ops.mean(keras.ops.square(y_pred - y_true), axis=-1)
        >>> Squares.call.leaves_out_rows
        True
    """
    method.leaves_out_rows = True
    return method


def tokens_that_count() -> keras.KerasTensor | None:
    """Return the weights of the tokens of the batch, 0 for those to be left out; None: all count.

    Example:
        >>> with counting(tokens=keras.ops.convert_to_tensor([[1.0, 0.0]])):
        ...     tokens_that_count().numpy().tolist()
        [[1.0, 0.0]]
    """
    return _counted.get()[1]


def of_all_replicas(*values: keras.KerasTensor) -> tuple:
    """Return tensors with the rows of all replicas, and the index of this replica's first row.

    Gradients of all replicas reach the rows of each, so that losses that are added up over the
    replicas have the gradients of one device. Replicas may have different numbers of rows.

    Args:
        *values: (B, ...) tensors.

    Returns:
        Tensors (N, ...), in the order of the replicas, and then the index.

    Example:
        >>> of_all_replicas(keras.ops.ones((2,)))[1]
        0
    """
    context = replica_context()
    if context is None:
        return *values, 0
    size = array_ops.shape(values[0])[0]
    sizes = context.all_gather(size[None], axis=0)
    most = array_ops.reduce_max(sizes)
    # All replicas must give equally many rows: padded ones, which are then left out.
    rows = array_ops.where(array_ops.reshape(array_ops.sequence_mask(sizes, most), (-1,)))[:, 0]
    found = []
    for value in values:
        padding = [[0, most - size], *([[0, 0]] * (len(value.shape) - 1))]
        gathered = context.all_gather(array_ops.pad(value, padding), axis=0)
        # The gradient of `gather` has some rows alone, which `all_gather` does not take: that of
        # `reshape` has all.
        gathered = array_ops.reshape(gathered, array_ops.shape(gathered))
        found.append(
            array_ops.ensure_shape(array_ops.gather(gathered, rows), (None, *value.shape[1:]))
        )
    return *found, array_ops.reduce_sum(sizes[: context.replica_id_in_sync_group])


def replica_context() -> tf.distribute.ReplicaContext | None:
    """Return the context of several replicas, if this runs in one of them."""
    if keras.config.backend() != "tensorflow" or not tf.distribute.has_strategy():
        return None
    context = tf.distribute.get_replica_context()
    return context if context and context.num_replicas_in_sync > 1 else None


def padded_alike(value: keras.KerasTensor, axis: int) -> keras.KerasTensor:
    """Return a tensor with zeros at the end of an axis, as long as that of the longest replica.

    Args:
        value: (B, ...).
        axis: above 0, whose size the replicas may differ in.

    Example:
        >>> padded_alike(keras.ops.ones((2, 3)), 1).shape
        TensorShape([2, 3])
    """
    context = replica_context()
    if context is None:
        return value
    size = array_ops.shape(value)[axis]
    most = array_ops.reduce_max(context.all_gather(size[None], axis=0))
    padding = [[0, 0]] * len(value.shape)
    padding[axis] = [0, most - size]
    return array_ops.pad(value, padding)
