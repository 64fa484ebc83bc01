"""Logits of choices from those of their windows.

Comment letters: B batch, M windows of a question.
"""

from __future__ import annotations

from keras import ops

from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.sequence_classification.pooling import WindowPooling


def logits_of_choices(logits, choice_index, pooling: WindowPooling):
    """Return the logits of the choices of each question, (B, M); `MASKED_LOGIT` is an absent one's.

    There are at most as many choices as windows, so that shapes do not depend on the data.

    Args:
        logits: (B, M) of windows.
        choice_index: (B, M) int, the choice of each; -1 where there is none.
        pooling: "mean" or "max" over the windows of a choice.

    Example:
        >>> import numpy as np
        >>> logits = logits_of_choices(np.float32([[1, 3, 7]]), np.array([[0, 0, 1]]), "mean")
        >>> ops.convert_to_numpy(logits)[:, :2].tolist()
        [[2.0, 7.0]]
    """
    count = choice_index.shape[-1]
    count = ops.shape(choice_index)[-1] if count is None else count
    choices = ops.arange(count, dtype="int32")
    belongs = choices[:, None] == ops.cast(choice_index, "int32")[:, None, :]  # (B, choices, M)
    values = ops.where(belongs, logits[:, None, :], MASKED_LOGIT)
    best = ops.max(values, axis=-1)
    if pooling == "max":
        return best
    number = ops.sum(ops.cast(belongs, logits.dtype), axis=-1)
    total = ops.sum(ops.where(belongs, values, 0.0), axis=-1)
    return ops.where(number > 0, total / ops.maximum(number, 1.0), MASKED_LOGIT)
