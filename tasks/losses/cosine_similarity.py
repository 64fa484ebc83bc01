"""Loss that trains cosine similarities to be equal to given scores.

Comments use these letters for shapes: B (batch size), K (other texts in a row), D (embedding
dimension).
"""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.losses.vectors import compute_similarities, reshape_scores


@keras.saving.register_keras_serializable(package="encoder_zoo")
class CosineSimilarity(ConfigFromSignature, keras.losses.Loss):
    """Squared difference between the cosine similarities of pairs and the given scores.

    Args:
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B,) or (B, K) with pair scores, from -1 to 1.
        y_pred: Tensor of shape (B, 1 + K, D). The first text in a row is paired with each other
            text.

    Returns:
        Tensor of shape (B,) with the mean loss over the pairs in each row.

    Source: Reimers and Gurevych 2019, Sentence-BERT, section 3, regression objective.

    Example:
        >>> import numpy as np
        >>> y_pred = np.array([[[1.0, 0.0], [2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
        >>> float(CosineSimilarity()(np.array([0.5, 0.5]), y_pred))
        0.25
    """

    def __init__(self, **kwargs):
        super().__init__(**{"name": "cosine_similarity", **kwargs})

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        y_true = reshape_scores(self, y_true, y_pred)
        return ops.mean(ops.square(compute_similarities(y_pred, "cosine") - y_true), axis=-1)
