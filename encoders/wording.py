"""Words of errors that several floors use."""

from __future__ import annotations

from collections.abc import Mapping

_MOST = 60


def shown(value: object) -> str:
    """A value from a file, short enough for an error.

    Example:
        >>> shown(["cat"]), shown("a" * 10**6)
        ("['cat']", "'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'")
    """
    # A long one is cut before it is written out.
    if isinstance(value, str | bytes | list | tuple) and len(value) > 4 * _MOST:
        value = value[:_MOST] + value[-_MOST:]
    try:
        text = repr(value)
    except ValueError:  # an integer with more digits than Python writes
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else "a number"
    half = (_MOST - 3) // 2
    return text if len(text) <= _MOST else f"{text[:half]}...{text[-half - 1 :]}"


def differing(said: Mapping[str, object]) -> str:
    """What two files say of the same thing, for an error.

    Example:
        >>> differing({"vocab.txt": 5, "tokenizer.json": None})
        '5 in vocab.txt, but missing in tokenizer.json. Expected the same: get both files anew.'
    """
    parts = [f"{'missing' if v is None else shown(v)} in {file}" for file, v in said.items()]
    return f"{', but '.join(parts)}. Expected the same: get both files anew."
