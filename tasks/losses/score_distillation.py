"""Losses that train a student on a teacher's scores.

Comments use these letters for shapes: B (batch size), K (other texts in a row), D (embedding
dimension).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import Temperature, validate_arguments
from encoder_zoo.tasks.losses import vectors
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows


@keras.saving.register_keras_serializable(package="encoder_zoo")
class MarginMSE(ConfigFromSignature, keras.losses.Loss):
    """Squared difference between the margins of a student and a teacher.

    A margin is the score of a positive minus the score of a negative.

    Args:
        similarity: String, "dot" or "cosine". Similarity to use as the student's score. Defaults to
            "dot".
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B, K). Teacher scores of the positive and the negatives. With a
            single negative, a tensor of shape (B,) with the teacher's margins is also supported.
        y_pred: Tensor of shape (B, 1 + K, D) with the vectors of a query, its positive and its
            negatives.

    Returns:
        Tensor of shape (B,) with the mean loss over the negatives in each row.

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Hofstätter et al. 2020, Improving Efficient Neural Ranking Models with
    Cross-Architecture Knowledge Distillation, equation 1.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[2.0, 0.0], [3.0, 0.0], [1.0, 5.0]]])  # scores 6 and 2
        >>> [float(MarginMSE()(np.array([y]), y_pred)) for y in ([9.0, 8.0], 1.0)]
        [9.0, 9.0]
    """

    @validate_arguments
    def __init__(self, similarity: vectors.LossSimilarity = "dot", **kwargs):
        super().__init__(**{"name": "margin_mse", **kwargs})
        self.similarity = similarity

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        vectors.check_rows(self, y_pred, 3, "a query, its positive, and one or more negatives")
        is_margin = len(y_true.shape) == 1 and not vectors.are_different(y_pred.shape[1], 3)
        wanted = (
            y_true[:, None]
            if is_margin
            else _compute_margins(vectors.reshape_scores(self, y_true, y_pred))
        )
        found = _compute_margins(vectors.compute_similarities(y_pred, self.similarity))
        return ops.mean(ops.square(found - wanted), axis=-1)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ScoreDistillation(ConfigFromSignature, keras.losses.Loss):
    """KL divergence between the scores of a student and a teacher.

    The scores are converted to probabilities with a softmax over the K documents in a row.

    Args:
        temperature: Float. Both scores are divided by this value, and the divergence is multiplied
            by its square. Defaults to 1.0.
        similarity: String, "dot" or "cosine". Similarity to use as the student's score. Defaults to
            "dot".
        min_max: Boolean. Whether to scale the scores in each row to the range from 0 to 1, for the
            student and for the teacher. `MaxSimDistillation` does this by default, as in
            JaColBERTv2.5. Defaults to False, as in Hinton et al.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B, K) with the teacher scores.
        y_pred: Tensor of shape (B, 1 + K, D) with the vectors of a query and two or more documents.

    Returns:
        Tensor of shape (B,).

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Hinton, Vinyals and Dean 2015, Distilling the Knowledge in a Neural Network, section 2.
    For `min_max`: Clavié 2024, JaColBERTv2.5.

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
        similarity: vectors.LossSimilarity = "dot",
        min_max: bool = False,
        **kwargs,
    ):
        super().__init__(**{"name": "score_distillation", **kwargs})
        self.temperature = temperature
        self.similarity = similarity
        self.min_max = min_max

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        vectors.check_rows(self, y_pred, 3, "a query and two or more documents")
        y_true = vectors.reshape_scores(self, y_true, y_pred)
        student = vectors.compute_similarities(y_pred, self.similarity)
        return compute_divergence(student, y_true, self.temperature, self.min_max)


def compute_divergence(
    student: keras.KerasTensor, teacher: keras.KerasTensor, temperature: float, min_max: bool
) -> keras.KerasTensor:
    """Compute the KL divergence between the scores of a student and a teacher, shape (B,).

    Args:
        student, teacher: Tensors of shape (B, K). A softmax over K converts them to probabilities.
        temperature: Float. Both scores are divided by this value, and the divergence is multiplied
            by its square.
        min_max: Boolean. Whether to scale the scores in each row to the range from 0 to 1.
    """
    student, teacher = (
        ops.log_softmax((_scale_to_unit_range(scores) if min_max else scores) / temperature)
        for scores in (student, teacher)
    )
    return temperature**2 * compute_kl_divergence(teacher, student)


def compute_kl_divergence(true: keras.KerasTensor, found: keras.KerasTensor) -> keras.KerasTensor:
    """Compute the Kullback-Leibler divergence between two distributions.

    Args:
        true, found: Tensors of shape (..., K). Log-probabilities.

    Returns:
        Tensor of shape (...).
    """
    return ops.sum(ops.exp(true) * (true - found), axis=-1)


def _compute_margins(scores):
    """Subtract the other scores (B, K - 1) in each row from the first score."""
    return scores[:, :1] - scores[:, 1:]


def _scale_to_unit_range(scores):
    """Scale the scores (B, K) in each row to the range from 0 to 1. Equal scores become 0."""
    least = ops.min(scores, axis=-1, keepdims=True)
    return (scores - least) / ops.maximum(ops.max(scores, axis=-1, keepdims=True) - least, 1e-8)
