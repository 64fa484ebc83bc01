"""The part of `config.json` that decides an encoder's numbers, as a small schema of our own."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

from encoder_zoo.encoders.backbone import Family
from encoder_zoo.encoders.layers import ACTIVATIONS

# Backbone argument: key in config.json
CONFIG_KEYS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "pad_token_id": "pad_token_id",
}
_REQUIRED = ("vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size")


class Rule(NamedTuple):
    """What a value must be: a test, and the words for it."""

    holds: Callable[[object], bool]
    words: str


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_SIZE = Rule(lambda v: type(v) is int and 0 < v < 2**40, "a positive integer")
_SHARE = Rule(lambda v: _is_number(v) and 0 <= v < 1, "a number from 0 up to below 1")
_EPSILON = Rule(lambda v: _is_number(v) and 0 < v < 1, "a number between 0 and 1")
_ID = Rule(lambda v: type(v) is int and 0 <= v < 2**40, "an integer from 0")
_ACTIVATION = Rule(
    lambda v: isinstance(v, str) and v in ACTIVATIONS, f"one of {', '.join(ACTIVATIONS)}"
)
_ABSENT = Rule(lambda v: not v, "nothing: encoders here have no such part")
_NAMES = Rule(
    lambda v: isinstance(v, list) and all(isinstance(n, str) for n in v), "a list of class names"
)
_LABELS = Rule(
    lambda v: (
        isinstance(v, dict)
        and sorted(v) == sorted(str(i) for i in range(len(v)))
        and all(isinstance(label, str) for label in v.values())
    ),
    'an object such as {"0": "negative", "1": "positive"}',
)
_RULES = {
    **dict.fromkeys(
        (
            "vocab_size",
            "num_hidden_layers",
            "num_attention_heads",
            "hidden_size",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ),
        _SIZE,
    ),
    "hidden_dropout_prob": _SHARE,
    "attention_probs_dropout_prob": _SHARE,
    "classifier_dropout": Rule(lambda v: v is None or _SHARE.holds(v), f"{_SHARE.words}, or null"),
    "layer_norm_eps": _EPSILON,
    "hidden_act": _ACTIVATION,
    "pad_token_id": _ID,
    "architectures": Rule(lambda v: v is None or _NAMES.holds(v), f"{_NAMES.words}, or null"),
    "id2label": Rule(lambda v: v is None or _LABELS.holds(v), f"{_LABELS.words}, or null"),
    # What would change the numbers in ways that the backbones do not implement.
    "position_embedding_type": Rule(lambda v: v in (None, "absolute"), "'absolute'"),
    "is_decoder": _ABSENT,
    "is_encoder_decoder": _ABSENT,
    "add_cross_attention": _ABSENT,
    "pruned_heads": _ABSENT,
    "quantization_config": _ABSENT,
}


def check_config(
    config: Mapping, path: pathlib.Path, names: Mapping[str, str] | None = None
) -> None:
    """Checks every field of a configuration that is read here.

    Args:
        config: contents of config.json.
        path: of the file, for errors.
        names: what the file calls the fields, where that is something else.

    Raises:
        ValueError: "config.json: hidden_size is '768'. Expected a positive integer."

    Example:
        >>> sizes = {"vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> check_config({**sizes, "hidden_size": -1}, pathlib.Path("config.json"))
        Traceback (most recent call last):
        ValueError: config.json: hidden_size is -1. Expected a positive integer.
    """
    names = names or {}
    for field in _REQUIRED:
        if config.get(field) is None:
            raise ValueError(f"{path}: {names.get(field, field)} is missing.")
    for field, rule in _RULES.items():
        # A family's tokenizer has a padding token also where the configuration has null.
        if field in config and not (field == "pad_token_id" and config[field] is None):
            name = names.get(field, field)
            _expect(rule.holds(config[field]), path, name, config[field], rule.words)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    _expect(hidden % heads == 0, path, "hidden_size", hidden, f"a multiple of {heads} heads")
    padding, vocabulary = config.get("pad_token_id") or 0, config["vocab_size"]
    _expect(padding < vocabulary, path, "pad_token_id", padding, f"below vocab_size, {vocabulary}")
    width = config.get("embedding_size", hidden)
    _expect(width == hidden, path, "embedding_size", width, f"hidden_size, {hidden}")


def _expect(holds: bool, path: pathlib.Path, field: str, value: object, words: str) -> None:
    if not holds:
        shown = repr(value) if len(repr(value)) < 80 else repr(value)[:77] + "..."
        raise ValueError(f"{path}: {field} is {shown}. Expected {words}.")


def backbone_arguments(config: Mapping, family: Family) -> dict:
    """Constructor arguments of a backbone from a checked configuration.

    Args:
        config: contents of config.json.
        family: the backbone's.

    Returns:
        {argument: value}, without `pooler`, which only the weights know.
    """
    arguments = {
        ours: config[theirs]
        for ours, theirs in CONFIG_KEYS.items()
        if config.get(theirs) is not None
    }
    arguments.setdefault("intermediate_dim", 4 * config["hidden_size"])
    padding = arguments.get("pad_token_id", 1)
    if not family.positions_skip_padding:
        arguments.pop("pad_token_id", None)
    elif "max_sequence_length" in arguments:
        arguments["max_sequence_length"] -= padding + 1
    return arguments


# Field: the tensor that must agree, and its axis.
_SIZES = {
    "vocab_size": ("embeddings.word_embeddings.weight", 0),
    "hidden_size": ("embeddings.word_embeddings.weight", 1),
    "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("encoder.layer.0.intermediate.dense.weight", 0),
}
_LAYER = "encoder.layer.{}.attention.self.query.weight"


def check_sizes(
    config: Mapping, shapes: Mapping[str, tuple[int, ...]], path: pathlib.Path, max_bytes: int
) -> None:
    """Compares the configuration's sizes with the weights' and both with the budget.

    Nothing has been allocated by then: a configuration alone cannot ask for memory.

    Args:
        config: contents of config.json, checked.
        shapes: {tensor name: shape} of the weights.
        path: of config.json, for errors.
        max_bytes: the most that the weights may take in float32.

    Raises:
        ValueError: "...: vocab_size is 4000000000, but embeddings.word_embeddings.weight has
            30522.", "... needs 9.1 GB ..."
    """
    for field, (name, axis) in _SIZES.items():
        if field in config and name in shapes and len(shapes[name]) > axis:
            found = shapes[name][axis]
            if config[field] != found:
                raise ValueError(f"{path}: {field} is {config[field]}, but {name} has {found}.")
    layers = 0
    while _LAYER.format(layers) in shapes:
        layers += 1
    if config["num_hidden_layers"] > layers:
        raise ValueError(
            f"{path}: num_hidden_layers is {config['num_hidden_layers']}, but the weights hold "
            f"{layers} layers."
        )
    needed = 4 * max(_estimate(config), sum(map(math.prod, shapes.values())))
    if needed > max_bytes:
        raise ValueError(
            f"{path}: a model of these sizes needs {needed / 1e9:.1f} GB, the limit is "
            f"{max_bytes / 1e9:.1f} GB. If you trust the preset, pass max_bytes={needed}."
        )


def _estimate(config: Mapping) -> int:
    """Number of weights in the large matrices."""
    hidden = config["hidden_size"]
    rows = config["vocab_size"] + config.get("max_position_embeddings", 512)
    block = 4 * hidden**2 + 2 * hidden * config.get("intermediate_size", 4 * hidden)
    return rows * hidden + config["num_hidden_layers"] * block
