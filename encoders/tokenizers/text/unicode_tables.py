"""Tables of code points, from the data in `data/unicode.json`."""

import functools
import json
import unicodedata
from pathlib import Path

import numpy as np
import tensorflow as tf

DATA_FILE = Path(__file__).parent / "data" / "unicode.json"
NUM_CODE_POINTS = 0x110000
# Special tokens found in texts are represented by code points beyond Unicode.
SPECIALS = range(NUM_CODE_POINTS, NUM_CODE_POINTS + 128)
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)
PAGE_BITS = 7
NUM_LOW = 0x3000  # code points before the East Asian ones


class CodePointTable(tf.Module):
    """Maps code points to numbers, stored in pages of 128 without duplicates.

    Args:
        values: int32 array (0x110000 + 128,), one number per code point and special token.

    Example:
        >>> table = CodePointTable(np.arange(0x110000 + 128, dtype=np.int32) % 10)
        >>> table(tf.constant([7, 0x1F600])).numpy().tolist()
        [7, 2]
    """

    def __init__(self, values: np.ndarray):
        super().__init__()
        number_of: dict[bytes, int] = {}  # of each page; np.unique would sort, for 150 ms
        pages = values.astype(np.int32).reshape(-1, 1 << PAGE_BITS)
        page_of = [number_of.setdefault(page.tobytes(), len(number_of)) for page in pages]
        self._low_numbers = tf.constant(values[:NUM_LOW], tf.int32)
        self._numbers = tf.constant(np.frombuffer(b"".join(number_of), np.int32))
        self._page_starts = tf.constant(np.array(page_of, np.int32) << PAGE_BITS)

    def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
        """Return the number of each code point, int32 of the same shape."""
        return tf.cond(
            tf.reduce_max(code_points) < NUM_LOW,
            lambda: tf.gather(self._low_numbers, code_points),
            lambda: self._on_pages(code_points),
        )

    def _on_pages(self, code_points: tf.Tensor) -> tf.Tensor:
        page = tf.gather(self._page_starts, tf.bitwise.right_shift(code_points, PAGE_BITS))
        return tf.gather(self._numbers, page + tf.bitwise.bitwise_and(code_points, 127))


@functools.lru_cache(maxsize=1)
def unicode_data() -> dict:
    """Return the tables: closed ranges of code points, and mappings from code points."""
    return json.loads(DATA_FILE.read_text(encoding="utf-8"))


def members(name: str) -> np.ndarray:
    """Return a mask over all code points that is true in the named ranges.

    Example:
        >>> members("bpe_number")[[ord("7"), ord("½"), ord("x")]].tolist()
        [True, True, False]
    """
    belongs = np.zeros(NUM_CODE_POINTS + len(SPECIALS), bool)
    for first, last in unicode_data()[name]:
        belongs[first : last + 1] = True
    return belongs


@functools.lru_cache(maxsize=1)
def decompositions() -> dict[int, list[int]]:
    """Return canonical decompositions (NFD), those of Hangul by Python's own tables.

    Example:
        >>> [chr(c) for c in decompositions()[ord("각")]]
        ['ᄀ', 'ᅡ', 'ᆨ']
    """
    stored = unicode_data()["decomposition"]
    hangul = {c: unicodedata.normalize("NFD", chr(c)) for c in HANGUL_SYLLABLES}
    return {
        **{int(code_point): parts for code_point, parts in stored.items()},
        **{code_point: list(map(ord, parts)) for code_point, parts in hangul.items()},
    }


@functools.lru_cache(maxsize=1)
def compatible_decompositions() -> dict[int, list[int]]:
    """Return compatibility decompositions (NFKD).

    Example:
        >>> [chr(c) for c in compatible_decompositions()[ord("ﬁ")]]
        ['f', 'i']
    """
    others = unicode_data()["compatible"]
    return {**decompositions(), **{int(code): parts for code, parts in others.items()}}
