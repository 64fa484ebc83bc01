"""Applies functions to large batches of texts in chunks, on all cores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from encoder_zoo.common.lazy import array_ops

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
    with ThreadPoolExecutor(os.cpu_count()) as threads:
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
