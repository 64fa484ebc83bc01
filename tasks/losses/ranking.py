"""Listwise losses for reranking. They compare the order of all texts of a query.

Comments use these letters for shapes: B (batch size), K (texts per query).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import PositiveFloat, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.preprocessing.batch_shapes import ABSENT_SCORE


class RankingLoss(ConfigFromSignature, keras.losses.Loss):
    """Base class for listwise losses. All queries have the same weight.

    A batch is padded to its longest list. In padding columns, `y_true` is minus infinity and
    `y_pred` is ignored.

    Call arguments:
        y_true: Tensor of shape (B, K) with the scores. Higher scores are better.
        y_pred: Tensor of shape (B, K) with the logits.
    """

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        present = y_true > ABSENT_SCORE
        return self.compute_list_losses(y_true, ops.where(present, y_pred, MASKED_LOGIT), present)

    def compute_list_losses(self, scores, logits, present):
        """Compute the loss of each list, shape (B,).

        Args:
            scores: Tensor of shape (B, K). Minus infinity for padding.
            logits: Tensor of shape (B, K). A very low value for padding.
            present: Boolean tensor of shape (B, K). False for padding.
        """
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ListNet(RankingLoss):
    """Cross-entropy between the softmax of the scores and the softmax of the logits.

    The loss depends on the differences between the scores. For example, the scores 0 and 1 define a
    flat target distribution, and the scores 0 and 10 define a sharp distribution.

    Call arguments:
        y_true, y_pred: See `RankingLoss`.

    Source: Cao et al. 2007, Learning to Rank: From Pairwise Approach to Listwise Approach,
    section 4, with k = 1.

    Example:
        >>> import numpy as np
        >>> loss = ListNet()
        >>> round(float(loss([[1.0, 0.0]], np.float32([[2.0, 0.0]]))), 3)
        0.665
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "list_net", **kwargs})

    def compute_list_losses(self, scores, logits, present):
        target = ops.softmax(scores, axis=-1)
        return -ops.sum(target * ops.log_softmax(logits, axis=-1), axis=-1)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class PListMLE(RankingLoss):
    """Negative log-likelihood of the order of the scores. The first ranks have higher weights.

    The weight of rank i in a list of n texts is proportional to 2 ** (n - i) - 1. Texts with equal
    scores keep their order.

    Call arguments:
        y_true, y_pred: See `RankingLoss`.

    Source: Lan et al. 2014, Position-Aware ListMLE, sections 3.2 and 4.1.

    Example:
        >>> import numpy as np
        >>> round(float(PListMLE()([[1.0, 0.0]], np.float32([[2.0, 0.0]]))), 3)
        0.127
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "p_list_mle", **kwargs})

    def compute_list_losses(self, scores, logits, present):
        order = ops.argsort(-scores, axis=-1)
        logits = ops.take_along_axis(logits, order, axis=-1)
        present = ops.take_along_axis(present, order, axis=-1)
        rank = ops.arange(1, ops.shape(logits)[1] + 1)
        later = rank[:, None] <= rank[None]  # (K, K)
        left = ops.where(later[None], logits[:, None], MASKED_LOGIT)  # (B, K, K)
        chosen = logits - ops.logsumexp(left, axis=-1)  # (B, K) log-probabilities

        count = ops.sum(ops.cast(present, logits.dtype), axis=-1, keepdims=True)
        weight = ops.power(2.0, -ops.cast(rank, logits.dtype)) - ops.power(2.0, -count)
        weight = ops.where(present, weight, 0.0)
        return ops.divide_no_nan(-ops.sum(weight * chosen, axis=-1), ops.sum(weight, axis=-1))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MultipleNegatives(RankingLoss):
    """Cross-entropy of choosing a relevant text instead of the other texts of a query (InfoNCE).

    Texts with a score above 0 are relevant. Each relevant text is compared with all texts that are
    not relevant. The loss is the mean over the relevant texts.

    Args:
        scale: Positive float. Factor for the similarities, which are the sigmoid of the logits.
            Defaults to 10.0.

    Call arguments:
        y_true, y_pred: See `RankingLoss`.

    Source: Gao, Dai and Callan 2021, Rethink Training of BERT Rerankers in Multi-Stage Retrieval
    Pipeline, section 3.

    Example:
        >>> import numpy as np
        >>> loss = MultipleNegatives(scale=1.0)
        >>> round(float(loss([[1, 0, 0]], np.float32([[9.0, 9.0, 9.0]]))), 3)  # log 3
        1.099
    """

    @validate_arguments
    def __init__(self, scale: PositiveFloat = 10.0, **kwargs):
        super().__init__(**{"name": "multiple_negatives", **kwargs})
        self.scale = scale

    def compute_list_losses(self, scores, logits, present):
        logits = self.scale * ops.sigmoid(logits)
        wanted = ops.cast(scores > 0, logits.dtype)
        others = ops.where(present & (scores <= 0), logits, MASKED_LOGIT)
        values = ops.softplus(ops.logsumexp(others, axis=-1, keepdims=True) - logits)
        return ops.divide_no_nan(ops.sum(wanted * values, axis=-1), ops.sum(wanted, axis=-1))


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ListMarginMSE(RankingLoss):
    """Squared error of the margins between the best text and each other text.

    The margins of the logits are compared with the margins of the scores, which should be the
    scores of a teacher.

    Call arguments:
        y_true, y_pred: See `RankingLoss`.

    Source: Hofstätter et al. 2020, Improving Efficient Neural Ranking Models with
    Cross-Architecture Knowledge Distillation, section 3.2.

    Example:
        >>> import numpy as np
        >>> float(ListMarginMSE()([[9.0, 6.0]], np.float32([[2.0, 1.0]])))  # (3 - 1) squared
        4.0
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "list_margin_mse", **kwargs})

    def compute_list_losses(self, scores, logits, present):
        best = ops.argmax(scores, axis=-1)[:, None]  # (B, 1)
        error = ops.where(present, logits - scores, 0.0)  # avoids infinite gradients
        error = ops.where(present, ops.take_along_axis(error, best, axis=-1) - error, 0.0)
        others = ops.sum(ops.cast(present, logits.dtype), axis=-1) - 1
        return ops.divide_no_nan(ops.sum(ops.square(error), axis=-1), others)
