"""TensorFlow's operations on strings that preprocessing uses, on UTF-8 in arrays of NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from encoder_zoo.common.ragged_array import Array, RaggedArray, as_array


def each(function: Callable, *values, dtype=object):
    """Return a function's values for strings (...), which are as many as the arguments' values."""
    if isinstance(values[0], RaggedArray):
        return values[0].with_flat_values(each(function, values[0].flat_values, dtype=dtype))
    arrays = np.broadcast_arrays(*(as_array(value) for value in values))
    found = np.empty(arrays[0].shape, dtype)
    found.flat = [function(*row) for row in zip(*(array.flat for array in arrays), strict=True)]
    return found.view(Array)


def decoded(text: bytes) -> str:
    """Return a text, with U+FFFD for malformed bytes."""
    return text.decode("utf-8", "replace")


def length(texts, unit: str = "BYTE"):
    """Return the lengths, int32, in bytes or in characters, "UTF8_CHAR"."""
    count = len if unit == "BYTE" else lambda text: len(decoded(text))
    return each(count, texts, dtype=np.int32)


def substr(texts, pos, len, unit: str = "BYTE") -> Array:
    """Return the bytes or characters from `pos` on, `len` of them at most."""

    def part(text: bytes, begin: int, count: int) -> bytes:
        if unit == "BYTE":
            return text[begin : begin + count]
        return decoded(text)[begin : begin + count].encode()

    return each(part, texts, pos, len)


def join(values, separator: str = "") -> Array:
    """Return the strings of several arrays put together, one by one."""
    return each(lambda *parts: separator.encode().join(parts), *values)


def reduce_join(texts, axis: int = -1, separator: str = "") -> Array:
    """Return the strings of each row put together."""
    joined = [separator.encode().join(row.tolist()) for row in texts]
    return as_array(np.asarray([*joined, b""], object)[:-1])


def as_string(values) -> Array:
    """Return numbers, or strings, as strings."""
    values = as_array(values)
    if values.dtype == object:
        return values
    return each(lambda value: str(value).encode(), values)


def regex_replace(texts, pattern: str, rewrite: str) -> Array:
    """Return the strings with the matches replaced; the pattern is one of RE2 and of Python."""
    compiled = re.compile(pattern)
    return each(lambda text: compiled.sub(rewrite, decoded(text)).encode(), texts)


def regex_full_match(texts, pattern: str) -> Array:
    """Return whether the pattern matches each whole string."""
    compiled = re.compile(pattern)
    return each(lambda text: compiled.fullmatch(decoded(text)) is not None, texts, dtype=bool)


def unicode_transcode(texts, input_encoding: str, output_encoding: str) -> Array:
    """Return UTF-8 with U+FFFD for malformed bytes."""
    return each(lambda text: decoded(text).encode(), texts)


strings = SimpleNamespace(
    length=length,
    substr=substr,
    join=join,
    reduce_join=reduce_join,
    as_string=as_string,
    regex_replace=regex_replace,
    regex_full_match=regex_full_match,
    unicode_transcode=unicode_transcode,
    strip=lambda texts: each(bytes.strip, texts),
)
