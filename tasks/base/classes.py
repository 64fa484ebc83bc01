"""Validate class names, compute class weights, and convert logits to probabilities."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.lazy import keras, tf, xp
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.formats.checkpoint import make_default_labels
from encoder_zoo.tasks.preprocessing.given_labels import get_class_name

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import Source
    from encoder_zoo.tasks.training.objective import Objective


def read_labels(config: dict) -> list[str]:
    """Return the class names in config.json. Without names, return LABEL_0 and LABEL_1.

    Example:
        >>> read_labels({"id2label": {"1": "up", "0": "down"}}), read_labels({})
        (['down', 'up'], ['LABEL_0', 'LABEL_1'])
    """
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    return [names[key] for key in sorted(names, key=int)]


def has_default_labels(names: list[str]) -> bool:
    """Return whether the names are LABEL_0, LABEL_1, ..."""
    return names == make_default_labels(len(names))


def find_label_rows(labels: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """Find the index of each label in `names`. The index of a missing label is None.

    A label that is not in `names` is compared again without case and surrounding whitespace. Such a
    match must be unique.

    Example:
        >>> find_label_rows(["positive", "mixed", "negative"], ["NEGATIVE", "POSITIVE"])
        [1, None, 0]
    """
    exact = {name: i for i, name in reversed([*enumerate(names)])}
    plain = [name.strip().casefold() for name in names]
    asked = [label.strip().casefold() for label in labels]
    of_plain, of_asked = collections.Counter(plain), collections.Counter(asked)
    unique = {key: i for i, key in enumerate(plain) if of_plain[key] == 1 == of_asked[key]}
    return [exact.get(label, unique.get(key)) for label, key in zip(labels, asked, strict=True)]


def has_shared_labels(labels: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether at least one of the labels is in `names`, compared as in `find_label_rows`."""
    return any(row is not None for row in find_label_rows(labels, names))


def validate_labels(labels: Sequence[str | int] | None) -> list[str] | None:
    """Check class names, and convert them to strings. If `labels` is None, return None.

    Raises:
        ValueError: If `labels` is a string, bytes, dict or set, if a label is not a string or an
            integer, or if two labels are equal.

    Example:
        >>> validate_labels([1, 2, 3])
        ['1', '2', '3']
    """
    if labels is None:
        return None
    if isinstance(labels, str | bytes | dict | set | frozenset):
        raise invalid(
            "labels",
            labels,
            'a list of names in the order of the classes, such as ["negative", "positive"]',
        )
    labels = list(labels)
    for i, label in enumerate(labels):
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise invalid(f"labels[{i}]", label, "a string or an integer")
    names = [get_class_name(label) for label in labels]
    for i, name in enumerate(names):
        check_encodable(name, f"labels[{i}]")
    if len(set(names)) != len(names):
        [(twice, _)] = collections.Counter(names).most_common(1)
        raise ValueError(f"`labels` contains {quote(twice)} twice. Expected unique names.")
    return names


def has_integer_names(labels: list[str] | None) -> bool:
    """Return whether integer labels are class names instead of class indices.

    Integers are class names if at least one class name is an integer. For example, if the classes
    are "1" to "5", the label 1 is the first class, and the label 0 is invalid.

    Example:
        >>> has_integer_names(["1", "2", "3"]), has_integer_names(["1 star", "2 stars"])
        (True, False)
    """
    return any(re.fullmatch(r"-?\d+", label) for label in labels or [])


def find_boolean_indices(labels: Sequence[str] | None) -> tuple[int, int] | None:
    """Return the indices of the classes "False" and "True", or None if there are no such classes.

    A name with another case, such as "true", is used if there is no name with this case. If one of
    the classes is missing, its index is -1. The result is also None if only one of the classes
    exists and has its usual index: without names, False and True are the class indices 0 and 1.

    Example:
        >>> find_boolean_indices(["True", "False"]), find_boolean_indices(["true", "unsure"])
        ((1, 0), (-1, 0))
        >>> find_boolean_indices(["down", "up"]), find_boolean_indices(["fake", "true"])
        (None, None)
    """
    found = tuple(_find_name(name, labels or []) for name in ("False", "True"))
    return None if found in [(-1, -1), (0, -1), (-1, 1)] else found


def _find_name(name: str, labels: Sequence[str]) -> int:
    """Return the index of a name, or of a name that only differs in case, or -1."""
    same = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    return next((i for i in same if labels[i] == name), same[0] if same else -1)


def find_label_indices(given: xp.Tensor | Sequence, labels: Sequence[str] | None) -> xp.Tensor:
    """Convert labels to class indices, in memory or inside a TensorFlow graph.

    Args:
        given: Tensor or sequence with P labels.
        labels: Optional list of strings. Class names.

    Returns:
        Int32 tensor of shape (P,). A name is converted to its index in `labels`, or to -1 if it is
        unknown. Integers are converted like names if integers are class names (see
        `has_integer_names`). Otherwise, numeric tensors are cast to int32. In a sequence, integers
        and floats such as 2.0 are converted to integers from 0 to 2**31 - 1, and all other values
        are converted to -1. For booleans, see `find_boolean_indices`.

    Example:
        >>> find_label_indices(["up", 0, None, "left"], ["down", "up"]).numpy().tolist()
        [1, 0, -1, -1]
    """
    as_names, booleans = has_integer_names(labels), find_boolean_indices(labels)
    if xp.is_tensor(given):
        if booleans and xp.as_dtype(given.dtype).is_bool:
            of_false, of_true = (xp.constant(i, xp.int32) for i in booleans)
            return xp.where(given, of_true, of_false)
        given = (
            xp.strings.as_string(given)
            if as_names and xp.as_dtype(given.dtype).is_integer
            else given
        )
        if given.dtype != xp.string:
            return xp.cast(given, xp.int32)
        matches = xp.equal(given[:, None], xp.constant(list(labels or [""]), xp.string))  # (P, C)
        return xp.where(xp.reduce_any(matches, 1), xp.argmax(matches, 1, xp.int32), -1)
    known = {name: i for i, name in enumerate(labels or [])}

    def index(label) -> int:
        if booleans and isinstance(label, bool | np.bool_):
            return booleans[int(label)]
        if as_names or isinstance(label, str | bytes) or get_class_name(label) in known:
            return known.get(get_class_name(label), -1)
        if isinstance(label, float | np.floating) and float(label).is_integer():
            label = int(label)
        return label if isinstance(label, int | np.integer) and 0 <= label < 2**31 else -1

    return xp.constant([index(label) for label in given], xp.int32)


def resolve_num_classes(num_classes: int | None, labels: list[str] | None) -> int | None:
    """Return the number of classes, or None if neither `num_classes` nor `labels` is given.

    Raises:
        ValueError: If `num_classes` does not match the labels.
    """
    if None not in (num_classes, labels) and num_classes != len(labels):
        raise invalid("num_classes", num_classes, f"{len(labels)}, the number of `labels`")
    return len(labels) if labels is not None else num_classes


def get_count_and_names(classes: Sequence[str] | int) -> tuple[int, Sequence[str] | None]:
    """Return the number of classes and the class names. For an integer, the names are None."""
    return (classes, None) if isinstance(classes, int) else (len(classes), classes)


def compute_softmax(logits: np.ndarray) -> np.ndarray:
    """Compute the softmax over the last axis.

    Example:
        >>> compute_softmax(np.float32([[0.0, np.log(3)]])).round(2).tolist()
        [[0.25, 0.75]]
    """
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def compute_sigmoid(logits: np.ndarray) -> np.ndarray:
    """Compute the sigmoid of each logit."""
    return np.exp(-np.logaddexp(0, -logits))


def compute_class_weights(
    given: Mapping | str,
    labels: list[str] | None,
    num_classes: int,
    read: Callable[[], tf.data.Dataset],
) -> np.ndarray:
    """Convert the argument `class_weight` to one weight per class.

    Args:
        given: Dict mapping class names or indices to weights, or "balanced". Classes that are
            missing in the dict have the weight 1. With "balanced", the weights are the inverse
            class frequencies, scaled to a mean of 1 over the examples.
        labels: Optional list of strings. Class names.
        num_classes: Positive integer. Number of classes C.
        read: Function that returns a dataset of training batches `(x, y)` or
            `(x, y, sample_weight)`. With "balanced", it is called once to count the classes.
            Examples with weight 0 are not counted.

    Returns:
        Float32 array of shape (C,).

    Raises:
        ValueError: If `given` is neither "balanced" nor a dict, if a class is unknown or given
            twice, or if a weight is negative or not finite.

    Source: King and Zeng 2001, Logistic Regression in Rare Events Data, section 4, for "balanced".

    Example:
        >>> data = tf.data.Dataset.from_tensors((0, [0, 0, 0, 1]))
        >>> compute_class_weights({"up": 3}, ["down", "up"], 2, lambda: data).tolist()
        [1.0, 3.0]
        >>> compute_class_weights("balanced", None, 2, lambda: data)[1].item()
        2.0
    """
    if isinstance(given, str) and given == "balanced":
        counts = sum(_count_classes(batch, num_classes) for batch in read())
        present = np.maximum(counts, 1e-9)
        weights = np.sum(counts) / (np.count_nonzero(counts) * present)
        return np.where(counts > 0, weights, 1.0).astype("float32")
    if not isinstance(given, Mapping):
        raise invalid(
            "class_weight", given, "a dict mapping class names or indices to weights, or 'balanced'"
        )
    weights, keys = np.ones(num_classes, "float32"), {}
    for key, weight in given.items():
        index = _find_class(key, labels, num_classes)
        if index in keys:
            raise ValueError(
                f"`class_weight` has the keys {quote(keys[index])} and {quote(key)}, which are the "
                "same class. Expected one weight per class."
            )
        weights[index], keys[index] = weight, key
        if not (np.isfinite(weight) and weight >= 0):
            raise invalid(f"class_weight[{key!r}]", weight, "a finite, non-negative number")
    return weights


def add_weights_per_class(
    objective: Objective, data: Source, class_weight: Mapping | str, loss: object
) -> Source:
    """Multiply the sample weights in the data by class weights.

    See `Objective.add_class_weights`.
    """
    classes = objective.labels, objective.num_classes
    return data.change_weights(
        apply_class_weights, compute_class_weights(class_weight, *classes, data.read_one_pass)
    )


def _find_class(key, labels: list[str] | None, num_classes: int) -> int:
    """Convert a key of `class_weight`, which is a class name or an index, to a class index."""
    name = str(key) if has_integer_names(labels) else key
    if labels and name in labels:
        return labels.index(name)
    named = _find_name(str(key), labels or []) if isinstance(key, bool | np.bool_) else -1
    if named >= 0:
        return named
    is_number = isinstance(key, int | np.integer) and not isinstance(key, bool)
    if is_number and not has_integer_names(labels) and 0 <= key < num_classes:
        return int(key)
    classes = labels or list(range(num_classes))
    raise invalid("A key of `class_weight`", key, f"one of {classes}")


def _count_classes(batch: tuple, num_classes: int) -> np.ndarray:
    """Count the labels of each class in a batch, shape (C,). Weights of 0 exclude labels."""
    _, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    y = np.asarray(y)
    y = np.eye(num_classes)[y] if y.dtype.kind in "iu" else y  # (..., C)
    counts = np.ones(y.shape[:-1]) if weights is None else np.asarray(weights) > 0
    return np.sum(y * counts[..., None], axis=tuple(range(y.ndim - 1)))


def apply_class_weights(x, y, sample_weight=None, *, weights: np.ndarray):
    """Multiply the sample weights of an example or a batch by the class weights.

    Args:
        x: Inputs. They are returned unchanged.
        y: Integer tensor with class indices, or float tensor of shape (..., C) with probabilities.
        sample_weight: Optional tensor. Sample weights before the multiplication.
        weights: Float array of shape (C,). See `compute_class_weights`.

    Example:
        >>> y, weights = xp.constant([1, 0]), np.float32([1, 3])
        >>> _, _, found = apply_class_weights(None, y, weights=weights)
        >>> found.numpy().tolist()
        [3.0, 1.0]
    """
    y = xp.convert_to_tensor(y)
    of_class = (
        xp.linalg.matvec(y, weights) if xp.as_dtype(y.dtype).is_floating else xp.gather(weights, y)
    )
    if sample_weight is not None:
        of_class *= xp.cast(sample_weight, xp.float32)
    return x, y, of_class


def compute_label_weights(
    given: Mapping | str,
    labels: list[str] | None,
    num_classes: int,
    read: Callable[[], tf.data.Dataset],
) -> np.ndarray:
    """Convert the argument `class_weight` of a multi-label task to two weights per label.

    Args:
        given: Dict mapping label names or indices to weights, or "balanced". A weight in the dict
            is used for examples that have the label. With "balanced", both weights of a label are
            inverse frequencies, scaled to a mean of 1 over the examples.
        labels, num_classes, read: See `compute_class_weights`. In the batches, `y` has shape
            (B, C).

    Returns:
        Float32 array of shape (2, C). Row 0 is for examples without the label, row 1 for examples
        with the label.

    Raises:
        ValueError: If `given` is invalid. See `compute_class_weights`.

    Example:
        >>> y = [[1, 0], [0, 0], [0, 0], [0, 1.0]]
        >>> data = tf.data.Dataset.from_tensors((0, y))
        >>> weights = compute_label_weights("balanced", None, 2, lambda: data)
        >>> [round(weight.item(), 3) for weight in weights[:, 0]]
        [0.667, 2.0]
        >>> compute_label_weights({"rare": 5}, ["common", "rare"], 2, lambda: data).tolist()
        [[1.0, 1.0], [1.0, 5.0]]
    """
    if not (isinstance(given, str) and given == "balanced"):
        weights = compute_class_weights(given, labels, num_classes, read)
        return np.stack([np.ones_like(weights), weights])
    total, present = 0.0, np.zeros(num_classes)
    for _, y, sample_weight in map(keras.utils.unpack_x_y_sample_weight, read()):
        counted = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight) > 0
        total, present = total + np.sum(counted), present + counted @ np.asarray(y)
    counts = np.stack([total - present, present])
    # If a label is present in all examples or in none, its weight is 1.
    weights = total / (2 * np.maximum(counts, 1e-9))
    return np.where((counts > 0).all(axis=0), weights, 1.0).astype("float32")


def apply_label_weights(x, y, sample_weight=None, *, weights: np.ndarray):
    """Compute sample weights of shape (B, C) from label weights and the sample weights of a batch.

    Args:
        x: Inputs. They are returned unchanged.
        y: Tensor of shape (B, C). Labels, from 0 to 1.
        sample_weight: Optional tensor of shape (B,).
        weights: Float array of shape (2, C). See `compute_label_weights`.

    Example:
        >>> _, _, found = apply_label_weights(None, xp.constant([[1.0, 0.0]]),
        ...                               weights=np.float32([[1, 1], [3, 5]]))
        >>> found.numpy().tolist()
        [[3.0, 1.0]]
    """
    given = xp.cast(y, xp.float32)
    of_labels = (1 - given) * weights[0] + given * weights[1]
    if sample_weight is not None:
        of_labels *= xp.cast(sample_weight, xp.float32)[:, None]
    return x, y, of_labels
