"""NumPy implementation of TensorFlow string operations, for object arrays of UTF-8 bytes."""

from __future__ import annotations

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from encoder_zoo.common.ragged_array import Array, RaggedArray, make_array


def map_strings(function: Callable, *values, dtype=object):
    """Apply a function to each string. All arguments are broadcast."""
    if isinstance(values[0], RaggedArray):
        return values[0].with_flat_values(map_strings(function, values[0].flat_values, dtype=dtype))
    arrays = np.broadcast_arrays(*(make_array(value) for value in values))
    found: Any = np.empty(arrays[0].shape, dtype)
    found.flat = [function(*row) for row in zip(*(array.flat for array in arrays), strict=True)]
    return found.view(Array)


def decode_bytes(text: bytes) -> str:
    """Decode UTF-8 bytes to a string. Malformed bytes become U+FFFD."""
    return text.decode("utf-8", "replace")


def length(texts, unit: str = "BYTE"):
    """Return the length of each string, in bytes or in characters ("UTF8_CHAR")."""
    count = len if unit == "BYTE" else lambda text: len(decode_bytes(text))
    return map_strings(count, texts, dtype=np.int32)


def substr(texts, pos, len, unit: str = "BYTE") -> Array:
    """Return the part of each string from `pos` to `pos + len`, in bytes or characters."""

    def part(text: bytes, begin: int, count: int) -> bytes:
        if unit == "BYTE":
            return text[begin : begin + count]
        return decode_bytes(text)[begin : begin + count].encode()

    return map_strings(part, texts, pos, len)


def join(values, separator: str = "") -> Array:
    """Concatenate the strings of several arrays, element by element."""
    return map_strings(lambda *parts: separator.encode().join(parts), *values)


def reduce_join(texts, axis: int = -1, separator: str = "") -> Array:
    """Concatenate the strings of each row."""
    joined = [separator.encode().join(row.tolist()) for row in texts]
    return make_array(np.asarray([*joined, b""], object)[:-1])


def as_string(values) -> Array:
    """Convert numbers or strings to strings."""
    values = make_array(values)
    if values.dtype == object:
        return values
    return map_strings(lambda value: str(value).encode(), values)


def regex_replace(texts, pattern: str, rewrite: str) -> Array:
    """Replace all matches of an RE2 pattern."""
    compiled = compile_re2(pattern)
    return map_strings(lambda text: compiled.sub(rewrite, decode_bytes(text)).encode(), texts)


def regex_full_match(texts, pattern: str) -> Array:
    """Return whether a pattern matches each whole string."""
    compiled = compile_re2(pattern)
    return map_strings(
        lambda text: compiled.fullmatch(decode_bytes(text)) is not None, texts, dtype=bool
    )


@functools.lru_cache(maxsize=32)
def compile_re2(pattern: str) -> re.Pattern:
    r"""Compile an RE2 pattern with `re`, after converting `\pX` in sets, `\x{85}` and `\s`.

    Example:
        >>> compile_re2(r"[\p{N}\x{85}\s]+").fullmatch("1½²\x85 ") is not None
        True
    """
    found, in_set = [], False
    for part in re.findall(r"\\p\{\w+\}|\\p\w|\\x\{\w+\}|\\.|.", pattern, re.DOTALL):
        in_set = part == "[" or (in_set and part != "]")
        if part.startswith("\\p"):
            part = make_category_ranges(part[2:].strip("{}"))
        elif part.startswith("\\x{"):
            part = f"\\U{int(part[3:-1], 16):08x}"
        elif part == "\\s":
            part = r"\t\n\f\r " if in_set else r"[\t\n\f\r ]"
        found.append(part)
    return re.compile("".join(found))


@functools.lru_cache(maxsize=16)
def make_category_ranges(category: str) -> str:
    """Create a pattern that matches all characters of a Unicode category, such as "L"."""
    codes = [i for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i))[0] == category]
    starts = [i for i, before in zip(codes, [-9, *codes], strict=False) if i != before + 1]
    ends = [i for i, after in zip(codes, [*codes[1:], -9], strict=True) if i != after - 1]
    return "".join(f"\\U{a:08x}-\\U{b:08x}" for a, b in zip(starts, ends, strict=True))


def unicode_transcode(texts, input_encoding: str, output_encoding: str) -> Array:
    """Replace malformed UTF-8 bytes with U+FFFD."""
    return map_strings(lambda text: decode_bytes(text).encode(), texts)


def unicode_decode(texts, input_encoding: str) -> RaggedArray:
    """Decode texts with shape (N,) to code points, an int32 array with shape (N, None)."""
    codes = [np.frombuffer(decode_bytes(t).encode("utf-32-le"), "<i4") for t in texts.tolist()]
    values = np.concatenate([np.zeros(0, np.int32), *codes]).astype(np.int32)
    return RaggedArray.from_row_lengths(make_array(values), [len(row) for row in codes])


def unicode_encode(codes: RaggedArray, output_encoding: str) -> Array:
    """Encode code points to texts with shape (N,)."""
    joined = codes.values.astype("<i4").tobytes().decode("utf-32-le")
    bounds = codes.row_splits.tolist()
    texts = [joined[a:b].encode() for a, b in itertools.pairwise(bounds)]
    return make_array(np.asarray([*texts, b""], object)[:-1])


strings = SimpleNamespace(
    length=length,
    substr=substr,
    join=join,
    reduce_join=reduce_join,
    as_string=as_string,
    regex_replace=regex_replace,
    regex_full_match=regex_full_match,
    unicode_transcode=unicode_transcode,
    unicode_decode=unicode_decode,
    unicode_encode=unicode_encode,
    strip=lambda texts: map_strings(bytes.strip, texts),
)
