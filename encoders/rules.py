"""Rules of a backbone's arguments, which are those of the fields of `config.json` too."""

from __future__ import annotations

from typing import Annotated

from encoder_zoo.common.validation import Rule
from encoder_zoo.encoders.layers import ACTIVATIONS

Size = Annotated[int, Rule(lambda v: type(v) is int and 0 < v < 2**40, "a positive integer")]
Activation = Annotated[
    str, Rule(lambda v: isinstance(v, str) and v in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}")
]
ABSENT = Rule(lambda v: not v, "nothing: encoders here have no such part")
