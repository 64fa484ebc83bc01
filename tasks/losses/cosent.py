"""Losses that rank the pairs in a batch by their scores.

Comments use these letters for shapes: B (batch size), K (other texts in a row), P (pairs on all
replicas), D (embedding dimension).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import PositiveFloat, validate_arguments
from encoder_zoo.encoders.attention_masks import MASKED_LOGIT
from encoder_zoo.tasks.losses.replicas import gather_replicas, ignores_padding_rows
from encoder_zoo.tasks.losses.vectors import compute_similarities, normalize_vectors, reshape_scores


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CoSENT(ConfigFromSignature, keras.losses.Loss):
    """Ranking loss: pairs with a higher score should have a higher cosine similarity.

    The loss is log(1 + sum of exp(scale * (s_i - s_j))) over all pairs i and j with scores y_i <
    y_j, where s_i is the cosine similarity of pair i. The loss is a single value for the batch.
    With `tf.distribute`, the batch includes all replicas.

    Args:
        scale: Positive float. Similarities are multiplied by this value. Defaults to 20.0.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B,) or (B, K) with pair scores. Only the order of the scores is
            used.
        y_pred: Tensor of shape (B, 1 + K, D). The first text in a row is paired with each other
            text.

    Returns:
        Tensor of shape (B,) with the same value for each row.

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Su 2022, CoSENT, https://kexue.fm/archives/8847. Huang et al. 2024, CoSENT: Consistent
    Sentence Embedding via Similarity Ranking.

    Example:
        >>> import math
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
        >>> float(CoSENT(scale=1.0)(np.array([0.2, 0.9]), y_pred)), math.log(1 + math.e)
        (1.313261..., 1.313261...)
    """

    @validate_arguments
    def __init__(self, scale: PositiveFloat = 20.0, **kwargs):
        super().__init__(**{"name": "cosent", **kwargs})
        self.scale = scale

    @ignores_padding_rows
    def call(self, y_true, y_pred, rows=None):
        y_true = reshape_scores(self, y_true, y_pred)  # (B, K)
        scores = self.scale * self.compute_row_similarities(y_pred)
        if rows is not None:
            # Padding rows are not compared, because comparisons with NaN are false.
            y_true = ops.where(rows[:, None], y_true, float("nan"))
        scores, y_true, _ = gather_replicas(scores, y_true)
        scores, y_true = ops.reshape(scores, (-1,)), ops.reshape(y_true, (-1,))  # (P,)
        differences = scores[:, None] - scores[None]
        counted = ops.where(y_true[:, None] < y_true[None], differences, MASKED_LOGIT)
        terms = ops.concatenate([ops.zeros((1,), counted.dtype), ops.reshape(counted, (-1,))])
        return ops.logsumexp(terms) * ops.ones_like(y_pred[:, 0, 0])

    def compute_row_similarities(self, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        """Compute the similarities (B, K) from vectors (B, 1 + K, D)."""
        return compute_similarities(y_pred, "cosine")


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AnglE(CoSENT):
    """`CoSENT` with a similarity based on angles, whose gradient does not vanish.

    The gradient of the cosine vanishes for similarities near 1 and -1. In this loss, the two halves
    of a vector are the real and imaginary parts of complex numbers. One vector is multiplied by the
    conjugate of the other vector. The similarity is the absolute value of the sum of all real and
    imaginary parts. The arguments are the same as for `CoSENT`.

    Source: Li and Li 2024, AnglE-optimized Text Embeddings, section 3.4.

    Example:
        >>> import math
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]]])
        >>> float(AnglE()(np.array([0.2, 0.9]), y_pred)), math.log(2)
        (0.693147..., 0.693147...)
    """

    @validate_arguments
    def __init__(self, scale: PositiveFloat = 20.0, **kwargs):
        super().__init__(scale, **{"name": "angle", **kwargs})

    def compute_row_similarities(self, y_pred):
        if y_pred.shape[-1] % 2:
            y_pred = ops.pad(y_pred, [[0, 0], [0, 0], [0, 1]])
        x = normalize_vectors(y_pred)
        real, imaginary = ops.split(x, 2, axis=-1)
        # (a + b i)(c - d i) has the real part a c + b d and the imaginary part b c - a d.
        swapped = ops.concatenate([real + imaginary, imaginary - real], axis=-1)
        return ops.abs(ops.sum(swapped[:, :1] * x[:, 1:], axis=-1))
