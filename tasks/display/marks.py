"""Texts with marked entities and answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoder_zoo.common.escaping import in_html
from encoder_zoo.tasks.display.picture import Picture
from encoder_zoo.tasks.tagging.tags import spans_of_tags

COLORS = ["#ffd8a8", "#a5d8ff", "#b2f2bb", "#eebefa", "#ffc9c9", "#ffec99", "#99e9f2", "#d0bfff"]
# Dark letters on light colours, in every theme.
MARK = "color:#1a1a1a;padding:.1em .3em;border-radius:.3em;"
MISSED = "color:inherit;background:none;border-bottom:2px dashed #e03131;"
WRONG = "outline:2px solid #e03131;"
PARAGRAPH = '<p dir="auto" style="line-height:1.9;white-space:pre-wrap">{}</p>'
SMALL = '<small style="font-size:.7em;font-weight:600;margin-left:.4em;opacity:.75">{}</small>'


@dataclass(frozen=True)
class Mark:
    """Characters `start` to `end` with a CSS style, a caption, and what precedes it in text."""

    start: int
    end: int
    style: str
    caption: str = ""
    sign: str = ""


def entities(
    texts: str | Sequence[Any], found: Sequence[Any], true: Sequence[Any] | None = None
) -> Picture:
    """Mark the entities of texts in colour, followed by their types.

    Args:
        texts: a text, or a list of them, as given to `TokenClassifier.extract_entities`; sentences
            in words are joined by single spaces.
        found: results of `extract_entities` for them, or other dicts with "label", "start" and
            "end".
        true: the right entities, in the same form, to compare with: wrong ones get a red frame,
            missed ones a dashed red line; in a terminal "!" and "?" precede the type. For
            sentences in words, either may be tags, one for each word.

    Raises:
        ValueError: "2 texts, but entities of 1.", "2 words, but 3 tags.",
            "Entity ... is not in the text ...", "Entities overlap: ..."

    Example:
        >>> found = [{"label": "LOC", "start": 0, "end": 4}]
        >>> entities("Rome shines.", found)
        [Rome LOC] shines.
        >>> entities("Rome shines.", found, true=[{"label": "PER", "start": 0, "end": 4}])
        [Rome !LOC] shines.
    """
    if isinstance(texts, str):
        texts, found, true = [texts], [found], None if true is None else [true]
    found, right = (_of_tags(texts, rows) for rows in (found, found if true is None else true))
    texts = [text if isinstance(text, str) else " ".join(text) for text in texts]
    rows = [row for rows in (*found, *right) for row in rows]
    types = sorted({str(row["label"]) for row in rows})
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(types)}
    pictures = [
        marked(text, _entity_marks(text, f, r, colors))
        for text, f, r in zip(texts, found, right, strict=True)
    ]
    return Picture(
        "".join(picture.html for picture in pictures),
        "\n".join(picture.text for picture in pictures),
    )


def answer(
    context: str,
    answers: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    question: str | None = None,
    true: Sequence[Mapping[str, Any]] | None = None,
) -> Picture:
    """Mark the answer in its context.

    Args:
        context: as given to `SpanQA.answer`.
        answers: results of `SpanQA.answer` for it. Of several (`top_k`) the first one has a
            blue line above, and the more of their scores a word has, the deeper is its shade.
        question: printed above.
        true: the right answers in SQuAD's form, dicts of "text" and "answer_start". The first
            has a green line below; in a terminal it is a line of its own.

    Raises:
        ValueError: "Answer ... is not in the text ..."

    Example:
        >>> best = {"text": "Anna", "start": 0, "end": 4, "score": 0.7}
        >>> answer("Anna sings.", best, "Who sings?")
        Who sings?
        Anna (0.70)
        [Anna] sings.
    """
    answers = [answers] if isinstance(answers, Mapping) else list(answers)
    for row in answers:
        _check_inside(context, row, "Answer")
    best = answers[0]
    told = f"{best['text'] or 'No answer'} ({best['score']:.2f})"
    right = [(t["answer_start"], t["answer_start"] + len(t["text"])) for t in (true or [])[:1]]
    lines = [*([question] if question else []), told]
    if right:
        lines.append(f"Right: {true[0]['text']}")
    bold = '<p dir="auto" style="margin-bottom:0"><b>{}</b></p>'
    head = bold.format(in_html(question)) if question else ""
    head += f'<p dir="auto" style="margin:.2em 0">{in_html(told)}</p>'
    body = marked(context, _answer_marks(len(context), answers, right)).html
    start, end = best["start"], best["end"]
    lines.append(marked(context, [Mark(start, end, "")]).text if end else context)
    return Picture(head + body, "\n".join(lines))


def _of_tags(texts: Sequence, rows: Sequence) -> list[Sequence[Mapping]]:
    """Return the entities of every text, those of tags in characters."""
    if len(rows) != len(texts):
        raise ValueError(f"{len(texts)} texts, but entities of {len(rows)}.")
    return [
        _spans(text, row) if len(row) and isinstance(row[0], str) else row
        for text, row in zip(texts, rows, strict=True)
    ]


def _spans(words: Sequence[str], tags: Sequence[str]) -> list[Mapping]:
    """Return the entities that tags mark, in characters of the words with one space between
    them."""
    if len(words) != len(tags):
        raise ValueError(f"{len(words)} words, but {len(tags)} tags.")
    starts = [0, *itertools.accumulate(len(word) + 1 for word in words)]
    return [
        {"label": label, "start": starts[first], "end": starts[end] - 1}
        for label, first, end in spans_of_tags(tags)
    ]


def _entity_marks(
    text: str, found: Iterable[Mapping], true: Iterable[Mapping], colors: Mapping[str, str]
) -> list[Mark]:
    """Return marks of the found entities or, if there are none, of the true ones."""
    for row in (*found, *true):
        _check_inside(text, row, "Entity")
    guesses, right = (
        {(int(row["start"]), int(row["end"]), str(row["label"])) for row in rows}
        for rows in (found, true)
    )
    marks = []
    for start, end, label in sorted(guesses):
        is_right = (start, end, label) in right
        style = MARK + f"background:{colors[label]};" + ("" if is_right else WRONG)
        marks.append(Mark(start, end, style, label, "" if is_right else "!"))
    for start, end, label in sorted(right - guesses):
        if all(end <= mark.start or mark.end <= start for mark in marks):
            marks.append(Mark(start, end, MARK + MISSED, label, "?"))
    return sorted(marks, key=lambda mark: mark.start)


def _answer_marks(length: int, answers: list[Mapping], right: list[tuple[int, int]]) -> list[Mark]:
    """Return runs of characters with the same style: shaded, in the best answer, in the
    right one."""
    best = (answers[0]["start"], answers[0]["end"])
    spans = [(row["start"], row["end"]) for row in answers]
    cuts = sorted({0, length, *(offset for span in (*spans, *right) for offset in span)})
    marks = []
    for start, end in itertools.pairwise(cuts):

        def covers(span, start=start, end=end):
            return span[0] <= start and end <= span[1]

        share = sum(row["score"] for row, span in zip(answers, spans, strict=True) if covers(span))
        shade = min(share, 1) ** 0.5
        style = f"background:rgba(255,146,43,{shade:.2f});" if share else ""
        if covers(best):
            style += "border-top:3px solid #1c7ed6;"
        if any(covers(span) for span in right):
            style += "border-bottom:3px solid #2b8a3e;"
        if style:
            marks.append(Mark(start, end, "color:inherit;background:none;" + style))
    return marks


def marked(text: str, marks: list[Mark]) -> Picture:
    """Return the text with marks, which must be in order and not overlap."""
    tagged, plain, offset = [], [], 0
    for mark in marks:
        if mark.start < offset:
            raise ValueError(f"Entities overlap: {text[mark.start : mark.end]!r} in {text!r}.")
        inside, caption = text[mark.start : mark.end], mark.caption
        label = SMALL.format(in_html(caption)) if caption else ""
        tagged.append(in_html(text[offset : mark.start]))
        tagged.append(f'<mark style="{mark.style}">{in_html(inside)}{label}</mark>')
        behind = f" {mark.sign}{caption}" if caption else ""
        plain.append(f"{text[offset : mark.start]}[{inside}{behind}]")
        offset = mark.end
    rest = text[offset:]
    return Picture(PARAGRAPH.format("".join(tagged) + in_html(rest)), "".join(plain) + rest)


def _check_inside(text: str, row: Mapping, kind: str) -> None:
    """Raise an error if an entity is outside of the text or its text differs."""
    start, end = row["start"], row["end"]
    inside = 0 <= start <= end <= len(text)
    if not inside or row.get("text", text[start:end]) != text[start:end]:
        said = f"{row['text']!r} at " if "text" in row else ""
        raise ValueError(
            f"{kind} {said}{start}:{end} is not in the text {text!r}. "
            "Give the texts that were asked about, in the same order."
        )
