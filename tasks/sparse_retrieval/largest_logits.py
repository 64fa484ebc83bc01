"""The largest logit of each term in a text, with a gradient of those terms alone that have one.

A term whose weight is 0 passes no gradient on: the sparser the vectors are, the less there is to
compute, of a trained model hundreds of 30,522 terms. TensorFlow's own gradient goes through all
positions' logits several times, the largest tensor of the model.

Comment letters: B batch, L sequence, P positions at a time, E width, V vocabulary, T terms.
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
        return _largest(x, table, positions), lambda dy: _gradients(x, table, dy)

    return operation(x, tf.convert_to_tensor(table))  # gradients reach tensors


def _largest(x, table, positions: int):
    """Return the largest products (B, V), P positions at a time."""

    def step(start, found):
        products = tf.matmul(x[:, start : start + positions], table, transpose_b=True)
        return start + positions, tf.maximum(found, tf.reduce_max(products, axis=1))

    least = tf.fill([tf.shape(x)[0], table.shape[0]], x.dtype.min)
    length = tf.shape(x)[1]
    return tf.while_loop(lambda start, _: start < length, step, (0, least), parallel_iterations=1)[
        1
    ]


def _gradients(x, table, dy) -> tuple:
    """Return the gradients of x (B, L, E) and the table (V, E), text by text."""

    def step(i, dx, dtable):
        terms = tf.where(dy[i] != 0)  # (T, 1)
        rows = tf.gather_nd(table, terms)  # (T, E)
        products = tf.matmul(x[i], rows, transpose_b=True)  # (L, T)
        is_largest = tf.cast(products == tf.reduce_max(products, axis=0), dy.dtype)
        share = is_largest * (tf.gather_nd(dy[i], terms) / tf.reduce_sum(is_largest, axis=0))
        dtable = tf.tensor_scatter_nd_add(dtable, terms, tf.matmul(share, x[i], transpose_a=True))
        return i + 1, dx.write(i, tf.matmul(share, rows)), dtable

    count = tf.shape(x)[0]
    dx = tf.TensorArray(x.dtype, count, element_shape=x.shape[1:])
    start = (0, dx, tf.zeros_like(table))
    _, dx, dtable = tf.while_loop(lambda i, *_: i < count, step, start, parallel_iterations=1)
    return dx.stack(), dtable
