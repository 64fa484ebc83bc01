"""What the tasks with classes share: their labels, given, learned, or from a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from encoder_zoo.encoders.family import Head
from encoder_zoo.tasks.task import Task

# Classes in transformers whose heads have the same names, and perhaps the same shape.
CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")


class LabelledTask(Task):
    """Base of the tasks whose head has one output for every class.

    A subclass sets `labels` (their names, or None) and `num_classes`.
    """

    labels: list[str] | None
    num_classes: int | None

    @classmethod
    def checkpoint_arguments(cls, config: dict, head: Head, arguments: dict) -> dict:
        """What config.json says of the classes, where the caller says nothing."""
        stored = {}
        if cls._is_head_of(config):
            stored |= super().checkpoint_arguments(config, head, {})
            if cls._asks_for_classes_of(config, arguments):
                names = label_names(config)
                stored["labels"] = None if are_generic(names) else names
                stored["num_classes"] = len(names)
        return {**stored, **arguments}

    @classmethod
    def _asks_for_classes_of(cls, config: dict, arguments: dict) -> bool:
        """Whether the caller's classes, if any are named, are those of the checkpoint."""
        names = label_names(config)
        labels = arguments.get("labels")
        if labels is None:
            return arguments.get("num_classes") in (None, len(names))
        labels = named_labels(labels)
        return labels == names or (are_generic(names) and len(labels) == len(names))

    @classmethod
    def _is_head_of(cls, config: dict) -> bool:
        """Whether config.json describes a checkpoint of this task."""
        architectures = config.get("architectures") or []
        if not architectures:
            return "id2label" in config
        return architectures[0].endswith(cls.checkpoint_class_suffix)

    def head_misfit(self, config: dict, arguments: dict) -> str | None:
        """A head of another task, or with classes in another order, is not taken over."""
        if not self._is_head_of(config):
            made_for = (config.get("architectures") or [""])[0]
            return f"the checkpoint's is of {made_for}" if made_for.endswith(CLASSIFIERS) else None
        names = label_names(config)
        if self.labels and not are_generic(names) and names != self.labels:
            return f"its labels are {names}, not {self.labels}"
        return None


def label_names(config: dict) -> list[str]:
    """The classes' names in config.json, which leaves them out where they are LABEL_0, LABEL_1.

    Example:
        >>> label_names({"id2label": {"1": "up", "0": "down"}}), label_names({})
        (['down', 'up'], ['LABEL_0', 'LABEL_1'])
    """
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    return [names[key] for key in sorted(names, key=int)]


def are_generic(names: list[str]) -> bool:
    """Whether the names say nothing but the classes' numbers."""
    return names == [f"LABEL_{i}" for i in range(len(names))]


def named_labels(labels: Sequence[str | int] | None) -> list[str] | None:
    """The classes' names in their order, None if there are none; whole numbers become names.

    Raises:
        ValueError: "labels is 'ab' (str). Expected a list of names ...", "labels[0] is 1.5 (float).
            Expected a name ...", "The names in labels must differ. ..."

    Example:
        >>> named_labels([1, 2, 3])
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
                "or a whole number as one."
            )
    names = [str(label) for label in labels]
    if len(set(names)) != len(names):
        raise ValueError(f"The names in labels must differ. Received: {labels}.")
    return names


def numbers_are_names(labels: list[str] | None) -> bool:
    """Whether a whole number given as a label is a class's name: if one of the names is one.

    Of classes called "1" to "5" a label 1 is the first, not the second, and 0 is none at all.

    Example:
        >>> numbers_are_names(["1", "2", "3"]), numbers_are_names(["1 star", "2 stars"])
        (True, False)
    """
    return any(re.fullmatch(r"-?\d+", label) for label in labels or [])


def number_of_classes(num_classes: int | None, labels: list[str] | None) -> int | None:
    """How many classes the arguments ask for, None if they do not say.

    Raises:
        ValueError: "num_classes and labels disagree. Received: num_classes=3, 2 labels."
    """
    if None not in (num_classes, labels) and num_classes != len(labels):
        raise ValueError(
            f"num_classes and labels disagree. Received: num_classes={num_classes}, "
            f"{len(labels)} labels."
        )
    return len(labels) if labels is not None else num_classes


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis.

    Example:
        >>> softmax(np.float32([[0.0, np.log(3)]])).round(2).tolist()
        [[0.25, 0.75]]
    """
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Each value's own probability."""
    return np.exp(-np.logaddexp(0, -logits))
