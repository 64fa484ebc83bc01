"""Parses JSON of untrusted files within limits of memory and depth; and writes it."""

from __future__ import annotations

import collections
import functools
import json
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from encoder_zoo.common.escaping import check_writable
from encoder_zoo.common.wording import decoded, shown


class Limit(NamedTuple):
    """Limits of the size of JSON.

    Attributes:
        content: bytes of the text.
        memory: approximate bytes of the parsed data.
    """

    content: int
    memory: int


# A configuration with the names of 100,000 classes has 6 MB. The largest vocabularies, of 900,000
# tokens, have 60 MB.
SETTINGS = Limit(32 * 2**20, 160 * 10**6)
VOCABULARY = Limit(128 * 2**20, 600 * 10**6)
DEPTH = 100
# Bytes that the parser needs for a character: a list with an entry, a dictionary, an entry.
_COSTS = {b"[": 96, b"{": 232, b":": 180, b",": 80}
# Layers of Keras that run code stored in the file.
_CODE = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}


def as_json_value(value: object) -> object:
    """Return a setting as JSON can hold it: infinite numbers, which JSON has not, as strings.

    Example:
        >>> [as_json_value(value) for value in (float("inf"), 0.5, None)]
        ['inf', 0.5, None]
    """
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def from_json_value(value: object) -> object:
    """Return the setting that `as_json_value` was given.

    Example:
        >>> [from_json_value(value) for value in ("-inf", 0.5, "first")]
        [-inf, 0.5, 'first']
    """
    return float(value) if value in ("inf", "-inf") else value


def json_bytes(value: object) -> bytes:
    """Return the content of a JSON file, which `parse_object` or `parse_array` reads.

    Raises:
        ValueError: If a number is not finite, or if a text has a lone surrogate.

    Example:
        >>> json_bytes({"a": "ä"}).decode()
        '{\\n  "a": "ä"\\n}\\n'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    check_writable(text, "A setting")
    return text.encode()


def json_files(files: Mapping[str, object]) -> dict[str, bytes]:
    """Return the contents of files: bytes as they are, all else as JSON.

    Args:
        files: {name: content}.

    Example:
        >>> json_files({"a.json": [1], "b": b"2"})
        {'a.json': b'[\\n  1\\n]\\n', 'b': b'2'}
    """
    return {n: v if isinstance(v, bytes) else json_bytes(v) for n, v in files.items()}


def parse_object(
    content: bytes, name: object, limit: Limit = SETTINGS, unique_names: bool = False
) -> dict:
    """Parse a JSON object.

    Args:
        content: the text in UTF-8; callers check that it is not longer than `limit.content`.
        name: of the file, for error messages.
        limit: of its memory.
        unique_names: whether to refuse a repeated name also if its values are equal.

    Raises:
        ValueError: If the content is not a JSON object, would take too much memory, or names code,
            such as a Lambda layer.

    Example:
        >>> parse_object(b'{"a": 1, "a": 2}', "config.json")
        Traceback (most recent call last):
        ValueError: config.json: not readable as JSON: 'a' is there twice, as 1 and as 2.
    """
    value = _parse(content, name, limit, unique_names)
    if not isinstance(value, dict):
        raise ValueError(f"{name} holds a {type(value).__name__}. Expected a JSON object.")
    return value


def parse_array(content: bytes, name: object) -> list:
    """Parse a JSON array; see `parse_object`.

    Example:
        >>> parse_array(b"{}", "modules.json")
        Traceback (most recent call last):
        ValueError: modules.json holds a dict. Expected a JSON array.
    """
    value = _parse(content, name, SETTINGS, unique_names=False)
    if not isinstance(value, list):
        raise ValueError(f"{name} holds a {type(value).__name__}. Expected a JSON array.")
    return value


def _parse(content: bytes, name: object, limit: Limit, unique_names: bool) -> object:
    needed = memory_of(content)
    if needed > limit.memory:
        raise ValueError(
            f"{name}: it would take {needed / 1e9:.2f} GB of memory. Expected at most "
            f"{limit.memory / 1e9:.2f} GB."
        )
    text = decoded(content, name)
    try:
        make = functools.partial(_object, unique_names=unique_names)
        value = json.loads(text, object_pairs_hook=make, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"{name}: not readable as JSON: nested too deeply.") from None
    except ValueError as error:
        reason = error if content else "the file is empty"
        raise ValueError(f"{name}: not readable as JSON: {reason}.") from None
    if isinstance(value, dict | list) and (found := _find_code(value, 0)):
        raise ValueError(f"{name}: {found[0].lstrip('.')}{found[1]}")
    return value


def memory_of(content: bytes) -> int:
    """Return the approximate memory in bytes of parsed JSON, including its text.

    Example:
        >>> memory_of(b'{"a": [1, 2]}')
        601
    """
    # Python's strings take as many bytes for every character as for the one that needs most.
    width = (
        4 if re.search(b"[\xf0-\xff]", content) else 2 if re.search(b"[\xc4-\xff]", content) else 1
    )
    return width * len(content) + sum(content.count(sign) * cost for sign, cost in _COSTS.items())


def _object(pairs: list[tuple[str, object]], unique_names: bool) -> dict:
    """Return an object; a repeated name must have equal values, or is refused."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    if unique_names:
        counts = collections.Counter(name for name, _ in pairs)
        [(name, _)] = counts.most_common(1)
        raise ValueError(f"{shown(name)} is there twice. Expected every name once")
    for name, value in pairs:
        if value != found[name]:
            raise ValueError(
                f"{shown(name)} is there twice, as {shown(value)} and as {shown(found[name])}"
            )
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _find_code(value: object, depth: int) -> tuple[str, str] | None:
    """Return (field, error) of a class that runs code, or of too deep nesting; None if neither."""
    if depth > DEPTH:
        return "", f": nested too deeply, more than {DEPTH} levels."
    name = value.get("class_name") if isinstance(value, dict) else None
    if isinstance(name, str) and name in _CODE:
        return ".class_name", (
            f" is {name!r}, a layer that runs code from the file. Presets are plain data; such a "
            "one is never opened."
        )
    is_dict = isinstance(value, dict)
    for key, inner in value.items() if is_dict else enumerate(value):
        if isinstance(inner, dict | list) and (found := _find_code(inner, depth + 1)):
            return (f".{key}" if is_dict else f"[{key}]") + found[0], found[1]
    return None
