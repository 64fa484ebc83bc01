"""Operations on the flat values of ragged rows: spans, masks, shifts."""

from __future__ import annotations

from encoder_zoo.common.lazy import tf


def row_ids(splits: tf.Tensor, num: tf.Tensor) -> tf.Tensor:
    """Return the row index (num,) of every value, given row splits (B + 1,).

    It is faster than `value_rowids` for rows of very different lengths.

    Example:
        >>> import tensorflow as tf
        >>> row_ids(tf.constant([0, 2, 2, 3]), 3).numpy().tolist()
        [0, 0, 2]
    """
    ends = tf.cast(splits[1:, None], tf.int32)
    return tf.cumsum(tf.scatter_nd(ends, tf.ones_like(ends[:, 0]), [num + 1])[:num])


def index_mask(indices: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return a mask (size,) that is true at the indices; indices of `size` are ignored."""
    return tf.scatter_nd(indices[:, None], tf.ones_like(indices), [size + 1])[:size] > 0


def span_indices(starts: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the indices in spans (W,), concatenated.

    Returns:
        indices: int32 (P,), the indices in the spans.
        span: int32 (P,), the span of each index.
        splits: int32 (W + 1,), where the indices of each span start.

    Example:
        >>> import tensorflow as tf
        >>> span_indices(tf.constant([1, 7]), tf.constant([3, 8]))[0].numpy().tolist()
        [1, 2, 7]
    """
    splits = tf.concat([[0], tf.cumsum(ends - starts)], 0)
    span = row_ids(splits, splits[-1])
    return tf.range(splits[-1]) + tf.gather(starts - splits[:-1], span), span, splits


def in_any_span(starts: tf.Tensor, ends: tf.Tensor, which: tf.Tensor) -> tf.Tensor:
    """Return a mask (N,) of the indices in those half-open spans (N,) where `which` is true."""
    change = tf.where(which, 1, 0)
    num = tf.size(starts)
    delta = tf.scatter_nd(starts[:, None], change, [num + 1])
    delta -= tf.scatter_nd(ends[:, None], change, [num + 1])
    return tf.cumsum(delta)[:num] > 0


def replace_by_spans(
    num: tf.Tensor, replaced: tf.Tensor, spans: tf.Tensor, splits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the indices of values (N,), some replaced by spans of others that follow them.

    Args:
        num: N.
        replaced: int32 (M,), indices of the replaced values.
        spans: int32 (M,), index of the span for each of them.
        splits: int32 (S + 1,), where the spans start among the other values.

    Returns:
        As `span_indices`: indices (P,) among all values, value replaced (P,), splits (N + 1,).

    Example:
        >>> import tensorflow as tf
        >>> arguments = map(tf.constant, ([1], [0], [0, 2]))
        >>> replace_by_spans(tf.constant(3), *arguments)[0].numpy().tolist()
        [0, 3, 4, 2]
    """
    splits = tf.cast(splits, tf.int32) + num
    starts, ends = tf.gather(splits, spans), tf.gather(splits, spans + 1)
    starts = tf.tensor_scatter_nd_update(tf.range(num), replaced[:, None], starts)
    ends = tf.tensor_scatter_nd_update(tf.range(1, num + 1), replaced[:, None], ends)
    return span_indices(starts, ends)


def shift_right(values: tf.Tensor, steps: int, fill: object) -> tf.Tensor:
    """Shift values (N,) to higher indices, filling the start."""
    filling = tf.fill([steps], tf.cast(fill, values.dtype))
    return tf.concat([filling, values], 0)[: tf.size(values)]


def shift_left(values: tf.Tensor, steps: int, fill: object) -> tf.Tensor:
    """Shift values (N,) to lower indices, filling the end."""
    filling = tf.fill([steps], tf.cast(fill, values.dtype))
    return tf.concat([values, filling], 0)[steps : steps + tf.size(values)]


def every_other(flags: tf.Tensor) -> tf.Tensor:
    """Keep the first, third, ... of every run of true values.

    Example:
        >>> import tensorflow as tf
        >>> every_other(tf.constant([True, True, True, False, True])).numpy().tolist()
        [True, False, True, False, True]
    """
    run_starts = flags & ~shift_right(flags, 1, False)
    first = tf.cast(tf.where(run_starts)[:, 0], tf.int32)
    run = tf.maximum(tf.cumsum(tf.cast(run_starts, tf.int32)) - 1, 0)
    within = tf.range(tf.size(flags)) - tf.gather(tf.concat([first, [0]], 0), run)
    return flags & (within % 2 == 0)
