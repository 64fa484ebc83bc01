"""Loss of a student that learns a teacher's vectors.

Comment letters: B batch, K further texts of a row, D width.
"""

from __future__ import annotations

from typing import Literal

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.losses.vectors import differ, unit_vectors


@keras.saving.register_keras_serializable(package="encoder_zoo")
class VectorDistillation(ConfigFromSignature, keras.losses.Loss):
    """Computes how far the student's vectors are from the teacher's.

    Args:
        distance: "cosine", 1 less the cosine, or "mse", the mean squared difference.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: the teacher's vectors, (B, 1 + K, D) of every text; or (B, D), which all texts of a
            row should have, such as a sentence and its translations.
        y_pred: (B, 1 + K, D), or (B, D) of one text.

    Returns:
        (B,), of `call`, the means over the texts of a row.

    Raises:
        ValueError: If `y_true` or `y_pred` has another shape.

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

    @leaves_out_rows
    def call(self, y_true, y_pred):
        y_pred, y_true = (x if len(x.shape) > 2 else x[:, None] for x in (y_pred, y_true))
        texts, wanted = y_pred.shape[1], y_true.shape[1]
        if y_true.shape[-1] != y_pred.shape[-1] or (wanted != 1 and differ(wanted, texts)):
            raise invalid(
                "VectorDistillation: y_true's shape",
                tuple(y_true.shape),
                f"(B, D) or (B, 1 + K, D), vectors as wide as y_pred's, {tuple(y_pred.shape)}",
            )
        if self.distance == "mse":
            return ops.mean(ops.square(y_pred - y_true), axis=(1, 2))
        cosines = ops.sum(unit_vectors(y_pred) * unit_vectors(y_true), axis=-1)
        return ops.mean(1 - cosines, axis=-1)
