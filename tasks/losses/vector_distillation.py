"""Loss of a small model that learns the vectors of a large one."""

from __future__ import annotations

import keras
from keras import ops

from encoder_zoo.common.configuration import ConfigFromSignature


@keras.saving.register_keras_serializable(package="encoder_zoo")
class VectorDistillation(ConfigFromSignature, keras.losses.Loss):
    """Compute 1 minus the cosine of each vector and the teacher's.

    Of vectors of unit length that is half of their squared distance.

    Call arguments:
        y_true: (B, D), or with candidates (B, 1 + K, D), the teacher's vectors.
        y_pred: the same shape.

    Returns:
        (B,), of several texts the mean.

    Source: Reimers and Gurevych 2020, Making Monolingual Sentence Embeddings Multilingual using
    Knowledge Distillation, section 2, with cosine in place of squared distance.

    Example:
        >>> import numpy as np
        >>> teacher, student = np.array([[3.0, 4.0]]), np.array([[4.0, 3.0]])
        >>> round(float(VectorDistillation()(teacher, student)), 2)
        0.04
    """

    def __init__(self, name: str = "vector_distillation", **kwargs):
        super().__init__(name=name, **kwargs)

    def call(self, y_true, y_pred):
        y_true, y_pred = (ops.normalize(ops.cast(y, "float32"), -1) for y in (y_true, y_pred))
        apart = 1 - ops.sum(y_true * y_pred, axis=-1)  # (B,) or (B, 1 + K)
        return apart if len(apart.shape) == 1 else ops.mean(apart, axis=-1)
