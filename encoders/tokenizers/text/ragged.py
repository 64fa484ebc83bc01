"""Operations on the flat values of ragged rows: spans, masks, shifts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.machine import usable_cores


def row_ids(splits: array_ops.Tensor, num: array_ops.Tensor) -> array_ops.Tensor:
    """Return the row index (num,) of every value, given row splits (B + 1,).

    It is faster than `value_rowids` for rows of very different lengths.

    Example:
        >>> import tensorflow as tf
        >>> row_ids(tf.constant([0, 2, 2, 3]), 3).numpy().tolist()
        [0, 0, 2]
    """
    ends = array_ops.cast(splits[1:, None], array_ops.int32)
    return array_ops.cumsum(
        array_ops.scatter_nd(ends, array_ops.ones_like(ends[:, 0]), [num + 1])[:num]
    )


def index_mask(indices: array_ops.Tensor, size: array_ops.Tensor) -> array_ops.Tensor:
    """Return a mask (size,) that is true at the indices; indices of `size` are ignored."""
    return (
        array_ops.scatter_nd(indices[:, None], array_ops.ones_like(indices), [size + 1])[:size] > 0
    )


def span_indices(
    starts: array_ops.Tensor, ends: array_ops.Tensor
) -> tuple[array_ops.Tensor, array_ops.Tensor, array_ops.Tensor]:
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
    splits = array_ops.concat([[0], array_ops.cumsum(ends - starts)], 0)
    span = row_ids(splits, splits[-1])
    return array_ops.range(splits[-1]) + array_ops.gather(starts - splits[:-1], span), span, splits


def in_any_span(
    starts: array_ops.Tensor, ends: array_ops.Tensor, which: array_ops.Tensor
) -> array_ops.Tensor:
    """Return a mask (N,) of the indices in those half-open spans (N,) where `which` is true."""
    change = array_ops.where(which, 1, 0)
    num = array_ops.size(starts)
    delta = array_ops.scatter_nd(starts[:, None], change, [num + 1])
    delta -= array_ops.scatter_nd(ends[:, None], change, [num + 1])
    return array_ops.cumsum(delta)[:num] > 0


def replace_by_spans(
    num: array_ops.Tensor,
    replaced: array_ops.Tensor,
    spans: array_ops.Tensor,
    splits: array_ops.Tensor,
) -> tuple[array_ops.Tensor, array_ops.Tensor, array_ops.Tensor]:
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
    splits = array_ops.cast(splits, array_ops.int32) + num
    starts, ends = array_ops.gather(splits, spans), array_ops.gather(splits, spans + 1)
    starts = array_ops.tensor_scatter_nd_update(array_ops.range(num), replaced[:, None], starts)
    ends = array_ops.tensor_scatter_nd_update(array_ops.range(1, num + 1), replaced[:, None], ends)
    return span_indices(starts, ends)


def shift_right(values: array_ops.Tensor, steps: int, fill: object) -> array_ops.Tensor:
    """Shift values (N,) to higher indices, filling the start."""
    filling = array_ops.fill([steps], array_ops.cast(fill, values.dtype))
    return array_ops.concat([filling, values], 0)[: array_ops.size(values)]


def shift_left(values: array_ops.Tensor, steps: int, fill: object) -> array_ops.Tensor:
    """Shift values (N,) to lower indices, filling the end."""
    filling = array_ops.fill([steps], array_ops.cast(fill, values.dtype))
    return array_ops.concat([values, filling], 0)[steps : steps + array_ops.size(values)]


def every_other(flags: array_ops.Tensor) -> array_ops.Tensor:
    """Keep the first, third, ... of every run of true values.

    Example:
        >>> import tensorflow as tf
        >>> every_other(tf.constant([True, True, True, False, True])).numpy().tolist()
        [True, False, True, False, True]
    """
    run_starts = flags & ~shift_right(flags, 1, False)
    first = array_ops.cast(array_ops.where(run_starts)[:, 0], array_ops.int32)
    run = array_ops.maximum(array_ops.cumsum(array_ops.cast(run_starts, array_ops.int32)) - 1, 0)
    within = array_ops.range(array_ops.size(flags)) - array_ops.gather(
        array_ops.concat([first, [0]], 0), run
    )
    return flags & (within % 2 == 0)


CHUNK_BYTES = 2**18  # of text per chunk


def in_chunks(
    function: Callable[[array_ops.Tensor], tuple[array_ops.RaggedTensor, ...]],
    rows: array_ops.Tensor | array_ops.RaggedTensor,
) -> tuple[array_ops.RaggedTensor, ...]:
    """Call a function on the rows in chunks and concatenate the results.

    Chunks run in parallel, so that memory is that of a few chunks. Symbolic tensors are not split.

    Args:
        function: takes rows (B, ...) and returns ragged tensors with as many rows.
        rows: string tensor (B,), or ragged (B, None).

    Returns:
        the results for all rows.

    Example:
        >>> letters, = in_chunks(lambda rows: (array_ops.strings.unicode_split(rows, "UTF-8"),),
        ...                      array_ops.constant(["ab", "c"] * 200_000))
        >>> letters.shape[0], letters[-2].numpy().tolist()
        (400000, [b'a', b'b'])
    """
    flat = rows.values if isinstance(rows, array_ops.RaggedTensor) else rows
    if array_ops.is_symbolic_tensor(flat):
        return function(rows)
    bounds = chunk_bounds(rows)
    if len(bounds) <= 2:
        return function(rows)
    chunks = [rows[start:end] for start, end in itertools.pairwise(bounds)]
    # Threads rather than tf.data, which would optimize the function's graph in every call.
    with ThreadPoolExecutor(usable_cores()) as threads:
        parts = zip(*threads.map(function, chunks), strict=True)
    return tuple(array_ops.concat(list(part), axis=0) for part in parts)


def chunk_bounds(rows: array_ops.Tensor | array_ops.RaggedTensor) -> list[int]:
    """Return the first rows of chunks of about `CHUNK_BYTES`, and the number of rows.

    Example:
        >>> chunk_bounds(array_ops.constant(["a" * 2**18, "b", "c"]))
        [0, 1, 3]
    """
    if isinstance(rows, array_ops.RaggedTensor):
        sizes = array_ops.reduce_sum(
            rows.with_values(1 + array_ops.strings.length(rows.values)), axis=1
        )
    else:
        sizes = array_ops.strings.length(rows)
    sizes = sizes.numpy() + np.int64(1)
    chunk = (np.cumsum(sizes) - sizes) // CHUNK_BYTES
    return [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(chunk)]
