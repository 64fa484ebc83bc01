"""What the arguments of public methods must be: one table, looked into before any work is done."""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

import numpy as np

from encoder_zoo.common.wording import shown, unknown_argument
from encoder_zoo.encoders.rules import ARGUMENTS, Rule, is_number, one_of

F = TypeVar("F", bound=Callable)


def whole(least: int) -> Rule:
    """The rule for whole numbers.

    Example:
        >>> whole(1).holds(3), whole(1).holds(True), whole(1).holds(3.0), whole(1).words
        (True, False, False, 'a whole number of 1 or more')
    """
    return Rule(
        lambda v: type(v) is int and least <= v < 2**31, f"a whole number of {least} or more"
    )


def _is_text(value: object) -> bool:
    """Whether this is a string that UTF-8 can hold and that is not all white space."""
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


FLAG = Rule(lambda v: type(v) is bool, "True or False")
SHARE = Rule(lambda v: is_number(v) and 0 < v < 1, "a number between 0 and 1")
POSITIVE = Rule(lambda v: is_number(v) and v > 0, "a number greater than 0")
PART = Rule(lambda v: is_number(v) and 0 < v <= 1, "a number up to 1, above 0")
AMOUNT = Rule(lambda v: is_number(v) and v >= 0, "a number of 0 or more")
TOKEN = Rule(_is_text, "a token, such as '[CLS]'")

# Argument, of whichever public callable: its rule. A default holds always; a flag, an argument
# whose default is True or False, needs no entry.
RULES: dict[str, Rule] = {
    **{name: rule for name, rule in ARGUMENTS.items() if name != "num_segments"},
    "num_segments": whole(0),
    "activation": Rule(lambda v: isinstance(v, str | None), "a function's name, such as 'gelu'"),
    "pad_token_id": whole(0),
    "head_activation": ARGUMENTS["activation"],
    "head_layer_norm_epsilon": ARGUMENTS["layer_norm_epsilon"],
    "rank": whole(1),
    # Files: more than 2 GB are usual
    "shard_bytes": Rule(lambda v: type(v) is int and v >= 1, "a whole number of 1 or more"),
    "generator_size": PART,
    "generator_depth": PART,
    "detection_weight": AMOUNT,
    "alpha": POSITIVE,
    "temperature": POSITIVE,
    "label_weight": AMOUNT,
    "relation_heads": whole(1),
    "num_classes": whole(1),
    # Preprocessing
    "sequence_length": whole(3),
    "window_length": whole(3),
    "doc_stride": whole(0),
    "overlap": whole(0),
    "mask_rate": SHARE,
    "seed": whole(0),
    "shard_tokens": whole(1),
    "short_share": ARGUMENTS["dropout"],
    "first": whole(0),
    # Training
    "batch_size": whole(1),
    "validation_batch_size": whole(1),
    "epochs": whole(0),
    "initial_epoch": whole(0),
    "steps_per_epoch": whole(1),
    "validation_steps": whole(1),
    "validation_split": ARGUMENTS["dropout"],
    "learning_rate": POSITIVE,
    "gradient_accumulation_steps": whole(1),
    "weight_decay": AMOUNT,
    "warmup": ARGUMENTS["dropout"],
    "layer_decay": PART,
    "frozen_layers": whole(0),
    "jit_compile": FLAG,
    "verbose": one_of(0, 1, 2, "auto"),
    "save_freq": whole(1),
    # Answers
    "top_k": whole(1),
    "threshold": Rule(lambda v: is_number(v) and 0 <= v <= 1, "a number from 0 to 1"),
    "max_answer_length": whole(1),
    "null_threshold": Rule(
        lambda v: type(v) in (int, float) and not math.isnan(v), "a number, perhaps infinite"
    ),
    "split_symbols": one_of(True, False, "outer"),
    # Tokenizers
    "strip_accents": FLAG,
    "pair_separators": whole(1),
    **dict.fromkeys(
        ("start_token", "end_token", "pad_token", "mask_token", "unknown_token"), TOKEN
    ),
}
# What Keras calls with tensors, or from inside of graphs.
_IN_GRAPHS = {
    *("call", "build", "collate", "compute_loss", "compute_metrics", "compute_output_spec"),
    *("logits_of", "encoded", "input_ranges"),
}


class ValidatesArguments:
    """Mixin: a subclass's constructor and public methods check their arguments by `RULES`.

    Example:
        >>> class Reader(ValidatesArguments):
        ...     def read(self, batch_size: int | None = None):
        ...         return batch_size
        >>> Reader().read(8)
        8
        >>> Reader().read(0)
        Traceback (most recent call last):
        ValueError: batch_size is 0. Expected a whole number of 1 or more, or None.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name, function in list(vars(cls).items()):
            public = name == "__init__" or not name.startswith("_")
            if public and name not in _IN_GRAPHS and isinstance(function, types.FunctionType):
                setattr(cls, name, checked(function))


def checked(function: F) -> F:
    """The function, which looks at its arguments first; itself where no rule is for them.

    Raises:
        ValueError: "top_k is 0. Expected a whole number of 1 or more, or None."
        TypeError: "SpanQA.answer got an unknown argument 'n_best'. Did you mean 'top_k'?"
    """
    signature = inspect.signature(function)
    rules = rules_of(signature.parameters)
    if not rules:
        return function

    @functools.wraps(function)
    def checking(*args, **kwargs):
        try:
            given = signature.bind_partial(*args, **kwargs).arguments
        except TypeError:
            refuse_unknown(function, signature.parameters, kwargs)
            given = {}  # Python's own words for what else is wrong come with the call
        for name, value in given.items():
            if name in rules:
                check_argument(name, value, rules[name], signature.parameters[name].default)
        return function(*args, **kwargs)

    checking.__signature__ = signature  # where Keras looks for the names of arguments
    return cast(F, checking)


def refuse_unknown(
    function: Callable, parameters: Mapping[str, inspect.Parameter], given: Mapping[str, object]
) -> None:
    """Raises TypeError where a function that takes arguments by name is given another one."""
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in given.keys() - parameters.keys():
        known = parameters.keys() - {"self"}
        raise TypeError(unknown_argument(function.__qualname__, name, known)) from None


def rules_of(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Rule]:
    """The rules for some arguments."""
    flags = {name: FLAG for name, p in parameters.items() if isinstance(p.default, bool)}
    return {**flags, **{name: RULES[name] for name in parameters if name in RULES}}


def check_argument(
    name: str, value: object, rule: Rule, default: object = inspect.Parameter.empty
) -> None:
    """Refuses a value that its rule does not hold for and that is not the default.

    Raises:
        ValueError: "top_k is 0. Expected a whole number of 1 or more, or None."
    """
    if isinstance(value, np.generic):
        value = value.item()
    is_default = value is default or (type(value) is type(default) and value == default)
    try:
        holds = is_default or rule.holds(value)
    except (TypeError, ValueError, OverflowError):  # such as of an array, or something unhashable
        holds = False
    if not holds:
        other = f", or {default!r}" if default is None or isinstance(default, str) else ""
        raise ValueError(f"{name} is {shown(value)}. Expected {rule.words}{other}.")
