"""Loss that trains embeddings which can be truncated.

Comments use these letters for shapes: B (batch size), K (other texts in a row), D (embedding
dimension).
"""

from __future__ import annotations

from collections.abc import Sequence

import keras

from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.wording import invalid
from encoder_zoo.tasks.losses.replicas import compute_loss_values, ignores_padding_rows
from encoder_zoo.tasks.losses.vectors import normalize_vectors


@keras.saving.register_keras_serializable(package="encoder_zoo")
class Matryoshka(ConfigFromSignature, keras.losses.Loss):
    """Weighted sum of a loss over embeddings truncated to several widths.

    The embeddings of a model trained with this loss can be truncated with `embed(..., dim=128)`.
    Truncated embeddings are normalized.

    Args:
        loss: A loss from `encoder_zoo.losses` that compares the texts in a batch.
        dims: List of integers. Widths to truncate the embeddings to, for example [384, 128, 64].
            The first width should be the model width.
        weights: Optional list of floats. Weight of the loss for each width. If None, all weights
            are 1.
        **kwargs: Keyword arguments for `keras.losses.Loss`.

    Call arguments:
        y_true: Tensor. Targets of `loss`.
        y_pred: Tensor of shape (B, 1 + K, D). D must be at least the largest width in `dims`.

    Returns:
        Tensor of shape (B,).

    Raises:
        ValueError: If `dims` is empty, if a value in `dims` is not a positive integer or exceeds
            the width of the vectors, or if `weights` and `dims` differ in length.

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
            raise invalid("loss", loss, "a loss from `encoder_zoo.losses`")
        if not dims or any(not isinstance(dim, int) or dim < 1 for dim in dims):
            raise invalid("dims", dims, "one or more positive integers")
        if weights is not None and len(weights) != len(dims):
            raise ValueError(
                f"The length of `weights` is {len(weights)}. Expected {len(dims)}, one weight for "
                "each value in `dims`."
            )
        self.loss = loss
        self.dims = list(dims)
        self.weights = weights if weights is None else list(weights)

    @ignores_padding_rows
    def call(self, y_true, y_pred, rows=None):
        width = y_pred.shape[-1]
        if max(self.dims) > width:
            raise ValueError(
                f"The largest value in `dims` is {max(self.dims)}, but the vectors only have "
                f"{width} dimensions. Expected at most {width}."
            )
        weights = self.weights or [1.0] * len(self.dims)
        return sum(
            weight
            * compute_loss_values(self.loss, y_true, normalize_vectors(y_pred[..., :dim]), rows)
            for dim, weight in zip(self.dims, weights, strict=True)
        )
