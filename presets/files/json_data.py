"""Parse JSON from untrusted files with limits for memory and depth, and encode JSON."""

from __future__ import annotations

import collections
import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from encoder_zoo.common.escaping import check_encodable
from encoder_zoo.common.validation import Rule, check_argument
from encoder_zoo.common.wording import decode_text, quote


class Limit(NamedTuple):
    """Size limits for JSON data.

    Attributes:
        content: Integer. Maximum JSON text size in bytes.
        memory: Integer. Approximate maximum size of the parsed data in bytes.
    """

    content: int
    memory: int


# A configuration with 100,000 class names takes 6 MB. The largest vocabularies have 900,000 tokens
# and 60 MB.
SETTINGS = Limit(32 * 2**20, 160 * 10**6)
VOCABULARY = Limit(128 * 2**20, 600 * 10**6)
MAX_JSON_DEPTH = 100
# Approximate number of bytes that the parser needs for each occurrence of a character.
_COSTS = {b"[": 96, b"{": 232, b":": 180, b",": 80}
# Keras layers that run code from the file.
_CODE = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}


# Validation rules for JSON fields.
JSON_FLAG = Rule(lambda v: type(v) is bool, "true or false")
COUNT = Rule(lambda v: type(v) is int and v >= 1, "an integer of 1 or more")
JSON_TEXT = Rule(lambda v: isinstance(v, str), "a text")


def read_field(
    settings: Mapping, name: str, rule: Rule, path: object, default: object = None
) -> object:
    """Get a field from a JSON object, and validate the value.

    Args:
        settings: Dictionary. The contents of a JSON file.
        name: String. The field name.
        rule: The `Rule` for the value.
        path: JSON file path for error messages.
        default: Value to return if the field is missing or null. Defaults to None.

    Raises:
        ValueError: If the value does not satisfy `rule`.

    Example:
        >>> read_field({"bias": 1}, "bias", JSON_FLAG, "config.json")
        Traceback (most recent call last):
        ValueError: config.json: bias is 1. Expected true or false.
    """
    if (value := settings.get(name)) is None:
        return default
    check_argument(f"{path}: {name}", value, rule)
    return value


def convert_to_json(value: Any) -> Any:
    """Convert a setting to JSON. Infinity becomes a string, and arrays and tuples become lists.

    Example:
        >>> convert_to_json({"dim": np.int64(8), "limits": (float("inf"), 0.5, None)})
        {'dim': 8, 'limits': ['inf', 0.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(name): convert_to_json(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return convert_to_json(value.tolist())
    if isinstance(value, list | tuple | range):
        return [convert_to_json(part) for part in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def from_json_value(value: object) -> object:
    """Convert the result of `convert_to_json` back to the original setting.

    Example:
        >>> [from_json_value(value) for value in ("-inf", 0.5, "first")]
        [-inf, 0.5, 'first']
    """
    return float(value) if value in ("inf", "-inf") else value


def encode_json(value: object) -> bytes:
    """Encode a value as JSON that `parse_object` and `parse_array` accept.

    Raises:
        ValueError: If numbers are not finite, or if strings contain lone surrogates.

    Example:
        >>> encode_json({"a": "ä"}).decode()
        '{\\n  "a": "ä"\\n}\\n'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    check_encodable(text, "A setting")
    return text.encode()


def encode_json_files(files: Mapping[str, object]) -> dict[str, bytes]:
    """Encode the contents of several files as JSON. Bytes are not changed.

    Args:
        files: Dictionary that maps file names to their contents.

    Example:
        >>> encode_json_files({"a.json": [1], "b": b"2"})
        {'a.json': b'[\\n  1\\n]\\n', 'b': b'2'}
    """
    return {n: v if isinstance(v, bytes) else encode_json(v) for n, v in files.items()}


def parse_object(
    content: bytes, name: object, limit: Limit = SETTINGS, unique_names: bool = False
) -> dict:
    """Parse a JSON object.

    Args:
        content: Bytes of UTF-8 text. The caller should compare the length with `limit.content`.
        name: File name for error messages.
        limit: The `Limit` for the parsed data. Defaults to `SETTINGS`.
        unique_names: Boolean. Whether to reject duplicate names with equal values. Duplicate names
            with different values are always rejected. Defaults to False.

    Raises:
        ValueError: If `content` is not a JSON object, needs too much memory, or contains Keras
            layers that run code.

    Example:
        >>> parse_object(b'{"a": 1, "a": 2}', "config.json")
        Traceback (most recent call last):
        ValueError: config.json is not readable as JSON: 'a' occurs twice, as 1 and as 2.
    """
    value = _parse(content, name, limit, unique_names)
    if not isinstance(value, dict):
        raise ValueError(f"{name} contains a {type(value).__name__}. Expected a JSON object.")
    return value


def parse_array(content: bytes, name: object) -> list:
    """Parse a JSON array. See `parse_object`.

    Example:
        >>> parse_array(b"{}", "modules.json")
        Traceback (most recent call last):
        ValueError: modules.json contains a dict. Expected a JSON array.
    """
    value = _parse(content, name, SETTINGS, unique_names=False)
    if not isinstance(value, list):
        raise ValueError(f"{name} contains a {type(value).__name__}. Expected a JSON array.")
    return value


def _parse(content: bytes, name: object, limit: Limit, unique_names: bool) -> object:
    needed = estimate_memory(content)
    if needed > limit.memory:
        raise ValueError(
            f"{name} would need {needed / 1e9:.2f} GB of memory. Expected at most "
            f"{limit.memory / 1e9:.2f} GB."
        )
    text = decode_text(content, name)
    try:
        make = functools.partial(_make_object, unique_names=unique_names)
        value = json.loads(text, object_pairs_hook=make, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError(
            f"{name} is not readable as JSON: the data is nested too deeply."
        ) from None
    except ValueError as error:
        reason = error if content else "the file is empty"
        raise ValueError(f"{name} is not readable as JSON: {reason}.") from None
    if isinstance(value, dict | list) and (found := _find_code(value, 0)):
        raise ValueError(f"{name}: {found[0].lstrip('.')}{found[1]}")
    return value


def estimate_memory(content: bytes) -> int:
    """Estimate the memory in bytes to parse JSON, including the text.

    Example:
        >>> estimate_memory(b'{"a": [1, 2]}')
        601
    """
    # In Python, the widest character determines the number of bytes for all characters in a string.
    width = (
        4 if re.search(b"[\xf0-\xff]", content) else 2 if re.search(b"[\xc4-\xff]", content) else 1
    )
    return width * len(content) + sum(content.count(sign) * cost for sign, cost in _COSTS.items())


def _make_object(pairs: list[tuple[str, object]], unique_names: bool) -> dict:
    """Create a dictionary from pairs. Reject duplicate names with different values."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    if unique_names:
        counts = collections.Counter(name for name, _ in pairs)
        [(name, _)] = counts.most_common(1)
        raise ValueError(f"{quote(name)} occurs twice. Expected unique names")
    for name, value in pairs:
        if value != found[name]:
            raise ValueError(
                f"{quote(name)} occurs twice, as {quote(value)} and as {quote(found[name])}"
            )
    return found


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _find_code(value: Any, depth: int) -> tuple[str, str] | None:
    """Find Keras layers that run code, and data that is nested too deeply.

    Returns:
        A tuple (field, error) for the first problem, or None.
    """
    if depth > MAX_JSON_DEPTH:
        return "", f": nested too deeply, more than {MAX_JSON_DEPTH} levels."
    name = value.get("class_name") if isinstance(value, dict) else None
    if isinstance(name, str) and name in _CODE:
        return ".class_name", (
            f" is {name!r}, a layer that runs code from the file. For safety, layers with code are "
            "never loaded."
        )
    is_dict = isinstance(value, dict)
    for key, inner in value.items() if is_dict else enumerate(value):
        if isinstance(inner, dict | list) and (found := _find_code(inner, depth + 1)):
            return (f".{key}" if is_dict else f"[{key}]") + found[0], found[1]
    return None
