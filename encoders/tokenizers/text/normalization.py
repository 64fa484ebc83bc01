"""BERT's normalisation: clean, decompose, strip accents, lower-case; and what splits words."""

import functools

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import Characters
from encoder_zoo.encoders.tokenizers.text.sequences import Spellings
from encoder_zoo.encoders.tokenizers.text.unicode_tables import (
    SPECIALS,
    CodePointTable,
    decompositions,
    members,
    unicode_data,
)

# What a character is to the splitter. A MARK falls away, but only after it has kept its neighbours
# in their places; a COMPLEX character becomes several, or may change places itself.
WORD, ALONE, SPACE, DROPPED, MARK, COMPLEX = range(6)
# One int32 holds a kind, a combining order and a code point: kinds are compared without unpacking.
CODE_MASK, ORDER_SHIFT, ORDER_MASK, KIND_SHIFT = 2**21 - 1, 21, 63, 27
FIRST_ALONE, FIRST_SPACE, FIRST_DROPPED, FIRST_MARK, FIRST_COMPLEX = (
    kind << KIND_SHIFT for kind in (ALONE, SPACE, DROPPED, MARK, COMPLEX)
)


class BertNormalizer(tf.Module):
    """Characters as the splitter sees them, each with its kind.

    Args:
        lowercase: lower-case, character by character.
        strip_accents: decompose (NFD) and leave out nonspacing marks.
        split_chinese: make every Chinese character a word.
        numbers: int32 (code points,), what to call each character that is left.

    Source: Devlin et al., "BERT" (2019), its released tokenization; the tables follow the Rust
    library `tokenizers`, which trained and serves most vocabularies.
    """

    def __init__(
        self, lowercase: bool, strip_accents: bool, split_chinese: bool, numbers: np.ndarray
    ):
        super().__init__()
        tables = normalization_tables(lowercase, strip_accents, split_chinese)

        def numbered(packed: np.ndarray) -> np.ndarray:
            called = packed & ~CODE_MASK | numbers[packed & CODE_MASK]
            return np.where(packed < FIRST_COMPLEX, called, packed)

        self._table = CodePointTable(numbered(tables.packed))
        self._expansions = tf.constant(numbered(np.array([*tables.expansions, 0], np.int32)))
        self._expansion_splits = tf.constant([*tables.expansion_splits, 0], tf.int32)

    def __call__(self, chars: Characters) -> Characters:
        """The characters that are left, of the kinds WORD, ALONE and SPACE; packed, see above."""
        chars = chars._replace(codes=self._table(chars.codes))
        return tf.cond(
            tf.reduce_max(chars.codes) < FIRST_DROPPED, lambda: chars, lambda: self._cleaned(chars)
        )

    def _cleaned(self, chars: Characters) -> Characters:
        chars = tf.cond(
            tf.reduce_max(chars.codes) < FIRST_COMPLEX,
            lambda: chars,
            lambda: in_canonical_order(self._expand(chars)),
        )
        return chars.where(chars.codes < FIRST_DROPPED)

    def _expand(self, chars: Characters) -> Characters:
        """Leaves out the DROPPED, and puts what a COMPLEX character becomes in its place."""
        chars = chars.where((chars.codes < FIRST_DROPPED) | (chars.codes >= FIRST_MARK))
        return expanded(chars, self._expansions, self._expansion_splits)


def expanded(chars: Characters, expansions: tf.Tensor, splits: tf.Tensor) -> Characters:
    """The characters, with what a COMPLEX one becomes in its place, each with the span of that.

    Args:
        chars: packed numbers, those of COMPLEX ones with an entry in place of a code point.
        expansions: packed numbers of what COMPLEX ones become.
        splits: where the expansion of each entry starts; two more than there are entries.
    """
    is_complex = chars.codes >= FIRST_COMPLEX
    entry = tf.where(is_complex, number_of(chars.codes), 0)
    first = tf.gather(splits, entry)
    lengths = tf.where(is_complex, tf.gather(splits, entry + 1) - first, 1)
    places = tf.concat([[0], tf.cumsum(lengths)], 0)
    begins, num = places[:-1], places[-1]
    owner = tf.cumsum(tf.scatter_nd(begins[:, None], tf.ones_like(begins), [num])) - 1
    within = tf.range(num) - tf.gather(begins, owner)
    parts = tf.gather(expansions, tf.gather(first, owner) + within)
    return Characters(
        tf.where(tf.gather(is_complex, owner), parts, tf.gather(chars.codes, owner)),
        tf.gather(chars.starts, owner),
        tf.gather(chars.ends, owner),
        tf.gather(places, chars.row_splits),
        chars.original_splits,
    )


def number_of(packed: tf.Tensor) -> tf.Tensor:
    """What each character is called."""
    return tf.bitwise.bitwise_and(packed, CODE_MASK)


def in_canonical_order(chars: Characters) -> Characters:
    """Sorts each run of combining marks by combining class.

    The spans stay where they were, as in the library: they remain ascending.

    Source: The Unicode Standard, section 3.11, canonical ordering algorithm.
    """
    order = tf.bitwise.bitwise_and(tf.bitwise.right_shift(chars.codes, ORDER_SHIFT), ORDER_MASK)
    run = tf.cumsum(tf.cast((order == 0) | chars.row_starts(), tf.int32))
    key = tf.cast(run, tf.int64) * 64 + tf.cast(order, tf.int64)

    def sorted_marks() -> Characters:
        marks = tf.where(order > 0)[:, 0]  # all others stay in their places
        by_class = tf.gather(marks, tf.argsort(tf.gather(key, marks), stable=True))
        codes = tf.gather(chars.codes, by_class)
        codes = tf.tensor_scatter_nd_update(chars.codes, marks[:, None], codes)
        return chars._replace(codes=codes)

    return tf.cond(tf.reduce_all(key[1:] >= key[:-1]), lambda: chars, sorted_marks)


class NormalizationTables:
    """How every character is cleaned, decomposed, lower-cased and classed.

    Attributes:
        packed: int32 (code points,), see CODE_MASK: what each character becomes; of a COMPLEX one
            an entry of `expansion_splits` stands in place of a code point.
        expansions: packed numbers, with code points, of the characters that COMPLEX ones become.
        expansion_splits: where the expansion of each entry starts.
    """

    def __init__(self, lowercase: bool, strip_accents: bool, split_chinese: bool):
        self.parts = decompositions() if strip_accents else {}
        self.lower = unicode_data()["lowercase"] if lowercase else {}
        self.orders = combining_orders() if strip_accents else {}
        self.chinese = members("chinese") & split_chinese
        self.kinds = np.where(members("punctuation"), ALONE, WORD)
        self.kinds[members("mark") & strip_accents] = MARK
        self.expansions: list[int] = []
        self.expansion_splits = [0]

        kinds = np.where(self.chinese, ALONE, self.kinds)
        kinds[members("space")] = SPACE
        kinds[members("dropped")] = DROPPED
        kinds[SPECIALS.start :] = ALONE
        self.packed = (kinds << KIND_SHIFT | np.arange(len(kinds))).astype(np.int32)
        for code in sorted({*self.parts, *self.orders, *map(int, self.lower)}):
            if kinds[code] not in (SPACE, DROPPED):
                self.packed[code] = self._becomes(code)

    def unchanged(self, words: list[str]) -> list[str]:
        """Those of some words, none of them empty, that are normalised to themselves, and one word.

        Example:
            >>> tables = normalization_tables(True, strip_accents=True, split_chinese=True)
            >>> tables.unchanged(["cafe", "café", "Cafe", "!", "a!", "中", "中国"])
            ['cafe', '!', '中']
        """
        spellings = Spellings.of_texts(words)
        codes, starts = spellings.symbols, spellings.starts
        whole = np.logical_and.reduceat(self.packed[codes] == codes, starts)
        alone = self.packed[codes[starts]] == (ALONE << KIND_SHIFT | codes[starts])
        keep = whole | (alone & (spellings.lengths == 1))
        return [word for word, kept in zip(words, keep, strict=True) if kept]

    def _becomes(self, code: int) -> int:
        """What a character becomes: another, or an entry of the expansions."""
        parts = [p for part in self.parts.get(code, [code]) for p in self._lowered(code, part)]
        kept = [p for p in parts if p >> KIND_SHIFT != MARK]
        if all(order_of(p) for p in parts if p not in kept):  # no mark here ends a run
            if not kept:
                return parts[0]
            if len(kept) == 1 and not order_of(kept[0]):
                return kept[0]
        self.expansions += parts
        self.expansion_splits.append(len(self.expansions))
        return COMPLEX << KIND_SHIFT | len(self.expansion_splits) - 2

    def _lowered(self, code: int, part: int) -> list[int]:
        """Packed numbers of the lower-case characters of one part of a decomposition."""
        order = self.orders.get(part, 0) << ORDER_SHIFT
        lowered = self.lower.get(str(part), [part])
        kinds = [ALONE if self.chinese[code] else int(self.kinds[c]) for c in lowered]
        return [order | kind << KIND_SHIFT | c for kind, c in zip(kinds, lowered, strict=True)]


def order_of(packed: int) -> int:
    """The combining order of a character; 0 for one that does not combine."""
    return packed >> ORDER_SHIFT & ORDER_MASK


def combining_orders() -> dict[int, int]:
    """Canonical combining classes, numbered from 1 in their order so as to take six bits."""
    classes = unicode_data()["combining_class"]
    rank = {value: i + 1 for i, value in enumerate(sorted(set(classes.values())))}
    return {int(code): rank[value] for code, value in classes.items()}


@functools.lru_cache(maxsize=8)
def normalization_tables(
    lowercase: bool, strip_accents: bool, split_chinese: bool
) -> NormalizationTables:
    """The tables of one set of options, made once."""
    return NormalizationTables(lowercase, strip_accents, split_chinese)
