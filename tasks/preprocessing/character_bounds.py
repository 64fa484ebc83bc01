"""Trim spans to visible characters: remove blanks at the ends, and include combining marks.

Comments use these letters for shapes: N (texts), S (spans).
"""

from __future__ import annotations

import functools
import unicodedata
from typing import NamedTuple

import numpy as np

from encoder_zoo.common.lazy import xp

VISIBLE, BLANK, COMBINING_MARK = range(3)
LAST_OF_KINDS = 0xE0200  # all code points from this value on are visible or unassigned


class TextCharacters(NamedTuple):
    """The characters of a batch of texts.

    Attributes:
        begins: Int64 tensor of shape (N,). Start of each text in the concatenated characters.
        ends: Int64 tensor of shape (N,). End of each text in the concatenated characters.
        visible: Int64 tensor. Positions of characters that are neither blanks nor marks.
        unmarked: Int64 tensor. Positions of characters that are not marks.
    """

    begins: xp.Tensor
    ends: xp.Tensor
    visible: xp.Tensor
    unmarked: xp.Tensor


def read_characters(texts: xp.Tensor) -> TextCharacters:
    """Split texts (N,) into characters."""
    codes = xp.strings.unicode_decode(texts, "UTF-8")
    first, kinds = compute_runs()
    kind = xp.gather(kinds, xp.searchsorted(first, codes.values, side="right"))
    splits = xp.cast(codes.row_splits, xp.int64)
    visible, unmarked = (xp.where(kept)[:, 0] for kept in (kind == VISIBLE, kind != COMBINING_MARK))
    return TextCharacters(splits[:-1], splits[1:], visible, unmarked)


def extend_to_marks(characters: TextCharacters, row: xp.Tensor, end: xp.Tensor) -> xp.Tensor:
    """Extend spans (S,) to include the combining marks after their last character.

    Combining marks are accents, vowel signs, or U+FE0F after an emoji. Many tokenizers do not
    include these marks in a token.

    Args:
        characters: `TextCharacters` of the texts.
        row: Int64 tensor of shape (S,). Text index per span.
        end: Int32 tensor of shape (S,). End of each span, exclusive.
    """
    first = xp.gather(characters.begins, row)
    limit = xp.gather(characters.ends, row)
    found = _find_next(characters.unmarked, first + xp.cast(end, xp.int64), limit)
    return xp.cast(found - first, xp.int32)


def trim_to_visible(
    texts: xp.Tensor, row: xp.Tensor, start: xp.Tensor, end: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor]:
    r"""Trim spans to visible characters.

    Combining marks that follow the last visible character are included. A span that only contains
    blanks is returned unchanged.

    Args:
        texts: String tensor of shape (N,).
        row: Int64 tensor of shape (S,). Text index per span.
        start: Int32 tensor of shape (S,). Start character per span.
        end: Int32 tensor of shape (S,). End character per span, exclusive.

    Example:
        >>> import tensorflow as tf
        >>> texts = tf.constant([" Rome\u200b!"])
        >>> begin, behind = trim_to_visible(texts, *map(tf.constant, ([0], [0], [6])))
        >>> begin.numpy().tolist(), behind.numpy().tolist()
        ([1], [5])
    """
    begin, behind, is_seen = trim_spans(texts, row, start, end)
    return xp.where(is_seen, begin, start), xp.where(is_seen, behind, end)


def trim_spans(
    texts: xp.Tensor, row: xp.Tensor, start: xp.Tensor, end: xp.Tensor
) -> tuple[xp.Tensor, xp.Tensor, xp.Tensor]:
    """Trim spans as in `trim_to_visible`. Also return which spans have visible characters, (S,).

    The bounds of a span without visible characters have no meaning.
    """
    characters = read_characters(texts)
    first = xp.gather(characters.begins, row)
    limit = xp.gather(characters.ends, row)
    begin, behind = (first + xp.cast(offset, xp.int64) for offset in (start, end))
    begin = _find_next(characters.visible, begin, limit)
    is_seen = begin < behind
    # A span ends with its last visible character and the marks of this character.
    number = xp.searchsorted(characters.visible, behind) - 1
    padded = xp.concat([characters.visible, [-1]], axis=0)
    last = xp.gather(padded, xp.maximum(number, 0))
    behind = _find_next(characters.unmarked, last + 1, limit)
    begin, behind = (xp.cast(value - first, xp.int32) for value in (begin, behind))
    return begin, behind, is_seen


def _find_next(positions: xp.Tensor, begin: xp.Tensor, limit: xp.Tensor) -> xp.Tensor:
    """Return the first position at or after `begin`, but at most `limit`, for each span (S,)."""
    padded = xp.concat([positions, [2**62]], axis=0)
    found = xp.gather(padded, xp.searchsorted(positions, begin))
    return xp.minimum(found, limit)


@functools.cache
def compute_runs() -> tuple[np.ndarray, np.ndarray]:
    r"""Find the code points at which visible characters, blanks or combining marks begin.

    Returns:
        Two int32 arrays: the code points, and for each range between two code points one of
        VISIBLE, BLANK and COMBINING_MARK. The first range ends at the first code point.

    Example:
        >>> first, kinds = compute_runs()
        >>> [int(kinds[np.searchsorted(first, ord(c), side="right")]) for c in "a \u200b\u0301"]
        [0, 1, 1, 2]
    """
    kinds = np.full(LAST_OF_KINDS, VISIBLE, np.int32)
    for code in range(LAST_OF_KINDS):
        category = unicodedata.category(chr(code))
        if category[0] == "M":
            kinds[code] = COMBINING_MARK
        elif category in ("Cc", "Cf") or category[0] == "Z":
            kinds[code] = BLANK
    first = np.flatnonzero(np.diff(kinds)) + 1
    first = np.append(first, LAST_OF_KINDS).astype(np.int32)
    return first, np.concatenate([kinds[:1], kinds[first[:-1]], [VISIBLE]]).astype(np.int32)
