"""The answers of the tasks of pretraining."""

from typing import TypedDict


class FilledMask(TypedDict):
    """A token for a mask, the text with it filled in, and its probability."""

    token: str
    text: str
    score: float


class ReplacedToken(TypedDict):
    """A token of a text, and the probability that it has been replaced."""

    token: str
    start: int
    end: int
    score: float
