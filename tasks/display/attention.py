"""Drawings of attention: lines from each token to those that it attends to.

Comment letter: L sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.escaping import in_html
from encoder_zoo.common.weights_lock import reads_weights_of
from encoder_zoo.tasks.display.picture import Picture
from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

# Pixels of a drawing that is 420 wide: begin and end of the lines, height of a row.
LEFT, RIGHT, WIDTH, ROW_HEIGHT = 150, 270, 420, 22
FAINTEST = 0.02  # probabilities below it are not drawn
GREY, BLUE = "#868e96", "#1c7ed6"


@reads_weights_of("model")
def attention(
    model: Task, first: str, second: str | None = None, layer: int = -1, head: int = 0
) -> Picture:
    """Draw how much each token of a text, or of a pair of texts, attends to the others.

    Args:
        model: a task with a preprocessor, fine-tuned or not.
        first: the text.
        second: the other one of a pair; both are one example for the model.
        layer: counted from 0; -1 is the last.
        head: counted from 0.

    Returns:
        A picture of all tokens twice, with lines from each token, on the left, to those that it
        attends to: the darker, the larger the probability, and blue where a line goes from one
        text of a pair to the other. In a terminal a line for each token, with the one that it
        attends to most.

    Raises:
        ValueError: "layer=7; expected -2 to 1.", "head=2; expected 0 to 1.",
            "The model has no preprocessor ..."

    Example:
        >>> import encoder_zoo as ez
        >>> model = ez.MaskedLM.from_preset("bert_nano_en_uncased")
        >>> picture = attention(model, "Who sings?", "Anna sings.", layer=0, head=1)
        >>> print(picture.text.splitlines()[0])
        Layer 0, head 1: of each token the one it looks at most
    """
    layer = _checked(model, layer, head)
    inputs, middle = _row(model, first, second)
    probabilities = model.backbone.attention_probabilities(inputs)  # (1, layers, H, L, L)
    weights = keras.ops.convert_to_numpy(probabilities)[0, layer, head].astype("float32")
    token = model.preprocessor.tokenizer.id_to_token
    tokens = [token(i) for i in inputs["token_ids"].numpy()[0].tolist()]
    title = f"Layer {layer}, head {head}"
    return Picture(_drawing(title, tokens, weights, middle), _lines(title, tokens, weights))


def _checked(model: Task, layer: int, head: int) -> int:
    """Return the layer's index from 0, or raise an error."""
    backbone = model.backbone
    if getattr(model, "preprocessor", None) is None:
        raise ValueError("The model has no preprocessor; pass a task made by from_preset.")
    count = len(backbone.blocks)
    if not -count <= layer < count:
        raise ValueError(f"layer={layer}; expected {-count} to {count - 1}.")
    if not 0 <= head < backbone.num_heads:
        raise ValueError(f"head={head}; expected 0 to {backbone.num_heads - 1}.")
    return layer % count


def _row(model: Task, first: str, second: str | None) -> tuple[dict, int]:
    """Return the model's inputs (1, L) and the number of tokens up to the end of the first text."""
    preprocessor = Preprocessor(model.preprocessor.tokenizer)
    preprocessor.max_sequence_length = model.backbone.max_sequence_length
    examples = preprocessor.encode([first] if second is None else ([first], [second]))
    return preprocessor.pad(examples), int(examples["first_length"][0])


def _drawing(title: str, tokens: list[str], weights: np.ndarray, middle: int) -> str:
    """Return SVG: the tokens in two columns, and lines between them.

    Args:
        title: printed above.
        tokens: L of them.
        weights: (L, L), each row of sum 1.
        middle: where the second text begins.
    """
    heights = [ROW_HEIGHT * (index + 0.75) for index in range(len(tokens))]
    lines = [
        f'<line x1="{LEFT}" y1="{heights[i]}" x2="{RIGHT}" y2="{heights[j]}" '
        f'stroke="{GREY if (i < middle) == (j < middle) else BLUE}" '
        f'stroke-opacity="{min(weight, 1):.2f}"><title>'
        f"{in_html(tokens[i])} → {in_html(tokens[j])}: {weight:.2f}</title></line>"
        for (i, j), weight in np.ndenumerate(weights)
        if weight >= FAINTEST
    ]
    words = [
        f'<text x="{x}" y="{y + 5}" text-anchor="{anchor}">{in_html(token)}</text>'
        for x, anchor in ((LEFT - 6, "end"), (RIGHT + 6, "start"))
        for token, y in zip(tokens, heights, strict=True)
    ]
    return (
        f'<p style="margin-bottom:.2em">{title}</p>'
        f'<svg viewBox="0 0 {WIDTH} {heights[-1] + ROW_HEIGHT}" '
        f'style="width:100%;max-width:{WIDTH}px" fill="currentColor" stroke-width="2" '
        f'font-size="14" font-family="system-ui, sans-serif">{"".join(lines + words)}</svg>'
    )


def _lines(title: str, tokens: list[str], weights: np.ndarray) -> str:
    """Return the tokens that each token attends to most, for a terminal."""
    width = max(map(len, tokens))
    lines = [
        f"{token:>{width}} → {tokens[row.argmax()]} ({row.max():.2f})"
        for token, row in zip(tokens, weights, strict=True)
    ]
    return "\n".join([f"{title}: of each token the one it looks at most", *lines])
