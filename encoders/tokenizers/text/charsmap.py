"""SentencePiece's precompiled normalisation, a trie of byte strings, as rules of characters."""

from __future__ import annotations

import struct

import numpy as np

SHORT = 5  # bytes of the longest grapheme that is replaced as a whole
MOST_BYTES = 2**26
LABELS = np.arange(1, 256)
LABEL_MASK = 1 << 31 | 0xFF


def read_charsmap(content: bytes, name: str) -> dict[str, str]:
    """What each character, or each few of them, becomes.

    Args:
        content: the size of a double-array trie, its units of 32 bits, and behind them the
            replacements, each ended by a zero.
        name: of the file and field, for errors.

    Returns:
        {text: replacement}, of the keys that take up to `SHORT` bytes: longer ones are never asked
        for, see `PrecompiledNormalizer`.

    Raises:
        ValueError: "NAME: a trie of 400 bytes is announced, but 12 are there"

    Source: Yata, "Darts-clone", a double-array trie; SentencePiece's builder of normalisations.
    """
    if len(content) < 4 or len(content) > MOST_BYTES:
        raise ValueError(f"{name}: {len(content)} bytes; expected 4 to {MOST_BYTES}")
    size = struct.unpack_from("<I", content)[0]
    if size % 4 or size < 4 or size > len(content) - 4:
        raise ValueError(
            f"{name}: a trie of {size} bytes is announced, but {len(content) - 4} are there"
        )
    units = np.frombuffer(content, "<u4", size // 4, 4)
    replacements = content[4 + size :]
    found = {}
    for key, value in _entries(units, name):
        end = replacements.find(b"\0", value)
        if value >= len(replacements) or end < 0:
            raise ValueError(f"{name}: the replacement of {key!r} lies outside the file")
        try:
            found[key.decode("utf-8")] = replacements[value:end].decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name}: the rule of {key!r} is not UTF-8") from None
    return found


def _entries(units: np.ndarray, name: str) -> list[tuple[bytes, int]]:
    """(key, value) of the trie's keys of up to `SHORT` bytes."""
    units = np.append(units, np.zeros(256, units.dtype))  # places beyond hold no label
    found = []
    waiting = [(b"", _offset(int(units[0])))]
    for _ in range(len(units)):  # parts of the trie may be shared, so that it could be endless
        if not waiting:
            return found
        key, base = waiting.pop()
        places = np.minimum(base ^ LABELS, len(units) - 1)
        for i in np.flatnonzero((units[places] & LABEL_MASK) == LABELS).tolist():
            label, unit = i + 1, int(units[places[i]])
            child = int(places[i]) ^ _offset(unit)
            if unit >> 8 & 1:
                if child >= len(units):
                    raise ValueError(f"{name}: the trie leads to unit {child} of {len(units)}")
                found.append((key + bytes([label]), int(units[child]) & 2**31 - 1))
            if len(key) + 1 < SHORT:
                waiting.append((key + bytes([label]), child))
    raise ValueError(
        f"{name}: the trie of {len(units)} units holds too many keys to be one of text"
    )


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)
