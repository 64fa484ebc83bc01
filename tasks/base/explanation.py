"""Types for explanations, which are computed in `extras/explanations`."""

from __future__ import annotations

from typing import Literal, TypedDict

Method = Literal["integrated_gradients", "gradient_x_input"]


class WordAttribution(TypedDict):
    """A word from character `start` to `end` in text `part`, and how much it adds to a logit."""

    part: int
    text: str
    start: int
    end: int
    attribution: float


class Attributions(TypedDict):
    """The words for one or two texts, and how much each word adds to a logit.

    `baseline` is the logit for the same texts with all words masked. The attributions for all words
    add up to `logit` minus `baseline`.
    """

    texts: list[str]
    words: list[WordAttribution]
    logit: float
    baseline: float
