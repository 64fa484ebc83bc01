"""Show entities, answers, word attributions, and attention between tokens."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from encoder_zoo.common.escaping import escape_html
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.extras.display.picture import Picture
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor
from encoder_zoo.tasks.preprocessing.tokenized_texts import is_list
from encoder_zoo.tasks.tagging.tags import find_spans

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

COLORS = ["#ffd8a8", "#a5d8ff", "#b2f2bb", "#eebefa", "#ffc9c9", "#ffec99", "#99e9f2", "#d0bfff"]
# Dark letters on light colors, for light and dark themes.
MARK_STYLE = "color:#1a1a1a;padding:.1em .3em;border-radius:.3em;"
MISSED = "color:inherit;background:none;border-bottom:2px dashed #e03131;"
WRONG = "outline:2px solid #e03131;"
PARAGRAPH = '<p dir="auto" style="line-height:1.9;white-space:pre-wrap">{}</p>'
SMALL = '<small style="font-size:.7em;font-weight:600;margin-left:.4em;opacity:.75">{}</small>'


@dataclass(frozen=True)
class Mark:
    """A mark on the characters from `start` to `end`.

    Attributes:
        start, end: Integers. The character offsets.
        style: String. CSS style.
        caption: String. Caption after the characters. Defaults to "".
        sign: String. Prefix of the caption in terminals. Defaults to "".
    """

    start: int
    end: int
    style: str
    caption: str = ""
    sign: str = ""


def entities(
    texts: str | Sequence[Any], found: Sequence[Any], true: Sequence[Any] | None = None
) -> Picture:
    """Show entities in texts with colors and types. Entities can be nested.

    Args:
        texts: String, list of strings, or list of lists of words, as passed to
            `extract_entities`. Words will be joined with spaces.
        found: The result of `extract_entities`, or a list of dicts with "label", "start" and "end"
            for each text. For lists of words, a list with one tag per word is also supported.
        true: Optional list with the true entities or tags, in the same format. Wrong entities will
            have a red frame, and missing entities a dashed red line. Terminals show "!" before the
            types of wrong entities, and "?" before the types of missing entities.

    Raises:
        ValueError: If `texts` and `found` differ in length, if an entity does not match its text,
            or if entities overlap but are not nested.
        TypeError: If a model is passed instead of texts.

    Example:
        >>> found = [{"label": "LOC", "start": 0, "end": 4}]
        >>> entities("Rome shines.", found)
        [Rome LOC] shines.
        >>> entities("Rome shines.", found, true=[{"label": "PER", "start": 0, "end": 4}])
        [Rome !LOC] shines.
        >>> found = [{"label": "ORG", "start": 0, "end": 18},
        ...          {"label": "LOC", "start": 14, "end": 18}]
        >>> entities("University of Rome", found)
        [University of [Rome LOC] ORG]
    """
    if not isinstance(texts, str | list | tuple) and hasattr(texts, "extract_entities"):
        raise TypeError(
            f"`texts` is a {type(texts).__name__}. Expected texts: display.entities(texts, "
            "model.extract_entities(texts))."
        )
    if isinstance(texts, str):
        texts, found, true = [texts], [found], None if true is None else [true]
    found, right = (_convert_tags(texts, rows) for rows in (found, found if true is None else true))
    texts = [text if isinstance(text, str) else " ".join(text) for text in texts]
    rows = [row for rows in (*found, *right) for row in rows]
    types = sorted({str(row["label"]) for row in rows})
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(types)}
    pictures = [
        mark_text(text, _make_entity_marks(text, f, r, colors))
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
    """Show an answer in its context.

    Args:
        context: String. The context, as passed to `SpanQA.answer`.
        answers: The result of `SpanQA.answer` for one question. Words in answers with higher
            scores are darker, and a blue line marks the best answer.
        question: Optional string. The question to show above the context.
        true: Optional list of dicts with "text" and "answer_start". True answers in SQuAD format. A
            green line marks the first true answer. In terminals, this answer is printed on a
            separate line.

    Raises:
        ValueError: If an answer does not match `context`.

    Example:
        >>> best = {"text": "Anna", "start": 0, "end": 4, "score": 0.7}
        >>> answer("Anna sings.", best, "Who sings?")
        Who sings?
        Anna (0.70)
        [Anna] sings.
    """
    answers = [answers] if isinstance(answers, Mapping) else answers
    if not is_list(answers) or not len(answers):
        raise invalid("answers", answers, "an answer, or a list of answers")
    for row in answers:
        _check_inside(context, row, "Answer")
    best = answers[0]
    told = f"{best['text'] or 'No answer'} ({best['score']:.2f})"
    right = [(t["answer_start"], t["answer_start"] + len(t["text"])) for t in (true or [])[:1]]
    lines = [*([question] if question else []), told]
    if right:
        lines.append(f"Right: {true[0]['text']}")
    bold = '<p dir="auto" style="margin-bottom:0"><b>{}</b></p>'
    head = bold.format(escape_html(question)) if question else ""
    head += f'<p dir="auto" style="margin:.2em 0">{escape_html(told)}</p>'
    body = mark_text(context, _make_answer_marks(len(context), answers, right)).html
    start, end = best["start"], best["end"]
    lines.append(mark_text(context, [Mark(start, end, "")]).text if end else context)
    return Picture(head + body, "\n".join(lines))


def _convert_tags(texts: Sequence, rows: Sequence) -> list[Sequence[Mapping]]:
    """Validate the results for all texts, and convert tags to entities."""
    if len(rows) != len(texts):
        raise ValueError(
            f"There are {len(texts)} texts in `texts`, but results for {len(rows)} texts. "
            "Expected one list of entities per text."
        )
    for i, row in enumerate(rows):
        if not is_list(row):
            raise invalid(f"found[{i}]", row, "a list of entities or tags")
    found = [
        _convert_tags_to_entities(text, row) if len(row) and isinstance(row[0], str) else row
        for text, row in zip(texts, rows, strict=True)
    ]
    for i, row in enumerate(found):
        for j, entity in enumerate(row):
            if not isinstance(entity, Mapping) or "label" not in entity:
                raise invalid(f"found[{i}][{j}]", entity, "a dict with label, start and end")
    return found


def _convert_tags_to_entities(words: Sequence[str], tags: Sequence[str]) -> list[Mapping]:
    """Convert one tag per word to entities. Offsets refer to the words joined with spaces."""
    if len(words) != len(tags):
        raise ValueError(
            f"A sentence has {len(words)} words, but {len(tags)} tags. Expected one tag per word."
        )
    starts = [0, *itertools.accumulate(len(word) + 1 for word in words)]
    return [
        {"label": label, "start": starts[first], "end": starts[end] - 1}
        for label, first, end in find_spans(tags)
    ]


def _make_entity_marks(
    text: str, found: Iterable[Mapping], true: Iterable[Mapping], colors: Mapping[str, str]
) -> list[Mark]:
    """Create marks for found and true entities in a text."""
    for row in (*found, *true):
        _check_inside(text, row, "Entity")
    guesses, right = (
        {(int(row["start"]), int(row["end"]), str(row["label"])) for row in rows}
        for rows in (found, true)
    )
    nested = _has_nested(guesses) or _has_nested(right)
    marks = []
    for start, end, label in guesses:
        is_right = (start, end, label) in right
        style = MARK_STYLE + f"background:{colors[label]};" + ("" if is_right else WRONG)
        marks.append(Mark(start, end, style, label, "" if is_right else "!"))
    for start, end, label in sorted(right - guesses):
        if all(_is_drawable(start, end, mark, nested) for mark in marks):
            marks.append(Mark(start, end, MARK_STYLE + MISSED, label, "?"))
    return sorted(marks, key=lambda mark: (mark.start, -mark.end, mark.caption))


def _has_nested(spans: Iterable[tuple[int, int, str]]) -> bool:
    """Return whether any span is inside another span."""
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    return any(b[1] <= a[1] for a, b in itertools.pairwise(ordered))


def _is_drawable(start: int, end: int, mark: Mark, nested: bool) -> bool:
    """Return whether a span can be drawn next to a mark, inside a mark or around a mark."""
    if end <= mark.start or mark.end <= start:
        return True
    around = start <= mark.start and mark.end <= end
    inside = mark.start <= start and end <= mark.end
    return nested and around != inside


def _make_answer_marks(
    length: int, answers: list[Mapping], right: list[tuple[int, int]]
) -> list[Mark]:
    """Create marks for the parts of the context that are inside an answer.

    The context is divided at the starts and ends of all predicted and correct answers.
    """
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


def mark_text(text: str, marks: list[Mark]) -> Picture:
    """Create a picture that shows a text with separate or nested marks.

    Args:
        text: String. The text to show.
        marks: List of `Mark` objects, sorted by start position. Longer marks with the same start
            come first.

    Raises:
        ValueError: If `marks` overlap.
    """
    html, plain = _mark_characters(text, 0, len(text), marks)
    return Picture(PARAGRAPH.format(html), plain)


def _mark_characters(text: str, offset: int, stop: int, marks: Sequence[Mark]) -> tuple[str, str]:
    """Mark a part of the text. Return it as HTML, and as plain text for terminals."""
    tagged, plain = [], []
    for i, mark in enumerate(marks):
        if mark.start < offset:  # inside the previous mark
            continue
        if mark.end > stop:
            raise ValueError(
                f"Entities overlap at {text[mark.start : mark.end]!r} in {text!r}. "
                "Expected separate or nested entities."
            )
        inner = [other for other in marks[i + 1 :] if other.start < mark.end]
        html, inside = _mark_characters(text, mark.start, mark.end, inner)
        caption = mark.caption
        label = SMALL.format(escape_html(caption)) if caption else ""
        tagged.append(escape_html(text[offset : mark.start]))
        tagged.append(f'<mark style="{mark.style}">{html}{label}</mark>')
        behind = f" {mark.sign}{caption}" if caption else ""
        plain.append(f"{text[offset : mark.start]}[{inside}{behind}]")
        offset = mark.end
    rest = text[offset:stop]
    return "".join(tagged) + escape_html(rest), "".join(plain) + rest


def _check_inside(text: str, row: Mapping, kind: str) -> None:
    """Check that an entity or answer is inside the text and matches the characters there."""
    bounds = [row.get(name) for name in ("start", "end")] if isinstance(row, Mapping) else []
    if not bounds or not all(isinstance(bound, numbers.Integral) for bound in bounds):
        raise invalid(kind, row, "a dict with the integers start and end")
    start, end = row["start"], row["end"]
    inside = 0 <= start <= end <= len(text)
    if not inside or row.get("text", text[start:end]) != text[start:end]:
        said = f"{row['text']!r} at " if "text" in row else ""
        raise ValueError(
            f"{kind} {said}{start}:{end} does not match the text {text!r}. Pass the texts that "
            "were used for the prediction, in the same order."
        )


MAX_ROWS = 8  # number of words in the table
BAR_WIDTH = 12  # characters in a terminal
FOR, AGAINST = "28,126,214", "224,49,49"  # blue, red
MARKED_WORD = (
    '<span title="{added:+.3f}" style="background:rgba({color},{shade:.2f});border-bottom:2px '
    '{line} rgba({color},{under:.2f});border-radius:.2em;padding:.1em 0{weight}">{text}</span>'
)
MARK_HEAD = '<p dir="auto" style="margin-bottom:.2em"><b>{name}</b> {score}</p>'
LEGEND = (
    '<p style="margin:.2em 0;font-size:.85em"><span style="border-bottom:2px solid '
    f'rgb({FOR})">for</span>, <span style="border-bottom:2px dashed rgb({AGAINST})">against</span>'
    "; logit {logit:.2f}: {baseline:.2f} with all words masked, {added:+.2f} by the words</p>"
)
MARK_ROW = (
    '<tr style="vertical-align:baseline"><td dir="auto" style="text-align:left;padding:.1em .8em '
    '.1em 0">{text}</td><td style="text-align:right;padding:.1em .8em .1em 0;font-variant-numeric:'
    'tabular-nums">{added:+.2f}</td><td style="width:60%;min-width:5em"><div style="background:'
    'rgb({color});height:.7em;min-width:1px;border-radius:.2em;width:{percent:.1f}%"></div></td>'
    "</tr>"
)
MARK_TABLE = '<table style="width:100%;max-width:24em;border-collapse:collapse">{rows}</table>'


def explanation(explanations: Mapping[str, Any] | Sequence[Any]) -> Picture:
    """Show shaded words for an explanation, and bars for the most important words.

    Words that support the prediction are blue with a solid line. Words that contradict the
    prediction are red with a dashed line. Words with larger attributions (logit changes) are
    darker. Words in an entity or answer are bold.

    Args:
        explanations: The result of the task method `explain`, or a part of this result.

    Raises:
        ValueError: If `explanations` was not returned by `explain`.

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
        return _draw_explanation(explanations)
    if isinstance(explanations, Mapping | str) or not isinstance(explanations, Sequence):
        raise invalid("explanations", explanations, "the result of explain, or a list of results")
    pictures = [explanation(some) for some in explanations if some != []]
    if not pictures:
        return Picture("<p>Nothing to explain.</p>", "Nothing to explain.")
    return sum(pictures[1:], start=pictures[0])


def _draw_explanation(found: Mapping) -> Picture:
    """Draw one explanation as a picture."""
    most = max((abs(word["attribution"]) for word in found["words"]), default=0.0) or 1.0
    best = sorted(found["words"], key=lambda word: -abs(word["attribution"]))[:MAX_ROWS]
    name, score = _make_title(found), f"({found['score']:.2f})"
    texts = [PARAGRAPH.format(_shade_words(found, i, most)) for i in range(len(found["texts"]))]
    added = sum(word["attribution"] for word in found["words"])
    legend = LEGEND.format(logit=found["logit"], baseline=found["baseline"], added=added)
    rows = "".join(
        MARK_ROW.format(
            text=escape_html(word["text"]),
            added=word["attribution"],
            color=FOR if word["attribution"] > 0 else AGAINST,
            percent=100 * abs(word["attribution"]) / most,
        )
        for word in best
    )
    head = MARK_HEAD.format(name=escape_html(name), score=score)
    page = head + "".join(texts) + legend + MARK_TABLE.format(rows=rows)
    lines = [_format_word(word, most) for word in best]
    return Picture(page, "\n".join([f"{name} {score}", *found["texts"], *lines]))


def _make_title(found: Mapping) -> str:
    """Create the title of an explanation: the label, the entity with its label, or the answer."""
    if "text" not in found:
        return str(found["label"])
    if "label" in found:
        return f"{found['text']}: {found['label']}"
    return found["text"] or "No answer"


def _format_word(word: Mapping, most: float) -> str:
    """Format a word and a bar for terminals."""
    added = word["attribution"]
    bar = ("█" if added > 0 else "░") * round(BAR_WIDTH * abs(added) / most)
    return f"  {added:+.2f}  {bar:{BAR_WIDTH}}  {word['text']}"


def _shade_words(found: Mapping, part: int, most: float) -> str:
    """Format a text with shaded words as HTML. Entities and answers are bold."""
    text, pieces, offset = found["texts"][part], [], 0
    own = (
        range(found.get("start", 0), found.get("end", 0)) if part == len(found["texts"]) - 1 else []
    )
    for word in found["words"]:
        if word["part"] != part or word["start"] < offset:
            continue
        strength = abs(word["attribution"]) / most
        is_for = word["attribution"] > 0
        pieces.append(escape_html(text[offset : word["start"]]))
        pieces.append(
            MARKED_WORD.format(
                added=word["attribution"],
                color=FOR if is_for else AGAINST,
                line="solid" if is_for else "dashed",
                shade=0.5 * strength,
                under=strength,
                weight=";font-weight:700" if word["start"] in own else "",
                text=escape_html(text[word["start"] : word["end"]]),
            )
        )
        offset = word["end"]
    return "".join(pieces) + escape_html(text[offset:])


# Drawing sizes in pixels: line start, line end, width and row height.
LEFT, RIGHT, WIDTH, ROW_HEIGHT = 150, 270, 420, 22
SIDE_BY_SIDE = '<div style="display:inline-block;width:20em;max-width:100%">{}</div>'
MIN_SHOWN_PROBABILITY = 0.02  # smaller probabilities are not drawn
GREY, BLUE = "#868e96", "#1c7ed6"


@lock_weights
def attention(
    model: Task, first: str, second: str | None = None, layer: int = -1, head: int | None = 0
) -> Picture:
    """Show the attention between tokens in a text or a text pair.

    Args:
        model: Task with a preprocessor. Fine-tuning is not required.
        first: String. The text.
        second: Optional string. The second text of a pair.
        layer: Integer. Index of the layer, starting from 0. Defaults to -1, the last layer.
        head: Optional integer. Index of the attention head, starting from 0. If None, all heads are
            shown separately. Defaults to 0.

    Returns:
        A picture with two columns of tokens. Each token on the left is connected to the
        attended tokens on the right. Lines are darker for higher probabilities. Blue lines connect
        tokens of different texts. In terminals, each token is printed with the token that it
        attends to most.

    Raises:
        ValueError: If `layer` or `head` does not exist, or if `model` has no preprocessor.
        TypeError: If `model` is a backbone, which has no tokenizer.

    Example:
        >>> import encoder_zoo as ez
        >>> model = ez.MaskedLM.from_preset("bert_nano_en_uncased")
        >>> picture = attention(model, "Who sings?", "Anna sings.", layer=0, head=1)
        >>> print(picture.text.splitlines()[0])
        Layer 0, head 1: the token that each token attends to most
    """
    layer = _check_layer(model, layer, head)
    inputs, middle = _make_inputs(model, first, second)
    given = model.make_backbone_inputs(inputs)
    probabilities = model.backbone.attention_probabilities(given)  # (1, layers, H, L, L)
    weights = keras.ops.convert_to_numpy(probabilities)[0, layer].astype("float32")  # (H, L, L)
    token = model.preprocessor.tokenizer.id_to_token
    tokens = [token(i) for i in inputs["token_ids"].numpy()[0].tolist()]
    pictures = []
    for i in range(len(weights)) if head is None else [head]:
        title = f"Layer {layer}, head {i}"
        drawing = _draw_attention(title, tokens, weights[i], middle)
        pictures.append(Picture(drawing, _format_attention(title, tokens, weights[i])))
    if head is not None:
        return pictures[0]
    html = "".join(SIDE_BY_SIDE.format(picture.html) for picture in pictures)
    return Picture(html, "\n\n".join(picture.text for picture in pictures))


def _check_layer(model: Task, layer: int, head: int | None) -> int:
    """Validate model, layer and head. Return a non-negative layer index."""
    if isinstance(model, Backbone):
        raise TypeError(
            f"`model` is a {type(model).__name__}, which has no tokenizer. Pass a task such as "
            "MaskedLM.from_preset(source)."
        )
    backbone = model.backbone
    if getattr(model, "preprocessor", None) is None:
        raise ValueError(
            "`model` has no preprocessor. Load the task with from_preset, or pass "
            "preprocessor= when you create the task."
        )
    count = len(backbone.blocks)
    if not -count <= layer < count:
        raise invalid("layer", layer, f"{-count} to {count - 1}")
    if head is not None and not 0 <= head < backbone.num_heads:
        raise invalid("head", head, f"0 to {backbone.num_heads - 1}, or None for all")
    return layer % count


def _make_inputs(model: Task, first: str, second: str | None) -> tuple[dict, int]:
    """Return the model inputs of shape (1, L), and the index where the second text starts."""
    preprocessor = Preprocessor(model.preprocessor.tokenizer)
    preprocessor.max_sequence_length = model.backbone.max_sequence_length
    examples = preprocessor.encode([first] if second is None else ([first], [second]))
    return preprocessor.pad(examples), int(examples["first_length"][0])


def _draw_attention(title: str, tokens: list[str], weights: np.ndarray, middle: int) -> str:
    """Create an SVG drawing with two columns of tokens, and lines that connect them.

    Args:
        title: String. Drawing title.
        tokens: List of L tokens.
        weights: Array of shape (L, L). Attention weights. Each row sums to 1.
        middle: Integer. Index of the token at which the second text starts.
    """
    heights = [ROW_HEIGHT * (index + 0.75) for index in range(len(tokens))]
    lines = [
        f'<line x1="{LEFT}" y1="{heights[i]}" x2="{RIGHT}" y2="{heights[j]}" '
        f'stroke="{GREY if (i < middle) == (j < middle) else BLUE}" '
        f'stroke-opacity="{min(weight, 1) ** 0.5:.2f}"><title>'
        f"{escape_html(tokens[i])} → {escape_html(tokens[j])}: {weight:.2f}</title></line>"
        for (i, j), weight in np.ndenumerate(weights)
        if weight >= MIN_SHOWN_PROBABILITY
    ]
    words = [
        f'<text x="{x}" y="{y + 5}" text-anchor="{anchor}">{escape_html(token)}</text>'
        for x, anchor in ((LEFT - 6, "end"), (RIGHT + 6, "start"))
        for token, y in zip(tokens, heights, strict=True)
    ]
    return (
        f'<p style="margin-bottom:.2em">{title}</p>'
        f'<svg viewBox="0 0 {WIDTH} {heights[-1] + ROW_HEIGHT}" '
        f'style="width:100%;max-width:{WIDTH}px" fill="currentColor" stroke-width="2" '
        f'font-size="14" font-family="system-ui, sans-serif">{"".join(lines + words)}</svg>'
    )


def _format_attention(title: str, tokens: list[str], weights: np.ndarray) -> str:
    """Format each token and the token that it attends to most, for terminals."""
    width = max(map(len, tokens))
    lines = [
        f"{token:>{width}} → {tokens[row.argmax()]} ({row.max():.2f})"
        for token, row in zip(tokens, weights, strict=True)
    ]
    return "\n".join([f"{title}: the token that each token attends to most", *lines])
