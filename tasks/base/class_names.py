"""Names of classes in arguments and in config.json; probabilities from logits."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.lazy import tf
from encoder_zoo.presets.formats.checkpoint import default_labels
from encoder_zoo.tasks.preprocessing.given_labels import class_name


def labels_from_config(config: dict) -> list[str]:
    """Return the class names of config.json, LABEL_0, LABEL_1, ... if it has none.

    Example:
        >>> labels_from_config({"id2label": {"1": "up", "0": "down"}}), labels_from_config({})
        (['down', 'up'], ['LABEL_0', 'LABEL_1'])
    """
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    return [names[key] for key in sorted(names, key=int)]


def are_default_labels(names: list[str]) -> bool:
    """Return whether the names are LABEL_0, LABEL_1, ..."""
    return names == default_labels(len(names))


def rows_of(labels: Sequence[str], names: Sequence[str]) -> list[int | None]:
    """Return for each label the index of the name that it is, None if there is no such name.

    Names that differ only in capitals and blanks are the same, unless there are two of them.

    Example:
        >>> rows_of(["positive", "mixed", "negative"], ["NEGATIVE", "POSITIVE"])
        [1, None, 0]
    """
    plain = [name.strip().casefold() for name in names]
    asked = [label.strip().casefold() for label in labels]

    def row(label: str, key: str) -> int | None:
        if label in names:
            return names.index(label)
        return plain.index(key) if plain.count(key) == 1 == asked.count(key) else None

    return [row(label, key) for label, key in zip(labels, asked, strict=True)]


def any_shared(labels: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether some label is among the names, see `rows_of`."""
    return any(row is not None for row in rows_of(labels, names))


def validated_labels(labels: Sequence[str | int] | None) -> list[str] | None:
    """Return the class names as strings, or raise an error; None for None.

    Raises:
        ValueError: "labels is 'ab' (str). Expected a list of names ...", "labels[0] is 1.5 (float).
            Expected a name ...", "The names in labels must differ. ..."

    Example:
        >>> validated_labels([1, 2, 3])
        ['1', '2', '3']
    """
    if labels is None:
        return None
    if isinstance(labels, str | bytes | dict | set | frozenset):
        raise ValueError(
            f"labels is {labels!r} ({type(labels).__name__}). Expected a list of names in the "
            'order of the classes, such as ["negative", "positive"].'
        )
    labels = list(labels)
    for i, label in enumerate(labels):
        if isinstance(label, bool) or not isinstance(label, str | int | np.integer):
            raise ValueError(
                f"labels[{i}] is {label!r} ({type(label).__name__}). Expected a name, a string, "
                "or an integer as one."
            )
    names = [str(label) for label in labels]
    for i, name in enumerate(names):
        check_writable(name, f"labels[{i}]")
    if len(set(names)) != len(names):
        raise ValueError(f"The names in labels must differ. Received: {labels}.")
    return names


def numbers_are_names(labels: list[str] | None) -> bool:
    """Return whether integers given as labels are class names, as one of the names is a
    number.

    Of classes called "1" to "5" a label 1 is the first, not the second, and 0 is none at all.

    Example:
        >>> numbers_are_names(["1", "2", "3"]), numbers_are_names(["1 star", "2 stars"])
        (True, False)
    """
    return any(re.fullmatch(r"-?\d+", label) for label in labels or [])


def label_indices(given: tf.Tensor | Sequence, labels: Sequence[str] | None) -> tf.Tensor:
    """Return the class index of every label, in memory or inside of a graph.

    Args:
        given: (P,) names or numbers, a tensor or Python values.
        labels: the classes' names, if there are any.

    Returns:
        (P,) int32: of a name its index, of a number the number itself, unless numbers are names;
        -1 for anything else.

    Example:
        >>> label_indices(["up", 0, None, "left"], ["down", "up"]).numpy().tolist()
        [1, 0, -1, -1]
    """
    as_names = numbers_are_names(labels)
    if tf.is_tensor(given):
        given = (
            tf.strings.as_string(given)
            if as_names and tf.as_dtype(given.dtype).is_integer
            else given
        )
        if given.dtype != tf.string:
            return tf.cast(given, tf.int32)
        matches = tf.equal(given[:, None], tf.constant(list(labels or [""]), tf.string))  # (P, C)
        return tf.where(tf.reduce_any(matches, 1), tf.argmax(matches, 1, tf.int32), -1)
    known = {name: i for i, name in enumerate(labels or [])}

    def index(label) -> int:
        named = as_names or isinstance(label, str | bytes)
        if named or class_name(label) in known:  # such as True, where it is a name
            return known.get(class_name(label), -1)
        if isinstance(label, float | np.floating) and float(label).is_integer():
            label = int(label)
        return label if isinstance(label, int | np.integer) and 0 <= label < 2**31 else -1

    return tf.constant([index(label) for label in given], tf.int32)


def resolve_num_classes(num_classes: int | None, labels: list[str] | None) -> int | None:
    """Return the number of classes that the arguments give, None if there is none.

    Raises:
        ValueError: "num_classes and labels disagree. Received: num_classes=3, 2 labels."
    """
    if None not in (num_classes, labels) and num_classes != len(labels):
        raise ValueError(
            f"num_classes and labels disagree. Received: num_classes={num_classes}, "
            f"{len(labels)} labels."
        )
    return len(labels) if labels is not None else num_classes


def count_and_names(classes: Sequence[str] | int) -> tuple[int, Sequence[str] | None]:
    """Return the number of classes and, if they are given by name, their names."""
    return (classes, None) if isinstance(classes, int) else (len(classes), classes)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities over the last axis.

    Example:
        >>> softmax(np.float32([[0.0, np.log(3)]])).round(2).tolist()
        [[0.25, 0.75]]
    """
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probability of each logit."""
    return np.exp(-np.logaddexp(0, -logits))
