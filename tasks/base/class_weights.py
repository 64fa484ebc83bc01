"""Weights of classes: rare ones may count for more.

Comment letters: C classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.base.class_names import numbers_are_names


def class_weights(
    given: Mapping | str, labels: list[str] | None, num_classes: int, data: tf.data.Dataset
) -> np.ndarray:
    """Return the weight of every class, (C,) float32.

    Args:
        given: {name or number of a class: weight}, where all others have 1; or "balanced", the
            inverse frequency of a class, with a mean of 1 over the examples.
        labels: the classes' names, if there are.
        num_classes: C.
        data: one pass over the training data, batches `(x, y)` or `(x, y, sample_weight)`, to
            count the classes in; weights of 0 do not count.

    Raises:
        ValueError: "class_weight names the unknown class 'upp'. Expected some of ['down', 'up'].",
            "class_weight gives 'up' the weight -1. Expected a number of 0 or more."

    Source: King and Zeng 2001, Logistic Regression in Rare Events Data, section 4, for "balanced".

    Example:
        >>> data = tf.data.Dataset.from_tensors((0, [0, 0, 0, 1]))
        >>> class_weights({"up": 3}, ["down", "up"], 2, data).tolist()
        [1.0, 3.0]
        >>> class_weights("balanced", None, 2, data)[1].item()
        2.0
    """
    if isinstance(given, str) and given == "balanced":
        counts = sum(_counts(batch, num_classes) for batch in data)
        present = np.maximum(counts, 1e-9)
        weights = np.sum(counts) / (np.count_nonzero(counts) * present)
        return np.where(counts > 0, weights, 1.0).astype("float32")
    if not isinstance(given, Mapping):
        raise ValueError(
            f"class_weight is {given!r}. Expected {{class: weight}}, by name or number, or "
            "'balanced'."
        )
    weights = np.ones(num_classes, "float32")
    for key, weight in given.items():
        weights[_number(key, labels, num_classes)] = weight
        if not (np.isfinite(weight) and weight >= 0):
            raise ValueError(
                f"class_weight gives {key!r} the weight {weight}. Expected a number of 0 or more."
            )
    return weights


def _number(key, labels: list[str] | None, num_classes: int) -> int:
    """Return the number of a class that is given by name or number."""
    name = str(key) if numbers_are_names(labels) else key
    if labels and name in labels:
        return labels.index(name)
    is_number = isinstance(key, int | np.integer) and not isinstance(key, bool)
    if is_number and not numbers_are_names(labels) and 0 <= key < num_classes:
        return int(key)
    raise ValueError(
        f"class_weight names the unknown class {key!r}. "
        f"Expected some of {labels or list(range(num_classes))}."
    )


def _counts(batch: tuple, num_classes: int) -> np.ndarray:
    """Return the number of examples of each class in a batch, (C,)."""
    _, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    y = np.asarray(y)
    y = np.eye(num_classes)[y] if y.dtype.kind in "iu" else y  # (..., C)
    counts = np.ones(y.shape[:-1]) if weights is None else np.asarray(weights) > 0
    return np.sum(y * counts[..., None], axis=tuple(range(y.ndim - 1)))


def weighted(x, y, sample_weight=None, *, weights: np.ndarray):
    """Return an example, or a batch, with the sample weight multiplied by that of its class.

    Args:
        x: inputs.
        y: class indices, or probabilities (..., C).
        sample_weight: None, or its weight before.
        weights: (C,), see `class_weights`.

    Example:
        >>> _, _, found = weighted(None, tf.constant([1, 0]), weights=np.float32([1, 3]))
        >>> found.numpy().tolist()
        [3.0, 1.0]
    """
    y = tf.convert_to_tensor(y)
    of_class = (
        tf.linalg.matvec(y, weights) if tf.as_dtype(y.dtype).is_floating else tf.gather(weights, y)
    )
    if sample_weight is not None:
        of_class *= tf.cast(sample_weight, tf.float32)
    return x, y, of_class


def label_weights(
    given: Mapping | str, labels: list[str] | None, num_classes: int, data: tf.data.Dataset
) -> np.ndarray:
    """Return the weights of every label where it is absent and where it is given, (2, C) float32.

    Args:
        given: {name or number of a label: weight where it is given}; or "balanced", for each label
            the inverse frequencies of the two cases, with a mean of 1 over the examples.
        labels, num_classes, data: as for `class_weights`; the labels are rows (B, C).

    Raises:
        ValueError: as of `class_weights`.

    Example:
        >>> y = [[1, 0], [0, 0], [0, 0], [0, 1.0]]
        >>> data = tf.data.Dataset.from_tensors((0, y))
        >>> [round(weight.item(), 3) for weight in label_weights("balanced", None, 2, data)[:, 0]]
        [0.667, 2.0]
        >>> label_weights({"rare": 5}, ["common", "rare"], 2, data).tolist()
        [[1.0, 1.0], [1.0, 5.0]]
    """
    if not (isinstance(given, str) and given == "balanced"):
        weights = class_weights(given, labels, num_classes, data)
        return np.stack([np.ones_like(weights), weights])
    total, present = 0.0, np.zeros(num_classes)
    for _, y, sample_weight in map(keras.utils.unpack_x_y_sample_weight, data):
        counted = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight) > 0
        total, present = total + np.sum(counted), present + counted @ np.asarray(y)
    counts = np.stack([total - present, present])
    # A label that all or none of the examples have weighs 1.
    weights = total / (2 * np.maximum(counts, 1e-9))
    return np.where((counts > 0).all(axis=0), weights, 1.0).astype("float32")


def weighted_labels(x, y, sample_weight=None, *, weights: np.ndarray):
    """Return a batch with a weight for every label, (B, C), times that of the example.

    Args:
        x: inputs.
        y: (B, C), 0, 1 or a probability.
        sample_weight: None, or (B,).
        weights: (2, C), see `label_weights`.

    Example:
        >>> _, _, found = weighted_labels(None, tf.constant([[1.0, 0.0]]),
        ...                               weights=np.float32([[1, 1], [3, 5]]))
        >>> found.numpy().tolist()
        [[3.0, 1.0]]
    """
    given = tf.cast(y, tf.float32)
    of_labels = (1 - given) * weights[0] + given * weights[1]
    if sample_weight is not None:
        of_labels *= tf.cast(sample_weight, tf.float32)[:, None]
    return x, y, of_labels
