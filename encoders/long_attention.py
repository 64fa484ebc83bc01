"""Attention over long texts, without the (B, H, L, L) numbers of who attends how much to whom.

Comment letters: B batch, L sequence, D hidden, H heads, N blocks, C queries of a block or chunk.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
from keras import ops

from encoder_zoo.encoders import gradients
from encoder_zoo.encoders.attention_masks import AttentionMask, keys_allowed, near_allowed
from encoder_zoo.lazy import tf

SMALLEST_BLOCK = 32  # queries: smaller products are slow
CHUNK_NUMBERS = 2**24  # of who attends how much to whom, held at once; fewer cost more time
SMALLEST_CHUNK, LARGEST_CHUNK = 16, 512  # queries


def attend_in_blocks(
    attend: Callable,
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: AttentionMask,
) -> keras.KerasTensor:
    """Local attention: each block of queries beside the keys that it reaches.

    Blocks are as long as a query reaches to both sides, so that two blocks of keys, moved by half
    a block, are all that one of queries needs. Costs O(L reach), and as much per token of any L.

    Args:
        attend: from query, key, value, as below but of other lengths, and a mask (B, 1, Q, K) to
            what it is here.
        query: (B, L, H, D/H).
        key: as the query.
        value: as the query.
        mask: with a `reach`.

    Returns:
        (B, L, H, D/H).

    Source: Beltagy et al. 2020, Longformer: The Long-Document Transformer, sections 3.1 and 3.2;
    Zaheer et al. 2020, Big Bird, appendix D (blocks).
    """
    size = max(2 * mask.reach, SMALLEST_BLOCK)
    batch, length, heads, width = ops.shape(query)
    count = -(-length // size)
    missing = count * size - length

    def blocks(x, left=0, right=0):
        """(B, L, ...) to (B, N, C, ...), with zeros before and behind."""
        x = ops.pad(x, [[0, 0], [left, missing + right]] + [[0, 0]] * (len(x.shape) - 2))
        return ops.reshape(x, (batch, -1, size, *ops.shape(x)[2:]))

    def queries(x):
        return _merged(blocks(x))  # (B N, C, ...)

    def keys(x):
        x = blocks(x, mask.reach, size - mask.reach)  # (B, N + 1, C, ...)
        return _merged(ops.concatenate([x[:, :-1], x[:, 1:]], axis=2))  # (B N, 2 C, ...)

    texts = (None, None) if mask.texts is None else (queries(mask.texts), keys(mask.texts))
    real = keys(ops.cast(mask.real, "int32")) > 0
    places = ops.arange(size, dtype="int32")[:, None] + mask.reach  # among the block's keys
    distances = ops.abs(places - ops.arange(2 * size, dtype="int32"))
    allowed = near_allowed(keys_allowed(real, *texts), distances, mask.reach)  # (B N, 1, C, 2 C)
    mixed = attend(queries(query), keys(key), keys(value), allowed)
    return ops.reshape(mixed, (batch, count * size, heads, width))[:, :length]


def _merged(x):
    """(B, N, ...) to (B N, ...)."""
    return ops.reshape(x, (-1, *ops.shape(x)[2:]))


def attend_in_chunks(
    query: keras.KerasTensor,
    key: keras.KerasTensor,
    value: keras.KerasTensor,
    mask: AttentionMask,
    hide: Callable,
    training: bool | None,
) -> keras.KerasTensor:
    """Global attention on TensorFlow: some queries at a time beside all keys.

    What one chunk needs is forgotten before the next and computed again for its gradients. A chunk
    holds whole rows of scores, so that their maximum is at hand, and needs no running one as where
    keys too come in chunks.

    Args:
        query: (B, L, H, D/H), scaled.
        key: as the query, but not scaled.
        value: as the key.
        mask: without a `reach`.
        hide: from scores (B, H, Q, K) and a mask (B, 1, 1 or Q, K) to scores that leave out what
            the mask does.
        training: whether gradients will be asked for.

    Returns:
        (B, L, H, D/H).

    Source: Rabe and Staats 2021, Self-attention Does Not Need O(n^2) Memory; Dao et al. 2022,
    FlashAttention, section 3.1 (recomputation).
    """
    batch, length, heads, _ = ops.shape(query)
    fit = CHUNK_NUMBERS // (batch * heads * length)
    size = tf.minimum(tf.clip_by_value(fit, SMALLEST_CHUNK, LARGEST_CHUNK), length)
    count = -(-length // size)

    def chunks(x):
        """(B, L, ...) to (N, B, C, ...), with zeros behind."""
        x = tf.pad(x, [[0, 0], [0, count * size - length]] + [[0, 0]] * (len(x.shape) - 2))
        x = ops.reshape(x, (batch, count, size, *ops.shape(x)[2:]))
        return ops.moveaxis(x, 0, 1)

    texts = None if mask.texts is None else chunks(mask.texts)

    def one(query, key, value, i):
        """A chunk (B, H, C, D/H) of the output, and its gradients' function."""
        allowed = keys_allowed(mask.real, None if texts is None else texts[i], mask.texts)
        scores, to_products = gradients.product_with_transposed(query, key)
        p, to_scores = gradients.softmax(hide(scores, allowed))
        mixed, to_factors = gradients.product(p, value)

        def gradient(dy):
            dp, dvalue = to_factors(dy)
            return *to_products(to_scores(dp)), dvalue

        return mixed, gradient

    def formula(query, key, value):
        key, value = _heads_first(key), _heads_first(value)
        queries = ops.swapaxes(chunks(query), 2, 3)  # (N, B, H, C, D/H)
        mixed = tf.map_fn(
            lambda i: one(queries[i], key, value, i)[0],
            tf.range(count),
            parallel_iterations=1,
            fn_output_signature=tf.TensorSpec(queries.shape[1:], queries.dtype),
        )

        def gradient(dy):
            dys = ops.swapaxes(chunks(dy), 2, 3)

            def step(i, dqueries, dkey, dvalue):
                dquery, *others = one(queries[i], key, value, i)[1](dys[i])
                others = (tf.cast(d, tf.float32) for d in others)
                dkey, dvalue = (a + b for a, b in zip((dkey, dvalue), others, strict=True))
                return i + 1, dqueries.write(i, dquery), dkey, dvalue

            zeros = tf.zeros_like(key, tf.float32)  # sums of many
            dqueries = tf.TensorArray(queries.dtype, count, element_shape=queries.shape[1:])
            _, dqueries, *others = tf.while_loop(
                lambda i, *_: i < count, step, (0, dqueries, zeros, zeros), parallel_iterations=1
            )
            dquery = whole(dqueries.stack())
            return dquery, *(_heads_last(tf.cast(d, key.dtype)) for d in others)

        return whole(mixed), gradient

    def whole(x):
        """(N, B, H, C, D/H) to (B, L, H, D/H)."""
        x = ops.transpose(x, (1, 0, 3, 2, 4))
        return ops.reshape(x, (batch, count * size, *ops.shape(x)[3:]))[:, :length]

    return gradients.apply(formula, query, key, value, training=training)


def _heads_first(x):
    return ops.transpose(x, (0, 2, 1, 3))


_heads_last = _heads_first  # it is its own inverse
