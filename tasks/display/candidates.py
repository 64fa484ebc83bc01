"""Tables of the candidates for a mask, with bars for the probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from encoder_zoo.common.escaping import in_html
from encoder_zoo.tasks.display.picture import Picture

BAR_WIDTH = 20  # characters in a terminal
ROW = (
    '<tr><td style="text-align:left;font-weight:600;white-space:nowrap">{token}</td>'
    '<td style="text-align:right;padding:0 .6em">{score:.3f}</td>'
    '<td style="width:100%;text-align:left"><div style="background:#4dabf7;height:.8em;'
    'min-width:1px;border-radius:.2em;width:{percent:.1f}%"></div></td></tr>'
)
TABLE = (
    '<p dir="auto" style="margin-bottom:.2em">{text}</p>'
    '<table style="width:100%;max-width:30em;border-collapse:collapse">{rows}</table>'
)


def fill_mask(candidates: Sequence[Any]) -> Picture:
    """Draw the candidates for a mask, each with a bar for its probability.

    Args:
        candidates: results of `MaskedLM.fill_mask` for a text, or for several; of a text with
            several masks each has its own table.

    Raises:
        ValueError: "Expected the result of fill_mask ..."

    Example:
        >>> fill_mask([{"token": "good", "text": "A good film.", "score": 0.5},
        ...            {"token": "bad", "text": "A bad film.", "score": 0.25}])
        A good film.
        good  0.500  ██████████
        bad   0.250  █████
    """
    if isinstance(candidates, Mapping | str) or not candidates:
        raise ValueError(
            f"Expected the result of fill_mask, lists of candidates. Received: {candidates!r}"
        )
    if isinstance(candidates[0], Mapping):
        return _table(candidates)
    first, *others = [fill_mask(some) for some in candidates]
    return sum(others, start=first)


def _table(candidates: Sequence[Mapping]) -> Picture:
    """Return the table of one mask, under the text with the best candidate filled in."""
    text = candidates[0]["text"]
    rows = "".join(
        ROW.format(token=in_html(row["token"]), score=row["score"], percent=100 * row["score"])
        for row in candidates
    )
    width = max(len(row["token"]) for row in candidates)
    lines = [
        f"{row['token']:{width}}  {row['score']:.3f}  {'█' * round(BAR_WIDTH * row['score'])}"
        for row in candidates
    ]
    return Picture(
        TABLE.format(text=in_html(text), rows=rows),
        "\n".join(line.rstrip() for line in [text, *lines]),
    )
