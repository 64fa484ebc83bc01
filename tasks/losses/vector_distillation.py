"""Loss that trains a student on a teacher's vectors.

Comments use these letters for shapes: B (batch size), K (other texts in a row), D (embedding
dimension).
"""

from __future__ import annotations

from typing import Literal

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows
from encoder_zoo.tasks.losses.vectors import are_different, normalize_vectors


@keras.saving.register_keras_serializable(package="encoder_zoo")
class VectorDistillation(ConfigFromSignature, keras.losses.Loss):
    """Distance between the vectors of a student and the vectors of a teacher.

    Args:
        distance: String. "cosine" is 1 minus the cosine similarity, and "mse" is the mean squared
            error. Defaults to "cosine".
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor of shape (B, 1 + K, D) with a teacher vector for every text. If all texts in
            a row have the same vector, such as a sentence and its translations, the shape can be
            (B, D).
        y_pred: Tensor of shape (B, 1 + K, D), or (B, D) for a single text.

    Returns:
        Tensor of shape (B,) with the mean loss over the texts in each row.

    Raises:
        ValueError: If `y_true` or `y_pred` does not have the expected shape.

    Source: Reimers and Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual using
    Knowledge Distillation, section 2.

    Example:
        >>> import numpy as np
        >>> y_pred, y_true = np.array([[[2.0, 0.0], [0.0, 3.0]]]), np.array([[1.0, 0.0]])
        >>> [float(VectorDistillation(d)(y_true, y_pred)) for d in ("cosine", "mse")]
        [0.5, 2.75]
    """

    @validate_arguments
    def __init__(self, distance: Literal["cosine", "mse"] = "cosine", **kwargs):
        super().__init__(**{"name": "vector_distillation", **kwargs})
        self.distance = distance

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        y_pred, y_true = (x if len(x.shape) > 2 else x[:, None] for x in (y_pred, y_true))
        texts, wanted = y_pred.shape[1], y_true.shape[1]
        if y_true.shape[-1] != y_pred.shape[-1] or (wanted != 1 and are_different(wanted, texts)):
            raise ValueError(
                f"VectorDistillation: y_true has the shape {tuple(y_true.shape)}. Expected (B, D) "
                "or (B, 1 + K, D), with the same sizes as y_pred, which has the shape "
                f"{tuple(y_pred.shape)}."
            )
        if self.distance == "mse":
            return ops.mean(ops.square(y_pred - y_true), axis=(1, 2))
        cosines = ops.sum(normalize_vectors(y_pred) * normalize_vectors(y_true), axis=-1)
        return ops.mean(1 - cosines, axis=-1)
