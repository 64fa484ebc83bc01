"""The terms of a text's sparse vector, with bars for their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from encoder_zoo.common.escaping import in_html
from encoder_zoo.common.weights_lock import reads_weights_of
from encoder_zoo.tasks.display.picture import Picture

if TYPE_CHECKING:
    from encoder_zoo.tasks.embedding.sparse_encoder import SparseEncoder

OWN, ADDED = "#4dabf7", "#69db7c"  # of terms in the text, and of those that the model adds
BAR_WIDTH = 24  # characters in a terminal
ROW = (
    '<tr><td dir="auto" style="padding:.15em .8em .15em 0;white-space:nowrap;'
    'font-weight:{bold}">{term}</td>'
    '<td style="text-align:right;padding:.15em .6em .15em 0;'
    'font-variant-numeric:tabular-nums">{weight:.2f}</td>'
    '<td style="width:100%;padding:.15em 0"><div style="background:{color};height:.8em;'
    'min-width:1px;border-radius:.2em;width:{percent:.1f}%"></div></td></tr>'
)
TABLE = (
    '<p dir="auto" style="margin-bottom:.2em;font-weight:600">{text}</p>'
    '<p style="margin:.2em 0 .5em;opacity:.8">{note}</p>'
    '<table style="width:100%;max-width:36em;border-collapse:collapse">{rows}</table>'
)
MARK = '<span style="display:inline-block;width:.8em;height:.8em;border-radius:.2em;background:{}">'
LEGEND = f"{MARK.format(OWN)}</span> in the text, {MARK.format(ADDED)}</span> added"


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
    if not isinstance(text, str):
        raise ValueError(
            f"text is {text!r:.60}. Expected one text: call terms for each, and add the pictures."
        )
    count = model.embed([text], prompt).nnz
    found = model.top_terms(text, top_k, prompt)
    tokenizer = model.preprocessor.tokenizer
    own = {model.terms[i] for i in tokenizer.tokenize([text])[0].numpy().tolist()}
    largest = found[0][1] if found else 1.0
    named = [(_readable(tokenizer, term), weight, term in own) for term, weight in found]
    rows = "".join(
        ROW.format(
            term=in_html(term),
            weight=weight,
            percent=100 * weight / largest,
            color=OWN if is_own else ADDED,
            bold=600 if is_own else 400,
        )
        for term, weight, is_own in named
    )
    shown = f", the {len(named)} largest" if count > len(named) else ""
    note = f"{count} terms{shown}"
    page = TABLE.format(text=in_html(text), note=f"{note}: {LEGEND}", rows=rows)
    width = max((len(term) for term, *_ in named), default=0)
    lines = [
        f"  {term:{width}}  {weight:5.2f}  "
        + ("█" if is_own else "░") * round(BAR_WIDTH * weight / largest)
        for term, weight, is_own in named
    ]
    return Picture(page, "\n".join([text, f"{note}; █ in the text, ░ added", *lines]))


def _readable(tokenizer, term: str) -> str:
    """Return a term as text: without the marks of byte pairs and pieces, but with "##"."""
    if term.startswith("##") or term in tokenizer.special_tokens:
        return term
    index = tokenizer.token_to_id(term)
    return tokenizer.detokenize([[index]]).numpy()[0].decode(errors="replace").strip() or term
