"""Types for explanations, which are computed in `extras/explanations`."""

from __future__ import annotations

from typing import Literal, TypedDict

Method = Literal["integrated_gradients", "gradient_x_input"]


class WordAttribution(TypedDict):
    """A word and its contribution to a logit.

    `part` is the index of the text in a pair, or 0. `start` and `end` are offsets in this text.
    """

    part: int
    text: str
    start: int
    end: int
    attribution: float


class Attributions(TypedDict):
    """The words of a text or a pair, with the contribution of each word to a logit.

    `baseline` is the logit for the same texts with all words masked. The attributions sum to
    `logit` minus `baseline`.
    """

    texts: list[str]
    words: list[WordAttribution]
    logit: float
    baseline: float
