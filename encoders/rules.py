"""What a field of `config.json` must be, as a test and the words for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from encoder_zoo.encoders.layers import ACTIVATIONS


class Rule(NamedTuple):
    """What a value must be: a test, and the words for it.

    Example:
        >>> SIZE.holds(3), SIZE.holds("3"), SIZE.words
        (True, False, 'a positive integer')
    """

    holds: Callable[[object], bool]
    words: str


def or_null(rule: Rule) -> Rule:
    """The rule for a field that may also be null.

    Example:
        >>> or_null(SHARE).words
        'a number from 0 up to below 1, or null'
    """
    return Rule(lambda v: v is None or rule.holds(v), f"{rule.words}, or null")


def one_of(*values: object) -> Rule:
    """The rule for a field of which only some values are implemented.

    Example:
        >>> one_of(None, "absolute").words
        "None or 'absolute'"
    """
    return Rule(lambda v: v in values, " or ".join(map(repr, values)))


def is_number(value: object) -> bool:
    """Whether this is a finite number, and no `bool`."""
    return type(value) in (int, float) and math.isfinite(value)


SIZE = Rule(lambda v: type(v) is int and 0 < v < 2**40, "a positive integer")
SHARE = Rule(lambda v: is_number(v) and 0 <= v < 1, "a number from 0 up to below 1")
EPSILON = Rule(lambda v: is_number(v) and 0 < v < 1, "a number between 0 and 1")
BASE = Rule(lambda v: is_number(v) and v > 0, "a number above 0")  # of a power
SWITCH = Rule(lambda v: type(v) is bool, "true or false")
TOKEN_ID = Rule(lambda v: type(v) is int and 0 <= v < 2**40, "an integer from 0")
ACTIVATION = Rule(
    lambda v: isinstance(v, str) and v in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}"
)
ABSENT = Rule(lambda v: not v, "nothing: encoders here have no such part")
NAMES = Rule(
    lambda v: isinstance(v, list) and all(isinstance(n, str) for n in v), "a list of class names"
)
LABELS = Rule(
    lambda v: (
        isinstance(v, dict)
        and sorted(v) == sorted(str(i) for i in range(len(v)))
        and all(isinstance(label, str) for label in v.values())
    ),
    'an object such as {"0": "negative", "1": "positive"}',
)

# Backbone argument, whatever a family's config.json calls it: its rule
ARGUMENTS = {
    **dict.fromkeys(
        (
            "vocabulary_size",
            "num_layers",
            "num_heads",
            "hidden_dim",
            "embedding_dim",
            "intermediate_dim",
            "max_sequence_length",
            "num_segments",
            "num_groups",
            "local_attention",
            "max_relative_positions",
            "position_buckets",
            "global_every",
        ),
        SIZE,
    ),
    "dropout": SHARE,
    "attention_dropout": SHARE,
    "embedding_dropout": SHARE,
    "layer_norm_epsilon": EPSILON,
    "activation": ACTIVATION,
    "convolution_activation": ACTIVATION,
    "sinusoidal_positions": SWITCH,
    "global_rope_theta": BASE,
    "local_rope_theta": BASE,
    "pooling": one_of("cls", "mean"),
    "terms": Rule(
        lambda v: (
            isinstance(v, list | tuple)
            and list(v) in (["c2p"], ["p2c"], ["c2p", "p2c"], ["p2c", "c2p"])
        ),
        "a list of one or both of c2p, p2c",
    ),
    "convolution_width": Rule(
        lambda v: type(v) is int and (v == 0 or (0 < v < 100 and v % 2 == 1)),
        "0 or an odd integer below 100",
    ),
}
REQUIRED = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim")

# Fields that mean the same in every family's config.json
COMMON = {
    "architectures": or_null(NAMES),
    "id2label": or_null(LABELS),
    # A family's tokenizer has a padding token also where the configuration has null.
    "pad_token_id": or_null(TOKEN_ID),
    # What would change the numbers in ways that the backbones do not implement.
    "is_decoder": ABSENT,
    "is_encoder_decoder": ABSENT,
    "add_cross_attention": ABSENT,
    "pruned_heads": ABSENT,
    "quantization_config": ABSENT,
}
