"""Tables with a bar in each row: candidates for a mask, documents found, terms of a vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from encoder_zoo.common.escaping import in_html
from encoder_zoo.common.weights_lock import reads_weights_of
from encoder_zoo.tasks.display.picture import Picture

if TYPE_CHECKING:
    from encoder_zoo.tasks.embedding.sparse_encoder import SparseEncoder
    from encoder_zoo.tasks.retrieval.index import Index

BLUE, GREEN = "#4dabf7", "#69db7c"
MASK_WIDTH, HIT_WIDTH, TERM_WIDTH = 20, 12, 24  # characters of the longest bar in a terminal
MAX_SHOWN = 80, 400  # characters of a document in a terminal, in a notebook
TABLE = (
    '<p dir="auto" style="margin-bottom:.2em;font-weight:600">{heading}</p>{note}'
    '<table style="width:100%;max-width:{width}em;border-collapse:collapse">{rows}</table>'
)
NOTE = '<p style="margin:.2em 0 .5em;opacity:.8">{}</p>'
ROW = '<tr style="vertical-align:baseline">{}</tr>'
NAME = '<td dir="auto" style="padding:.15em .8em .15em 0;white-space:nowrap;{style}">{name}</td>'
NUMBER = (
    '<td style="text-align:right;padding:.15em .6em .15em 0;font-variant-numeric:tabular-nums">'
    "{number}</td>"
)
BAR = (
    '<td style="width:{width};min-width:4em;padding:.15em .8em .15em 0"><div style="'
    'background:{color};height:.8em;min-width:1px;border-radius:.2em;width:{percent:.1f}%"></div>'
    "</td>"
)
TEXT = (
    '<td dir="auto" style="width:100%;text-align:start;padding:.3em 0">{text}'
    '<small style="margin-left:.6em;opacity:.6">{index}</small></td>'
)
MARK = '<span style="display:inline-block;width:.8em;height:.8em;border-radius:.2em;background:{}">'
LEGEND = f"{MARK.format(BLUE)}</span> in the text, {MARK.format(GREEN)}</span> added"


def _table(heading: str, rows: Iterable[str], width: int, note: str = "") -> str:
    note = NOTE.format(note) if note else ""
    rows = "".join(map(ROW.format, rows))
    return TABLE.format(heading=in_html(heading), note=note, width=width, rows=rows)


def _bar(length: float, color: str = BLUE, width: str = "100%") -> str:
    return BAR.format(width=width, color=color, percent=100 * length)


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
    if not isinstance(candidates[0], Mapping):
        first, *others = [fill_mask(some) for some in candidates]
        return sum(others, start=first)
    text = candidates[0]["text"]  # with the best candidate filled in
    width = max(len(row["token"]) for row in candidates)
    rows, lines = [], [text]
    for row in candidates:
        token, score = row["token"], row["score"]
        name = NAME.format(style="font-weight:600", name=in_html(token))
        rows.append(name + NUMBER.format(number=f"{score:.3f}") + _bar(score))
        lines.append(f"{token:{width}}  {score:.3f}  {'█' * round(MASK_WIDTH * score)}".rstrip())
    return Picture(_table(text, rows, 30), "\n".join(lines))


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
    _check_one_text("query", query, "neighbours")
    hits = index.search(query, top_k, **options)
    lengths = _bar_lengths([hit["score"] for hit in hits])
    width = max((len(f"{hit['score']:.3f}") for hit in hits), default=0)
    rows, lines = [], [query]
    for hit, length in zip(hits, lengths, strict=True):
        text = TEXT.format(text=in_html(_text(hit, MAX_SHOWN[1])), index=hit["index"])
        rows.append(NUMBER.format(number=f"{hit['score']:.3f}") + _bar(length, width="5em") + text)
        lines.append(
            f"{hit['score']:{width}.3f}  {'█' * round(HIT_WIDTH * length):{HIT_WIDTH}}  "
            f"{_text(hit, MAX_SHOWN[0])} [{hit['index']}]"
        )
    note = "" if hits else "No document is found."
    return Picture(_table(query, rows, 46, note), "\n".join([*lines, note] if note else lines))


def _check_one_text(name: str, given: object, function: str) -> None:
    if not isinstance(given, str):
        raise ValueError(
            f"{name} is {given!r:.60}. Expected one text: call {function} for each, and add the "
            "pictures."
        )


def _bar_lengths(scores: Sequence[float]) -> list[float]:
    """Return a number from 0 to 1 for each score, the best first.

    Example:
        >>> _bar_lengths([0.5, -0.1]), _bar_lengths([8.0, 2.0]), _bar_lengths([-1.0, -4.0])
        ([0.5, 0.0], [1.0, 0.25], [1.0, 0.25])
    """
    best = max(scores, default=0.0)
    if best <= 0:  # distances
        return [(best / score if score else 1.0) for score in scores]
    return [max(0.0, score / max(best, 1.0)) for score in scores]


def _text(hit: dict, most: int) -> str:
    """Return the text of a document on one line, shortened."""
    if hit["text"] is None:
        return "document"
    text = " ".join(hit["text"].split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


class _Term(NamedTuple):
    """A term of a sparse vector; `own` if it stands in the text."""

    text: str
    weight: float
    own: bool


@reads_weights_of("model")
def terms(model: SparseEncoder, text: str, top_k: int = 20, prompt: str | None = None) -> Picture:
    """Draw the terms with the largest weights in a text, each with a bar for its weight.

    Terms that stand in the text are bold with a blue bar, those that the model adds have a green
    one; in a terminal the bars are solid and light.

    Args:
        model: a `SparseEncoder`.
        text: one text.
        top_k: how many terms.
        prompt: of `embed`.

    Raises:
        ValueError: "text is ['a', 'b']. Expected one text: ..."

    Example:
        >>> import encoder_zoo as ez
        >>> encoder = ez.SparseEncoder.from_preset("bert_nano_en_uncased", max_terms=100)
        >>> print(str(terms(encoder, "A good film.", top_k=5)).split(",")[0])
        A good film.
        100 terms
    """
    _check_one_text("text", text, "terms")
    count = model.embed([text], prompt).nnz
    tokenizer = model.preprocessor.tokenizer
    own = {model.terms[i] for i in tokenizer.tokenize([text])[0].numpy().tolist()}
    found = [
        _Term(_readable(tokenizer, term), weight, term in own)
        for term, weight in model.top_terms(text, top_k, prompt)
    ]
    largest = found[0].weight if found else 1.0
    width = max((len(term.text) for term in found), default=0)
    note = f"{count} terms{f', the {len(found)} largest' if count > len(found) else ''}"
    rows, lines = [], [text, f"{note}; █ in the text, ░ added"]
    for term in found:
        name = NAME.format(style=f"font-weight:{600 if term.own else 400}", name=in_html(term.text))
        bar = _bar(term.weight / largest, BLUE if term.own else GREEN)
        rows.append(name + NUMBER.format(number=f"{term.weight:.2f}") + bar)
        drawn = ("█" if term.own else "░") * round(TERM_WIDTH * term.weight / largest)
        lines.append(f"  {term.text:{width}}  {term.weight:5.2f}  {drawn}")
    return Picture(_table(text, rows, 36, f"{note}: {LEGEND}"), "\n".join(lines))


def _readable(tokenizer, term: str) -> str:
    """Return a term as text: without the marks of byte pairs and pieces, but with "##"."""
    if term.startswith("##") or term in tokenizer.special_tokens:
        return term
    index = tokenizer.token_to_id(term)
    return tokenizer.detokenize([[index]]).numpy()[0].decode(errors="replace").strip() or term
