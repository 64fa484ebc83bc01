"""Decode and encode UTF-8. Characters are represented as code points with offsets."""

from __future__ import annotations

import functools
import json
import unicodedata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.ragged import compute_row_ids, make_index_mask


def decode_utf8(
    texts: tf.Tensor, joined: tf.Tensor, splits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return code points (N,) for texts (B,), and row splits (B + 1,).

    This is many times faster than the decoder in TensorFlow, which is only used for malformed
    texts.

    Args:
        texts: String tensor of shape (B,).
        joined: uint8 tensor of shape (S,). Concatenated bytes for all texts.
        splits: int32 tensor of shape (B + 1,). The start position for each text in the bytes.
    """
    is_first = tf.pad(tf.bitcast(joined, tf.int8) >= -64, [[0, 1]], constant_values=True)
    positions = tf.cast(tf.where(is_first)[:, 0], tf.int32)  # (N + 1,), with the end
    codes = tf.cast(tf.gather(joined, positions[:-1]), tf.int32)
    long = tf.cast(tf.where(codes >= 0x80)[:, 0], tf.int32)  # characters with several bytes
    sizes = tf.gather(positions, long + 1) - tf.gather(positions, long)
    long_codes, valid = decode_multibyte(joined, tf.gather(positions, long), sizes)
    valid &= tf.reduce_sum(sizes - 1) + tf.size(codes) == tf.size(joined)
    valid &= tf.reduce_all(tf.gather(is_first, splits))

    def decode_with_tensorflow() -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.strings.unicode_decode(texts, "UTF-8")
        return rows.values, tf.cast(rows.row_splits, tf.int32)

    return tf.cond(
        valid,
        lambda: (
            tf.tensor_scatter_nd_update(codes, long[:, None], long_codes),
            tf.searchsorted(positions, splits),
        ),
        decode_with_tensorflow,
    )


def decode_multibyte(
    joined: tf.Tensor, positions: tf.Tensor, sizes: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode characters with several bytes.

    Args:
        joined: uint8 tensor of shape (S,). Bytes to decode.
        positions: int32 tensor of shape (M,). The position of the first byte per character.
        sizes: int32 tensor of shape (M,). The number of bytes per character.

    Returns:
        Code points with shape (M,), and a boolean scalar that is True if all characters are
        well-formed.

    Source: The Unicode Standard, section 3.9, table 3-7.

    Example:
        >>> joined = tf.io.decode_raw("½", tf.uint8)
        >>> code, valid = decode_multibyte(joined, tf.constant([0]), tf.constant([2]))
        >>> chr(code[0]), bool(valid)
        ('½', True)
    """
    first = tf.cast(tf.gather(joined, positions), tf.int32)
    codes = tf.bitwise.bitwise_and(first, tf.gather([0, 0, 31, 15, 7, 0], tf.minimum(sizes, 5)))
    for i in (1, 2, 3):
        byte = tf.gather(joined, tf.minimum(positions + i, tf.size(joined) - 1))
        low = tf.cast(tf.bitwise.bitwise_and(byte, 63), tf.int32)
        codes = tf.where(sizes > i, codes * 64 + low, codes)
    expected = 2 + tf.cast(first >= 0xE0, tf.int32) + tf.cast(first >= 0xF0, tf.int32)
    lowest = tf.gather([0, 0, 0x80, 0x800, 0x10000, 0], tf.minimum(sizes, 5))
    surrogate = tf.bitwise.right_shift(codes, 11) == 0xD800 >> 11
    valid = (sizes == expected) & (first < 0xF8) & ~surrogate
    return codes, tf.reduce_all(valid & (codes >= lowest) & (codes <= 0x10FFFF))


def encode_utf8(codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Encode characters as UTF-8.

    Args:
        codes: int32 tensor of shape (N,). The code points to encode.

    Returns:
        symbols: int32 tensor of shape (S,). The bytes.
        splits: int32 tensor of shape (N + 1,). The start position for each character in the
            bytes.
        owners: int32 tensor of shape (S,). The character index for each byte.

    Example:
        >>> encode_utf8(tf.constant([ord("a"), ord("½")]))[0].numpy().tolist()
        [97, 194, 189]
    """

    def encode_multibyte() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        long = tf.cast(tf.where(codes >= 0x80)[:, 0], tf.int32)
        code = tf.gather(codes, long)  # other characters have a single byte
        length = 2 + tf.cast(code >= 0x800, tf.int32) + tf.cast(code >= 0x10000, tf.int32)
        lengths = tf.tensor_scatter_nd_update(tf.ones_like(codes), long[:, None], length)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        owners = compute_row_ids(splits, splits[-1])

        leading = tf.bitwise.right_shift(code, 6 * (length - 1))
        leading += tf.gather([0, 0, 0xC0, 0xE0, 0xF0], length)
        positions = tf.gather(splits, long)
        symbols = tf.gather(codes, owners)
        symbols = tf.tensor_scatter_nd_update(symbols, positions[:, None], leading)
        for i in (1, 2, 3):
            longer = tf.where(length > i)[:, 0]
            shift = 6 * (tf.gather(length, longer) - 1 - i)
            low = tf.bitwise.right_shift(tf.gather(code, longer), shift)
            byte = tf.bitwise.bitwise_and(low, 0x3F) + 0x80
            position = tf.gather(positions, longer) + i
            symbols = tf.tensor_scatter_nd_update(symbols, position[:, None], byte)
        return symbols, splits, owners

    def encode_ascii() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        splits = tf.range(tf.size(codes) + 1)
        return codes, splits, splits[:-1]

    return tf.cond(tf.reduce_max(codes) < 0x80, encode_ascii, encode_multibyte)


class Characters(NamedTuple):
    """The concatenated characters of a batch of texts.

    Attributes:
        codes: int32 tensor of shape (N,). The code points.
        starts, ends: int32 tensors of shape (N,). The span of each character, as character indices
            in the concatenation of all original texts.
        row_splits: int32 tensor of shape (B + 1,). The start position for each text in `codes`.
        original_splits: int32 tensor of shape (B + 1,). The start position for each text in the
            original characters.
    """

    codes: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor
    original_splits: tf.Tensor

    def take(self, indices: tf.Tensor) -> Characters:
        """Select characters by ascending indices with shape (K,)."""
        codes, starts, ends = (tf.gather(part, indices) for part in self[:3])
        splits = tf.searchsorted(indices, self.row_splits)
        return Characters(codes, starts, ends, splits, self.original_splits)

    def select(self, keep: tf.Tensor) -> Characters:
        """Select characters with a boolean tensor of shape (N,)."""
        return self.take(tf.cast(tf.where(keep)[:, 0], tf.int32))

    def mark_row_starts(self) -> tf.Tensor:
        """Return a mask with shape (N,) for the first character in each text."""
        return make_index_mask(self.row_splits[:-1], tf.size(self.codes))


def decode_characters(texts: tf.Tensor) -> Characters:
    """Decode texts with shape (B,). Malformed bytes are replaced by U+FFFD.

    Example:
        >>> decode_characters(tf.constant(["né", "", "e"])).row_splits.numpy().tolist()
        [0, 2, 2, 3]
    """
    joined = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
    splits = tf.concat([[0], tf.cumsum(tf.strings.length(texts))], 0)
    codes, splits = tf.cond(
        tf.reduce_all(joined < 128),
        lambda: (tf.cast(joined, tf.int32), splits),
        lambda: decode_utf8(texts, joined, splits),
    )
    positions = tf.range(tf.size(codes))
    return Characters(codes, positions, positions + 1, splits, splits)


DATA_FILE = Path(__file__).parent / "data" / "unicode.json"
NUM_CODE_POINTS = 0x110000
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)
PAGE_BITS = 7
NUM_LOW = 0x3000  # code points below East Asian characters


class CodePointTable(tf.Module):
    """Maps code points to numbers. Equal pages of 128 values are stored only once.

    Args:
        values: int32 array of shape (0x110000,). The value for each code point.

    Example:
        >>> table = CodePointTable(np.arange(0x110000, dtype=np.int32) % 10)
        >>> table(tf.constant([7, 0x1F600])).numpy().tolist()
        [7, 2]
    """

    def __init__(self, values: np.ndarray):
        super().__init__()
        number_of: dict[bytes, int] = {}  # number per page; np.unique would take 150 ms to sort
        pages = values.astype(np.int32).reshape(-1, 1 << PAGE_BITS)
        page_of = [number_of.setdefault(page.tobytes(), len(number_of)) for page in pages]
        self._low_numbers = tf.constant(values[:NUM_LOW], tf.int32)
        self._numbers = tf.constant(np.frombuffer(b"".join(number_of), np.int32))
        self._page_starts = tf.constant(np.array(page_of, np.int32) << PAGE_BITS)

    def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
        """Return int32 values for code points. The shape is not changed."""
        return tf.cond(
            tf.reduce_max(code_points) < NUM_LOW,
            lambda: tf.gather(self._low_numbers, code_points),
            lambda: self._look_up_pages(code_points),
        )

    def _look_up_pages(self, code_points: tf.Tensor) -> tf.Tensor:
        page = tf.gather(self._page_starts, tf.bitwise.right_shift(code_points, PAGE_BITS))
        return tf.gather(self._numbers, page + tf.bitwise.bitwise_and(code_points, 127))


@functools.lru_cache(maxsize=1)
def load_unicode_data() -> dict:
    """Load Unicode tables: ranges (first and last code point) and mappings of code points."""
    return json.loads(DATA_FILE.read_text(encoding="utf-8"))


def mark_members(name: str) -> np.ndarray:
    """Return a mask over all code points, which is True in the named ranges.

    Example:
        >>> mark_members("bpe_number")[[ord("7"), ord("½"), ord("x")]].tolist()
        [True, True, False]
    """
    belongs = np.zeros(NUM_CODE_POINTS, bool)
    for first, last in load_unicode_data()[name]:
        belongs[first : last + 1] = True
    return belongs


@functools.lru_cache(maxsize=1)
def load_decompositions() -> dict[int, list[int]]:
    """Return canonical decompositions (NFD). For Hangul, the tables in Python are used.

    Example:
        >>> [chr(c) for c in load_decompositions()[ord("각")]]
        ['ᄀ', 'ᅡ', 'ᆨ']
    """
    stored = load_unicode_data()["decomposition"]
    hangul = {c: unicodedata.normalize("NFD", chr(c)) for c in HANGUL_SYLLABLES}
    return {
        **{int(code_point): parts for code_point, parts in stored.items()},
        **{code_point: list(map(ord, parts)) for code_point, parts in hangul.items()},
    }


@functools.lru_cache(maxsize=1)
def load_compatible_decompositions() -> dict[int, list[int]]:
    """Return compatibility decompositions (NFKD).

    Example:
        >>> [chr(c) for c in load_compatible_decompositions()[ord("ﬁ")]]
        ['f', 'i']
    """
    others = load_unicode_data()["compatible"]
    return {**load_decompositions(), **{int(code): parts for code, parts in others.items()}}
