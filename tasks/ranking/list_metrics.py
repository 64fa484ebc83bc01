"""Metrics of rerankers: accuracy of pairs, nDCG of lists.

Comment letters: B batch, K texts of a query.
"""

from __future__ import annotations

import math

import keras
from keras import metrics, ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.keras_private import HigherIsBetter
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.losses.ranking import ABSENT


@keras.saving.register_keras_serializable(package="encoder_zoo")
class PairAccuracy(metrics.BinaryAccuracy):
    """Computes the share of the pairs whose probability is on the same side of 0.5 as their score.

    Call arguments:
        y_true: (B, 1) scores from 0 to 1.
        y_pred: (B, 1) logits.
        sample_weight: (B,).

    Example:
        >>> metric = PairAccuracy()
        >>> metric.update_state([[0.9], [0.2]], [[3.0], [1.0]])
        >>> float(metric.result())
        0.5
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "accuracy", "threshold": 0.0, **kwargs})

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(ops.convert_to_tensor(y_true) >= 0.5, self.dtype)
        return super().update_state(y_true, y_pred, sample_weight)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class NDCG(HigherIsBetter, ConfigFromSignature, metrics.Mean):
    """Computes the mean nDCG of the first k texts of each query, with the scores as gains.

    Queries without a score above 0 do not count. Texts of equal logits share the mean of their
    ranks' discounts, as in scikit-learn's `ndcg_score`, so that the order of a list does not count.

    Args:
        k: number of texts.

    Call arguments:
        y_true: (B, K) scores; minus infinity where there is no text.
        y_pred: (B, K) logits.
        sample_weight: (B,).

    Source: Järvelin and Kekäläinen 2002, Cumulated Gain-Based Evaluation of IR Techniques,
    sections 2.2 and 2.3.

    Example:
        >>> metric = NDCG()
        >>> metric.update_state([[0.0, 1.0]], [[2.0, 1.0]])
        >>> round(float(metric.result()), 3)  # 1 / log2(3)
        0.631
    """

    @validate_arguments
    def __init__(self, k: PositiveInt = 10, **kwargs):
        super().__init__(**{"name": f"ndcg@{k}", **kwargs})
        self.k = k

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        y_true, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
        y_pred = ops.where(y_true > ABSENT, y_pred, ABSENT)
        gain = ops.maximum(y_true, 0.0)
        rank = ops.arange(1, ops.shape(gain)[1] + 1, dtype="float32")
        discount = ops.where(rank <= self.k, math.log(2) / ops.log(1 + rank), 0.0)
        best = ops.sum(-ops.sort(-gain, axis=-1) * discount, axis=-1)
        others, own = y_pred[:, None], y_pred[:, :, None]  # (B, 1, K), (B, K, 1)
        above, equal = (ops.sum(ops.cast(x, "int32"), -1) for x in (others > own, others == own))
        sums = ops.concatenate([ops.zeros((1,)), ops.cumsum(discount)])
        shared = ops.take(sums, above + equal) - ops.take(sums, above)
        found = ops.sum(gain * shared / ops.cast(equal, "float32"), axis=-1)
        counts = ops.cast(best > 0, "float32")
        if sample_weight is not None:
            counts *= ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
        super().update_state(ops.divide_no_nan(found, best), counts)
