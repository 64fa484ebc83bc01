"""Exact match and F1 of answers during training, in tokens of one window.

Comment letters: B batch, L sequence.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.tasks.question_answering.answers import IMPOSSIBLE


class SpanMetric(HigherIsBetter, keras.metrics.Mean):
    """Computes the mean over windows of the agreement of the best span with the answer.

    Call arguments:
        y_true: (B, 2) int, the answer's first and last token; where there is none twice the
            position of the start token: 0, or of XLNet the last one.
        y_pred: (B, 2, L) logits; the best first token is taken, and the best last from there on.
            With a beam the logits of last tokens are those after the answer's own first token, so
            that the metric is higher than of answers: `evaluate_answers` measures these.
        sample_weight: (B,) or (B, 1).
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        start, end = ops.unstack(ops.cast(y_true, "int32"), axis=1)  # (B,)
        first, last = ops.unstack(ops.convert_to_tensor(y_pred), axis=1)  # (B, L)
        found = ops.cast(ops.argmax(first, axis=1), "int32")
        behind = ops.arange(ops.shape(last)[1], dtype="int32")[None] >= found[:, None]
        found_end = ops.cast(ops.argmax(ops.where(behind, last, -float("inf")), axis=1), "int32")
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1,))
        values = self.agreement(start, end, found, found_end)
        return super().update_state(ops.cast(values, self.dtype), sample_weight)

    def agreement(self, start, end, found, found_end):
        """Return (B,) from 0 to 1."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanExactMatch(SpanMetric):
    """Computes the share of windows whose best span is the answer's, to the token.

    See `SpanMetric` for the call arguments. `SpanQA.evaluate_answers` compares texts instead, as
    SQuAD's scripts do, and puts the windows of a question together.

    Example:
        >>> metric = SpanExactMatch()
        >>> metric.update_state([[1, 2]], [[[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 9.0, 8.0]]])
        >>> float(metric.result())
        1.0
    """

    def __init__(self, name: str = "exact_match", **kwargs):
        super().__init__(name=name, **kwargs)

    def agreement(self, start, end, found, found_end):
        return (start == found) & (end == found_end)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class SpanF1(SpanMetric):
    """Computes the F1 of the tokens that the best span shares with the answer, mean over windows.

    See `SpanMetric` for the call arguments, and `SpanExactMatch`.

    Source: Rajpurkar et al. 2016, SQuAD, section 6.1, which counts words.

    Example:
        >>> metric = SpanF1()
        >>> metric.update_state([[1, 2]], [[[0.0, 9.0, 0.0, 0.0], [0.0, 0.0, 8.0, 9.0]]])
        >>> round(float(metric.result()), 2)
        0.8
    """

    def __init__(self, name: str = "f1", **kwargs):
        super().__init__(name=name, **kwargs)

    def agreement(self, start, end, found, found_end):
        shared = ops.maximum(ops.minimum(end, found_end) - ops.maximum(start, found) + 1, 0)
        return 2 * shared / (end - start + 1 + found_end - found + 1)


def weights_of_bounds(sample_weight):
    """Return weights (B,) as (B, 1), for both positions of the labels (B, 2)."""
    return None if sample_weight is None else ops.convert_to_tensor(sample_weight)[:, None]


def mask_padding(inputs, logits):
    """Mask the logits of padding, so that loss and metrics do not depend on the batch's length."""
    if not isinstance(inputs, dict) or "padding_mask" not in inputs:
        return logits
    return ops.where(ops.cast(inputs["padding_mask"], "bool")[:, None], logits, IMPOSSIBLE)
