"""Losses of vectors cut to several widths. Comment letters: B batch, K further texts, D width."""

from __future__ import annotations

from collections.abc import Sequence

import keras

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.losses.replicas import leaves_out_rows
from encoder_zoo.tasks.losses.vectors import unit_vectors


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Matryoshka(ConfigFromSignature, keras.losses.Loss):
    """Computes the weighted sum of a loss of vectors cut to each of several widths.

    A model that learns so can be used with `embed(..., dim=128)`. The cut vectors get unit length.

    Args:
        loss: any of `encoder_zoo.losses` that compares the texts of a batch with each other.
        dims: numbers that are kept, such as [384, 128, 64]; put the model's own width first.
        weights: of the losses, one for each width; None is 1 for all.
        **kwargs: of `keras.losses.Loss`.

    Call arguments:
        y_true: as for the loss.
        y_pred: (B, 1 + K, D), D at least the largest of `dims`.

    Returns:
        (B,), of `call`.

    Raises:
        ValueError: If `dims` is empty, is not of positive integers or exceeds the width of the
            vectors, or `weights` has another length.

    Source: Kusupati et al. 2022, Matryoshka Representation Learning, equation 1.

    Example:
        >>> import numpy as np
        >>> from encoder_zoo.tasks.losses import CosineSimilarity
        >>> y_pred = np.array([[[3.0, 4.0], [3.0, 0.0]]])
        >>> loss = Matryoshka(CosineSimilarity(), dims=[2, 1], weights=[1.0, 0.5])
        >>> round(float(loss(np.array([0.0]), y_pred)), 2)  # 0.6 ** 2 + 0.5 * 1 ** 2
        0.86
    """

    def __init__(
        self,
        loss: keras.losses.Loss,
        dims: Sequence[int],
        weights: Sequence[float] | None = None,
        **kwargs,
    ):
        super().__init__(**{"name": "matryoshka", **kwargs})
        if not isinstance(loss, keras.losses.Loss):
            raise invalid("loss", loss, "one of `encoder_zoo.losses`")
        if not dims or any(not isinstance(dim, int) or dim < 1 for dim in dims):
            raise invalid("dims", dims, "one or more integers above 0")
        if weights is not None and len(weights) != len(dims):
            raise invalid(
                "The number of weights", len(weights), f"{len(dims)}, one for each of dims"
            )
        self.loss = loss
        self.dims = list(dims)
        self.weights = weights if weights is None else list(weights)

    @leaves_out_rows
    def call(self, y_true, y_pred):
        width = y_pred.shape[-1]
        if max(self.dims) > width:
            raise invalid(
                "The largest of dims", max(self.dims), f"at most {width}, the width of the vectors"
            )
        weights = self.weights or [1.0] * len(self.dims)
        return sum(
            weight * self.loss.call(y_true, unit_vectors(y_pred[..., :dim]))
            for dim, weight in zip(self.dims, weights, strict=True)
        )
