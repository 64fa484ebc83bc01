"""Learning curves and confusion matrices, drawn by matplotlib."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from encoder_zoo.common.lazy import LazyModule

if TYPE_CHECKING:
    import keras
    from matplotlib.axes import Axes

plt = LazyModule(
    "matplotlib.pyplot",
    "Charts are drawn by matplotlib, which is not installed: `pip install matplotlib`.",
)
GREY, BLUE = "#9aa5b1", "#1f6feb"
IN_A_ROW = 2  # more would be too small to read on a page


def learning_curves(history: keras.callbacks.History | Mapping[str, Sequence[float]]) -> np.ndarray:
    """Plot the loss and each metric over the epochs, in training and on held-out data.

    Args:
        history: the result of `fit`, or its `history`.

    Returns:
        (1 + metrics,) axes of matplotlib, the loss first: `axes[0].figure.savefig("curves.png")`.

    Raises:
        ValueError: "Expected the history of fit ..."
        ImportError: where matplotlib is not installed.

    Example:
        >>> axes = learning_curves({"loss": [0.7, 0.4], "val_loss": [0.6, 0.5]})
        >>> [line.get_label() for line in axes[0].lines]
        ['training', 'held out']
    """
    values = getattr(history, "history", history)
    if not isinstance(values, Mapping) or "loss" not in values:
        raise ValueError(f"Expected the history of fit, with its losses. Received: {history!r}")
    names = [name for name in values if not name.startswith("val_") and name != "learning_rate"]
    names.sort(key=lambda name: name != "loss")
    columns = min(len(names), IN_A_ROW)
    rows = -(-len(names) // columns)
    size = (5.5 * columns, 4 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(names) :]:
        figure.delaxes(axis)
    axes = axes.flat[: len(names)]
    for axis, name in zip(axes, names, strict=True):
        curves = {"training": (values[name], GREY)}
        if f"val_{name}" in values:
            curves["held out"] = (values[f"val_{name}"], BLUE)
        for label, (curve, color) in curves.items():
            axis.plot(range(1, len(curve) + 1), curve, "o-", color=color, label=label)
        axis.set(xlabel="epoch")
        axis.set_title(name.replace("_", " "), parse_math=False)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        axis.legend(frameon=False)
    return axes


def confusion_matrix(
    true: Sequence[Any], predicted: Sequence[Any], labels: Sequence[Any] | None = None
) -> Axes:
    """Plot how often each label was answered with which.

    Args:
        true: a label for every text.
        predicted: as many labels, or results of `SequenceClassifier.classify`.
        labels: those to show, in this order; None: all that occur, sorted.

    Returns:
        Axes of matplotlib: `axes.figure.savefig("confusion.png")`.

    Raises:
        ValueError: "3 true labels, but 2 predicted.", "Label 'ham' is not among labels ..."
        ImportError: where matplotlib is not installed.

    Example:
        >>> axes = confusion_matrix(["ham", "spam"], [{"label": "ham"}, {"label": "ham"}])
        >>> [text.get_text() for text in axes.texts]
        ['1', '0', '1', '0']
    """
    true = np.asarray(true).tolist()
    predicted = [row["label"] if isinstance(row, Mapping) else row for row in predicted]
    counts, labels = _counts(true, np.asarray(predicted).tolist(), labels)
    side = 2.5 + 0.7 * len(labels)
    _, axes = plt.subplots(figsize=(side + 0.5, side), layout="constrained")
    axes.imshow(counts, cmap="Blues", vmin=0)
    ticks = range(len(labels))
    axes.set(title=f"{len(true)} texts", xlabel="predicted", ylabel="true")
    rotation = 45 if len("".join(map(str, labels))) > 24 else 0
    axes.set_xticks(ticks, labels, rotation=rotation, parse_math=False)
    axes.set_yticks(ticks, labels, parse_math=False)
    for (row, column), count in np.ndenumerate(counts):
        color = "white" if count > counts.max() / 2 else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=12)
    return axes


def _counts(true: list, predicted: list, labels: Sequence | None) -> tuple[np.ndarray, list]:
    """Return (C, C) int, true labels down and predicted ones across; and the labels."""
    if len(true) != len(predicted):
        raise ValueError(f"{len(true)} true labels, but {len(predicted)} predicted.")
    labels = sorted({*true, *predicted}) if labels is None else list(labels)
    for label in (*true, *predicted):
        if label not in labels:
            raise ValueError(f"Label {label!r} is not among labels {labels}.")
    pairs = collections.Counter(zip(true, predicted, strict=True))
    return np.array([[pairs[a, b] for b in labels] for a in labels]), labels
