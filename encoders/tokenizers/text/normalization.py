"""BERT normalizer (clean, strip accents, lower-case), character kinds and case folding."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import (
    Characters,
    CodePointTable,
    load_compatible_decompositions,
    load_decompositions,
    load_unicode_data,
    mark_members,
)
from encoder_zoo.encoders.tokenizers.text.ragged import (
    compute_row_ids,
    keep_every_other,
    shift_left,
    shift_right,
)


@functools.cache
def make_folding_map(lowercase: bool, keep_accents: bool) -> dict[int, list[int]]:
    """Return {code point: code points} to strip accents and lower-case texts as in ALBERT.

    Example:
        >>> [chr(c) for c in make_folding_map(lowercase=True, keep_accents=False)[ord("Ǽ")]]
        ['æ']
    """
    decomposed = {} if keep_accents else load_compatible_decompositions()
    lower = (
        {int(c): codes for c, codes in load_unicode_data()["lowercase"].items()}
        if lowercase
        else {}
    )
    marks = set() if keep_accents else set(np.flatnonzero(mark_members("any_mark")).tolist())
    return {
        code: [
            small
            for part in decomposed.get(code, [code])
            if part not in marks
            for small in lower.get(part, [part])
        ]
        for code in {*decomposed, *lower, *marks}
    }


def fold_text(text: str, lowercase: bool, keep_accents: bool) -> str:
    """Normalize quotation marks, strip accents and lower-case a text as in ALBERT.

    Example:
        >>> fold_text("``Ça''", lowercase=True, keep_accents=False)
        '"ca"'
    """
    table = make_folding_map(lowercase, keep_accents)
    codes = map(ord, text.replace("``", '"').replace("''", '"'))
    return "".join(chr(c) for code in codes for c in table.get(code, [code]))


def normalize_quotation_marks(chars: Characters) -> Characters:
    """Replace two adjacent backticks or apostrophes by a quotation mark.

    The quotation mark has the span of the second character.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> characters = decode_characters(tf.constant(["``a'''"]))
        >>> "".join(map(chr, normalize_quotation_marks(characters).codes))
        '"a"\\''
    """
    followed = shift_left(~chars.mark_row_starts(), 1, False)  # by a character in the same text
    pairs = tf.zeros_like(followed)
    for quote in "`'":
        is_quote = chars.codes == ord(quote)
        pairs |= keep_every_other(is_quote & shift_left(is_quote, 1, False) & followed)
    codes = tf.where(shift_right(pairs, 1, False), ord('"'), chars.codes)
    return tf.cond(
        tf.reduce_any(pairs), lambda: chars._replace(codes=codes).select(~pairs), lambda: chars
    )


# Character kinds for the pre-tokenizer. A MARK will be removed, but only after the canonical
# ordering. A COMPLEX character is expanded, or is needed for the ordering.
WORD, ALONE, SPACE, DROPPED, MARK, COMPLEX = range(6)
# Kind, combining order and code point are packed in an int32. Packed values are sorted by kind.
CODE_MASK, ORDER_SHIFT, ORDER_MASK, KIND_SHIFT = 2**21 - 1, 21, 63, 27
FIRST_ALONE, FIRST_SPACE, FIRST_DROPPED, FIRST_MARK, FIRST_COMPLEX = (
    kind << KIND_SHIFT for kind in (ALONE, SPACE, DROPPED, MARK, COMPLEX)
)


class Expansions(tf.Module):
    """Replaces packed characters by sequences.

    Args:
        sequences: List of sequences of code points, or of packed characters.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]):
        super().__init__()
        lengths = [len(sequence) for sequence in sequences]
        flat = np.fromiter(itertools.chain.from_iterable(sequences), np.int32)
        self._flat = tf.constant(np.append(flat, np.int32(0)))
        self._splits = tf.constant(np.cumsum([0, *lengths, 0]), tf.int32)

    def expand_codes(self, packed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Replace packed characters (N,) with the kind COMPLEX by sequences.

        Returns:
            Tuple (codes, owners, splits). `owners` contains the index of the replaced character for
            each code, and `splits` has shape (N + 1,).
        """
        is_complex = packed >= FIRST_COMPLEX
        entry = tf.where(is_complex, unpack_codes(packed), 0)
        first = tf.gather(self._splits, entry)
        lengths = tf.where(is_complex, tf.gather(self._splits, entry + 1) - first, 1)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        owners = compute_row_ids(splits, splits[-1])
        # `first` is 0 for other characters, so the position exists but the value is not used.
        positions = tf.range(splits[-1]) + tf.gather(first - splits[:-1], owners)
        found, others = tf.gather(self._flat, positions), tf.gather(packed, owners)
        codes = tf.where(tf.gather(is_complex, owners), found, others)
        return codes, owners, splits

    def expand(self, chars: Characters) -> Characters:
        """Replace packed characters as in `expand_codes`. The new characters keep the span."""
        codes, owners, splits = self.expand_codes(chars.codes)
        return Characters(
            codes,
            tf.gather(chars.starts, owners),
            tf.gather(chars.ends, owners),
            tf.gather(splits, chars.row_splits),
            chars.original_splits,
        )


class BertNormalizer(tf.Module):
    """Normalizes characters like `BertNormalizer` in `tokenizers`, and adds the character kinds.

    Args:
        lowercase: Boolean. Whether to convert characters to lower-case.
        strip_accents: Boolean. Whether to decompose characters (NFD) and remove nonspacing marks.
        split_chinese: Boolean. Whether to split texts at Chinese characters.
        clean_text: Boolean. Whether to remove control characters.
        numbers: int32 array of shape (code points,). The number to return for each character.

    Source: Devlin et al., "BERT" (2019), with the released tokenization code. The tables are the
        same as in the `tokenizers` library.
    """

    def __init__(
        self,
        lowercase: bool,
        strip_accents: bool,
        split_chinese: bool,
        clean_text: bool,
        numbers: np.ndarray,
    ):
        super().__init__()
        tables = get_normalization_tables(lowercase, strip_accents, split_chinese, clean_text)

        def renumber(packed):
            return packed & ~CODE_MASK | numbers[packed & CODE_MASK]

        packed = tables.packed_results
        self._table = CodePointTable(np.where(packed < FIRST_COMPLEX, renumber(packed), packed))
        self._expansions = Expansions([[*map(renumber, parts)] for parts in tables.expansions])

    def __call__(self, chars: Characters) -> Characters:
        """Return packed characters with the kinds WORD, ALONE and SPACE."""
        chars = chars._replace(codes=self._table(chars.codes))
        return tf.cond(
            tf.reduce_max(chars.codes) < FIRST_DROPPED, lambda: chars, lambda: self._clean(chars)
        )

    def _clean(self, chars: Characters) -> Characters:
        chars = tf.cond(
            tf.reduce_max(chars.codes) < FIRST_COMPLEX,
            lambda: chars,
            lambda: sort_combining_marks(self._expand(chars)),
        )
        return chars.select(chars.codes < FIRST_DROPPED)

    def _expand(self, chars: Characters) -> Characters:
        """Remove DROPPED characters, and expand COMPLEX characters."""
        chars = chars.select((chars.codes < FIRST_DROPPED) | (chars.codes >= FIRST_MARK))
        return self._expansions.expand(chars)


def unpack_codes(packed: tf.Tensor) -> tf.Tensor:
    """Return code points (or other values) from packed characters."""
    return tf.bitwise.bitwise_and(packed, CODE_MASK)


def sort_combining_marks(chars: Characters) -> Characters:
    """Sort consecutive combining marks by combining class.

    As in the `tokenizers` library, spans are not moved, so they will always be ascending.

    Source: The Unicode Standard, section 3.11, canonical ordering algorithm.
    """
    order = tf.bitwise.bitwise_and(tf.bitwise.right_shift(chars.codes, ORDER_SHIFT), ORDER_MASK)
    run = tf.cumsum(tf.cast((order == 0) | chars.mark_row_starts(), tf.int32))
    key = tf.cast(run, tf.int64) * 64 + tf.cast(order, tf.int64)

    def sort_marks() -> Characters:
        marks = tf.where(order > 0)[:, 0]  # other characters are not moved
        by_class = tf.gather(marks, tf.argsort(tf.gather(key, marks), stable=True))
        codes = tf.gather(chars.codes, by_class)
        codes = tf.tensor_scatter_nd_update(chars.codes, marks[:, None], codes)
        return chars._replace(codes=codes)

    return tf.cond(tf.reduce_all(key[1:] >= key[:-1]), lambda: chars, sort_marks)


class NormalizationTables:
    """Lookup tables with the result of `BertNormalizer` for each character.

    Attributes:
        packed_results: int32 array of shape (code points,). Result for each character. For
            COMPLEX characters, this contains an expansion index.
        expansions: List of sequences of packed characters.
    """

    def __init__(self, lowercase: bool, strip_accents: bool, split_chinese: bool, clean_text: bool):
        self.parts = load_decompositions() if strip_accents else {}
        self.lower = load_unicode_data()["lowercase"] if lowercase else {}
        self.orders = rank_combining_classes() if strip_accents else {}
        self.chinese = mark_members("chinese") & split_chinese
        self.kinds = np.where(mark_members("punctuation"), ALONE, WORD)
        self.kinds[mark_members("mark") & strip_accents] = MARK
        self.expansions: list[list[int]] = []

        kinds = np.where(self.chinese, ALONE, self.kinds)
        kinds[mark_members("space" if clean_text else "white_space")] = SPACE
        kinds[mark_members("dropped") & clean_text] = DROPPED
        self.packed_results = (kinds << KIND_SHIFT | np.arange(len(kinds))).astype(np.int32)
        for code in sorted({*self.parts, *self.orders, *map(int, self.lower)}):
            if kinds[code] not in (SPACE, DROPPED):
                self.packed_results[code] = self._pack_result(code)

    def _pack_result(self, code: int) -> int:
        """Return the packed result for a character, or an expansion index (COMPLEX)."""
        parts = [p for part in self.parts.get(code, [code]) for p in self._lower_case(code, part)]
        kept = [p for p in parts if p >> KIND_SHIFT != MARK]
        if all(get_combining_order(p) for p in parts if p not in kept):  # else the order matters
            if not kept:
                return parts[0]
            if len(kept) == 1 and not get_combining_order(kept[0]):
                return kept[0]
        self.expansions.append(parts)
        return FIRST_COMPLEX | len(self.expansions) - 1

    def _lower_case(self, code: int, part: int) -> list[int]:
        """Return packed lower-case characters for a part of a decomposition."""
        order = self.orders.get(part, 0) << ORDER_SHIFT
        lowered = self.lower.get(str(part), [part])
        kinds = [ALONE if self.chinese[code] else int(self.kinds[c]) for c in lowered]
        return [order | kind << KIND_SHIFT | c for kind, c in zip(kinds, lowered, strict=True)]


def get_combining_order(packed: int) -> int:
    """Return the combining order for a packed character, or 0 if it does not combine."""
    return packed >> ORDER_SHIFT & ORDER_MASK


def rank_combining_classes() -> dict[int, int]:
    """Return canonical combining classes, renumbered from 1 to fit into six bits."""
    classes = load_unicode_data()["combining_class"]
    rank = {value: i + 1 for i, value in enumerate(sorted(set(classes.values())))}
    return {int(code): rank[value] for code, value in classes.items()}


@functools.lru_cache(maxsize=8)
def get_normalization_tables(
    lowercase: bool, strip_accents: bool, split_chinese: bool, clean_text: bool
) -> NormalizationTables:
    """Return cached tables for the given options."""
    return NormalizationTables(lowercase, strip_accents, split_chinese, clean_text)
