"""The largest logit of each term in a text, with a gradient for one token of each alone.

Only the token with the largest logit of a term passes a gradient on, and none does where the weight
is 0. So the gradients are products with a sparse matrix, of at most one token for each term of a
text. TensorFlow's own gradient goes through all positions' logits several times, the largest tensor
of the model.

Comment letters: B batch, L sequence, P positions at a time, E width, V vocabulary, N pairs of a
text and a term.
"""

from __future__ import annotations

from encoder_zoo.common.lazy import tf


def largest_logits(x: tf.Tensor, table: tf.Tensor, positions: int) -> tf.Tensor:
    """Return the largest product of each row of a table with a text's tokens, (B, V).

    Args:
        x: (B, L, E).
        table: (V, E), the token embedding.
        positions: P, whose products are in memory at once.

    Example:
        >>> import tensorflow as tf
        >>> x = tf.constant([[[1.0, 0.0], [0.0, 2.0]]])
        >>> table = tf.constant([[1.0, 1.0], [3.0, 0.0], [0.0, -1.0]])
        >>> largest_logits(x, table, 1).numpy().tolist()
        [[2.0, 3.0, 0.0]]
    """

    @tf.custom_gradient
    def operation(x, table):
        found, index = _largest(x, table, positions)
        return found, lambda dy: _gradients(x, table, index, dy)

    return operation(x, tf.convert_to_tensor(table))  # gradients reach tensors


def _largest(x, table, positions: int) -> tuple:
    """Return the largest products and the indices of their tokens, (B, V), P at a time."""

    def step(start, found, index):
        products = tf.matmul(x[:, start : start + positions], table, transpose_b=True)
        largest = tf.reduce_max(products, axis=1)
        here = start + tf.argmax(products, axis=1, output_type=tf.int32)
        index = tf.where(largest > found, here, index)
        return start + positions, tf.maximum(found, largest), index

    shape = [tf.shape(x)[0], table.shape[0]]
    start = (0, tf.fill(shape, x.dtype.min), tf.zeros(shape, tf.int32))
    length = tf.shape(x)[1]
    _, found, index = tf.while_loop(
        lambda start, *_: start < length, step, start, parallel_iterations=1
    )
    return found, index


def _gradients(x, table, index, dy) -> tuple:
    """Return the gradients of x (B, L, E) and the table (V, E): products with a sparse matrix."""
    length, width = tf.shape(x)[1], x.shape[2]
    pairs = tf.where(dy != 0)  # (N, 2)
    token = pairs[:, 0] * tf.cast(length, tf.int64) + tf.cast(tf.gather_nd(index, pairs), tf.int64)
    shape = tf.cast([tf.shape(x)[0] * length, table.shape[0]], tf.int64)
    values = tf.cast(tf.gather_nd(dy, pairs), tf.float32)
    matrix = tf.SparseTensor(tf.stack([token, pairs[:, 1]], axis=1), values, shape)  # (B L, V)
    tokens, rows = tf.cast(tf.reshape(x, [-1, width]), tf.float32), tf.cast(table, tf.float32)
    dx = tf.sparse.sparse_dense_matmul(matrix, rows)
    dtable = tf.sparse.sparse_dense_matmul(matrix, tokens, adjoint_a=True)
    return tf.cast(tf.reshape(dx, tf.shape(x)), x.dtype), tf.cast(dtable, table.dtype)
