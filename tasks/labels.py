"""What the tasks with classes share: their labels, given, learned, or from a checkpoint."""

from __future__ import annotations

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
        return list(labels) == names or (are_generic(names) and len(labels) == len(names))

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


def number_of_classes(num_classes: int | None, labels: list[str] | None) -> int | None:
    """How many classes the arguments ask for, None if they do not say.

    Raises:
        ValueError: "num_classes and labels disagree. Received: num_classes=3, 2 labels.",
            "labels[0] is 1 (int). Expected names, which are strings ..."
    """
    for i, label in enumerate(labels or []):
        if not isinstance(label, str):
            raise ValueError(
                f"labels[{i}] is {label!r} ({type(label).__name__}). Expected names, which are "
                "strings; labels that are numbers need num_classes=... only."
            )
    if labels is not None and len(set(labels)) != len(labels):
        raise ValueError(f"The names in labels must differ. Received: {labels}.")
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
