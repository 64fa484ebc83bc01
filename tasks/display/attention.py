"""Which tokens of a text a head of the attention looks at, drawn as lines.

Comment letters: L sequence, M tokens looked from, N tokens looked at.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.tasks.display.picture import Picture
from encoder_zoo.tasks.rows.preprocessor import Preprocessor

if TYPE_CHECKING:
    from encoder_zoo.tasks.task import Task

# In pixels of a drawing that is 420 wide: where the lines begin and end, the height of a row.
LEFT, RIGHT, WIDTH, ROW_HEIGHT = 150, 270, 420, 22
FAINTEST = 0.02  # probabilities below it are not drawn


def attention(
    model: Task, first: str, second: str | None = None, layer: int = -1, head: int = 0
) -> Picture:
    """How much each token of a text attends to those of another, or of itself.

    Args:
        model: a task with a preprocessor, fine-tuned or not.
        first: the text on the left, whose tokens look.
        second: the text on the right, which is looked at; the two are one row for the model, a
            pair. None: the first text alone.
        layer: counted from 0; -1 is the last.
        head: counted from 0.

    Returns:
        A picture whose lines are the darker, the larger the probability. In a terminal a line for
        each token of the first text, with what it looks at most. What a token gives to [CLS],
        [SEP] and, in pairs, to its own text is not drawn.

    Raises:
        ValueError: "layer=7; expected -2 to 1.", "head=2; expected 0 to 1.",
            "The model has no preprocessor ...", "'' has no tokens."

    Example:
        >>> import encoder_zoo as ez
        >>> model = ez.MaskedLM.from_preset("bert_nano_en_uncased")
        >>> picture = attention(model, "Who sings?", "Anna sings.", layer=0, head=1)
        >>> print(picture.text.splitlines()[0])
        Layer 0, head 1: of each token the one it looks at most
    """
    layer = _checked(model, layer, head)
    ids, columns = _row(model, first, second)
    probabilities = model.backbone.attention_probabilities(ids)  # (1, layers, H, L, L)
    weights = keras.ops.convert_to_numpy(probabilities)[0, layer, head].astype("float32")
    token = model.preprocessor.tokenizer.id_to_token
    names = [token(int(i)) for i in np.asarray(ids["token_ids"])[0]]
    rows, seen = columns[0], columns[-1]
    weights = weights[rows.start : rows.stop, seen.start : seen.stop]  # (M, N)
    left, right = names[rows.start : rows.stop], names[seen.start : seen.stop]
    return Picture(
        _drawing(left, right, weights, layer, head), _lines(left, right, weights, layer, head)
    )


def _checked(model: Task, layer: int, head: int) -> int:
    """The layer, counted from 0."""
    backbone = model.backbone
    if getattr(model, "preprocessor", None) is None:
        raise ValueError("The model has no preprocessor; pass a task made by from_preset.")
    if not -backbone.num_layers <= layer < backbone.num_layers:
        last = backbone.num_layers - 1
        raise ValueError(f"layer={layer}; expected {-backbone.num_layers} to {last}.")
    if not 0 <= head < backbone.num_heads:
        raise ValueError(f"head={head}; expected 0 to {backbone.num_heads - 1}.")
    return layer % backbone.num_layers


def _row(model: Task, first: str, second: str | None) -> tuple[dict, list[range]]:
    """The model's inputs (1, L), and the columns of each text's tokens."""
    tokenizer = model.preprocessor.tokenizer
    preprocessor = Preprocessor(tokenizer)
    preprocessor.max_sequence_length = model.backbone.max_sequence_length
    encoded = preprocessor.encode([first] if second is None else ([first], [second]))
    length = int(encoded["token_ids"].row_lengths()[0])
    middle = int(encoded["first_length"][0])
    columns = [range(1, middle - 1)]
    if second is not None:
        columns.append(range(middle - 1 + tokenizer.pair_separators, length - 1))
    for text, places in zip([first, second], columns, strict=False):
        if not places:
            raise ValueError(f"{text!r} has no tokens.")
    return preprocessor.pad(encoded), columns


def _drawing(left: list[str], right: list[str], weights: np.ndarray, layer: int, head: int) -> str:
    """SVG: two columns of tokens, and lines between them."""
    height = ROW_HEIGHT * (max(len(left), len(right)) + 0.5)
    lines, words = [], []
    for (i, j), weight in np.ndenumerate(weights):
        if weight >= FAINTEST:
            y = [ROW_HEIGHT * (place + 0.75) for place in (i, j)]
            title = html.escape(f"{left[i]} → {right[j]}: {weight:.2f}")
            lines.append(
                f'<line x1="{LEFT}" y1="{y[0]}" x2="{RIGHT}" y2="{y[1]}" '
                f'stroke-opacity="{min(weight, 1):.2f}"><title>{title}</title></line>'
            )
    for names, x, anchor in ((left, LEFT - 6, "end"), (right, RIGHT + 6, "start")):
        for i, name in enumerate(names):
            y = ROW_HEIGHT * (i + 0.75) + 5
            words.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{html.escape(name)}</text>')
    return (
        f'<p style="margin-bottom:.2em">Layer {layer}, head {head}</p>'
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" style="width:100%;max-width:{WIDTH}px" '
        'font-size="14" font-family="system-ui, sans-serif" fill="currentColor">'
        f'<g stroke="#1c7ed6" stroke-width="2">{"".join(lines)}</g>{"".join(words)}</svg>'
    )


def _lines(left: list[str], right: list[str], weights: np.ndarray, layer: int, head: int) -> str:
    """For a terminal: what each token looks at most."""
    width = max(map(len, left))
    lines = [f"Layer {layer}, head {head}: of each token the one it looks at most"]
    for name, row in zip(left, weights, strict=True):
        lines.append(f"{name:>{width}} → {right[row.argmax()]} ({row.max():.2f})")
    return "\n".join(lines)
