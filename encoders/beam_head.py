"""Record of a head that computes end positions after each of the likeliest start positions."""

from __future__ import annotations

import dataclasses

from encoder_zoo.common.validation import Rule
from encoder_zoo.encoders.family import Head

MAX_TOP = 100  # the number of spans of a window is the product of two
TOP = Rule(lambda v: type(v) is int and 1 <= v <= MAX_TOP, f"an integer from 1 to {MAX_TOP}")
BEAM_RULES = {"start_n_top": TOP, "end_n_top": TOP}  # of fields of config.json


@dataclasses.dataclass(frozen=True)
class BeamHead(Head):
    """The layers for the start position of an answer, its end position after it, and "no answer".

    `output` is the layer for start positions, of which `start_n_top` are tried, each with
    `end_n_top` end positions.

    Attributes:
        end: name in the checkpoint of the layers for end positions.
        answer_class: of the layers for "no answer".

    Source: Yang et al. 2019, XLNet, the code released with it.

    Example:
        >>> head = BeamHead("start_logits.dense", end="end_logits", answer_class="answer_class")
        >>> head.tensors["head.end_hidden.dense"]
        'end_logits.dense_0'
    """

    end: str = ""
    answer_class: str = ""
    class_suffix: str | None = "ForQuestionAnswering"
    auto_class: bool = False

    @property
    def tensors(self) -> dict[str, str]:
        return {
            "head.start_dense": self.output,
            "head.end_hidden.dense": f"{self.end}.dense_0",
            "head.end_hidden.norm": f"{self.end}.LayerNorm",
            "head.end_dense": f"{self.end}.dense_1",
            "head.no_answer_hidden.dense": f"{self.answer_class}.dense_0",
            "head.no_answer_dense": f"{self.answer_class}.dense_1",
        }
