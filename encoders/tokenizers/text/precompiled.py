"""Precompiled SentencePiece normalizer, and maps for single characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.tokenizers.text.characters import (
    NUM_CODE_POINTS,
    Characters,
    CodePointTable,
    mark_members,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import MAX_GRAPHEME_BYTES
from encoder_zoo.encoders.tokenizers.text.normalization import CODE_MASK, FIRST_COMPLEX, Expansions
from encoder_zoo.encoders.tokenizers.text.packed_words import HashTable
from encoder_zoo.encoders.tokenizers.text.ragged import compute_row_ids, shift_left, shift_right

# A code point or an expansion index is packed in an int32, together with flags.
KEY, ENDS, EXTENDS, PREPENDS, RETURN, COMPLEX = (1 << bit for bit in range(21, 27))
GRAPHEME = EXTENDS  # lower values can be handled with a table lookup
SIGNS = (0xA9, 0xAE)  # pictographs with two bytes
JOINER, RETURN_CODE, NEWLINE = 0x200D, 0x0D, 0x0A


class CharacterMap(tf.Module):
    """Replaces single characters by other characters with the same span.

    Args:
        mapping: Dict mapping code points to lists of code points. Other characters are not changed.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> lower = CharacterMap({ord("A"): [ord("a")], ord("½"): [49, 47, 50]})
        >>> lower(decode_characters(tf.constant(["A½"]))).codes.numpy().tolist()
        [97, 49, 47, 50]
    """

    def __init__(self, mapping: Mapping[int, Sequence[int]]):
        super().__init__()
        packed = np.arange(NUM_CODE_POINTS, dtype=np.int32)
        numbers: dict[tuple[int, ...], int] = {}
        for code, codes in mapping.items():
            if len(codes) == 1:
                packed[code] = codes[0]
            else:
                packed[code] = FIRST_COMPLEX | numbers.setdefault(tuple(codes), len(numbers))
        self._table = CodePointTable(packed)
        self._expansions = Expansions(list(numbers))

    def __call__(self, chars: Characters) -> Characters:
        """Apply the mapping to all characters."""
        packed = self._table(chars.codes)
        mapped, expansions = chars._replace(codes=packed), self._expansions
        return tf.cond(
            tf.reduce_max(packed) < FIRST_COMPLEX,
            lambda: mapped,
            lambda: expansions.expand(mapped),
        )


class PrecompiledNormalizer(tf.Module):
    """Applies a SentencePiece charsmap, with the same results and spans as `tokenizers`.

    SentencePiece replaces the longest key at each position. In contrast, `tokenizers` looks up
    graphemes with up to five bytes. If a grapheme starts with a key, the whole grapheme is replaced
    according to the shortest key. In all other cases, single characters are looked up.

    Args:
        rules: Dict mapping texts to replacements. See `read_charsmap`.

    Raises:
        ValueError: If a rule applies to more than two characters.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> normalize = PrecompiledNormalizer({"e\u0301": "é", "½": "1/2"})
        >>> chars = normalize(decode_characters(tf.constant(["e\u0301½"])))
        >>> "".join(map(chr, chars.codes)), chars.starts.numpy().tolist()
        ('é1/2', [0, 2, 2, 2])
    """

    def __init__(self, rules: Mapping[str, str]):
        super().__init__()
        singles = {ord(key): value for key, value in rules.items() if len(key) == 1}
        reached = {
            key: value
            for key, value in rules.items()
            if len(key) > 1 and ord(key[0]) not in singles
        }
        for key in reached:
            if len(key) > 2 and key[:2] not in reached:
                raise ValueError(
                    f"The rule for {quote(key)} replaces {len(key)} characters. Expected at most "
                    "two."
                )
        pairs = {key: value for key, value in reached.items() if len(key) == 2}
        sequences = [[ord(c) for c in text] for text in pairs.values()]
        packed = np.arange(NUM_CODE_POINTS, dtype=np.int32)
        for code, text in singles.items():
            packed[code] = KEY | (ord(text) if len(text) == 1 else COMPLEX | len(sequences))
            if len(text) != 1:
                sequences.append([ord(c) for c in text])
        for name, bit in (("extends", EXTENDS), ("prepends", PREPENDS), ("ends_grapheme", ENDS)):
            packed[mark_members(name)] |= bit
        packed[[RETURN_CODE]] |= RETURN
        packed[0] |= ENDS
        self._table = CodePointTable(packed)
        self._pictographs = CodePointTable(mark_members("pictograph").astype(np.int32))
        self._expansions = Expansions(sequences)
        keys = np.array([-1] + [ord(k[0]) << 21 | ord(k[1]) for k in pairs], np.int64)
        self._pairs = HashTable(keys, np.arange(-1, len(pairs)), default_value=-1)

    def __call__(self, chars: Characters) -> Characters:
        """Normalize characters."""
        packed = self._table(chars.codes)
        return tf.cond(
            tf.reduce_max(packed) < GRAPHEME,
            lambda: chars._replace(codes=tf.bitwise.bitwise_and(packed, CODE_MASK)),
            lambda: self._replace_graphemes(chars, packed),
        )

    def _replace_graphemes(self, chars: Characters, packed: tf.Tensor) -> Characters:
        part_starts = chars.mark_row_starts()
        heads = ~self._mark_joins(chars.codes, packed, part_starts)
        is_unit, pair = self._find_units(chars.codes, packed, heads)

        units = chars.select(is_unit)  # (U,), units to replace as a whole
        packed, pair = tf.boolean_mask(packed, is_unit), tf.boolean_mask(pair, is_unit)
        simple = tf.bitwise.bitwise_and(packed, CODE_MASK)
        entry = tf.where(pair >= 0, pair, simple)
        codes = tf.where((packed >= COMPLEX) | (pair >= 0), FIRST_COMPLEX + entry, simple)
        codes, owner, splits = self._expansions.expand_codes(codes)  # (E,), (E,), (U + 1,)

        first_units = tf.cast(tf.where(is_unit)[:, 0], tf.int32)
        old = shift_left(first_units, 1, tf.size(is_unit)) - first_units
        row_splits = tf.gather(splits, units.row_splits)
        row = compute_row_ids(units.row_splits, tf.size(old))
        positions = find_source_indices(
            old, splits, owner, tf.gather(chars.row_splits, row), tf.gather(row_splits, row)
        )
        return Characters(
            codes,
            tf.gather(chars.starts, positions),
            tf.gather(chars.ends, positions),
            row_splits,
            chars.original_splits,
        )

    def _mark_joins(self, codes: tf.Tensor, packed: tf.Tensor, part_starts: tf.Tensor) -> tf.Tensor:
        """Return a mask (N,) for characters in the same grapheme as the previous character.

        Rules for graphemes with more than five bytes (e.g. Hangul) are not needed.

        Source: Unicode Standard Annex 29, "Text Segmentation", section 3.1.1.
        """

        def has(bit: int) -> tf.Tensor:
            return tf.bitwise.bitwise_and(packed, bit) > 0

        joins = has(EXTENDS) & ~shift_right(has(ENDS), 1, True)
        joins |= shift_right(has(PREPENDS), 1, False) & ~has(ENDS)
        joins |= shift_right(has(RETURN), 1, False) & (codes == NEWLINE)
        sign = (shift_right(codes, 2, 0) == SIGNS[0]) | (shift_right(codes, 2, 0) == SIGNS[1])
        joins |= sign & (shift_right(codes, 1, 0) == JOINER) & (self._pictographs(codes) > 0)
        return joins & ~part_starts

    def _find_units(
        self, codes: tf.Tensor, packed: tf.Tensor, heads: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Find the units to normalize: graphemes that are replaced as a whole, or characters.

        Args:
            codes, packed: int32 tensors of shape (N,).
            heads: Boolean tensor of shape (N,). True for the first character in each grapheme.

        Returns:
            Two tensors of shape (N,). The first is True for the first character in each unit. The
            second contains the index of the rule for two characters that replaces a unit, or -1.
        """
        positions = tf.cast(tf.where(heads)[:, 0], tf.int32)
        sizes = 1 + tf.cast(codes >= 0x80, tf.int32) + tf.cast(codes >= 0x800, tf.int32)
        sizes += tf.cast(codes >= 0x10000, tf.int32)
        byte_splits = tf.concat([[0], tf.cumsum(sizes)], 0)
        ends = shift_left(positions, 1, tf.size(codes))
        num_bytes = tf.gather(byte_splits, ends) - tf.gather(byte_splits, positions)
        short = (ends - positions > 1) & (num_bytes <= MAX_GRAPHEME_BYTES)

        following = tf.cast(shift_left(codes, 1, 0), tf.int64)
        keys = tf.bitwise.left_shift(tf.cast(codes, tf.int64), 21) + following
        pair = tf.cast(self._pairs.lookup(tf.gather(keys, positions)), tf.int32)
        is_key = tf.bitwise.bitwise_and(tf.gather(packed, positions), KEY) > 0
        pair = tf.where(short & ~is_key, pair, -1)
        whole = short & (is_key | (pair >= 0))
        grapheme = tf.cumsum(tf.cast(heads, tf.int32)) - 1
        is_unit = heads | ~tf.gather(whole, grapheme)
        return is_unit, tf.where(heads, tf.gather(pair, grapheme), -1)


def find_source_indices(
    old: tf.Tensor, splits: tf.Tensor, owner: tf.Tensor, first: tf.Tensor, first_new: tf.Tensor
) -> tf.Tensor:
    """Return the index of the old character that gives each new character its span, shape (E,).

    As in `tokenizers`, the new characters of a unit are assigned to the old characters in order. If
    a replacement is shorter, the last new character also covers the remaining old characters. If a
    replacement is longer, additional characters share the last span. Removed characters are
    assigned to the previous new character. At the beginning of a text, this is not possible, so the
    spans for all following characters will be shifted.

    Args:
        old: int32 tensor of shape (U,). The number of old characters per unit.
        splits: int32 tensor of shape (U + 1,). The start position for each unit in the new
            characters.
        owner: int32 tensor of shape (E,). The unit for each new character.
        first, first_new: int32 tensors of shape (U,). The first old and new character in the text
            that contains the unit.
    """
    new, within = splits[1:] - splits[:-1], tf.range(splits[-1]) - tf.gather(splits, owner)
    old_count, new_count = tf.gather(old, owner), tf.gather(new, owner)
    added = tf.cast(within >= old_count, tf.int32)
    left = tf.where(within == new_count - 1, tf.maximum(old_count - new_count, 0), 0)
    vanished = (new == 0) & (splits[:-1] > first_new)
    last = tf.boolean_mask(splits[:-1], vanished)[:, None] - 1
    left += tf.scatter_nd(last, tf.boolean_mask(old, vanished), tf.shape(left))
    change = added - left
    taken = tf.where(change > 0, 0, 1 - change)
    before_it = tf.cumsum(taken, exclusive=True)
    start = tf.gather(tf.pad(before_it, [[0, 1]]), first_new)  # a text can be empty at this point
    position = before_it - tf.gather(start, owner) + tf.gather(first, owner)
    return tf.maximum(position - tf.cast(change > 0, tf.int32), tf.gather(first, owner))
