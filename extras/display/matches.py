"""Show which word of a document matches each query token in a late interaction model."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from encoder_zoo.common.escaping import escape_html
from encoder_zoo.common.weights_lock import lock_weights
from encoder_zoo.common.wording import invalid
from encoder_zoo.extras.display.marks import COLORS, MARK_STYLE, Mark, mark_text
from encoder_zoo.extras.display.picture import Picture

BAR_WIDTH = 12  # characters in a terminal
# Margins separate adjacent boxes. A box with a line break is drawn as two complete boxes.
BOX = "margin:0 1px;-webkit-box-decoration-break:clone;box-decoration-break:clone;"
# Letters, except those of scripts without spaces, whose tokens are shown separately.
WORD_PATTERN = re.compile(
    "[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff]+"
)
NOTHING = "(no word)"  # a special token, such as [CLS]
MATCH_HEAD = '<p style="margin-bottom:0"><b>Query</b>, score {score:.2f}</p>'
DOCUMENT_HTML = '<p style="margin-bottom:0"><b>Document</b></p>'
MATCH_ROW = (
    '<tr style="vertical-align:baseline"><td dir="auto" style="text-align:left;padding:.15em .8em '
    '.15em 0;white-space:nowrap"><mark style="{style}">{token}</mark></td>'
    '<td dir="auto" style="text-align:left;padding:.15em .8em .15em 0">{found}</td>'
    '<td style="text-align:right;padding:.15em .8em .15em 0;font-variant-numeric:tabular-nums">'
    '{score:.2f}</td><td style="width:45%;min-width:4em"><div style="background:#4dabf7;'
    'height:.7em;min-width:1px;border-radius:.2em;width:{percent:.1f}%"></div></td></tr>'
)
MATCH_TABLE = (
    '<table style="width:100%;max-width:34em;border-collapse:collapse"><tr style="text-align:left;'
    'font-size:.85em"><th>token</th><th>found</th><th colspan="2">product</th></tr>{rows}</table>'
)
REST = '<p style="margin:.4em 0;font-size:.85em">{}</p>'


class Match(NamedTuple):
    """A query token and the most similar document token.

    Attributes:
        token: Tuple (start, end). Character range of the query token.
        word: Tuple (start, end). Character range of the query word that contains the token.
        found: Optional tuple (start, end). Character range of the document word, or None for
            special tokens.
        score: Float. Dot product of the two token vectors.
    """

    token: tuple[int, int]
    word: tuple[int, int]
    found: tuple[int, int] | None
    score: float


@lock_weights
def matches(model: Any, query: str, document: str) -> Picture:
    """Show which word of a document matches each token of a query.

    Each query word has a color. A matched document word has the color of the most similar query
    word, and is followed by all query words that match it, in small letters. A table contains the
    query tokens and the dot products. The score is the sum of the dot products of all query tokens.
    Special tokens and expansion tokens are summarized below the table.

    Args:
        model: A `LateInteraction`.
        query: String. The query.
        document: String. The document.

    Raises:
        ValueError: If `query` or `document` is not a single string.

    Example:
        >>> import re
        >>> import numpy as np
        >>> class Letters:  # instead of a model: embeds the first letter of words
        ...     def embed_with_spans(self, texts, prompt=None):
        ...         words = list(re.finditer(r"\\w+", texts[0].lower()))
        ...         vectors = np.eye(128, dtype="float32")[[ord(word[0][0]) for word in words]]
        ...         return [(vectors, np.array([word.span() for word in words]))]
        >>> matches(Letters(), "Who sings?", "A song by Anna.")
        Who sings? (score 1.00)
           0.00                Who    A
           1.00  ████████████  sings  song
        [A Who] [song sings] by Anna.
    """
    for name, text in (("query", query), ("document", document)):
        if not isinstance(text, str):
            raise invalid(name, text, "a single string")
    found, score, others = _find_matches(model, query, document)
    words = dict.fromkeys(match.word for match in found)
    colors = {word: COLORS[i % len(COLORS)] for i, word in enumerate(words)}
    of_query = mark_text(
        query, [Mark(*word, _format_style(color)) for word, color in colors.items()]
    )
    of_document = mark_text(document, _make_document_marks(found, query, colors))
    rest = score - sum(match.score for match in found)
    told = f"{others} markers and expansion tokens: {rest:.2f}" if others else ""
    rows = "".join(_format_row(match, query, document, colors[match.word]) for match in found)
    page = MATCH_HEAD.format(score=score) + of_query.html + DOCUMENT_HTML + of_document.html
    page += MATCH_TABLE.format(rows=rows) + (REST.format(told) if told else "")
    lines = [f"{query} (score {score:.2f})", *_make_lines(found, query, document)]
    lines += [f"  {told}"] if told else []
    return Picture(page, "\n".join([*lines, of_document.text]))


def _find_matches(model, query: str, document: str) -> tuple[list[Match], float, int]:
    """Return a list of matches, the total score, and the number of query tokens without text."""
    [(of_query, query_spans)] = model.embed_with_spans([query], prompt="query")
    [(of_document, spans)] = model.embed_with_spans([document], prompt="document")
    products = of_query @ of_document.T
    best = products.argmax(axis=1)
    score = products.max(axis=1)
    has_text = query_spans[:, 0] >= 0
    found = [
        Match(
            tuple(query_spans[i].tolist()),
            _find_word(query, *query_spans[i].tolist()),
            _find_word(document, *spans[best[i]].tolist()) if spans[best[i], 0] >= 0 else None,
            float(score[i]),
        )
        for i in np.flatnonzero(has_text)
    ]
    return found, float(score.sum()), int((~has_text).sum())


def _find_word(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the character range of the word that contains a token.

    Example:
        >>> _find_word("He resets it.", 3, 6), _find_word("Rom, 東京", 5, 6)
        ((3, 9), (5, 6))
    """
    for word in WORD_PATTERN.finditer(text):
        if word.start() <= begin and end <= word.end():
            return word.span()
    return begin, end


def _make_document_marks(found: list[Match], query: str, colors: dict) -> list[Mark]:
    """Create marks for matched document words, with the matching query words as captions."""
    finders: dict[tuple[int, int], list[Match]] = {}
    for match in found:
        if match.found is not None:
            finders.setdefault(match.found, []).append(match)
    marks, last = [], 0
    for (begin, end), by in sorted(finders.items()):
        if begin < last:  # overlaps the previous mark
            continue
        best = max(by, key=lambda match: match.score)
        names = dict.fromkeys(_format_caption(query[slice(*match.word)]) for match in by)
        marks.append(Mark(begin, end, _format_style(colors[best.word]), ", ".join(names)))
        last = end
    return marks


def _format_caption(word: str) -> str:
    """Format a query word as a caption. Punctuation is quoted."""
    return word if word[:1].isalnum() else f"“{word}”"


def _format_style(color: str) -> str:
    return f"{MARK_STYLE}{BOX}background:{color};"


def _format_row(match: Match, query: str, document: str, color: str) -> str:
    return MATCH_ROW.format(
        style=_format_style(color),
        token=escape_html(query[slice(*match.token)]),
        found=escape_html(_get_matched_text(match, document)),
        score=match.score,
        percent=100 * min(max(match.score, 0.0), 1.0),
    )


def _make_lines(found: list[Match], query: str, document: str) -> list[str]:
    """Format all matches with bars for terminals."""
    tokens = [query[slice(*match.token)] for match in found]
    width = max(map(len, tokens), default=0)
    return [
        f"  {match.score:5.2f}  {'█' * round(BAR_WIDTH * min(max(match.score, 0), 1)):{BAR_WIDTH}}"
        f"  {token:{width}}  {_get_matched_text(match, document)}"
        for match, token in zip(found, tokens, strict=True)
    ]


def _get_matched_text(match: Match, document: str) -> str:
    return NOTHING if match.found is None else document[slice(*match.found)]
