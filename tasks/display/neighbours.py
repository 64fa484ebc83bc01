"""The documents that an index finds for a query, with bars for their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from encoder_zoo.common.escaping import in_html
from encoder_zoo.tasks.display.picture import Picture

if TYPE_CHECKING:
    from encoder_zoo.tasks.retrieval.index import Index

BAR_WIDTH = 12  # characters in a terminal
MAX_SHOWN = 80, 400  # characters of a text in a terminal, in a notebook
ROW = (
    '<tr style="vertical-align:baseline"><td style="text-align:right;padding:.3em .5em .3em 0;'
    'font-variant-numeric:tabular-nums">{score:.3f}</td>'
    '<td style="width:5em;min-width:4em;padding:.3em .8em .3em 0"><div style="background:#4dabf7;'
    'height:.7em;min-width:1px;border-radius:.2em;width:{percent:.1f}%"></div></td>'
    '<td dir="auto" style="width:100%;text-align:start;padding:.3em 0">{text}'
    '<small style="margin-left:.6em;opacity:.6">{index}</small></td></tr>'
)
TABLE = (
    '<p dir="auto" style="margin-bottom:.2em;font-weight:600">{query}</p>'
    '<table style="width:100%;max-width:46em;border-collapse:collapse">{rows}</table>'
)


def neighbours(index: Index, query: str, top_k: int = 10, **options: Any) -> Picture:
    """Draw the documents nearest to a query, each with its score, a bar for it, and its index.

    A bar is as long as a score from 0 to 1; where the best score is no such number, the bars are in
    proportion to it, or to its distance.

    Args:
        index: of a `TextEmbedder`.
        query: a text.
        top_k: how many documents.
        **options: of its `search`, such as `reranker`.

    Raises:
        ValueError: "query is ['a', 'b']. Expected one text: ..."

    Example:
        >>> import encoder_zoo as ez
        >>> embedder = ez.TextEmbedder.from_preset("bert_nano_en_uncased")
        >>> index = embedder.index(["Tax law.", "A cat."])
        >>> neighbours(index, "A cat.", top_k=1)
        A cat.
        1.000  ████████████  A cat. [1]
    """
    if not isinstance(query, str):
        raise ValueError(
            f"query is {query!r:.60}. Expected one text: call neighbours for each, and add the "
            "pictures."
        )
    hits = index.search(query, top_k, **options)
    lengths = _bar_lengths([hit["score"] for hit in hits])
    rows = "".join(
        ROW.format(
            score=hit["score"],
            percent=100 * length,
            text=in_html(_text(hit, MAX_SHOWN[1])),
            index=hit["index"],
        )
        for hit, length in zip(hits, lengths, strict=True)
    )
    width = max(len(f"{hit['score']:.3f}") for hit in hits)
    lines = [
        f"{hit['score']:{width}.3f}  {'█' * round(BAR_WIDTH * length):{BAR_WIDTH}}  "
        f"{_text(hit, MAX_SHOWN[0])} [{hit['index']}]"
        for hit, length in zip(hits, lengths, strict=True)
    ]
    page = TABLE.format(query=in_html(query), rows=rows)
    return Picture(page, "\n".join([query, *lines]))


def _bar_lengths(scores: Sequence[float]) -> list[float]:
    """Return a number from 0 to 1 for each score, the best first.

    Example:
        >>> _bar_lengths([0.5, -0.1]), _bar_lengths([8.0, 2.0]), _bar_lengths([-1.0, -4.0])
        ([0.5, 0.0], [1.0, 0.25], [1.0, 0.25])
    """
    best = scores[0]
    if best <= 0:  # distances
        return [(best / score if score else 1.0) for score in scores]
    return [max(0.0, score / max(best, 1.0)) for score in scores]


def _text(hit: dict, most: int) -> str:
    """Return the text of a document on one line, shortened."""
    if hit["text"] is None:
        return "document"
    text = " ".join(hit["text"].split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
