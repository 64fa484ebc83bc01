"""Plot learning curves, thresholds and confusion matrices. Show incorrect predictions."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from encoder_zoo.common.escaping import escape_html
from encoder_zoo.common.lazy import LazyModule
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.extras.display.picture import Picture
from encoder_zoo.tasks.base.confidence import count_answers_at_scores, find_best_threshold
from encoder_zoo.tasks.classification.class_labels import convert_class_indices
from encoder_zoo.tasks.preprocessing.columns import convert_to_plain

if TYPE_CHECKING:
    import keras
    from matplotlib.axes import Axes

    from encoder_zoo.tasks.classification.class_scores import ClassReport
    from encoder_zoo.tasks.classification.sequence_classifier import SequenceClassifier
    from encoder_zoo.tasks.classification.zero_shot import ZeroShotClassifier
    from encoder_zoo.tasks.embedding.few_shot import FewShotClassifier
    from encoder_zoo.tasks.tagging.entity_extractor import EntityExtractor
    from encoder_zoo.tasks.tagging.token_classifier import TokenClassifier

plt = LazyModule(
    "matplotlib.pyplot",
    "Charts require matplotlib, which is not installed: `pip install matplotlib`.",
)
GREY, BLUE, ORANGE = "#9aa5b1", "#1f6feb", "#d9730d"
PLOTS_PER_ROW = 2  # with more plots, each plot would be too small


def learning_curves(history: keras.callbacks.History | Mapping[str, Sequence[float]]) -> np.ndarray:
    """Plot the loss and all metrics per epoch, for training and held-out data.

    Args:
        history: The result of `fit`, or the dict in the attribute `history`.

    Returns:
        An array of matplotlib axes with shape (1 + metrics,). The first axes show the loss. To
        save all plots, use `axes[0].figure.savefig("curves.png")`.

    Raises:
        ValueError: If `history` was not returned by `fit`.
        ImportError: If matplotlib is not installed.

    Example:
        >>> axes = learning_curves({"loss": [0.7, 0.4], "val_loss": [0.6, 0.5]})
        >>> [line.get_label() for line in axes[0].lines]
        ['training', 'held out']
    """
    values = getattr(history, "history", history)
    if not isinstance(values, Mapping) or "loss" not in values:
        raise invalid("history", history, "the result of fit, or its attribute `history`")
    names = [name for name in values if not name.startswith("val_") and name != "learning_rate"]
    names.sort(key=lambda name: name != "loss")
    axes = _make_axes(len(names))
    for axis, name in zip(axes, names, strict=True):
        curves = {"training": (values[name], GREY)}
        if f"val_{name}" in values:
            curves["held out"] = (values[f"val_{name}"], BLUE)
        for label, (curve, color) in curves.items():
            axis.plot(range(1, len(curve) + 1), curve, "o-", color=color, label=label)
        axis.set(xlabel="epoch")
        axis.set_title(name.replace("_", " "), parse_math=False)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False)
    return axes


def _make_axes(count: int) -> np.ndarray:
    """Create a matplotlib figure, and return axes of shape (count,)."""
    columns = min(count, PLOTS_PER_ROW)
    rows = -(-count // columns)
    size = (5.5 * columns, 4 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[count:]:
        figure.delaxes(axis)
    for axis in axes.flat[:count]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    return axes.flat[:count]


def thresholds(
    model: SequenceClassifier
    | FewShotClassifier
    | ZeroShotClassifier
    | TokenClassifier
    | EntityExtractor,
    x: object,
    y: object,
    labels: Sequence[str] | Mapping[str, str] | None = None,
) -> np.ndarray:
    """Plot the precision and recall of each label for all thresholds.

    A grey line shows the current threshold. A dotted line shows the threshold with the best F1
    score, which `tune_thresholds` would choose for these examples.

    Args:
        model: Binary classifier, multi-label classifier, or entity model.
        x, y: Held-out examples and labels in memory, as passed to `fit`.
        labels: Optional list of strings. The labels to predict with a `ZeroShotClassifier` or
            `EntityExtractor`.

    Returns:
        An array of matplotlib axes with shape (C,), one per label. For two classes, only the second
        class is plotted. To save all plots, use `axes[0].figure.savefig("thresholds.png")`.

    Raises:
        ValueError: If `model` has no thresholds.
        ImportError: If matplotlib is not installed.

    Example:
        >>> import encoder_zoo as ez
        >>> classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
        >>> texts = ["Great!", "A fine film.", "Awful."]
        >>> axes = thresholds(classifier, texts, ["positive", "positive", "negative"])
        >>> [line.get_label() for line in axes[0].lines][:2]
        ['precision', 'recall']
    """
    scored = model._score_labels(x, y, **({} if labels is None else {"labels": labels}))
    axes = _make_axes(len(scored.names))
    for axis, name, scores, right, count, now in zip(axes, *scored, strict=True):
        levels, precision, recall = _compute_precision_and_recall(scores, right, count)
        for label, curve, color in (("precision", precision, BLUE), ("recall", recall, ORANGE)):
            axis.plot(levels, curve, color=color, label=label, drawstyle="steps-pre")
        best, f1 = find_best_threshold(scores, right, count)
        axis.axvline(now, color=GREY, label=f"now {now:.2f}")
        axis.axvline(best, color="black", linestyle=":", label=f"best F1 {f1:.2f} at {best:.2g}")
        axis.set(xlabel="threshold", xlim=(-0.02, 1.02), ylim=(-0.02, 1.05))
        axis.set_title(f"{name}: {count} held out", parse_math=False)
        axis.legend(frameon=False)
    return axes


def _compute_precision_and_recall(
    scores: np.ndarray, right: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute precision and recall for ascending thresholds from 0 to 1.

    Precision is NaN if there are no predictions. Recall is NaN if there are no true labels.

    Args:
        scores, right, count: See `find_best_threshold`.

    Example:
        >>> values = _compute_precision_and_recall(np.array([0.75, 0.25]), np.array([1, 0]) > 0, 2)
        >>> [value.tolist() for value in values]
        [[0.0, 0.25, 0.75, 1.0], [0.5, 0.5, 1.0, nan], [0.5, 0.5, 0.5, 0.0]]
    """
    levels, given, hits = (values[::-1] for values in count_answers_at_scores(scores, right))
    everything = [len(scores)], [right.sum()]
    given, hits = (
        np.concatenate([first, values, [0]]).astype("float64")
        for first, values in zip(everything, (given, hits), strict=True)
    )
    with np.errstate(invalid="ignore"):
        precision, recall = hits / given, hits / np.float64(count)
    return np.concatenate([[0.0], levels, [1.0]]), precision, recall


def coverage(model: SequenceClassifier | FewShotClassifier, x: object, y: object) -> Axes:
    """Plot the accuracy and the fraction of answered texts for all values of `abstain_below`.

    A grey line shows the current value of `abstain_below`.

    Args:
        model: Classifier with one class per text.
        x: Held-out texts in memory.
        y: True labels, one per text.

    Returns:
        Matplotlib axes. To save the plot, use `axes.figure.savefig("coverage.png")`.

    Raises:
        ValueError: If `model` predicts several labels per text, or is a regression model.
        ImportError: If matplotlib is not installed.

    Example:
        >>> import encoder_zoo as ez
        >>> classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
        >>> axes = coverage(classifier, ["Great!", "Awful."], ["positive", "positive"])
        >>> [line.get_label() for line in axes.lines]
        ['answered', 'accuracy of these']
    """
    scores, right = model._score_best_classes(x, y, None)
    levels, given, hits = count_answers_at_scores(scores, right)
    levels, given, hits = levels[::-1], given[::-1], hits[::-1]
    [axes] = _make_axes(1)
    curves = {"answered": (given / len(scores), BLUE), "accuracy of these": (hits / given, ORANGE)}
    for label, (curve, color) in curves.items():
        axes.plot(levels, curve, color=color, label=label, drawstyle="steps-pre")
    if model.abstain_below is not None:
        axes.axvline(model.abstain_below, color=GREY, label=f"now {model.abstain_below:.2f}")
    axes.set(xlabel="abstain_below", xlim=(-0.02, 1.02), ylim=(-0.02, 1.05))
    axes.set_title(f"{len(scores)} held out")
    axes.legend(frameon=False)
    return axes


def class_report(report: ClassReport) -> Picture:
    """Show the result of `evaluate_classes` as a table.

    Args:
        report: The result of `evaluate_classes`.

    Example:
        >>> import encoder_zoo as ez
        >>> classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
        >>> texts, labels = ["Great!", "Awful."], ["positive", "negative"]
        >>> class_report(classifier.evaluate_classes(texts, labels))
                   precision    recall        f1   support
        negative       1.000     1.000     1.000         1
        positive       1.000     1.000     1.000         1
        macro          1.000     1.000     1.000         2
        weighted       1.000     1.000     1.000         2
        accuracy                           1.000         2
    """
    if not isinstance(report, Mapping) or "per_class" not in report:
        raise invalid("report", report, "the result of evaluate_classes(x, y)")
    means = {name: report[name] for name in ("micro", "macro", "weighted") if name in report}
    rows = [
        (name, *(f"{row[key]:.3f}" for key in REPORT_COLUMNS[:3]), str(row["support"]))
        for name, row in (*report["per_class"].items(), *means.items())
    ]
    if "accuracy" in report:
        support = str(report["macro"]["support"])
        rows.append(("accuracy", "", "", f"{report['accuracy']:.3f}", support))
    rows = [("", *REPORT_COLUMNS), *rows]
    width = max(len(row[0]) for row in rows)
    text = "\n".join(
        f"{name:{width}}  " + "".join(f"{value:>10}" for value in values) for name, *values in rows
    )
    cells = (
        "".join(
            CELL.format(value=escape_html(value), more=RIGHT_STYLE * bool(i))
            for i, value in enumerate(row)
        )
        for row in rows
    )
    return Picture(PLAIN_TABLE.format("".join(f"<tr>{row}</tr>" for row in cells)), text)


REPORT_COLUMNS = ("precision", "recall", "f1", "support")
RIGHT_STYLE = ";text-align:right;font-variant-numeric:tabular-nums"
PLAIN_TABLE = '<table style="border-collapse:collapse">{}</table>'


def confusion_matrix(
    true: Sequence[Any],
    predicted: Sequence[Any],
    labels: Sequence[Any] | None = None,
    normalize: Literal["true", "predicted", "all"] | None = None,
) -> Axes:
    """Plot the counts for all pairs of true and predicted labels.

    Args:
        true: List with one label per text, or list of lists with one tag per word.
        predicted: List of predicted labels, or result of `SequenceClassifier.classify` or
            `TokenClassifier.predict_tags`. Predictions without a label are shown as "no answer".
        labels: Optional list of labels to show, in this order. If None, all labels will be shown in
            alphabetical order.
        normalize: Optional string. If "true", "predicted" or "all", show fractions that sum to 1 in
            each row, in each column or in total. If None, show counts.

    Returns:
        Matplotlib axes. To save the plot, use `axes.figure.savefig("confusion.png")`.

    Raises:
        ValueError: If `true` and `predicted` differ in length, if `labels` does not contain all
            labels, or if `normalize` is unknown.
        ImportError: If matplotlib is not installed.

    Example:
        >>> axes = confusion_matrix(["ham", "spam"], [{"label": "ham"}, {"label": "ham"}])
        >>> [text.get_text() for text in axes.texts]
        ['1', '0', '1', '0']
    """
    if normalize not in (None, *SUMMED_AXES):
        raise invalid("normalize", normalize, "'true', 'predicted', 'all' or None")
    true, predicted, things = _get_labels(true, predicted)
    counts, labels = _count_pairs(true, predicted, labels)
    values = counts
    if normalize is not None:
        sums = counts.sum(axis=SUMMED_AXES[normalize], keepdims=True)
        values = np.divide(counts, sums, out=np.zeros(counts.shape), where=sums > 0)
    side = 2.5 + 0.7 * len(labels)
    _, axes = plt.subplots(figsize=(side + 0.5, side), layout="constrained")
    axes.imshow(values, cmap="Blues", vmin=0)
    ticks = range(len(labels))
    axes.set(title=f"{len(true)} {things}", xlabel="predicted", ylabel="true")
    rotation = 45 if len("".join(map(str, labels))) > 24 else 0
    axes.set_xticks(ticks, labels, rotation=rotation, parse_math=False)
    axes.set_yticks(ticks, labels, parse_math=False)
    for (row, column), value in np.ndenumerate(values):
        color = "white" if value > values.max() / 2 else "black"
        told = str(value) if normalize is None else f"{value:.2f}"
        axes.text(column, row, told, ha="center", va="center", color=color, fontsize=12)
    return axes


SUMMED_AXES = {"true": 1, "predicted": 0, "all": None}  # axis over which the counts are summed


NO_ANSWER = "no answer"  # label for rows without a prediction


def _get_labels(true: Sequence, predicted: Sequence) -> tuple[list, list, str]:
    """Return flat lists of true and predicted labels, and what they label: "texts" or "words"."""
    rows = [
        convert_to_plain(true),
        [*predicted] if isinstance(predicted, list) else convert_to_plain(predicted),
    ]
    rows = [row.tolist() if isinstance(row, np.ndarray) else list(row) for row in rows]
    true, predicted = rows
    if not any(isinstance(row, list | tuple) for row in (*true, *predicted)):
        found = [row["label"] if isinstance(row, Mapping) else row for row in predicted]
        return true, [NO_ANSWER if label is None else label for label in found], "texts"
    if len(true) != len(predicted):
        raise ValueError(
            f"`true` has {len(true)} lists of tags, but `predicted` has {len(predicted)}. Expected "
            "the same number."
        )
    for i, pair in enumerate(zip(true, predicted, strict=True)):
        are_tags = all(
            isinstance(row, list | tuple) and not any(isinstance(v, Mapping | tuple) for v in row)
            for row in pair
        )
        if not are_tags or len(pair[0]) != len(pair[1]):
            raise ValueError(
                f"Row {i} is {quote(pair[0])} in `true` and {quote(pair[1])} in `predicted`. "
                "Expected one label per text, or one tag per word as in predict_tags. Use "
                "evaluate_entities for entities, and evaluate_classes for several labels per text."
            )
    return [tag for row in true for tag in row], [tag for row in predicted for tag in row], "words"


def _count_pairs(true: list, predicted: list, labels: Sequence | None) -> tuple[np.ndarray, list]:
    """Count pairs of labels. Return the counts (C, C), with true labels in rows, and the labels."""
    if len(true) != len(predicted):
        raise ValueError(
            f"`true` has {len(true)} labels, but `predicted` has {len(predicted)}. Expected the "
            "same number."
        )
    if not true:
        raise ValueError("`true` has no labels. Expected one label per text.")
    if labels is None:
        found = {*true, *predicted}
        if len({isinstance(label, str) for label in found}) > 1:
            raise ValueError(
                f"`true` and `predicted` contain the labels {quote(list(found))}. Expected only "
                "strings or only numbers."
            )
        labels = sorted(found)
    labels = list(labels)
    known = set(labels)
    for label in (*true, *predicted):
        if label not in known:
            raise invalid("label", label, f"one of labels={labels}")
    pairs = collections.Counter(zip(true, predicted, strict=True))
    return np.array([[pairs[a, b] for b in labels] for a in labels]), labels


MAX_SHOWN = 80, 400  # maximum number of characters per text in terminals and notebooks
CELL = '<td style="padding:.3em .8em .3em 0;text-align:left{more}">{value}</td>'
CHART_TABLE = (
    '<p style="margin-bottom:.2em;font-weight:600">{title}</p><div style="overflow-x:auto">'
    '<table style="width:100%;max-width:46em;border-collapse:collapse">{rows}</table></div>'
)
SCORE = (
    '{label}<div style="font-size:.8em;opacity:.7;font-variant-numeric:tabular-nums">{score:.3f}'
    "</div>"
)


def errors(
    classifier: SequenceClassifier | FewShotClassifier, x: object, y: object, top_k: int = 10
) -> Picture:
    """Show texts with incorrect predictions, starting with the most confident prediction.

    Confident predictions can reveal wrong labels in the data.

    Args:
        classifier: Classifier with one label per text.
        x: Texts or text pairs, as passed to `evaluate`.
        y: True labels, as passed to `evaluate`.
        top_k: Integer. The maximum number of texts to show. Defaults to 10.

    Raises:
        ValueError: If `classifier` does not predict one label per text.

    Example:
        >>> import encoder_zoo as ez
        >>> classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
        >>> errors(classifier, ["Great!", "Awful."], ["positive", "positive"])
        1 of 2 texts is labelled incorrectly.
        predicted            true                 text
        negative 0.995       positive 0.005       Awful.
    """
    if hasattr(classifier, "evaluate_entities"):
        raise ValueError(
            f"display.errors does not support {type(classifier).__name__}, only classifiers with "
            "one label per text. Use model.evaluate_entities(x, y), or display.entities(texts, "
            "found, true=...)."
        )
    if classifier.problem_type != "single_label_classification":
        raise ValueError(
            f"`problem_type` is {classifier.problem_type!r}, but display.errors shows one label "
            "per text. Expected 'single_label_classification'."
        )
    texts = [column.numpy().tolist() for column in classifier.preprocessor.read_texts(x)]
    scores = classifier.predict_proba(x)
    true = convert_class_indices(y, classifier.labels, classifier.num_classes).numpy()
    true = true.argmax(axis=1) if true.ndim == 2 else true
    if len(true) != len(scores):
        raise ValueError(
            f"`x` has {len(scores)} texts, but `y` has {len(true)} labels. Expected one label per "
            "text."
        )
    found, best = scores.argmax(axis=1), scores.max(axis=1)
    wrong = np.flatnonzero(found != true)
    wrong = wrong[np.argsort(-best[wrong], kind="stable")]
    names = [str(name) for name in classifier.class_names]
    rows = [
        (names[found[i]], best[i], names[true[i]], scores[i, true[i]], _format_text(texts, i))
        for i in wrong[:top_k]
    ]
    verb = "is" if len(wrong) == 1 else "are"
    return _make_table(f"{len(wrong)} of {len(scores)} texts {verb} labelled incorrectly.", rows)


def _format_text(texts: list[list[bytes]], index: int) -> str:
    """Format a text or a text pair on a single line. A bar separates two texts."""
    return " | ".join(" ".join(column[index].decode().split()) for column in texts)


def _truncate(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _make_table(title: str, rows: list[tuple]) -> Picture:
    """Create a table of incorrect predictions, with a title."""
    if not rows:
        return Picture(f"<p>{title}</p>", title)
    lines, cells = [title, f"{'predicted':20} {'true':20} text"], []
    for label, score, true, of_true, text in rows:
        told = [f"{name} {share:.3f}" for name, share in ((label, score), (true, of_true))]
        lines.append(f"{told[0]:20} {told[1]:20} {_truncate(text, MAX_SHOWN[0])}")
        values = (
            SCORE.format(label=escape_html(label), score=score),
            SCORE.format(label=escape_html(true), score=of_true),
            escape_html(_truncate(text, MAX_SHOWN[1])),
        )
        cells.append("".join(CELL.format(value=value, more="") for value in values))
    heads = "".join(
        CELL.format(value=f"<b>{name}</b>", more=more)
        for name, more in (("predicted", ""), ("true", ""), ("text", ";width:100%"))
    )
    top = "vertical-align:top;border-top:1px solid rgba(128,128,128,.3)"
    body = "".join(f'<tr style="{top}">{row}</tr>' for row in cells)
    return Picture(
        CHART_TABLE.format(title=title, rows=f"<tr>{heads}</tr>{body}"), "\n".join(lines)
    )
