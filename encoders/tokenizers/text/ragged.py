"""Operations on flat values for ragged rows, such as spans, masks and shifts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from encoder_zoo.common.lazy import array_ops
from encoder_zoo.common.machine import count_cores


def compute_row_ids(splits: array_ops.Tensor, num: array_ops.Tensor) -> array_ops.Tensor:
    """Return the row index for each value with shape (num,), given row splits with shape (B + 1,).

    This is faster than `value_rowids` if row lengths vary a lot.

    Example:
        >>> import tensorflow as tf
        >>> compute_row_ids(tf.constant([0, 2, 2, 3]), 3).numpy().tolist()
        [0, 0, 2]
    """
    ends = array_ops.cast(splits[1:, None], array_ops.int32)
    return array_ops.cumsum(
        array_ops.scatter_nd(ends, array_ops.ones_like(ends[:, 0]), [num + 1])[:num]
    )


def make_index_mask(indices: array_ops.Tensor, size: array_ops.Tensor) -> array_ops.Tensor:
    """Return a mask with shape (size,) that is True at the given indices.

    Indices equal to `size` will be ignored.
    """
    return (
        array_ops.scatter_nd(indices[:, None], array_ops.ones_like(indices), [size + 1])[:size] > 0
    )


def expand_spans(
    starts: array_ops.Tensor, ends: array_ops.Tensor
) -> tuple[array_ops.Tensor, array_ops.Tensor, array_ops.Tensor]:
    """Concatenate the indices in all spans (W,).

    Returns:
        indices: int32 tensor of shape (P,). The indices in all spans.
        span: int32 tensor of shape (P,). Span number for each index.
        splits: int32 tensor of shape (W + 1,). The start position for each span in `indices`.

    Example:
        >>> import tensorflow as tf
        >>> expand_spans(tf.constant([1, 7]), tf.constant([3, 8]))[0].numpy().tolist()
        [1, 2, 7]
    """
    splits = array_ops.concat([[0], array_ops.cumsum(ends - starts)], 0)
    span = compute_row_ids(splits, splits[-1])
    return array_ops.range(splits[-1]) + array_ops.gather(starts - splits[:-1], span), span, splits


def is_in_span(
    starts: array_ops.Tensor, ends: array_ops.Tensor, which: array_ops.Tensor
) -> array_ops.Tensor:
    """Return a mask (N,) of the indices inside of spans.

    Only the spans from `starts` to `ends` (exclusive) that `which` selects are used.
    """
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
    """Return indices that replace some of N values with spans of other values.

    The other values are stored after the N values.

    Args:
        num: Integer scalar N.
        replaced: int32 tensor of shape (M,). The indices to replace.
        spans: int32 tensor of shape (M,). Span number to use for each replaced value.
        splits: int32 tensor of shape (S + 1,). The start position for each span in the other
            values.

    Returns:
        Indices with shape (P,) into all values, the replaced value for each index with shape (P,),
        and splits with shape (N + 1,). See `expand_spans`.

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
    return expand_spans(starts, ends)


def shift_right(values: array_ops.Tensor, steps: int, fill: object) -> array_ops.Tensor:
    """Shift values (N,) to higher indices. Free positions at the start are filled."""
    filling = array_ops.fill([steps], array_ops.cast(fill, values.dtype))
    return array_ops.concat([filling, values], 0)[: array_ops.size(values)]


def shift_left(values: array_ops.Tensor, steps: int, fill: object) -> array_ops.Tensor:
    """Shift values (N,) to lower indices. Free positions at the end are filled."""
    filling = array_ops.fill([steps], array_ops.cast(fill, values.dtype))
    return array_ops.concat([values, filling], 0)[steps : steps + array_ops.size(values)]


def keep_every_other(flags: array_ops.Tensor) -> array_ops.Tensor:
    """Keep every other value (first, third, ...) in runs of true values.

    Example:
        >>> import tensorflow as tf
        >>> keep_every_other(tf.constant([True, True, True, False, True])).numpy().tolist()
        [True, False, True, False, True]
    """
    run_starts = flags & ~shift_right(flags, 1, False)
    first = array_ops.cast(array_ops.where(run_starts)[:, 0], array_ops.int32)
    run = array_ops.maximum(array_ops.cumsum(array_ops.cast(run_starts, array_ops.int32)) - 1, 0)
    within = array_ops.range(array_ops.size(flags)) - array_ops.gather(
        array_ops.concat([first, [0]], 0), run
    )
    return flags & (within % 2 == 0)


CHUNK_BYTES = 2**18  # text size per chunk


def map_chunks(
    function: Callable[[array_ops.Tensor], tuple[array_ops.RaggedTensor, ...]],
    rows: array_ops.Tensor | array_ops.RaggedTensor,
) -> tuple[array_ops.RaggedTensor, ...]:
    """Apply a function to chunks of rows, and concatenate the results.

    Chunks are processed in parallel, so memory is only needed for a few chunks. Symbolic tensors
    are not split.

    Args:
        function: Callable. Takes rows (B, ...) and returns ragged tensors with the same number of
            rows.
        rows: String tensor of shape (B,), or ragged tensor of shape (B, None).

    Returns:
        Results for all rows.

    Example:
        >>> letters, = map_chunks(lambda rows: (array_ops.strings.unicode_split(rows, "UTF-8"),),
        ...                      array_ops.constant(["ab", "c"] * 200_000))
        >>> letters.shape[0], letters[-2].numpy().tolist()
        (400000, [b'a', b'b'])
    """
    flat = rows.values if isinstance(rows, array_ops.RaggedTensor) else rows
    if array_ops.is_symbolic_tensor(flat):
        return function(rows)
    bounds = find_chunk_bounds(rows)
    if len(bounds) <= 2:
        return function(rows)
    chunks = [rows[start:end] for start, end in itertools.pairwise(bounds)]
    # Use threads, because tf.data would optimize the graph for each call.
    with ThreadPoolExecutor(count_cores()) as threads:
        parts = zip(*threads.map(function, chunks), strict=True)
    return tuple(array_ops.concat(list(part), axis=0) for part in parts)


def find_chunk_bounds(rows: array_ops.Tensor | array_ops.RaggedTensor) -> list[int]:
    """Return start rows for chunks with about `CHUNK_BYTES`, followed by the total number of rows.

    Example:
        >>> find_chunk_bounds(array_ops.constant(["a" * 2**18, "b", "c"]))
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
