"""Losses of a student that learns a teacher's scores.

Comment letters: B batch, K further texts of a row, D width.
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import Temperature, validate_arguments
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.losses.vectors import (
    Similarity,
    check_rows,
    differ,
    scores_like,
    similarities,
)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MarginMSE(ConfigFromSignature, keras.losses.Loss):
    """Computes the squared difference between student's and teacher's margins.

    A margin is the score of a query's positive, less that of a negative.

    Args:
        similarity: the student's score, "dot" or "cosine".
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, K), the teacher's scores, that of the positive first; or, with one negative,
            (B,), its margins.
        y_pred: (B, 1 + K, D), vectors of query, positive and negatives.

    Returns:
        (B,), of `call`, the means over the negatives of a row.

    Raises:
        ValueError: If `y_true` or `y_pred` has another shape.

    Source: Hofstätter et al. 2020, Improving Efficient Neural Ranking Models with
    Cross-Architecture Knowledge Distillation, equation 1.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[2.0, 0.0], [3.0, 0.0], [1.0, 5.0]]])  # scores 6 and 2
        >>> [float(MarginMSE()(np.array([y]), y_pred)) for y in ([9.0, 8.0], 1.0)]
        [9.0, 9.0]
    """

    @validate_arguments
    def __init__(self, similarity: Similarity = "dot", **kwargs):
        super().__init__(**{"name": "margin_mse", **kwargs})
        self.similarity = similarity

    @leaves_out_rows
    def call(self, y_true, y_pred):
        check_rows(self, y_pred, 3, "a query, its positive, and one or more negatives")
        is_margin = len(y_true.shape) == 1 and not differ(y_pred.shape[1], 3)
        wanted = y_true[:, None] if is_margin else _margins(scores_like(self, y_true, y_pred))
        found = _margins(similarities(y_pred, self.similarity))
        return ops.mean(ops.square(found - wanted), axis=-1)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ScoreDistillation(ConfigFromSignature, keras.losses.Loss):
    """Computes the KL divergence of the student's from the teacher's scores of a query's documents.

    Scores are made probabilities by a softmax over the K documents of a row.

    Args:
        temperature: by which both scores are divided; the divergence is multiplied by its square.
        similarity: the student's score, "dot" or "cosine".
        min_max: scale the scores of each row, the student's and the teacher's, to 0 to 1 first.
            By default they are compared as they are, as in Hinton et al.; `MaxSimDistillation`
            scales them, as in JaColBERTv2.5.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: (B, K), the teacher's scores.
        y_pred: (B, 1 + K, D), vectors of a query and of two or more documents.

    Returns:
        (B,), of `call`.

    Raises:
        ValueError: If `y_true` or `y_pred` has another shape.

    Source: Hinton, Vinyals and Dean 2015, Distilling the Knowledge in a Neural Network, section 2;
    `min_max` Clavié 2024, JaColBERTv2.5.

    Example:
        >>> import math
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]])  # equal scores
        >>> y_true = np.log([[0.8, 0.2]])
        >>> float(ScoreDistillation()(y_true, y_pred)), 0.8 * math.log(1.6) + 0.2 * math.log(0.4)
        (0.192744..., 0.192744...)
    """

    @validate_arguments
    def __init__(
        self,
        temperature: Temperature = 1.0,
        similarity: Similarity = "dot",
        min_max: bool = False,
        **kwargs,
    ):
        super().__init__(**{"name": "score_distillation", **kwargs})
        self.temperature = temperature
        self.similarity = similarity
        self.min_max = min_max

    @leaves_out_rows
    def call(self, y_true, y_pred):
        check_rows(self, y_pred, 3, "a query and two or more documents")
        y_true = scores_like(self, y_true, y_pred)
        student = similarities(y_pred, self.similarity)
        return divergence(student, y_true, self.temperature, self.min_max)


def divergence(
    student: keras.KerasTensor, teacher: keras.KerasTensor, temperature: float, min_max: bool
) -> keras.KerasTensor:
    """Return the KL divergence of the student's scores from the teacher's, (B,).

    Args:
        student, teacher: (B, K), made probabilities by a softmax over the K of a row.
        temperature: by which both are divided; the divergence is multiplied by its square.
        min_max: scale the scores of each row to 0 to 1 first.
    """
    student, teacher = (
        ops.log_softmax((_min_max(scores) if min_max else scores) / temperature)
        for scores in (student, teacher)
    )
    return temperature**2 * kl_divergence(teacher, student)


def kl_divergence(true: keras.KerasTensor, found: keras.KerasTensor) -> keras.KerasTensor:
    """Return (...), the Kullback-Leibler divergence of log-probabilities (..., K)."""
    return ops.sum(ops.exp(true) * (true - found), axis=-1)


def _margins(scores):
    """Return the first of the scores (B, K) less each of the others, (B, K - 1)."""
    return scores[:, :1] - scores[:, 1:]


def _min_max(scores):
    """Return scores (B, K) from 0 to 1 in each row; equal scores are 0."""
    least = ops.min(scores, axis=-1, keepdims=True)
    return (scores - least) / ops.maximum(ops.max(scores, axis=-1, keepdims=True) - least, 1e-8)
