"""Parse precompiled SentencePiece charsmaps, which contain a trie of byte strings."""

from __future__ import annotations

import base64
import struct

import numpy as np

MAX_GRAPHEME_BYTES = 5  # maximum size for graphemes that are replaced as a whole


MAX_CHARSMAP_BYTES = 2**26


LABELS = np.arange(1, 256)


LABEL_MASK = 1 << 31 | 0xFF


def parse_charsmap_rules(charsmap: str | None) -> dict[str, str]:
    """Return {text: replacement} for a base64 charsmap from tokenizer.json."""
    if not charsmap:
        return {}
    return read_charsmap(base64.b64decode(charsmap, validate=True), "precompiled_charsmap")


def read_charsmap(content: bytes, name: str) -> dict[str, str]:
    """Parse a charsmap to get replacements for characters and short sequences.

    Args:
        content: Bytes. The size of the trie, 32-bit trie units, and null-terminated replacements.
        name: String. Name to use in error messages.

    Returns:
        Dict mapping texts to replacements, for keys with up to `MAX_GRAPHEME_BYTES` bytes. Longer
        keys are never used by `PrecompiledNormalizer`.

    Raises:
        ValueError: If the trie or a rule is damaged.

    Source: The double-array trie of Darts-clone (Yata), and the normalizer rule builder in
        SentencePiece.
    """
    if len(content) < 4 or len(content) > MAX_CHARSMAP_BYTES:
        raise ValueError(f"{name} has {len(content)} bytes. Expected 4 to {MAX_CHARSMAP_BYTES}.")
    size = struct.unpack_from("<I", content)[0]
    if size % 4 or size < 4 or size > len(content) - 4:
        raise ValueError(
            f"{name}: the trie has {size} bytes. Expected a multiple of 4, up to "
            f"{len(content) - 4}."
        )
    units = np.frombuffer(content, "<u4", size // 4, 4)
    replacements = content[4 + size :]
    found = {}
    for key, value in _iterate_entries(units, name):
        end = replacements.find(b"\0", value)
        if value >= len(replacements) or end < 0:
            raise ValueError(
                f"{name}: the replacement for {key!r} is outside of the file. Download the file "
                "again."
            )
        try:
            found[key.decode("utf-8")] = replacements[value:end].decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(
                f"{name}: the rule for {key!r} is not UTF-8. Download the file again."
            ) from None
    return found


def _iterate_entries(units: np.ndarray, name: str) -> list[tuple[bytes, int]]:
    """Return a list of (key, value) for all keys with up to `MAX_GRAPHEME_BYTES` bytes."""
    units = np.append(units, np.zeros(256, units.dtype))  # add units without a label
    found: list[tuple[bytes, int]] = []
    waiting = [(b"", _get_offset(int(units[0])))]
    for _ in range(len(units)):  # avoid endless loops, since a trie may contain cycles
        if not waiting:
            return found
        key, base = waiting.pop()
        children = np.minimum(base ^ LABELS, len(units) - 1)
        for i in np.flatnonzero((units[children] & LABEL_MASK) == LABELS).tolist():
            label, unit = i + 1, int(units[children[i]])
            child = int(children[i]) ^ _get_offset(unit)
            if unit >> 8 & 1:
                if child >= len(units):
                    raise ValueError(
                        f"{name}: the trie refers to unit {child}, but has {len(units)} units. "
                        "Download the file again."
                    )
                found.append((key + bytes([label]), int(units[child]) & 2**31 - 1))
            if len(key) + 1 < MAX_GRAPHEME_BYTES:
                waiting.append((key + bytes([label]), child))
    raise ValueError(
        f"{name}: the trie with {len(units)} units contains too many keys. Download the file again."
    )


def _get_offset(unit: int) -> int:
    return (unit >> 10) << ((unit & 1 << 9) >> 6)
