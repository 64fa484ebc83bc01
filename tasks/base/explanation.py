"""Types of explanations, which `extras/explanations` computes."""

from __future__ import annotations

from typing import Literal, TypedDict

Method = Literal["integrated_gradients", "gradient_x_input"]


class WordAttribution(TypedDict):
    """A word, characters `start` to `end` of the text with the number `part`, and what it adds."""

    part: int
    text: str
    start: int
    end: int
    attribution: float


class Attributions(TypedDict):
    """The words for one text or of two, and what each adds to a logit.

    `baseline` is the logit of the same texts with all their words masked: `logit` less this is the
    sum of the words' attributions.
    """

    texts: list[str]
    words: list[WordAttribution]
    logit: float
    baseline: float
