"""Unicode normal forms: decompose characters, sort marks, compose characters.

Comments use these letters for shapes: N characters, W starters. Pairs are composed in parallel for
all starters.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import (
    HANGUL_SYLLABLES,
    NUM_CODE_POINTS,
    Characters,
    CodePointTable,
    load_compatible_decompositions,
    load_decompositions,
    load_unicode_data,
    mark_members,
)
from encoder_zoo.encoders.tokenizers.text.normalization import (
    FIRST_COMPLEX,
    ORDER_MASK,
    ORDER_SHIFT,
    Expansions,
    rank_combining_classes,
    sort_combining_marks,
    unpack_codes,
)
from encoder_zoo.encoders.tokenizers.text.ragged import shift_right

LEADS, VOWELS, TAILS = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3)


class UnicodeNormalizer(tf.Module):
    """Applies a Unicode normal form to texts. Spans are the same as in the `tokenizers` library.

    Args:
        form: String. "NFC", "NFD", "NFKC" or "NFKD". Defaults to "NFC".

    Source: The Unicode Standard, sections 3.11 and 3.12, and annex 15.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> chars = UnicodeNormalizer()(decode_characters(tf.constant(["e\\u0301a"])))
        >>> [chr(c) for c in chars.codes], chars.starts.numpy().tolist()
        (['é', 'a'], [0, 2])
    """

    def __init__(self, form: str = "NFC"):
        super().__init__()
        self._composes = form.endswith("C")
        tables = get_composition_tables("K" in form)
        affected = tables.affected if self._composes else tables.decomposed
        self._first_affected = int(np.flatnonzero(affected)[0])
        self._is_affected = CodePointTable(affected)
        self._packed = CodePointTable(tables.packed_results)
        self._expansions = Expansions(tables.expansions)
        self._may_follow = CodePointTable(tables.may_follow)
        self._pairs = tf.constant(tables.pairs)
        self._composites = tf.constant(tables.composites)

    def __call__(self, chars: Characters) -> Characters:
        """Normalize characters."""

        def has_affected() -> tf.Tensor:
            return tf.reduce_any(self._is_affected(chars.codes) > 0)

        changes = tf.cond(
            tf.reduce_max(chars.codes) < self._first_affected, lambda: False, has_affected
        )
        return tf.cond(changes, lambda: self._normalize(chars), lambda: chars)

    def _normalize(self, chars: Characters) -> Characters:
        owners = tf.range(tf.size(chars.codes))
        parts = chars._replace(codes=self._packed(chars.codes), starts=owners)
        parts = self._expansions.expand(parts)
        # Only the first part of a character has a span. Mark all other parts with a flag.
        is_other = tf.cast(parts.starts == shift_right(parts.starts, 1, -1), tf.int32)
        flags = FIRST_COMPLEX * is_other
        parts = sort_combining_marks(parts._replace(codes=parts.codes + flags))
        taken = 1 - parts.codes // FIRST_COMPLEX  # number of characters per part
        codes, kept = unpack_codes(parts.codes), tf.range(tf.size(parts.codes))
        if self._composes:
            codes, target = self._compose_pairs(parts)
            taken = tf.math.unsorted_segment_sum(taken, target, tf.size(codes))
            kept = tf.cast(tf.where(target == kept)[:, 0], tf.int32)
            codes, taken = tf.gather(codes, kept), tf.gather(taken, kept)
        # As in the library, use the span of the first character for composed characters.
        position = tf.cumsum(taken, exclusive=True) - tf.cast(taken == 0, tf.int32)
        return Characters(
            codes,
            tf.gather(chars.starts, position),
            tf.gather(chars.ends, position),
            tf.searchsorted(kept, parts.row_splits),
            chars.original_splits,
        )

    def _compose_pairs(self, parts: Characters) -> tuple[tf.Tensor, tf.Tensor]:
        """Return composed code points (N,), and the index (N,) of each character's composite.

        The standard algorithm is executed in parallel. Each run starts at a character that cannot
        be joined with previous characters, and ends at the next such character.
        """
        codes = unpack_codes(parts.codes)
        orders = tf.bitwise.right_shift(parts.codes, ORDER_SHIFT)
        orders = tf.bitwise.bitwise_and(orders, ORDER_MASK)
        stays = parts.mark_row_starts() | ((orders == 0) & (self._may_follow(codes) == 0))
        begins = tf.cast(tf.where(stays)[:, 0], tf.int32)
        ends = tf.concat([begins[1:], [tf.size(codes)]], 0)
        starter = tf.where(tf.gather(orders, begins) == 0, begins, -1)
        none = tf.fill(tf.shape(begins), -1)

        def step(codes, target, position, ends, starter, last):
            inside = tf.where(position < ends)[:, 0]
            walkers = (position, ends, starter, last)
            position, ends, starter, last = (tf.gather(part, inside) for part in walkers)
            order = tf.gather(orders, position)
            made = self._compose_pair(
                tf.gather(codes, tf.maximum(starter, 0)), tf.gather(codes, position)
            )
            # A mark that is not joined blocks later marks with the same or a lower order.
            joins = (starter >= 0) & (last < order) & (made >= 0)
            who = tf.boolean_mask(starter, joins)
            codes = tf.tensor_scatter_nd_update(codes, who[:, None], made[joins])
            target = tf.tensor_scatter_nd_update(target, position[joins][:, None], who)
            begins = ~joins & (order == 0)
            # Marks before the first starter do not block other marks.
            last = tf.where(joins, last, tf.where(begins | (starter < 0), -1, order))
            return codes, target, position + 1, ends, tf.where(begins, position, starter), last

        codes, target, *_ = tf.while_loop(
            lambda codes, target, position, ends, *_: tf.reduce_any(position < ends),
            step,
            [codes, tf.range(tf.size(codes)), begins + 1, ends, starter, none],
            shape_invariants=[tf.TensorShape([None])] * 6,
            parallel_iterations=1,
        )
        return codes, target

    def _compose_pair(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """Return composites (W,) for pairs of code points, or -1 if a pair cannot be composed."""
        key = tf.bitwise.left_shift(tf.cast(first, tf.int64), 21) + tf.cast(second, tf.int64)
        entry = tf.minimum(tf.searchsorted(self._pairs, key), tf.size(self._pairs) - 1)
        made = tf.gather(self._composites, entry)
        made = tf.where(tf.gather(self._pairs, entry) == key, made, -1)
        lead, vowel, tail = first - LEADS.start, second - VOWELS.start, second - TAILS.start + 1
        syllable = HANGUL_SYLLABLES.start + 28 * (len(VOWELS) * lead + vowel)
        is_open = _is_in_range(first, HANGUL_SYLLABLES) & (
            (first - HANGUL_SYLLABLES.start) % 28 == 0
        )
        made = tf.where(_is_in_range(first, LEADS) & _is_in_range(second, VOWELS), syllable, made)
        return tf.where(is_open & _is_in_range(second, TAILS), first + tail, made)


def _is_in_range(codes: tf.Tensor, codes_range: range) -> tf.Tensor:
    return (codes >= codes_range.start) & (codes < codes_range.stop)


class CompositionTables(NamedTuple):
    """Lookup tables for Unicode normal forms.

    Attributes:
        affected: Array with shape (code points,). 1 if a character can change or move when
            composing.
        decomposed: Array with shape (code points,). 1 if a character can change or move when
            decomposing.
        packed_results: Array with shape (code points,). Combining order and code point, or an
            expansion index.
        expansions: List of lists. The parts of each character that is decomposed, as packed
            combining order and code point.
        may_follow: Array with shape (code points,). 1 if a character can be composed with an
            earlier character.
        pairs: Ascending int64 array. Pairs of code points that can be composed.
        composites: Array with the composite for each pair.
    """

    affected: np.ndarray
    decomposed: np.ndarray
    packed_results: np.ndarray
    expansions: list[list[int]]
    may_follow: np.ndarray
    pairs: np.ndarray
    composites: np.ndarray


@functools.lru_cache(maxsize=2)
def get_composition_tables(compatible: bool = False) -> CompositionTables:
    """Return cached tables for canonical or compatibility decompositions."""
    orders, never = rank_combining_classes(), mark_members("never_composed")
    packed = np.arange(NUM_CODE_POINTS, dtype=np.int32)
    for code, order in orders.items():
        packed[code] |= order << ORDER_SHIFT
    expansions = []
    whole = load_compatible_decompositions() if compatible else load_decompositions()
    for entry, (code, parts) in enumerate(whole.items()):
        expansions.append([part | orders.get(part, 0) << ORDER_SHIFT for part in parts])
        packed[code] = FIRST_COMPLEX | entry

    pairs = _find_composites(never)
    keys = sorted(pairs)
    may_follow = np.zeros(NUM_CODE_POINTS, np.int32)
    may_follow[[second for _, second in keys] + [*VOWELS, *TAILS]] = 1
    affected = never | (may_follow > 0)
    decomposed = np.zeros_like(affected)
    for changed in (affected, decomposed):
        changed[list(orders)] = True
    decomposed[list(whole)] = True
    if compatible:
        affected[[int(code) for code in load_unicode_data()["compatible"]]] = True
    return CompositionTables(
        affected.astype(np.int32),
        decomposed.astype(np.int32),
        packed,
        expansions,
        may_follow,
        np.array([first << 21 | second for first, second in keys], np.int64),
        np.array([pairs[key] for key in keys], np.int32),
    )


def _find_composites(never: np.ndarray) -> dict[tuple[int, int], int]:
    """Return {pair of code points: composite}, without Hangul syllables.

    If a character has more than two parts, the last part is composed with the composite of all
    previous parts.
    """
    whole = {
        tuple(parts): code
        for code, parts in load_decompositions().items()
        if not never[code] and code not in HANGUL_SYLLABLES
    }
    found = {}
    for parts, code in whole.items():
        front = parts[0] if len(parts) == 2 else whole[parts[:-1]]
        found[front, parts[-1]] = code
    return found
