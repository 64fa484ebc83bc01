"""Regression of cosines on scores. Comment letters: B batch, K further texts of a row, D width."""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.losses.vectors import scores_like, similarities


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CosineSimilarity(ConfigFromSignature, keras.losses.Loss):
    """Computes the squared difference between the cosines of pairs and their scores.

    Args:
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: (B,) or (B, K) scores of pairs, from -1 to 1.
        y_pred: (B, 1 + K, D), the first text of each row makes a pair with each of its others.

    Returns:
        (B,), of `call`, the means over the pairs of a row.

    Source: Reimers and Gurevych 2019, Sentence-BERT, section 3, regression objective.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
        >>> float(CosineSimilarity()(np.array([0.5, 0.5]), y_pred))
        0.25
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "cosine_similarity", **kwargs})

    @leaves_out_rows
    def call(self, y_true, y_pred):
        y_true = scores_like(self, y_true, y_pred)
        return ops.mean(ops.square(similarities(y_pred, "cosine") - y_true), axis=-1)
