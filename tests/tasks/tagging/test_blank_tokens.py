"""Entities have visible characters at both edges, also if the tokens are whitespace."""

import numpy as np
import pytest

import encoder_zoo as ez
from encoder_zoo.common.lazy import xp
from encoder_zoo.encoders import get_family
from encoder_zoo.tasks.tagging.entities import find_entities
from encoder_zoo.tasks.tagging.tags import parse_tags
from encoder_zoo.testing import tiny

TAGS = ["O", "B-X", "I-X"]
TEXTS = {
    " one  two ": "one  two",
    "one\n\n two": "one\n\n two",
    "a\u00a0b": "a\u00a0b",
    "one \ufe0f two": "one \ufe0f two",
    "\u3000one\t": "one",
    "   ": None,
    "\t\n\r": None,
    "\u200b \u00a0": None,
}


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm_roberta", "modernbert"])
def test_edges_of_entities_are_visible(family, strategy):
    tokenizer = tiny.tokenizer(get_family(family))
    tokens = ez.TokenClassifierPreprocessor(tokenizer).tokenize([*TEXTS])
    count = len(tokens.ids.flat_values)
    of_token = np.float32([[0.1, 0.2, 0.7]])  # I-X
    probabilities = xp.constant(np.tile(of_token, (count, 1)))
    found = find_entities(probabilities, tokens, parse_tags(TAGS), strategy)
    pieces = {text: [] for text in TEXTS}
    fields = (field.numpy() for field in (found.row, found.start, found.end))
    for row, start, end in zip(*fields, strict=True):
        text = [*TEXTS][row]
        pieces[text].append(text[start:end])
        assert pieces[text][-1].strip() == pieces[text][-1] != ""
    if strategy == "simple":  # all tokens of a text are one entity
        assert pieces == {text: [whole] if whole else [] for text, whole in TEXTS.items()}
    else:
        assert {text for text, found in pieces.items() if found} == {t for t in TEXTS if TEXTS[t]}
