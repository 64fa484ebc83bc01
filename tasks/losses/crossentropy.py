"""Cross-entropy losses for labels that are indices or probabilities.

Comments use these letters for shapes: B (batch size), C (classes).
"""

from __future__ import annotations

import keras
from keras import losses, ops

from encoder_zoo.tasks.losses.batch_loss import has_indices
from encoder_zoo.tasks.losses.replicas import ignores_padding_rows


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ClassCrossentropy(losses.SparseCategoricalCrossentropy):
    """Compute the cross-entropy with class indices or class probabilities as labels.

    Call arguments:
        y_true: Integer tensor of shape (B,) with class indices, or float tensor of shape (B, C)
            with class probabilities.
        y_pred: Float tensor of shape (B, C). Outputs.

    Source: Szegedy et al. 2016, Rethinking the Inception Architecture, section 7, for
    probabilities as labels.

    Example:
        >>> import numpy as np
        >>> loss, logits = ClassCrossentropy(from_logits=True), np.float32([[0, 2]])
        >>> [round(float(loss(np.array(y), logits)), 3) for y in ([1], [[0.5, 0.5]])]
        [0.127, 1.127]
    """

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        if has_indices(y_true, y_pred):
            return super().call(y_true, y_pred)
        return losses.categorical_crossentropy(y_true, y_pred, from_logits=self.from_logits)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LabelCrossentropy(losses.BinaryCrossentropy):
    """Compute the binary cross-entropy for every label.

    The mean is equal to `keras.losses.BinaryCrossentropy`. In addition, each label of an example
    can have its own weight.

    Call arguments:
        y_true: Tensor of shape (B, C). Labels or probabilities between 0 and 1.
        y_pred: Float tensor of shape (B, C). Outputs.
        sample_weight: Optional float tensor of shape (B,) or (B, C). Weights.

    Example:
        >>> loss = LabelCrossentropy(from_logits=True)
        >>> round(float(loss([[1.0, 0.0]], [[0.0, 2.0]], sample_weight=[[1.0, 0.0]])), 3)
        0.347
    """

    @ignores_padding_rows
    def call(self, y_true, y_pred):
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        return ops.binary_crossentropy(y_true, y_pred, from_logits=self.from_logits)  # (B, C)
