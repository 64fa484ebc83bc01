"""Attention over long texts, without the (B, H, L, L) probabilities.

The forms by backend, above `SHORT` tokens:

- Local attention: blocks, on all of them, each by the backend's own kernel where it has one. JAX's
  window (`jax.nn.dot_product_attention`, `local_window_size`) only masks the scores of all pairs,
  but for cuDNN's, which looks to the left alone. Torch's `scaled_dot_product_attention` has no
  window, and its `flex_attention` writes all pairs where it is not compiled, for which users would
  need a C++ compiler.
- Global attention on torch, and on JAX with a GPU in half precision (cuDNN), of examples of one
  text and without dropout: their kernels, which write no pairs. For packed examples they need a
  mask of all pairs: chunks then.
- Global attention on TensorFlow, which has no kernel, and on JAX elsewhere, whose own writes all
  pairs: chunks.
- A graph of TensorFlow, whose lengths are open, holds both ways and a choice between them, unless
  it is known beforehand whether its texts are long: see `graph_of_texts`. XLA has no gradient for
  such a choice, and other runtimes have no loops: they get all pairs at once.

Comment letters: B batch, L sequence, D hidden, H heads, N blocks, C queries of a block or chunk.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import keras
from keras import ops

from encoder_zoo.common.lazy import array_ops, tf
from encoder_zoo.encoders import gradients

if TYPE_CHECKING:
    from encoder_zoo.encoders.attention_masks import AttentionMask

SHORT = 512  # tokens, up to which the scores of all pairs cost the least; measured
SMALLEST_BLOCK = 32  # queries: smaller products are slow
CHUNK_NUMBERS = 2**24  # probabilities held at once; fewer cost more time
SMALLEST_CHUNK, LARGEST_CHUNK = 16, 512  # queries


_graphs_texts_are_long = contextvars.ContextVar("graphs_texts_are_long", default=None)


@contextlib.contextmanager
def graph_of_texts(long: bool | None) -> Iterator[None]:
    """Return a context for tracing a graph that holds one form of attention alone.

    Args:
        long: whether the texts that the graph will meet are long, or short; None: they may be
            either, and the graph holds both forms and the choice.
    """
    token = _graphs_texts_are_long.set(long)
    try:
        yield
    finally:
        _graphs_texts_are_long.reset(token)


def known_to_be_long(is_long: array_ops.Tensor) -> array_ops.Tensor | bool:
    """Return a bool where it is known at tracing whether texts are long, else the tensor."""
    # TensorFlow has no public name for it.
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return False
    known = _graphs_texts_are_long.get()
    return is_long if known is None else known


def attend_in_blocks(
    attend: Callable,
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: AttentionMask,
) -> keras.KerasTensor:
    """Compute local attention: each block of queries with the keys that it reaches.

    Blocks are as long as a query reaches to both sides, so that two blocks of keys, moved by half
    a block, are all that one of queries needs. Costs O(L max_distance), as
    much per token of any L.

    Args:
        attend: a function of query, key and value, as below but of other lengths, and by name
            `mask`, (B, 1, Q, K), which returns attention of them.
        query: (B, L, H, D/H).
        key: as the query.
        value: as the query.
        mask: with a `max_distance`.

    Returns:
        (B, L, H, D/H).

    Source: Beltagy et al. 2020, Longformer: The Long-Document Transformer, sections 3.1 and 3.2;
    Zaheer et al. 2020, Big Bird, appendix D (blocks).
    """
    size = max(2 * mask.max_distance, SMALLEST_BLOCK)
    batch, length, heads, width = ops.shape(query)
    count = -(-length // size)
    missing = count * size - length

    def blocks(x, left=0, right=0):
        """Divide (B, L, ...) into (B, N, C, ...), with zeros before and behind."""
        x = ops.pad(x, [[0, 0], [left, missing + right]] + [[0, 0]] * (len(x.shape) - 2))
        return ops.reshape(x, (batch, -1, size, *ops.shape(x)[2:]))

    def queries(x):
        return _merged(blocks(x))  # (B N, C, ...)

    def keys(x):
        x = blocks(x, mask.max_distance, size - mask.max_distance)  # (B, N + 1, C, ...)
        return _merged(ops.concatenate([x[:, :-1], x[:, 1:]], axis=2))  # (B N, 2 C, ...)

    texts = (None, None) if mask.texts is None else (queries(mask.texts), keys(mask.texts))
    real = keys(ops.cast(mask.real, "int32")) > 0
    positions = (
        ops.arange(size, dtype="int32")[:, None] + mask.max_distance
    )  # among the block's keys
    distances = ops.abs(positions - ops.arange(2 * size, dtype="int32"))
    allowed = mask.pairs(real, *texts, distances)  # (B N, 1, C, 2 C)
    mixed = attend(queries(query), keys(key), keys(value), mask=allowed)
    return ops.reshape(mixed, (batch, count * size, heads, width))[:, :length]


def _merged(x):
    """Reshape (B, N, ...) to (B N, ...)."""
    return ops.reshape(x, (-1, *ops.shape(x)[2:]))


def attend_in_chunks(
    attend: Callable,
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: AttentionMask,
    training: bool | None,
) -> keras.KerasTensor:
    """Compute global attention: some queries at a time with all keys.

    The values inside a chunk are not kept, but computed again for its gradients. A chunk holds the
    scores of all keys, so that no running maximum is needed as where keys too come in chunks.

    Args:
        attend: a function of query (B, H, C, D/H), key and value (B, H, L, D/H), and by name
            `mask`, (B, 1, 1 or C, L), and `chunk`, its index, which returns (B, H, C, D/H).
        query: (B, L, H, D/H).
        key: as the query.
        value: as the query.
        mask: without a `max_distance`.
        training: whether gradients will be asked for.

    Returns:
        (B, L, H, D/H).

    Source: Rabe and Staats 2021, Self-attention Does Not Need O(n^2) Memory; Dao et al. 2022,
    FlashAttention, section 3.1 (recomputation).
    """
    batch, length, heads, _ = ops.shape(query)
    fit = CHUNK_NUMBERS // (batch * heads * length)
    size = _least(_least(_most(fit, SMALLEST_CHUNK), LARGEST_CHUNK), length)
    count = -(-length // size)

    def chunks(x):
        """Divide (B, L, ...) into (N, B, C, ...), with zeros behind."""
        x = ops.pad(x, [[0, 0], [0, count * size - length]] + [[0, 0]] * (len(x.shape) - 2))
        x = ops.reshape(x, (batch, count, size, *ops.shape(x)[2:]))
        return ops.moveaxis(x, 0, 1)

    texts = None if mask.texts is None else chunks(mask.texts)

    def one(query, key, value, i):
        """Return a chunk (B, H, C, D/H) of the output."""
        allowed = mask.pairs(mask.real, None if texts is None else texts[i], mask.texts)
        return attend(query, key, value, mask=allowed, chunk=i)

    queries = ops.swapaxes(chunks(query), 2, 3)  # (N, B, H, C, D/H)
    key, value = (ops.swapaxes(x, 1, 2) for x in (key, value))
    if keras.config.backend() == "tensorflow":
        mixed = _one_by_one(one)(queries, key, value, training=training)
    else:
        one = keras.remat(one) if training else one
        mixed = ops.map(lambda i: one(queries[i], key, value, i), ops.arange(count))
    mixed = ops.transpose(mixed, (1, 0, 3, 2, 4))  # (B, N, C, H, D/H)
    return ops.reshape(mixed, (batch, count * size, *ops.shape(mixed)[3:]))[:, :length]


def _one_by_one(one: Callable) -> Callable:
    """Make an operation of queries (N, B, H, C, D/H), keys and values that maps `one` over chunks.

    TensorFlow's own gradient of a loop would keep the keys and values of each round.
    """

    @gradients.with_gradient
    def operation(queries, key, value):
        count = array_ops.shape(queries)[0]
        mixed = tf.map_fn(
            lambda i: one(queries[i], key, value, i),
            array_ops.range(count),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec(queries.shape[1:], queries.dtype),
        )

        def gradient(dy):
            def step(i, dqueries, *sums):
                factors = (queries[i], key, value)
                with tf.GradientTape() as tape:
                    tape.watch(factors)
                    y = one(*factors, i)
                dquery, *others = tape.gradient(y, factors, dy[i])
                others = (array_ops.cast(d, array_ops.float32) for d in others)
                sums = (a + b for a, b in zip(sums, others, strict=True))
                return i + 1, dqueries.write(i, dquery), *sums

            zeros = array_ops.zeros_like(key, array_ops.float32)  # sums of many
            dqueries = array_ops.TensorArray(queries.dtype, count, element_shape=queries.shape[1:])
            _, dqueries, *sums = array_ops.while_loop(
                lambda i, *_: i < count, step, (0, dqueries, zeros, zeros), parallel_iterations=1
            )
            return dqueries.stack(), *(array_ops.cast(d, key.dtype) for d in sums)

        return mixed, gradient

    return operation


def _least(a, b):
    """Return the smaller of two numbers, which are tensors in a graph of unknown lengths."""
    return array_ops.minimum(a, b) if keras.config.backend() == "tensorflow" else min(a, b)


def _most(a, b):
    return array_ops.maximum(a, b) if keras.config.backend() == "tensorflow" else max(a, b)
