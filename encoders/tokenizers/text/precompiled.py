"""SentencePiece's precompiled normalisation, and other maps from characters to characters."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.text.characters import Characters, after, before, row_numbers
from encoder_zoo.encoders.tokenizers.text.charsmap import SHORT
from encoder_zoo.encoders.tokenizers.text.hash_table import HashTable
from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members

# One int32 holds a code point, or an entry of the expansions, and what there is to know of it.
CODE_MASK = 2**21 - 1
KEY, ENDS, EXTENDS, PREPENDS, RETURN, COMPLEX = (1 << bit for bit in range(21, 27))
CARE = EXTENDS  # numbers from here on need more than a look into the table
SIGNS = (0xA9, 0xAE)  # the pictographs of two bytes
JOINER, RETURN_CODE, NEWLINE = 0x200D, 0x0D, 0x0A


class Expansions(tf.Module):
    """Sequences of code points under a number each.

    Args:
        sequences: of code points.
    """

    def __init__(self, sequences: Sequence[Sequence[int]]):
        super().__init__()
        lengths = [len(sequence) for sequence in sequences]
        self._codes = tf.constant([c for sequence in sequences for c in sequence] + [0], tf.int32)
        self._splits = tf.constant(np.cumsum([0, *lengths, 0]), tf.int32)

    def lengths(self, entries: tf.Tensor) -> tf.Tensor:
        """How many code points each entry has."""
        return tf.gather(self._splits, entries + 1) - tf.gather(self._splits, entries)

    def codes(self, entries: tf.Tensor, within: tf.Tensor) -> tf.Tensor:
        """One code point of each entry."""
        places = tf.gather(self._splits, entries) + within
        return tf.gather(self._codes, tf.minimum(places, tf.size(self._codes) - 1))


class CharacterMap(tf.Module):
    """Puts characters in the place of single characters, which keep the span of it.

    Args:
        mapping: {code point: code points}; others stay.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> lower = CharacterMap({ord("A"): [ord("a")], ord("½"): [49, 47, 50]})
        >>> lower(characters(tf.constant(["A½"]))).codes.numpy().tolist()
        [97, 49, 47, 50]
    """

    def __init__(self, mapping: Mapping[int, Sequence[int]]):
        super().__init__()
        several = {code: codes for code, codes in mapping.items() if len(codes) != 1}
        packed = np.arange(SPECIALS.stop, dtype=np.int32)
        for code, codes in mapping.items():
            packed[code] = codes[0] if len(codes) == 1 else 0
        packed[list(several)] = COMPLEX | np.arange(len(several), dtype=np.int32)
        self._table = CodePointTable(packed)
        self._expansions = Expansions(list(several.values()))

    def __call__(self, chars: Characters) -> Characters:
        """The characters, mapped."""
        packed = self._table(chars.codes)
        return tf.cond(
            tf.reduce_max(packed) < COMPLEX,
            lambda: chars._replace(codes=packed),
            lambda: self._expanded(chars, packed),
        )

    def _expanded(self, chars: Characters, packed: tf.Tensor) -> Characters:
        is_complex = packed >= COMPLEX
        entry = tf.where(is_complex, tf.bitwise.bitwise_and(packed, CODE_MASK), 0)
        lengths = tf.where(is_complex, self._expansions.lengths(entry), 1)
        splits = tf.concat([[0], tf.cumsum(lengths)], 0)
        owner = row_numbers(splits, splits[-1])
        within = tf.range(splits[-1]) - tf.gather(splits, owner)
        expanded = self._expansions.codes(tf.gather(entry, owner), within)
        return Characters(
            tf.where(tf.gather(is_complex, owner), expanded, tf.gather(packed, owner)),
            tf.gather(chars.starts, owner),
            tf.gather(chars.ends, owner),
            tf.gather(splits, chars.row_splits),
            chars.original_splits,
        )


class PrecompiledNormalizer(tf.Module):
    """Normalises as `tokenizers` does by SentencePiece's map, with its spans.

    SentencePiece replaces the longest key that it finds at each place. `tokenizers` asks for the
    keys of graphemes of up to five bytes, of which the first, shortest one replaces the whole
    grapheme, and else for those of single characters.

    Args:
        rules: {text: replacement}, see `read_charsmap`.

    Raises:
        ValueError: "the rule of 'abc' is for 3 characters; expected up to two"

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> normalize = PrecompiledNormalizer({"e\u0301": "é", "½": "1/2"})
        >>> chars = normalize(characters(tf.constant(["e\u0301½"])))
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
                    f"the rule of {shown(key)} is for {len(key)} characters; expected up to two"
                )
        pairs = {key: value for key, value in reached.items() if len(key) == 2}
        sequences = [[ord(c) for c in text] for text in pairs.values()]
        packed = np.arange(SPECIALS.stop, dtype=np.int32)
        for code, text in singles.items():
            packed[code] = KEY | (ord(text) if len(text) == 1 else COMPLEX | len(sequences))
            if len(text) != 1:
                sequences.append([ord(c) for c in text])
        for name, bit in (("extends", EXTENDS), ("prepends", PREPENDS), ("ends_grapheme", ENDS)):
            packed[members(name)] |= bit
        packed[[RETURN_CODE]] |= RETURN
        packed[[0, *SPECIALS]] |= ENDS
        self._table = CodePointTable(packed)
        self._pictographs = CodePointTable(members("pictograph").astype(np.int32))
        self._expansions = Expansions(sequences)
        keys = np.array([-1] + [ord(k[0]) << 21 | ord(k[1]) for k in pairs], np.int64)
        self._pairs = HashTable(keys, np.arange(-1, len(pairs)), default_value=-1)

    def __call__(self, chars: Characters) -> Characters:
        """The characters as they are looked for in the vocabulary."""
        packed = self._table(chars.codes)
        return tf.cond(
            tf.reduce_max(packed) < CARE,
            lambda: chars._replace(codes=tf.bitwise.bitwise_and(packed, CODE_MASK)),
            lambda: self._with_care(chars, packed),
        )

    def _with_care(self, chars: Characters, packed: tf.Tensor) -> Characters:
        part_starts = chars.row_starts() | is_special(chars.codes)
        part_starts |= before(is_special(chars.codes), 1, False)
        heads = ~self._joins(chars.codes, packed, part_starts)
        is_unit, pair = self._units(chars.codes, packed, heads)

        units = tf.cast(tf.where(is_unit)[:, 0], tf.int32)  # (U,), each replaced as one
        packed, pair = tf.gather(packed, units), tf.gather(pair, units)
        old = after(units, 1, tf.size(is_unit)) - units
        simple = tf.bitwise.bitwise_and(packed, CODE_MASK)
        is_complex = (packed >= COMPLEX) | (pair >= 0)
        entry = tf.where(is_complex, tf.where(pair >= 0, pair, simple), 0)
        new = tf.where(is_complex, self._expansions.lengths(entry), 1)

        splits = tf.concat([[0], tf.cumsum(new)], 0)
        owner = row_numbers(splits, splits[-1])  # (E,)
        within = tf.range(splits[-1]) - tf.gather(splits, owner)
        codes = self._expansions.codes(tf.gather(entry, owner), within)
        codes = tf.where(tf.gather(is_complex, owner), codes, tf.gather(simple, owner))
        unit_splits = tf.concat([[0], tf.cumsum(tf.cast(is_unit, tf.int32))], 0)  # (N + 1,)
        part = tf.gather(tf.cumsum(tf.cast(part_starts, tf.int32)) - 1, units)  # (U,)
        first = tf.cast(tf.where(part_starts)[:, 0], tf.int32)  # characters that begin the parts
        first_new = tf.gather(splits, tf.gather(unit_splits, first))
        part_first = tf.gather(first, part), tf.gather(first_new, part)
        places = replaced_places(old, new, splits, owner, within, *part_first)
        return Characters(
            codes,
            tf.gather(chars.starts, places),
            tf.gather(chars.ends, places),
            tf.gather(splits, tf.gather(unit_splits, chars.row_splits)),
            chars.original_splits,
        )

    def _joins(self, codes: tf.Tensor, packed: tf.Tensor, part_starts: tf.Tensor) -> tf.Tensor:
        """Boolean (N,): is the character in one grapheme with that before it?

        Rules that join nothing of less than six bytes are left out, such as those of Hangul.

        Source: Unicode Standard Annex 29, "Text Segmentation", section 3.1.1.
        """

        def has(bit: int) -> tf.Tensor:
            return tf.bitwise.bitwise_and(packed, bit) > 0

        joins = has(EXTENDS) & ~before(has(ENDS), 1, True)
        joins |= before(has(PREPENDS), 1, False) & ~has(ENDS)
        joins |= before(has(RETURN), 1, False) & (codes == NEWLINE)
        sign = (before(codes, 2, 0) == SIGNS[0]) | (before(codes, 2, 0) == SIGNS[1])
        joins |= sign & (before(codes, 1, 0) == JOINER) & (self._pictographs(codes) > 0)
        return joins & ~part_starts

    def _units(
        self, codes: tf.Tensor, packed: tf.Tensor, heads: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Boolean (N,): does what is replaced as one begin here? And (N,): the pair's rule, or -1.

        Args:
            codes, packed: int32 (N,).
            heads: boolean (N,), the first characters of the graphemes.
        """
        places = tf.cast(tf.where(heads)[:, 0], tf.int32)
        sizes = 1 + tf.cast(codes >= 0x80, tf.int32) + tf.cast(codes >= 0x800, tf.int32)
        sizes += tf.cast(codes >= 0x10000, tf.int32)
        byte_splits = tf.concat([[0], tf.cumsum(sizes)], 0)
        ends = after(places, 1, tf.size(codes))
        num_bytes = tf.gather(byte_splits, ends) - tf.gather(byte_splits, places)
        short = (ends - places > 1) & (num_bytes <= SHORT)

        following = tf.cast(after(codes, 1, 0), tf.int64)
        keys = tf.bitwise.left_shift(tf.cast(codes, tf.int64), 21) + following
        pair = tf.cast(self._pairs.lookup(tf.gather(keys, places)), tf.int32)
        is_key = tf.bitwise.bitwise_and(tf.gather(packed, places), KEY) > 0
        pair = tf.where(short & ~is_key, pair, -1)
        whole = short & (is_key | (pair >= 0))
        grapheme = tf.cumsum(tf.cast(heads, tf.int32)) - 1
        is_unit = heads | ~tf.gather(whole, grapheme)
        return is_unit, tf.where(heads, tf.gather(pair, grapheme), -1)


def replaced_places(
    old: tf.Tensor,
    new: tf.Tensor,
    splits: tf.Tensor,
    owner: tf.Tensor,
    within: tf.Tensor,
    first: tf.Tensor,
    first_new: tf.Tensor,
) -> tf.Tensor:
    """The old character (E,) whose span each new one has, as `tokenizers` counts.

    It goes along the old characters: a new one takes the next, and the last of a replacement with
    fewer characters also those that are left; one more has the span of that before it. What becomes
    nothing is taken along by the new character before it; at the beginning of a text there is none,
    and all that follow have the spans of characters before their own.

    Args:
        old, new: int32 (U,), how many characters there were and are of each unit.
        splits: int32 (U + 1,), where the units' new characters start.
        owner, within: int32 (E,), unit and place in it of every new character.
        first, first_new: int32 (U,), old and new character that each unit's text begins with.
    """
    old_count, new_count = tf.gather(old, owner), tf.gather(new, owner)
    added = tf.cast(within >= old_count, tf.int32)
    left = tf.where(within == new_count - 1, tf.maximum(old_count - new_count, 0), 0)
    vanished = (new == 0) & (splits[:-1] > first_new)
    last = tf.boolean_mask(splits[:-1], vanished)[:, None] - 1
    left += tf.scatter_nd(last, tf.boolean_mask(old, vanished), tf.shape(left))
    change = added - left
    taken = tf.where(change > 0, 0, 1 - change)
    before_it = tf.cumsum(taken, exclusive=True)
    start = tf.gather(tf.pad(before_it, [[0, 1]]), first_new)  # a text may have nothing left
    place = before_it - tf.gather(start, owner) + tf.gather(first, owner)
    return tf.maximum(place - tf.cast(change > 0, tf.int32), tf.gather(first, owner))


def is_special(codes: tf.Tensor) -> tf.Tensor:
    """Boolean (N,): does the code stand for a special token?"""
    return codes >= SPECIALS.start
