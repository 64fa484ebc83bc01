"""Operations on flat values for ragged rows, such as spans, masks and shifts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from encoder_zoo.common.lazy import xp
from encoder_zoo.common.machine import count_cores


def compute_row_ids(splits: xp.Tensor, num: xp.Tensor) -> xp.Tensor:
    """Return the row index for each value with shape (num,), given row splits with shape (B + 1,).

    This is faster than `value_rowids` if row lengths vary a lot.

    Example:
        >>> import tensorflow as tf
        >>> compute_row_ids(tf.constant([0, 2, 2, 3]), 3).numpy().tolist()
        [0, 0, 2]
    """
    ends = xp.cast(splits[1:, None], xp.int32)
    return xp.cumsum(xp.scatter_nd(ends, xp.ones_like(ends[:, 0]), [num + 1])[:num])


def make_index_mask(indices: xp.Tensor, size: xp.Tensor) -> xp.Tensor:
    """Return a mask with shape (size,) that is True at the given indices.

    Indices equal to `size` will be ignored.
    """
    return xp.scatter_nd(indices[:, None], xp.ones_like(indices), [size + 1])[:size] > 0


def expand_spans(starts: xp.Tensor, ends: xp.Tensor) -> tuple[xp.Tensor, xp.Tensor, xp.Tensor]:
    """Concatenate the indices in all spans (W,).

    Returns:
        indices: int32 tensor of shape (P,). The indices in all spans.
        span: int32 tensor of shape (P,). The number of the span that each index belongs to.
        splits: int32 tensor of shape (W + 1,). The start position for each span in `indices`.

    Example:
        >>> import tensorflow as tf
        >>> expand_spans(tf.constant([1, 7]), tf.constant([3, 8]))[0].numpy().tolist()
        [1, 2, 7]
    """
    splits = xp.concat([[0], xp.cumsum(ends - starts)], 0)
    span = compute_row_ids(splits, splits[-1])
    return xp.range(splits[-1]) + xp.gather(starts - splits[:-1], span), span, splits


def is_in_span(starts: xp.Tensor, ends: xp.Tensor, which: xp.Tensor) -> xp.Tensor:
    """Return a mask (N,) that is True for all indices inside a span.

    Args:
        starts, ends: int32 tensors of shape (N,). The start and end (exclusive) of each span.
        which: Boolean tensor of shape (N,). Whether to use each span.
    """
    change = xp.where(which, 1, 0)
    num = xp.size(starts)
    delta = xp.scatter_nd(starts[:, None], change, [num + 1])
    delta -= xp.scatter_nd(ends[:, None], change, [num + 1])
    return xp.cumsum(delta)[:num] > 0


def replace_by_spans(
    num: xp.Tensor, replaced: xp.Tensor, spans: xp.Tensor, splits: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor, xp.Tensor]:
    """Return indices that replace some of N values with spans of other values.

    The other values are stored after the N values.

    Args:
        num: Integer scalar N.
        replaced: int32 tensor of shape (M,). The indices to replace.
        spans: int32 tensor of shape (M,). The number of the span that replaces each value.
        splits: int32 tensor of shape (S + 1,). The start position for each span in the other
            values.

    Returns:
        Tuple of three int32 tensors, as in `expand_spans`. The first has shape (P,) and contains
        indices of values. The second has shape (P,) and contains the position of the original value
        for each index, from 0 to N - 1. The third has shape (N + 1,) and contains the splits.

    Example:
        >>> import tensorflow as tf
        >>> arguments = map(tf.constant, ([1], [0], [0, 2]))
        >>> replace_by_spans(tf.constant(3), *arguments)[0].numpy().tolist()
        [0, 3, 4, 2]
    """
    splits = xp.cast(splits, xp.int32) + num
    starts, ends = xp.gather(splits, spans), xp.gather(splits, spans + 1)
    starts = xp.tensor_scatter_nd_update(xp.range(num), replaced[:, None], starts)
    ends = xp.tensor_scatter_nd_update(xp.range(1, num + 1), replaced[:, None], ends)
    return expand_spans(starts, ends)


def shift_right(values: xp.Tensor, steps: int, fill: object) -> xp.Tensor:
    """Shift values (N,) to higher indices, and set the first values to `fill`."""
    filling = xp.fill([steps], xp.cast(fill, values.dtype))
    return xp.concat([filling, values], 0)[: xp.size(values)]


def shift_left(values: xp.Tensor, steps: int, fill: object) -> xp.Tensor:
    """Shift values (N,) to lower indices, and set the last values to `fill`."""
    filling = xp.fill([steps], xp.cast(fill, values.dtype))
    return xp.concat([values, filling], 0)[steps : steps + xp.size(values)]


def keep_every_other(flags: xp.Tensor) -> xp.Tensor:
    """Keep every other value (first, third, ...) in runs of true values.

    Example:
        >>> import tensorflow as tf
        >>> keep_every_other(tf.constant([True, True, True, False, True])).numpy().tolist()
        [True, False, True, False, True]
    """
    run_starts = flags & ~shift_right(flags, 1, False)
    first = xp.cast(xp.where(run_starts)[:, 0], xp.int32)
    run = xp.maximum(xp.cumsum(xp.cast(run_starts, xp.int32)) - 1, 0)
    within = xp.range(xp.size(flags)) - xp.gather(xp.concat([first, [0]], 0), run)
    return flags & (within % 2 == 0)


CHUNK_BYTES = 2**18  # text size per chunk


def map_chunks(
    function: Callable[[xp.Tensor], tuple[xp.RaggedTensor, ...]], rows: xp.Tensor | xp.RaggedTensor
) -> tuple[xp.RaggedTensor, ...]:
    """Apply a function to chunks of rows, and concatenate the results.

    Several chunks are processed in parallel. Intermediate values only need memory for these chunks.
    Symbolic tensors are not split.

    Args:
        function: Callable. Takes rows (B, ...) and returns ragged tensors with the same number of
            rows.
        rows: String tensor of shape (B,), or ragged tensor of shape (B, None).

    Returns:
        Tuple of ragged tensors with the results for all rows.

    Example:
        >>> letters, = map_chunks(lambda rows: (xp.strings.unicode_split(rows, "UTF-8"),),
        ...                      xp.constant(["ab", "c"] * 200_000))
        >>> letters.shape[0], letters[-2].numpy().tolist()
        (400000, [b'a', b'b'])
    """
    flat = rows.values if isinstance(rows, xp.RaggedTensor) else rows
    if xp.is_symbolic_tensor(flat):
        return function(rows)
    bounds = find_chunk_bounds(rows)
    if len(bounds) <= 2:
        return function(rows)
    chunks = [rows[start:end] for start, end in itertools.pairwise(bounds)]
    # Use threads, because tf.data would optimize the graph for each call.
    with ThreadPoolExecutor(count_cores()) as threads:
        parts = zip(*threads.map(function, chunks), strict=True)
    return tuple(xp.concat(list(part), axis=0) for part in parts)


def find_chunk_bounds(rows: xp.Tensor | xp.RaggedTensor) -> list[int]:
    """Return the first row of each chunk of about `CHUNK_BYTES`, followed by the number of rows.

    Example:
        >>> find_chunk_bounds(xp.constant(["a" * 2**18, "b", "c"]))
        [0, 1, 3]
    """
    if isinstance(rows, xp.RaggedTensor):
        sizes = xp.reduce_sum(rows.with_values(1 + xp.strings.length(rows.values)), axis=1)
    else:
        sizes = xp.strings.length(rows)
    sizes = sizes.numpy() + np.int64(1)
    chunk = (np.cumsum(sizes) - sizes) // CHUNK_BYTES
    return [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(chunk)]
