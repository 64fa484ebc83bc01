"""Compute similarities and distances between the texts in a row, and check shapes.

Comments use these letters for shapes: B (batch size), K (other texts in a row), D (embedding
dimension).
"""

from __future__ import annotations

from typing import Literal

import keras
from keras import ops

LossSimilarity = Literal["cosine", "dot"]
Distance = Literal["cosine", "euclidean"]
MIN_SQUARE = 1e-12  # minimum squared length, which keeps the gradients of zero vectors finite


def normalize_vectors(x: keras.KerasTensor) -> keras.KerasTensor:
    """Normalize vectors (..., D) to unit length. Zero vectors do not change.

    Example:
        >>> vectors = ops.convert_to_tensor([[3.0, 4.0], [0.0, 0.0]])
        >>> normalize_vectors(vectors).numpy().round(3).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    return x * ops.rsqrt(ops.maximum(squares, MIN_SQUARE))


def normalize_for_similarity(x: keras.KerasTensor, similarity: LossSimilarity) -> keras.KerasTensor:
    """Normalize vectors (..., D) if `similarity` is "cosine"."""
    return normalize_vectors(x) if similarity == "cosine" else x


def compute_similarities(
    y_pred: keras.KerasTensor, similarity: LossSimilarity
) -> keras.KerasTensor:
    """Compute the similarity of the first text and each other text in a row, shape (B, K).

    Args:
        y_pred: Tensor of shape (B, 1 + K, D).
        similarity: String, "cosine" or "dot".

    Example:
        >>> y_pred = ops.convert_to_tensor([[[2.0, 0.0], [3.0, 4.0], [0.0, 1.0]]])
        >>> compute_similarities(y_pred, "dot").numpy().tolist()
        [[6.0, 0.0]]
    """
    x = normalize_for_similarity(y_pred, similarity)
    return ops.sum(x[:, :1] * x[:, 1:], axis=-1)


def compute_distances(y_pred: keras.KerasTensor, distance: Distance) -> keras.KerasTensor:
    """Compute the distance of the first text and each other text in a row, shape (B, K).

    Args:
        y_pred: Tensor of shape (B, 1 + K, D).
        distance: String, "cosine" (1 minus the cosine similarity) or "euclidean".

    Example:
        >>> y_pred = ops.convert_to_tensor([[[0.0, 2.0], [3.0, 6.0], [1.0, 0.0]]])
        >>> compute_distances(y_pred, "euclidean").numpy()[:, :1].tolist()
        [[5.0]]
        >>> compute_distances(y_pred, "cosine").numpy()[:, 1:].tolist()
        [[1.0]]
    """
    if distance == "cosine":
        return 1 - compute_similarities(y_pred, "cosine")
    squares = ops.sum(ops.square(y_pred[:, :1] - y_pred[:, 1:]), axis=-1)
    return ops.sqrt(ops.maximum(squares, MIN_SQUARE))


def check_rows(loss: keras.losses.Loss, y_pred, least: int, texts: str) -> None:
    """Check the shape of the outputs and the number of texts in a row.

    Args:
        loss: Loss. The error message contains its name.
        y_pred: Tensor. Model outputs.
        least: Integer. Minimum number of texts in a row.
        texts: String. Description of the texts for the error message.

    Raises:
        ValueError: If the shape of `y_pred` is not (B, 1 + K, D), or if a row has too few texts.
    """
    if len(y_pred.shape) != 3 or (y_pred.shape[1] or least) < least:
        raise ValueError(
            f"{type(loss).__name__}: y_pred has the shape {tuple(y_pred.shape)}. Expected "
            f"(B, 1 + K, D), with at least {least} texts per row: {texts}."
        )


def reshape_scores(loss: keras.losses.Loss, y_true, y_pred) -> keras.KerasTensor:
    """Reshape pair scores (B,) or (B, K) to (B, K).

    Raises:
        ValueError: If `y_true` does not contain one score per pair in `y_pred`.

    Example:
        >>> y_pred = ops.zeros((2, 2, 3))
        >>> reshape_scores(keras.losses.Loss(), ops.ones((2,)), y_pred).shape
        TensorShape([2, 1])
    """
    check_rows(loss, y_pred, 2, "two texts with a score")
    y_true = y_true if len(y_true.shape) > 1 else y_true[:, None]
    pairs = y_pred.shape[1] and y_pred.shape[1] - 1
    if len(y_true.shape) != 2 or are_different(y_true.shape[1], pairs):
        raise ValueError(
            f"{type(loss).__name__}: y_true has the shape {tuple(y_true.shape)}. Expected "
            f"(B, {pairs}), with a score for each of the {pairs} pairs in a row, or (B,) for a "
            "single pair."
        )
    return y_true


def are_different(a: int | None, b: int | None) -> bool:
    """Return whether two sizes are both known and different. An unknown size is None.

    Example:
        >>> are_different(2, 3), are_different(None, 3)
        (True, False)
    """
    return None not in (a, b) and a != b
