"""Unicode's normal form C: characters decomposed, marks put into order, and composed again.

Comment letters: N characters, W walkers.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.characters import Characters, before
from encoder_zoo.encoders.tokenizers.text.normalization import (
    COMPLEX,
    KIND_SHIFT,
    ORDER_MASK,
    ORDER_SHIFT,
    combining_orders,
    expanded,
    in_canonical_order,
    number_of,
)
from encoder_zoo.encoders.tokenizers.text.unicode_tables import (
    SPECIALS,
    CodePointTable,
    decompositions,
    members,
)

FIRST_TOUCHED = 0x300  # all before are as they are in normal form C, whatever stands beside them
LEADS, VOWELS, TAILS = range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3)
SYLLABLES = range(0xAC00, 0xD7A4)  # of Hangul


class Composer(tf.Module):
    """Brings texts into normal form C, as `tokenizers` does, spans included.

    Source: The Unicode Standard, sections 3.11 and 3.12, and annex 15.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> chars = Composer()(characters(tf.constant(["e\\u0301a"])))
        >>> [chr(c) for c in chars.codes], chars.starts.numpy().tolist()
        (['é', 'a'], [0, 2])
    """

    def __init__(self):
        super().__init__()
        tables = composition_tables()
        self._is_touched = CodePointTable(tables.touched)
        self._packed = CodePointTable(tables.packed)
        self._expansions = tf.constant(tables.expansions)
        self._splits = tf.constant(tables.expansion_splits)
        self._may_follow = CodePointTable(tables.may_follow)
        self._pairs = tf.constant(tables.pairs)
        self._composites = tf.constant(tables.composites)

    def __call__(self, chars: Characters) -> Characters:
        """The characters in normal form C; code points beyond Unicode's stay as they are."""

        def touched() -> tf.Tensor:
            return tf.reduce_any(self._is_touched(chars.codes) > 0)

        changes = tf.cond(tf.reduce_max(chars.codes) < FIRST_TOUCHED, lambda: False, touched)
        return tf.cond(changes, lambda: self._composed(chars), lambda: chars)

    def _composed(self, chars: Characters) -> Characters:
        parts = chars._replace(codes=self._packed(chars.codes))
        parts = expanded(parts, self._expansions, self._splits)
        # A part that is not the first of its character takes no place of its own, wherever it goes.
        is_other = tf.cast(parts.starts == before(parts.starts, 1, -1), tf.int32)
        flags = tf.bitwise.left_shift(is_other, KIND_SHIFT)
        parts = in_canonical_order(parts._replace(codes=parts.codes + flags))
        is_first = 1 - tf.bitwise.right_shift(parts.codes, KIND_SHIFT)
        codes, target = self._joined(parts)
        num = tf.size(codes)
        taken = tf.math.unsorted_segment_sum(is_first, target, num)  # characters of each
        kept = tf.cast(tf.where(target == tf.range(num))[:, 0], tf.int32)
        taken = tf.gather(taken, kept)
        # The library has the span of the first character that a composed one takes the place of.
        place = tf.cumsum(taken, exclusive=True) - tf.cast(taken == 0, tf.int32)
        return Characters(
            tf.gather(codes, kept),
            tf.gather(chars.starts, place),
            tf.gather(chars.ends, place),
            tf.searchsorted(kept, parts.row_splits),
            chars.original_splits,
        )

    def _joined(self, parts: Characters) -> tuple[tf.Tensor, tf.Tensor]:
        """Code points (N,), and into which (N,) each went: itself or one before it.

        From every character that surely stays one a walker goes on to the next such, as the
        standard's algorithm does from the beginning of a text.
        """
        codes = number_of(parts.codes)
        orders = tf.bitwise.right_shift(parts.codes, ORDER_SHIFT)
        orders = tf.bitwise.bitwise_and(orders, ORDER_MASK)
        stays = parts.row_starts() | ((orders == 0) & (self._may_follow(codes) == 0))
        begins = tf.cast(tf.where(stays)[:, 0], tf.int32)
        ends = tf.concat([begins[1:], [tf.size(codes)]], 0)
        starter = tf.where(tf.gather(orders, begins) == 0, begins, -1)
        none = tf.fill(tf.shape(begins), -1)

        def step(codes, target, place, ends, starter, last):
            inside = tf.where(place < ends)[:, 0]
            walkers = (place, ends, starter, last)
            place, ends, starter, last = (tf.gather(part, inside) for part in walkers)
            order = tf.gather(orders, place)
            made = self._pair(tf.gather(codes, tf.maximum(starter, 0)), tf.gather(codes, place))
            # A mark that stays keeps off all but those of a higher order.
            joins = (starter >= 0) & (last < order) & (made >= 0)
            who = tf.boolean_mask(starter, joins)
            codes = tf.tensor_scatter_nd_update(codes, who[:, None], made[joins])
            target = tf.tensor_scatter_nd_update(target, place[joins][:, None], who)
            begins = ~joins & (order == 0)
            # Marks before the first starter keep nothing apart: there is nothing to join.
            last = tf.where(joins, last, tf.where(begins | (starter < 0), -1, order))
            return codes, target, place + 1, ends, tf.where(begins, place, starter), last

        codes, target, *_ = tf.while_loop(
            lambda codes, target, place, ends, *_: tf.reduce_any(place < ends),
            step,
            [codes, tf.range(tf.size(codes)), begins + 1, ends, starter, none],
            shape_invariants=[tf.TensorShape([None])] * 6,
            parallel_iterations=1,
        )
        return codes, target

    def _pair(self, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        """The composites (W,) of two code points; -1 where there is none."""
        key = tf.bitwise.left_shift(tf.cast(first, tf.int64), 21) + tf.cast(second, tf.int64)
        entry = tf.minimum(tf.searchsorted(self._pairs, key), tf.size(self._pairs) - 1)
        made = tf.gather(self._composites, entry)
        made = tf.where(tf.gather(self._pairs, entry) == key, made, -1)
        lead, vowel, tail = first - LEADS.start, second - VOWELS.start, second - TAILS.start + 1
        syllable = SYLLABLES.start + 28 * (len(VOWELS) * lead + vowel)
        is_open = _among(first, SYLLABLES) & ((first - SYLLABLES.start) % 28 == 0)
        made = tf.where(_among(first, LEADS) & _among(second, VOWELS), syllable, made)
        return tf.where(is_open & _among(second, TAILS), first + tail, made)


def _among(codes: tf.Tensor, codes_range: range) -> tf.Tensor:
    return (codes >= codes_range.start) & (codes < codes_range.stop)


class CompositionTables(NamedTuple):
    """What normal form C needs to know of code points.

    Attributes:
        touched: (code points,), 1 where a character may change, or move, or join one before it.
        packed: (code points,), order and code point, or an entry of the expansions.
        expansions: order and code point of the parts of characters.
        expansion_splits: where the parts of each entry start.
        may_follow: (code points,), 1 where it may join one before it.
        pairs: int64, ascending, of two code points that become one.
        composites: what they become.
    """

    touched: np.ndarray
    packed: np.ndarray
    expansions: np.ndarray
    expansion_splits: np.ndarray
    may_follow: np.ndarray
    pairs: np.ndarray
    composites: np.ndarray


@functools.lru_cache(maxsize=1)
def composition_tables() -> CompositionTables:
    """The tables, made once from those of `unicode_tables`."""
    orders, never = combining_orders(), members("never_composed")
    packed = np.arange(SPECIALS.stop, dtype=np.int32)
    for code, order in orders.items():
        packed[code] |= order << ORDER_SHIFT
    expansions, splits = [], [0]
    for entry, (code, parts) in enumerate(decompositions().items()):
        expansions += parts
        splits.append(len(expansions))
        packed[code] = COMPLEX << KIND_SHIFT | entry
    expansions = np.array(expansions)
    marked = np.array([orders.get(int(part), 0) for part in expansions]) << ORDER_SHIFT

    pairs = _composites(never)
    keys = sorted(pairs)
    may_follow = np.zeros(SPECIALS.stop, np.int32)
    may_follow[[second for _, second in keys] + [*VOWELS, *TAILS]] = 1
    touched = never | (may_follow > 0)
    touched[list(orders)] = True
    return CompositionTables(
        touched.astype(np.int32),
        packed,
        (expansions | marked).astype(np.int32),
        np.array([*splits, splits[-1]], np.int32),
        may_follow,
        np.array([first << 21 | second for first, second in keys], np.int64),
        np.array([pairs[key] for key in keys], np.int32),
    )


def _composites(never: np.ndarray) -> dict[tuple[int, int], int]:
    """{two code points: the one that they become}, without the syllables of Hangul.

    A character's last part is joined to what the others become.
    """
    whole = {
        tuple(parts): code
        for code, parts in decompositions().items()
        if not never[code] and code not in SYLLABLES
    }
    found = {}
    for parts, code in whole.items():
        front = parts[0] if len(parts) == 2 else whole[parts[:-1]]
        found[front, parts[-1]] = code
    return found
