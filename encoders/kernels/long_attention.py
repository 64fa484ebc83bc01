"""Attention for long texts, without storing the probabilities (B, H, L, L).

For more than `SHORT_LENGTH` tokens, the method depends on the backend:

- Local attention uses blocks on all backends. Each block uses the kernel of the backend if
  possible. The window in JAX (`local_window_size` of `jax.nn.dot_product_attention`) only masks the
  scores of all pairs, except for cuDNN, which only supports a window to the left. In PyTorch,
  `scaled_dot_product_attention` has no window, and `flex_attention` stores all pairs unless it is
  compiled, which requires a C++ compiler.
- Global attention uses a kernel on PyTorch, and on JAX with a GPU in half precision (cuDNN). These
  kernels do not store all pairs. They are only used without dropout and if every example is one
  text, because packed examples would need a mask for all pairs. In all other cases, chunks are
  used.
- Global attention on TensorFlow and on JAX with other devices uses chunks, because TensorFlow has
  no kernel and the JAX function stores all pairs.
- A TensorFlow graph with unknown lengths contains both methods and selects one at run time. If the
  lengths are known to be short or long, `Context.is_long` avoids the selection. XLA, which has no
  gradient for the selection, and runtimes without support for loops compute all pairs at once.

Comments use these letters for shapes: B batch, L sequence, D hidden, H heads, N blocks, C queries
of a block or chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
from keras import ops

from encoder_zoo.common.context import get_context
from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.positions import take_positions

if TYPE_CHECKING:
    from encoder_zoo.encoders.attention_masks import AttentionMask

# Tokens. Up to this length, it is fastest to compute all pairs at once (measured).
SHORT_LENGTH = 512
SMALLEST_BLOCK = 32  # queries. Smaller matrix products are slow.
CHUNK_NUMBERS = 2**24  # maximum number of probabilities to store. Smaller values are slower.
SMALLEST_CHUNK, LARGEST_CHUNK = 16, 512  # queries


def is_long_text(length: int | keras.KerasTensor) -> bool | keras.KerasTensor:
    """Return whether a text is long.

    For unknown lengths in a TensorFlow graph, return False for XLA, `Context.is_long` if it is set,
    and otherwise a boolean tensor.
    """
    is_long = length > SHORT_LENGTH
    if isinstance(is_long, bool) or keras.config.backend() != "tensorflow":
        return is_long
    # TensorFlow has no public API for this check.
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return False
    known = get_context().is_long
    return is_long if known is None else known


def attend_in_blocks(
    attend: Callable,
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: AttentionMask,
) -> keras.KerasTensor:
    """Compute local attention in blocks. Each block of queries uses the keys in a window.

    The block size is twice the maximum distance. For this reason, two adjacent blocks of keys,
    shifted by half a block, contain all keys that a block of queries needs. The cost is O(L
    max_distance).

    Args:
        attend: Function of query, key and value tensors with the shapes below but with other
            lengths. It also takes a keyword argument `mask` of shape (B, 1, Q, K), and returns the
            attention output.
        query: Tensor of shape (B, L, H, D/H).
        key: Tensor of shape (B, L, H, D/H).
        value: Tensor of shape (B, L, H, D/H).
        mask: An `AttentionMask` with a `max_distance`. If it has `global_keys`, each block also
            attends to the keys at its `global_positions`.

    Returns:
        Tensor of shape (B, L, H, D/H).

    Source: Beltagy et al. 2020, Longformer: The Long-Document Transformer, sections 3.1 and 3.2.
    Zaheer et al. 2020, Big Bird, appendix D (blocks).
    """
    size = max(2 * mask.max_distance, SMALLEST_BLOCK)
    batch, length, heads, width = ops.shape(query)
    count = -(-length // size)
    missing = count * size - length

    def split_into_blocks(x, left=0, right=0):
        """Pad (B, L, ...) with zeros, and split it into blocks (B, N, C, ...)."""
        x = ops.pad(x, [[0, 0], [left, missing + right]] + [[0, 0]] * (len(x.shape) - 2))
        return ops.reshape(x, (batch, -1, size, *ops.shape(x)[2:]))

    def gather_queries(x):
        return _merge_axes(split_into_blocks(x))  # (B N, C, ...)

    def gather_windows(x):
        x = split_into_blocks(x, mask.max_distance, size - mask.max_distance)  # (B, N + 1, C, ...)
        return _merge_axes(ops.concatenate([x[:, :-1], x[:, 1:]], axis=2))  # (B N, 2 C, ...)

    def gather_keys(x):
        if mask.global_keys is None:
            return gather_windows(x)
        last = ops.minimum(mask.global_positions, length - 1)
        everywhere = ops.repeat(take_positions(x, last), count, axis=0)  # (B N, S, ...)
        return ops.concatenate([gather_windows(x), everywhere], axis=1)  # (B N, 2 C + S, ...)

    gathers = (gather_queries, gather_keys)
    texts = [None if mask.texts is None else gather(mask.texts) for gather in gathers]
    # Positions of queries, relative to the keys of the block.
    positions = ops.arange(size, dtype="int32")[:, None] + mask.max_distance
    distances = ops.abs(positions - ops.arange(2 * size, dtype="int32"))
    if mask.global_keys is None:
        real = gather_windows(ops.cast(mask.real, "int32")) > 0
    else:  # global keys are near to all queries, but are used only once
        in_window = gather_windows(ops.cast(mask.real & ~mask.global_keys, "int32")) > 0
        is_used = ops.repeat(mask.global_positions < length, count, axis=0)  # (B N, S)
        real = ops.concatenate([in_window, is_used], axis=1)
        near = ops.ones((size, ops.shape(is_used)[1]), "int32")
        distances = ops.concatenate([distances, near], axis=1)
    allowed = mask.compare_pairs(real, *texts, distances)  # (B N, 1, C, 2 C)
    mixed = attend(gather_queries(query), gather_keys(key), gather_keys(value), mask=allowed)
    return ops.reshape(mixed, (batch, count * size, heads, width))[:, :length]


def _merge_axes(x):
    """Merge the first two axes, from (B, N, ...) to (B N, ...)."""
    return ops.reshape(x, (-1, *ops.shape(x)[2:]))


def attend_in_chunks(
    attend: Callable,
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: AttentionMask,
    training: bool | None,
) -> keras.KerasTensor:
    """Compute global attention in chunks of queries.

    Intermediate values of a chunk are not stored. They are computed again for the gradients. Each
    chunk uses all keys, so a running maximum is not necessary.

    Args:
        attend: Function of a query tensor (B, H, C, D/H) and of key and value tensors (B, H, L,
            D/H). It also takes the keyword arguments `mask`, (B, 1, 1 or C, L), and `chunk`, the
            index of the chunk. It returns a tensor of shape (B, H, C, D/H).
        query: Tensor of shape (B, L, H, D/H).
        key: Tensor of shape (B, L, H, D/H).
        value: Tensor of shape (B, L, H, D/H).
        mask: An `AttentionMask`.
        training: Boolean. Whether gradients are needed.

    Returns:
        Tensor of shape (B, L, H, D/H).

    Source: Rabe and Staats 2021, Self-attention Does Not Need O(n^2) Memory. Dao et al. 2022,
    FlashAttention, section 3.1 (recomputation).
    """
    batch, length, heads, _ = ops.shape(query)
    fit = CHUNK_NUMBERS // _maximum(batch * heads * length, 1)  # exports accept empty batches
    size = _minimum(_minimum(_maximum(fit, SMALLEST_CHUNK), LARGEST_CHUNK), length)
    count = -(-length // size)

    def split_into_chunks(x):
        """Pad (B, L, ...) with zeros, and split it into chunks (N, B, C, ...)."""
        x = ops.pad(x, [[0, 0], [0, count * size - length]] + [[0, 0]] * (len(x.shape) - 2))
        x = ops.reshape(x, (batch, count, size, *ops.shape(x)[2:]))
        return ops.moveaxis(x, 0, 1)

    texts = None if mask.texts is None else split_into_chunks(mask.texts)

    def attend_chunk(query, key, value, i):
        """Compute the output for a chunk, (B, H, C, D/H)."""
        distances = None
        if mask.max_distance is not None:
            positions = i * size + ops.arange(size, dtype="int32")
            distances = ops.abs(positions[:, None] - ops.arange(length, dtype="int32"))
        of_chunk = None if texts is None else texts[i]
        allowed = mask.compare_pairs(mask.real, of_chunk, mask.texts, distances, mask.global_keys)
        return attend(query, key, value, mask=allowed, chunk=i)

    queries = ops.swapaxes(split_into_chunks(query), 2, 3)  # (N, B, H, C, D/H)
    key, value = (ops.swapaxes(x, 1, 2) for x in (key, value))
    if keras.config.backend() == "tensorflow":
        mixed = _map_chunks(attend_chunk)(queries, key, value, training=training)
    else:
        attend_chunk = keras.remat(attend_chunk) if training else attend_chunk
        mixed = ops.map(lambda i: attend_chunk(queries[i], key, value, i), ops.arange(count))
    mixed = ops.transpose(mixed, (1, 0, 3, 2, 4))  # (B, N, C, H, D/H)
    return ops.reshape(mixed, (batch, count * size, *ops.shape(mixed)[3:]))[:, :length]


def _map_chunks(attend_chunk: Callable) -> Callable:
    """Create an operation that applies `attend_chunk` to each chunk of queries (N, B, H, C, D/H).

    The manual gradient saves memory, because the automatic gradient of a TensorFlow loop would
    store the keys and values of every iteration.
    """

    @gradients.add_gradient
    def operation(queries, key, value):
        count = xp.shape(queries)[0]
        mixed = tf.map_fn(
            lambda i: attend_chunk(queries[i], key, value, i),
            xp.range(count),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec(queries.shape[1:], queries.dtype),
        )

        def gradient(dy):
            def step(i, dqueries, *sums):
                factors = (queries[i], key, value)
                with tf.GradientTape() as tape:
                    tape.watch(factors)
                    y = attend_chunk(*factors, i)
                dquery, *others = tape.gradient(y, factors, dy[i])
                others = (xp.cast(d, xp.float32) for d in others)
                sums = (a + b for a, b in zip(sums, others, strict=True))
                return i + 1, dqueries.write(i, dquery), *sums

            zeros = xp.zeros_like(key, xp.float32)  # float32, as it is a long sum
            dqueries = xp.TensorArray(queries.dtype, count, element_shape=queries.shape[1:])
            _, dqueries, *sums = xp.while_loop(
                lambda i, *_: i < count, step, (0, dqueries, zeros, zeros), parallel_iterations=1
            )
            return dqueries.stack(), *(xp.cast(d, key.dtype) for d in sums)

        return mixed, gradient

    return operation


def _minimum(a, b):
    """Return the smaller of two values, which can be tensors."""
    return xp.minimum(a, b) if keras.config.backend() == "tensorflow" else min(a, b)


def _maximum(a, b):
    return xp.maximum(a, b) if keras.config.backend() == "tensorflow" else max(a, b)
