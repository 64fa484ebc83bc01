"""Pool token logits to a weight for each term in the vocabulary.

The logits for all positions (B, L, V) would be the largest tensor in the model: 2 GB for 32 texts
with 512 tokens and 30,522 terms. To reduce memory usage, logits are only computed for some
positions at a time, unless all logits are required for the gradients.

With token weights (BGE-M3), there is only a single weight per token, and weights are only computed
for terms in the text.

Comments use these letters for shapes: B batch, L sequence, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from encoder_zoo.common.lazy import keras, ops, tf, xp
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.tasks.embedding.pooling import POOLINGS
from encoder_zoo.tasks.pretraining.masked_lm import MaskedLMHead, add_bias, project

Pooling = Literal["max", "sum", "token_weights"]
TOKEN_WEIGHTS = "token_weights"
TermActivation = Literal["relu", "log1p_relu"]
POSITIONS = 32  # number of positions whose logits are in memory at a time


def _compute_log1p_relu(x):
    """Compute log(1 + max(x, 0)), as in Formal et al. 2021, SPLADE, equation 1."""
    return ops.log1p(ops.relu(x))


# Activations for logits, named as in sentence-transformers. All of them must be monotonic.
TERM_ACTIVATIONS: dict[str, Callable] = {
    "relu": _compute_log1p_relu,
    "log1p_relu": lambda x: ops.log1p(_compute_log1p_relu(x)),
}


def compute_term_weights(
    backbone: Backbone,
    head: MaskedLMHead,
    x: keras.KerasTensor,
    mask: keras.KerasTensor,
    pooling: Pooling,
    activation: TermActivation,
    training: bool | None = None,
    sparse_gradients: bool = False,
) -> keras.KerasTensor:
    """Compute the weight for each term in each text, (B, V) float32.

    Args:
        backbone: `Backbone`. Its token embedding computes the logits.
        head: `MaskedLMHead`.
        x: Float tensor of shape (B, L, D). Backbone output.
        mask: Boolean or float tensor of shape (B, L). True or 1 for tokens that are pooled.
        pooling: "max" or "sum" over all tokens.
        activation: String. The activation to use, from `TERM_ACTIVATIONS`.
        training: Boolean. Whether gradients are required.
        sparse_gradients: Boolean. Whether to compute gradients with `find_largest_logits`, on
            TensorFlow without XLA.

    Source: Formal et al. 2021, SPLADE v2, equations 1 and 3. Shen et al. 2025, Exploring l0
    Sparsification for Inference-free Sparse Retrievers, section 3, for "log1p_relu".
    """
    function = TERM_ACTIVATIONS[activation]
    mask = ops.cast(mask, "float32")
    if pooling == "sum":

        def compute_weights(x, mask):
            logits = function(add_bias(head, project(backbone, head, x)))  # (B, l, V)
            return ops.matmul(mask[:, None], logits)[:, 0]

        return _map_positions(compute_weights, ops.add, x, mask, training)

    # Repeating a token as padding does not change the maximum. The bias and the activation can be
    # applied after taking the maximum.
    first = POOLINGS["cls"](x, mask)[:, None]

    def replace_padding(x, mask):
        real = ops.expand_dims(mask, -1)  # LiteRT cannot slice dynamic sizes [..., None]
        return ops.where(real > 0, x, first)

    if training and sparse_gradients and head.tied:
        table = ops.convert_to_tensor(backbone.embeddings.token_embedding.embeddings)
        x = head(replace_padding(x, mask))
        return function(add_bias(head, find_largest_logits(x, table, POSITIONS)))

    def find_largest(x, mask):
        return ops.max(project(backbone, head, replace_padding(x, mask)), axis=1)

    found = _map_positions(find_largest, ops.maximum, x, mask, training)
    return function(add_bias(head, found))


def pool_term_weights(
    weights: keras.KerasTensor, token_ids: keras.KerasTensor, vocabulary_size: int
) -> keras.KerasTensor:
    """Compute the largest token weight of each term, (B, V). Terms without a token get 0.

    Args:
        weights: Float32 tensor of shape (B, L). Nonnegative weights, with 0 for tokens to ignore.
        token_ids: Integer tensor of shape (B, L).
        vocabulary_size: Integer. The vocabulary size (V).

    Source: Chen et al. 2024, BGE M3-Embedding, section 3.2, lexical retrieval.

    Example:
        >>> import numpy as np
        >>> weights, ids = np.array([[0.5, 2.0, 1.0]], "float32"), np.array([[3, 1, 3]])
        >>> pool_term_weights(weights, ids, 5).numpy().tolist()
        [[0.0, 2.0, 0.0, 1.0, 0.0]]
    """
    batch = ops.shape(token_ids)[0]
    first = ops.expand_dims(ops.arange(batch, dtype="int32") * vocabulary_size, 1)
    places = ops.reshape(ops.cast(token_ids, "int32") + first, (-1,))
    found = ops.segment_max(ops.reshape(weights, (-1,)), places, batch * vocabulary_size)
    return ops.maximum(ops.reshape(found, (batch, vocabulary_size)), 0.0)


def _map_positions(function: Callable, join: Callable, x, mask, training) -> keras.KerasTensor:
    """Apply a function to x (B, L, D) and a mask (B, L), in several parts to save memory."""
    length = ops.shape(x)[1]
    if training or _is_traced_by_torch() or (isinstance(length, int) and length <= POSITIONS):
        return function(x, mask)
    # Round up with additions, because ONNX and LiteRT round negative quotients towards 0.
    number = (length + POSITIONS - 1) // POSITIONS
    size = (length + number - 1) // number
    # Use equal sizes, because XLA fills slices with zeros when these exceed the loop tensor.
    x, mask = (_split_positions(values, number, size) for values in (x, mask))
    found = function(x[0], mask[0])
    if isinstance(number, int):
        for i in range(1, number):
            found = join(found, function(x[i], mask[i]))
        return found

    def step(i, found):
        return i + 1, join(found, function(x[i], mask[i]))

    return ops.while_loop(lambda i, _: i < number, step, (1, found))[1]


def _is_traced_by_torch() -> bool:
    """Return whether PyTorch is tracing the model for an export.

    Loops with an unknown number of steps cannot be traced.
    """
    if keras.config.backend() != "torch":
        return False
    import torch

    return torch.jit.is_tracing()


def _split_positions(values, number, size):
    """Split (B, L, ...) into parts (P, B, l, ...), padded with zeros."""
    batch, length, *rest = ops.shape(values)
    widths = [[0, 0], [0, number * size - length], *([0, 0] for _ in rest)]
    values = ops.reshape(ops.pad(values, widths), (batch, number, size, *rest))
    return ops.moveaxis(values, 0, 1)


def find_largest_logits(x: xp.Tensor, table: xp.Tensor, positions: int) -> xp.Tensor:
    """Compute the largest dot product over all tokens for each table row, (B, V).

    Args:
        x: Float tensor of shape (B, L, E).
        table: Float tensor of shape (V, E). Token embedding.
        positions: Integer. The number of positions to compute at a time (P).

    Example:
        >>> import tensorflow as tf
        >>> x = tf.constant([[[1.0, 0.0], [0.0, 2.0]]])
        >>> table = tf.constant([[1.0, 1.0], [3.0, 0.0], [0.0, -1.0]])
        >>> find_largest_logits(x, table, 1).numpy().tolist()
        [[2.0, 3.0, 0.0]]
    """

    @tf.custom_gradient
    def operation(x, table):
        found, index = _find_largest(x, table, positions)
        return found, lambda dy: _compute_gradients(x, table, index, dy)

    return operation(x, xp.convert_to_tensor(table))  # custom gradients require tensors


def _find_largest(x, table, positions: int) -> tuple:
    """Compute the largest products (B, V) and their token indices, in steps of P positions."""

    def step(start, found, index):
        products = tf.matmul(x[:, start : start + positions], table, transpose_b=True)
        largest = xp.reduce_max(products, axis=1)
        here = start + xp.argmax(products, axis=1, output_type=xp.int32)
        index = xp.where(largest > found, here, index)
        return start + positions, xp.maximum(found, largest), index

    shape = [xp.shape(x)[0], table.shape[0]]
    start = (0, xp.fill(shape, x.dtype.min), xp.zeros(shape, xp.int32))
    length = xp.shape(x)[1]
    _, found, index = xp.while_loop(
        lambda start, *_: start < length, step, start, parallel_iterations=1
    )
    return found, index


def _compute_gradients(x, table, index, dy) -> tuple:
    """Compute the gradients for x (B, L, E) and the table (V, E) with a sparse matrix."""
    length, width = xp.shape(x)[1], x.shape[2]
    pairs = xp.where(dy != 0)  # (N, 2)
    token = pairs[:, 0] * xp.cast(length, xp.int64) + xp.cast(xp.gather_nd(index, pairs), xp.int64)
    shape = xp.cast([xp.shape(x)[0] * length, table.shape[0]], xp.int64)
    values = xp.cast(xp.gather_nd(dy, pairs), xp.float32)
    # (B L, V)
    matrix = tf.SparseTensor(xp.stack([token, pairs[:, 1]], axis=1), values, shape)
    tokens, rows = (xp.cast(xp.reshape(x, [-1, width]), xp.float32), xp.cast(table, xp.float32))
    dx = tf.sparse.sparse_dense_matmul(matrix, rows)
    dtable = tf.sparse.sparse_dense_matmul(matrix, tokens, adjoint_a=True)
    return xp.cast(xp.reshape(dx, xp.shape(x)), x.dtype), xp.cast(dtable, table.dtype)
