"""Operations on the flat values of ragged rows: spans, masks, shifts."""

import tensorflow as tf


def row_ids(splits: tf.Tensor, num: tf.Tensor) -> tf.Tensor:
    """Return the row index (num,) of every value, given row splits (B + 1,).

    It is faster than `value_rowids` for rows of very different lengths.

    Example:
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
        >>> span_indices(tf.constant([1, 7]), tf.constant([3, 8]))[0].numpy().tolist()
        [1, 2, 7]
    """
    splits = tf.concat([[0], tf.cumsum(ends - starts)], 0)
    span = row_ids(splits, splits[-1])
    return tf.range(splits[-1]) + tf.gather(starts - splits[:-1], span), span, splits


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
        >>> every_other(tf.constant([True, True, True, False, True])).numpy().tolist()
        [True, False, True, False, True]
    """
    run_starts = flags & ~shift_right(flags, 1, False)
    first = tf.cast(tf.where(run_starts)[:, 0], tf.int32)
    run = tf.maximum(tf.cumsum(tf.cast(run_starts, tf.int32)) - 1, 0)
    within = tf.range(tf.size(flags)) - tf.gather(tf.concat([first, [0]], 0), run)
    return flags & (within % 2 == 0)
