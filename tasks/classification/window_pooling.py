"""Pool the logits of windows to logits of texts.

Comments use these letters for shapes: B batch, K windows of a text, L sequence, N texts, W windows,
C classes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from encoder_zoo.common.lazy import ops, xp
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.base.answers import Runner

WindowPooling = Literal["mean", "max"]


def pool_logits(logits, padding_mask, count: int, pooling: WindowPooling):
    """Pool the logits of a batch over the windows of each text, to shape (B, C).

    Args:
        logits: Float tensor of shape (B * K, C).
        padding_mask: Tensor of shape (B * K, L). A window with a single token is missing and
            therefore ignored. Every other window has at least two special tokens.
        count: Integer. The number of windows per text, K.
        pooling: "mean" or "max".

    Example:
        >>> import numpy as np
        >>> logits = np.float32([[1, 4], [3, 2], [5, 5], [9, 9]])
        >>> mask = np.array([[1, 1], [1, 1], [1, 1], [1, 0]])
        >>> ops.convert_to_numpy(pool_logits(logits, mask, 2, "mean")).tolist()
        [[2.0, 3.0], [5.0, 5.0]]
    """
    logits = ops.reshape(logits, (-1, count, logits.shape[-1]))  # (B, K, C)
    is_window = ops.sum(ops.cast(padding_mask, "int32"), axis=-1) > 1
    is_window = ops.reshape(is_window, (-1, count, 1))
    if pooling == "max":
        return ops.max(ops.where(is_window, logits, MASKED_LOGIT), axis=1)
    weights = ops.cast(is_window, logits.dtype)
    return ops.sum(logits * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1.0)


def pool_windows(logits: xp.Tensor, text_index: xp.Tensor, pooling: WindowPooling) -> xp.Tensor:
    """Pool the logits of all windows to logits of shape (N, C), in memory or inside a graph.

    Args:
        logits: Float tensor of shape (W, C).
        text_index: Integer tensor of shape (W,). Index of the text that each window belongs to, in
            ascending order.
        pooling: "mean" or "max".

    Example:
        >>> logits = xp.constant([[1.0, 4.0], [3.0, 2.0], [5.0, 5.0]])
        >>> pool_windows(logits, xp.constant([0, 0, 1]), "max").numpy().tolist()
        [[3.0, 4.0], [5.0, 5.0]]
    """
    pool = xp.math.segment_max if pooling == "max" else xp.math.segment_mean
    return pool(logits, text_index)


def predict_pooled(
    runner: Runner, examples: dict, batch_size: int, num_classes: int, pooling: WindowPooling
) -> np.ndarray:
    """Compute the logits of texts in memory, shape (N, C), by pooling the logits of their windows.

    Args:
        runner: Runner that computes the logits of windows.
        examples: Encoded examples of all windows, with "text_index" of shape (W,).
        batch_size: Positive integer. Number of windows per batch.
        num_classes: Positive integer C.
        pooling: "mean" or "max".
    """
    index = examples.pop("text_index")
    logits = np.zeros((index.shape[0], num_classes), "float32")
    for windows, values in runner.run_examples(examples, batch_size):
        logits[windows] = values
    return pool_windows(xp.constant(logits), index, pooling).numpy()
