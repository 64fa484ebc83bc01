"""Validate, convert and create `config.json` for a model family."""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Callable, Mapping

from encoder_zoo.common.configuration import get_argument_defaults, get_argument_rules
from encoder_zoo.common.validation import NonNegativeInt, Rate, Rule, get_rule
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.layers import NO_VALUE
from encoder_zoo.presets.formats.checkpoint import MAX_CLASSES

REQUIRED = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim")
_NAMES = Rule(
    lambda v: v is None or (isinstance(v, list) and all(isinstance(n, str) for n in v)),
    "a list of class names, or null",
)
_LABELS = Rule(
    lambda v: (
        v is None
        or (
            isinstance(v, dict)
            and sorted(v) == sorted(str(i) for i in range(len(v)))
            and all(isinstance(label, str) for label in v.values())
        )
    ),
    'an object such as {"0": "negative", "1": "positive"}, or null',
)
_COUNT = Rule(
    lambda v: v is None or (type(v) is int and 0 <= v <= MAX_CLASSES),
    f"a number of classes up to {MAX_CLASSES}, or null",
)
# Rules for config.json fields that all families have.
COMMON = {
    "architectures": _NAMES,
    "id2label": _LABELS,
    "num_labels": _COUNT,
    "_num_labels": _COUNT,
    "pad_token_id": get_rule(NonNegativeInt | None),
    # These fields would affect outputs but are not implemented.
    "is_decoder": NO_VALUE,
    "is_encoder_decoder": NO_VALUE,
    "add_cross_attention": NO_VALUE,
    "pruned_heads": NO_VALUE,
    "quantization_config": NO_VALUE,
}


def check_config(
    config: Mapping, family: Family, path: pathlib.Path, names: Mapping[str, str] | None = None
) -> None:
    """Validate all supported configuration fields.

    Args:
        config: Dict. Content of config.json.
        family: The `Family` of the model.
        path: File path for error messages.
        names: Optional dict {field: name in the file} for renamed fields.

    Raises:
        ValueError: If a field of `config` is missing or invalid.

    Example:
        >>> from encoder_zoo.encoders import get_family
        >>> sizes = {"vocab_size": 9, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> path = pathlib.Path("config.json")
        >>> check_config({**sizes, "hidden_size": -1}, get_family("bert"), path)
        Traceback (most recent call last):
        ValueError: config.json: hidden_size is -1. Expected a positive integer.
    """
    names, keys = names or {}, family.config_keys

    def expect(holds: bool, key: str, words: str) -> None:
        if not holds:
            raise invalid(f"{path}: {names.get(key, key)}", config[key], words)

    for argument in REQUIRED:
        key = keys[argument]
        if config.get(key) is None:
            raise ValueError(
                f"{path} does not contain {names.get(key, key)}. Add this field with the correct "
                "value for the model."
            )
    for key, rule in _make_rules(family).items():
        if key in config:
            expect(rule.holds(config[key]), key, rule.words)
    for key, other in family.repeated_keys.items():
        if key in config:
            expect(config[key] == config[other], key, f"the value of {other}, {config[other]}")
    _check_labels(config, expect)
    hidden, heads = config[keys["hidden_dim"]], config[keys["num_heads"]]
    expect(hidden % heads == 0, keys["hidden_dim"], f"a multiple of the number of heads, {heads}")
    padding, vocabulary = config.get("pad_token_id") or 0, config[keys["vocabulary_size"]]
    words = f"a value below {keys['vocabulary_size']}, {vocabulary}"
    expect(padding < vocabulary, "pad_token_id", words)
    if "embedding_dim" not in keys:
        width = config.get("embedding_size", hidden)
        expect(width == hidden, "embedding_size", f"{keys['hidden_dim']}, {hidden}")


def _check_labels(config: Mapping, expect: Callable[[bool, str, str], None]) -> None:
    """Check that `label2id` and `id2label` match.

    If `id2label` is missing, `label2id` must map labels to consecutive ids.
    """
    names, numbers = config.get("id2label"), config.get("label2id")
    if numbers is None or numbers == {}:
        return
    is_object = isinstance(numbers, Mapping)
    if names and is_object and all(re.fullmatch(r"LABEL_\d+", str(name)) for name in numbers):
        return  # transformers writes default names if only `config.id2label` was set
    # Some files store the ids as strings.
    found = {label: str(number) for label, number in numbers.items()} if is_object else {}
    if names:
        inverse = {label: int(i) for i, label in names.items()}
        same = found == {label: str(i) for label, i in inverse.items()}
        # For classes with duplicate names, `label2id` only contains one class.
        holds = is_object and (same or len(inverse) < len(names))
        expect(holds, "label2id", f"the inverse of id2label, {quote(inverse)}")
    else:
        expected = sorted(str(i) for i in range(len(found)))
        words = 'an object such as {"negative": 0, "positive": 1}, or null'
        expect(is_object and sorted(found.values()) == expected, "label2id", words)


def _make_rules(family: Family) -> dict[str, Rule]:
    """Create the rules for the config.json fields of a family."""
    dropouts = [head.dropout for head in family.heads.values() if head.dropout]
    rules = get_argument_rules(family.backbone)
    own = {key: rules[argument] for argument, key in family.config_keys.items()}
    return {**dict.fromkeys(dropouts, get_rule(Rate | None)), **own, **COMMON, **family.rules}


def convert_config(config: Mapping, family: Family) -> dict:
    """Convert a validated configuration to backbone arguments.

    The argument `pooler` is not included, because it depends on the weights.

    Args:
        config: Dict. Content of config.json.
        family: The `Family` of the backbone.
    """
    arguments = {
        ours: config[theirs]
        for ours, theirs in family.config_keys.items()
        if config.get(theirs) is not None
    }
    arguments.setdefault("intermediate_dim", 4 * arguments["hidden_dim"])
    if family.positions_skip_padding and "max_sequence_length" in arguments:
        arguments["max_sequence_length"] -= arguments.get("pad_token_id", 1) + 1
    return arguments


def make_backbone_config(backbone: Backbone, tokenizer) -> dict:
    """Create the content of config.json for a backbone.

    Args:
        backbone: The `Backbone` to save.
        tokenizer: Optional tokenizer to save with the backbone.

    Raises:
        ValueError: If config.json cannot store a setting of the backbone.
    """
    family = backbone.family
    _check_representable(backbone)
    keys = {ours: theirs for ours, theirs in family.config_keys.items() if hasattr(backbone, ours)}
    config = {
        "model_type": family.name,
        **family.constants,
        **{theirs: getattr(backbone, ours) for ours, theirs in keys.items()},
    }
    if family.positions_skip_padding:
        config[keys["max_sequence_length"]] += backbone.pad_token_id + 1
    config |= {key: config[other] for key, other in family.repeated_keys.items()}
    if tokenizer is not None:
        config |= {key: getattr(tokenizer, name) for key, name in family.token_ids.items()}
    return config


def _check_representable(backbone: Backbone) -> None:
    """Check that config.json can store all backbone arguments."""
    family = backbone.family
    for name, default in get_argument_defaults(type(backbone)).items():
        value = getattr(backbone, name)
        # The pooler is inferred from the weights.
        if name not in family.config_keys and name != "pooler" and value != default:
            raise ValueError(
                f"`{name}` is {quote(value)}, but config.json of {family.name} can only store "
                f"{default!r}. Save the model with .save('model.keras') instead."
            )


# {backbone argument: (attribute path of a layer, axis of the weight with this size)}
_SIZES = {
    "vocabulary_size": ("embeddings.token_embedding", 0),
    "embedding_dim": ("embeddings.token_embedding", 1),
    "hidden_dim": ("blocks.{}.output_dense", 0),
    "max_sequence_length": ("embeddings.position_embedding", 0),
    "num_segments": ("embeddings.segment_embedding", 0),
    "intermediate_dim": ("blocks.{}.output_dense", 1),
}


def check_sizes(
    config: Mapping,
    family: Family,
    shapes: Mapping[str, tuple[int, ...]],
    path: pathlib.Path,
    max_bytes: int,
) -> None:
    """Compare the sizes in config.json with the weights, and check the model size.

    This function is called before allocating memory for the model.

    Args:
        config: Dict. Validated content of config.json.
        family: The `Family` of the model.
        shapes: Dict {tensor name: shape}.
        path: The path of config.json for error messages.
        max_bytes: Integer. Maximum size of all weights in bytes, in float32.

    Raises:
        ValueError: If a size in `config` and the shape of a weight differ, or if the weights need
            more than `max_bytes`.
    """
    for argument, (layer, axis) in _SIZES.items():
        key = family.config_keys.get(argument)
        name = f"{family.tensors.get(layer, '')}.weight".format(0)
        if key in config and len(shapes.get(name, ())) > axis:
            unused = family.unused_positions if argument == "max_sequence_length" else 0
            found = shapes[name][axis] - unused
            if config[key] != found:
                raise invalid(f"{path}: {key}", config[key], f"{found}, the size of {name}")
    _check_layers(config, family, shapes, path)
    needed = 4 * max(_estimate_parameters(config, family), sum(map(math.prod, shapes.values())))
    if needed > max_bytes:
        raise ValueError(
            f"{path}: the model needs {needed / 1e9:.1f} GB, but the limit is "
            f"{max_bytes / 1e9:.1f} GB. If you trust the preset, pass max_bytes={needed}."
        )


def _check_layers(config: Mapping, family: Family, shapes: Mapping, path: pathlib.Path) -> None:
    """Check that the weights contain all blocks in the configuration."""
    for key, blocks, wanted in _list_block_fields(config, family):
        first = f"{blocks}.{{}}."
        name = next(name for ours, name in family.tensors.items() if ours.startswith(first))
        layers = 0
        while f"{name}.weight".format(layers) in shapes:
            layers += 1
        if wanted > layers:
            first = f"{name}.weight".format(0)
            seen = ", ".join(list(shapes)[:3]) or "none"
            seen = f": no tensor {first} among {seen}, ..." if not layers else ""
            raise invalid(
                f"{path}: {key}", wanted, f"{layers}, the number of layers in the weights{seen}"
            )


def _list_block_fields(config: Mapping, family: Family) -> list[tuple[str, str, int]]:
    """Return the config.json key, the attribute and the length of every list of blocks."""
    lists = {family.blocks: "blocks", "num_decoder_layers": "decoder_blocks"}
    keys = {family.config_keys[n]: blocks for n, blocks in lists.items() if n in family.config_keys}
    return [(key, blocks, config.get(key, 1)) for key, blocks in keys.items()]


def _estimate_parameters(config: Mapping, family: Family) -> int:
    """Estimate the number of parameters in all large matrices."""
    arguments = convert_config(config, family)
    hidden, vocabulary = arguments["hidden_dim"], arguments["vocabulary_size"]
    rows = vocabulary + arguments.get("max_sequence_length", 512)
    block = 4 * hidden**2 + 2 * hidden * arguments["intermediate_dim"]
    width = arguments.get("embedding_dim", hidden)
    return rows * width + sum(count for *_, count in _list_block_fields(config, family)) * block
