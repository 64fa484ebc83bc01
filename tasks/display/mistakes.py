"""The most confident mistakes of a classifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from encoder_zoo.common.escaping import in_html
from encoder_zoo.tasks.classification.class_labels import class_indices
from encoder_zoo.tasks.display.picture import Picture

if TYPE_CHECKING:
    from encoder_zoo.tasks.classification.sequence_classifier import SequenceClassifier
    from encoder_zoo.tasks.embedding.few_shot import FewShotClassifier

MAX_SHOWN = 80, 400  # characters of a text in a terminal, in a notebook
CELL = '<td style="padding:.3em .8em .3em 0;text-align:left{more}">{value}</td>'
TABLE = (
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
    """Draw the texts that a classifier labels wrong, the most confident of the mistakes first.

    Labels that are wrong themselves are often among them.

    Args:
        classifier: of one label for each text.
        x: texts or pairs of texts, as for `evaluate`.
        y: their true labels, as for `evaluate`.
        top_k: how many mistakes.

    Raises:
        ValueError: "errors is of one label for each text. Received: ..."

    Example:
        >>> import encoder_zoo as ez
        >>> classifier = ez.SequenceClassifier.from_preset("bert_nano_en_uncased_sentiment")
        >>> errors(classifier, ["Great!", "Awful."], ["positive", "positive"])
        1 of 2 texts is labelled wrong.
        predicted            true                 text
        negative 0.995       positive 0.005       Awful.
    """
    if classifier.problem_type != "single_label_classification":
        raise ValueError(
            "errors is of one label for each text. Received: a classifier with problem_type="
            f"{classifier.problem_type!r}."
        )
    texts = [column.numpy().tolist() for column in classifier.preprocessor.texts_of(x)]
    scores = classifier.predict_proba(x)
    true = class_indices(y, classifier.labels, classifier.num_classes).numpy()
    true = true.argmax(axis=1) if true.ndim == 2 else true
    if len(true) != len(scores):
        raise ValueError(f"{len(scores)} texts, but {len(true)} labels.")
    found, best = scores.argmax(axis=1), scores.max(axis=1)
    wrong = np.flatnonzero(found != true)
    wrong = wrong[np.argsort(-best[wrong], kind="stable")]
    names = [str(name) for name in classifier.class_names]
    rows = [
        (names[found[i]], best[i], names[true[i]], scores[i, true[i]], _text(texts, i))
        for i in wrong[:top_k]
    ]
    verb = "is" if len(wrong) == 1 else "are"
    return _table(f"{len(wrong)} of {len(scores)} texts {verb} labelled wrong.", rows)


def _text(texts: list[list[bytes]], index: int) -> str:
    """Return a text on one line, a pair with a bar between its texts."""
    return " | ".join(" ".join(column[index].decode().split()) for column in texts)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _table(title: str, rows: list[tuple]) -> Picture:
    """Return the table of mistakes under its title."""
    if not rows:
        return Picture(f"<p>{title}</p>", title)
    lines, cells = [title, f"{'predicted':20} {'true':20} text"], []
    for label, score, true, of_true, text in rows:
        told = [f"{name} {share:.3f}" for name, share in ((label, score), (true, of_true))]
        lines.append(f"{told[0]:20} {told[1]:20} {_cut(text, MAX_SHOWN[0])}")
        values = (
            SCORE.format(label=in_html(label), score=score),
            SCORE.format(label=in_html(true), score=of_true),
            in_html(_cut(text, MAX_SHOWN[1])),
        )
        cells.append("".join(CELL.format(value=value, more="") for value in values))
    heads = "".join(
        CELL.format(value=f"<b>{name}</b>", more=more)
        for name, more in (("predicted", ""), ("true", ""), ("text", ";width:100%"))
    )
    top = "vertical-align:top;border-top:1px solid rgba(128,128,128,.3)"
    body = "".join(f'<tr style="{top}">{row}</tr>' for row in cells)
    return Picture(TABLE.format(title=title, rows=f"<tr>{heads}</tr>{body}"), "\n".join(lines))
