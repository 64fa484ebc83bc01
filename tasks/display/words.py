"""Explanations of answers: the words of a text, shaded by how much they speak for the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from encoder_zoo.common.escaping import in_html
from encoder_zoo.tasks.display.marks import PARAGRAPH
from encoder_zoo.tasks.display.picture import Picture

MAX_ROWS = 8  # of the table of words
BAR_WIDTH = 12  # characters in a terminal
FOR, AGAINST = "28,126,214", "224,49,49"  # blue, red
WORD = (
    '<span title="{added:+.3f}" style="background:rgba({color},{shade:.2f});border-bottom:2px '
    '{line} rgba({color},{under:.2f});border-radius:.2em;padding:.1em 0{weight}">{text}</span>'
)
HEAD = '<p dir="auto" style="margin-bottom:.2em"><b>{name}</b> {score}</p>'
LEGEND = (
    '<p style="margin:.2em 0;font-size:.85em"><span style="border-bottom:2px solid '
    f'rgb({FOR})">for</span>, <span style="border-bottom:2px dashed rgb({AGAINST})">against</span>'
    "; logit {logit:.2f}: {baseline:.2f} with all words masked, {added:+.2f} by the words</p>"
)
ROW = (
    '<tr style="vertical-align:baseline"><td dir="auto" style="text-align:left;padding:.1em .8em '
    '.1em 0">{text}</td><td style="text-align:right;padding:.1em .8em .1em 0;font-variant-numeric:'
    'tabular-nums">{added:+.2f}</td><td style="width:60%;min-width:5em"><div style="background:'
    'rgb({color});height:.7em;min-width:1px;border-radius:.2em;width:{percent:.1f}%"></div></td>'
    "</tr>"
)
TABLE = '<table style="width:100%;max-width:24em;border-collapse:collapse">{rows}</table>'


def explanation(explanations: Mapping[str, Any] | Sequence[Any]) -> Picture:
    """Draw why a model says what it says: shaded words, and the strongest of them with their bars.

    Words for the answer are blue with a solid line, words against it red with a dashed line, each
    as deep as the word adds to the logit or takes from it. The words of an entity or of an answer
    themselves are bold.

    Args:
        explanations: the result of `explain` of a task, or a part of it.

    Raises:
        ValueError: "Expected the result of explain ..."

    Example:
        >>> words = [{"part": 0, "text": "Good", "start": 0, "end": 4, "attribution": 1.5},
        ...          {"part": 0, "text": "film", "start": 5, "end": 9, "attribution": -0.5}]
        >>> explanation({"label": "positive", "score": 0.9, "texts": ["Good film"],
        ...              "words": words, "logit": 1.2, "baseline": 0.2})
        positive (0.90)
        Good film
          +1.50  ████████████  Good
          -0.50  ░░░░          film
    """
    if isinstance(explanations, Mapping) and "words" in explanations:
        return _drawn(explanations)
    if isinstance(explanations, Mapping | str) or not isinstance(explanations, Sequence):
        raise ValueError(
            f"Expected the result of explain, or a list of such. Received: {explanations!r:.80}"
        )
    pictures = [explanation(some) for some in explanations if some != []]
    if not pictures:
        return Picture("<p>Nothing to explain.</p>", "Nothing to explain.")
    return sum(pictures[1:], start=pictures[0])


def _drawn(found: Mapping) -> Picture:
    """Return the picture of one explanation."""
    most = max((abs(word["attribution"]) for word in found["words"]), default=0.0) or 1.0
    best = sorted(found["words"], key=lambda word: -abs(word["attribution"]))[:MAX_ROWS]
    name, score = _name(found), f"({found['score']:.2f})"
    texts = [PARAGRAPH.format(_shaded(found, i, most)) for i in range(len(found["texts"]))]
    added = sum(word["attribution"] for word in found["words"])
    legend = LEGEND.format(logit=found["logit"], baseline=found["baseline"], added=added)
    rows = "".join(
        ROW.format(
            text=in_html(word["text"]),
            added=word["attribution"],
            color=FOR if word["attribution"] > 0 else AGAINST,
            percent=100 * abs(word["attribution"]) / most,
        )
        for word in best
    )
    head = HEAD.format(name=in_html(name), score=score)
    page = head + "".join(texts) + legend + TABLE.format(rows=rows)
    lines = [_line(word, most) for word in best]
    return Picture(page, "\n".join([f"{name} {score}", *found["texts"], *lines]))


def _name(found: Mapping) -> str:
    """Return the heading of an explanation: a label, an entity with its label, or an answer."""
    if "text" not in found:
        return str(found["label"])
    if "label" in found:
        return f"{found['text']}: {found['label']}"
    return found["text"] or "No answer"


def _line(word: Mapping, most: float) -> str:
    """Return a word with its bar, for a terminal."""
    added = word["attribution"]
    bar = ("█" if added > 0 else "░") * round(BAR_WIDTH * abs(added) / most)
    return f"  {added:+.2f}  {bar:{BAR_WIDTH}}  {word['text']}"


def _shaded(found: Mapping, part: int, most: float) -> str:
    """Return a text as HTML with its words shaded, and an entity or answer in it bold."""
    text, pieces, offset = found["texts"][part], [], 0
    own = (
        range(found.get("start", 0), found.get("end", 0)) if part == len(found["texts"]) - 1 else []
    )
    for word in found["words"]:
        if word["part"] != part or word["start"] < offset:
            continue
        strength = abs(word["attribution"]) / most
        is_for = word["attribution"] > 0
        pieces.append(in_html(text[offset : word["start"]]))
        pieces.append(
            WORD.format(
                added=word["attribution"],
                color=FOR if is_for else AGAINST,
                line="solid" if is_for else "dashed",
                shade=0.5 * strength,
                under=strength,
                weight=";font-weight:700" if word["start"] in own else "",
                text=in_html(text[word["start"] : word["end"]]),
            )
        )
        offset = word["end"]
    return "".join(pieces) + in_html(text[offset:])
