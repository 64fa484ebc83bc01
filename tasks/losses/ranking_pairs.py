"""Pairwise losses for reranking. They compare every two texts of a query.

Comments use these letters for shapes: B (batch size), K (texts per query).
"""

from __future__ import annotations

import math

import keras
from keras import ops

from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.losses.ranking import RankingLoss

MU = 10.0  # the value in section 6.3 of the LambdaLoss paper


@keras.saving.register_keras_serializable(package="encoder_zoo")
class RankNet(RankingLoss):
    """Cross-entropy of the order of two texts, in bits, averaged over the pairs in a list.

    Pairs with equal scores are ignored.

    Call arguments:
        y_true, y_pred: See `RankingLoss`.

    Source: Burges et al. 2005, Learning to Rank using Gradient Descent, section 3.

    Example:
        >>> import numpy as np
        >>> float(RankNet()([[1.0, 0.0, 0.0]], np.float32([[2.0, 2.0, 2.0]])))
        1.0
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "rank_net", **kwargs})

    def compute_list_losses(self, scores, logits, present):
        counts = scores[:, :, None] > scores[:, None]  # (B, K, K): text i is better than text j
        counts = ops.cast(counts & present[:, None], logits.dtype)
        return self.compute_pair_losses(scores, logits, counts)

    def compute_pair_losses(self, scores, logits, counts, weights=1.0):
        """Compute the mean loss over the pairs of each list, shape (B,).

        Args:
            scores, logits: Tensors of shape (B, K).
            counts: Tensor of shape (B, K, K). 1 if text `i` is better than text `j`, else 0.
            weights: Tensor of shape (B, K, K), or a float. Pair weights. Defaults to 1.0.
        """
        bits = ops.softplus(logits[:, None] - logits[:, :, None]) / math.log(2)
        total = ops.sum(counts * weights * bits, axis=(1, 2))
        return ops.divide_no_nan(total, ops.sum(counts, axis=(1, 2)))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LambdaLoss(RankNet):
    """RankNet loss that weights each pair by its effect on nDCG (NDCG-Loss2++).

    The gain of a score is 2 ** score - 1, or 0 for negative scores. This loss is therefore meant
    for relevance grades, such as 0 to 4. Use `RankNet` or `ListMarginMSE` for other scores.
    `Reranker.fit` rejects lists without a positive score, because their loss is 0, and scores above
    30, because they would dominate all other scores.

    Args:
        k: Optional positive integer. To optimize nDCG@k, only pairs with a text among the `k`
            highest logits are used. If None, all pairs are used.

    Call arguments:
        y_true, y_pred: See `RankingLoss`.

    Source: Wang et al. 2018, The LambdaLoss Framework for Ranking Metric Optimization, sections
    5.3 and 6.3.

    Example:
        >>> import numpy as np
        >>> right, wrong = np.float32([[2, 1, 0]]), np.float32([[0, 1, 2]])
        >>> loss = LambdaLoss()
        >>> float(loss([[2, 1, 0]], right)) < float(loss([[2, 1, 0]], wrong))
        True
    """

    @validate_arguments
    def __init__(self, k: PositiveInt | None = None, **kwargs):
        super().__init__(**{"name": "lambda_loss", **kwargs})
        self.k = k

    def compute_pair_losses(self, scores, logits, counts, weights=1.0):
        rank = 1 + ops.argsort(ops.argsort(-logits, axis=-1), axis=-1)  # (B, K), 1 is the best
        gain = self._compute_gains(scores)
        apart = ops.abs(rank[:, :, None] - rank[:, None])  # (B, K, K)
        # For a given distance between two ranks, the discounts differ most at the first ranks.
        bound = ops.abs(_compute_discount(ops.maximum(apart, 1)) - _compute_discount(apart + 1))
        swap = ops.abs(_compute_discount(rank)[:, :, None] - _compute_discount(rank)[:, None])
        weights = (MU * bound + swap) * ops.abs(gain[:, :, None] - gain[:, None])
        if self.k is not None:
            near = ops.minimum(rank[:, :, None], rank[:, None]) <= self.k
            counts = counts * ops.cast(near, counts.dtype)
        return super().compute_pair_losses(scores, logits, counts, weights)

    def _compute_gains(self, scores):
        """Compute the gains (B, K), divided by the DCG of the ideal order."""
        gain = 2.0 ** ops.maximum(scores, 0.0) - 1
        best = -ops.sort(-gain, axis=-1)
        best = best if self.k is None else best[:, : self.k]
        discount = _compute_discount(ops.arange(1, ops.shape(best)[1] + 1))
        return ops.divide_no_nan(gain, ops.sum(best * discount, axis=-1, keepdims=True))


def _compute_discount(rank):
    return math.log(2) / ops.log(1.0 + ops.cast(rank, "float32"))
