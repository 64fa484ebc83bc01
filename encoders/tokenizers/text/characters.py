"""A batch of texts as one row of code points that remember where they came from."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from encoder_zoo.encoders.tokenizers.text.unicode_tables import SPECIALS, CodePointTable, members


class Characters(NamedTuple):
    """The characters of a batch of texts, one text after the other.

    Attributes:
        codes: int32 (N,), code points.
        starts, ends: int32 (N,), the span of original characters, counted over the batch.
        row_splits: int32 (B + 1,), where each text starts in `codes`.
        original_splits: int32 (B + 1,), where each text starts among the original characters.
    """

    codes: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    row_splits: tf.Tensor
    original_splits: tf.Tensor

    def take(self, indices: tf.Tensor) -> "Characters":
        """The characters at ascending indices (K,); the texts stay apart."""
        codes, starts, ends = (tf.gather(part, indices) for part in self[:3])
        splits = tf.searchsorted(indices, self.row_splits)
        return Characters(codes, starts, ends, splits, self.original_splits)

    def where(self, keep: tf.Tensor) -> "Characters":
        """The characters of which `keep`, boolean (N,), is true."""
        return self.take(tf.cast(tf.where(keep)[:, 0], tf.int32))

    def row_starts(self) -> tf.Tensor:
        """Boolean (N,): is it the first character of its text?"""
        return marked(self.row_splits[:-1], tf.size(self.codes))


def characters(texts: tf.Tensor) -> Characters:
    """The characters of texts (B,); a malformed byte reads as U+FFFD.

    Example:
        >>> characters(tf.constant(["né", "", "e"])).row_splits.numpy().tolist()
        [0, 2, 2, 3]
    """
    joined = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
    splits = tf.concat([[0], tf.cumsum(tf.strings.length(texts))], 0)
    codes, splits = tf.cond(
        tf.reduce_all(joined < 128),
        lambda: (tf.cast(joined, tf.int32), splits),
        lambda: from_utf8(texts, joined, splits),
    )
    positions = tf.range(tf.size(codes))
    return Characters(codes, positions, positions + 1, splits, splits)


def from_utf8(
    texts: tf.Tensor, joined: tf.Tensor, splits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Code points (N,) of texts (B,), and where each text starts among them (B + 1,).

    TensorFlow's own decoding takes many times as long; it has what is not well-formed.

    Args:
        texts: strings.
        joined: uint8 (S,), their bytes one text after the other.
        splits: int32 (B + 1,), where each text starts among the bytes.
    """
    is_first = tf.pad(tf.bitcast(joined, tf.int8) >= -64, [[0, 1]], constant_values=True)
    places = tf.cast(tf.where(is_first)[:, 0], tf.int32)  # (N + 1,), of first bytes, and the end
    codes = tf.cast(tf.gather(joined, places[:-1]), tf.int32)
    long = tf.cast(tf.where(codes >= 0x80)[:, 0], tf.int32)  # characters of several bytes
    sizes = tf.gather(places, long + 1) - tf.gather(places, long)
    long_codes, valid = decoded(joined, tf.gather(places, long), sizes)
    valid &= tf.reduce_sum(sizes - 1) + tf.size(codes) == tf.size(joined)
    valid &= tf.reduce_all(tf.gather(is_first, splits))

    def by_tensorflow() -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.strings.unicode_decode(texts, "UTF-8")
        return rows.values, tf.cast(rows.row_splits, tf.int32)

    return tf.cond(
        valid,
        lambda: (
            tf.tensor_scatter_nd_update(codes, long[:, None], long_codes),
            tf.searchsorted(places, splits),
        ),
        by_tensorflow,
    )


def decoded(joined: tf.Tensor, places: tf.Tensor, sizes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The code points (M,) of characters that take several bytes; and are all of them well-formed?

    Source: The Unicode Standard, section 3.9, table 3-7.

    Example:
        >>> joined = tf.io.decode_raw("½", tf.uint8)
        >>> code, valid = decoded(joined, tf.constant([0]), tf.constant([2]))
        >>> chr(code[0]), bool(valid)
        ('½', True)
    """
    first = tf.cast(tf.gather(joined, places), tf.int32)
    codes = tf.bitwise.bitwise_and(first, tf.gather([0, 0, 31, 15, 7, 0], tf.minimum(sizes, 5)))
    for i in (1, 2, 3):
        byte = tf.gather(joined, tf.minimum(places + i, tf.size(joined) - 1))
        low = tf.cast(tf.bitwise.bitwise_and(byte, 63), tf.int32)
        codes = tf.where(sizes > i, codes * 64 + low, codes)
    expected = 2 + tf.cast(first >= 0xE0, tf.int32) + tf.cast(first >= 0xF0, tf.int32)
    lowest = tf.gather([0, 0, 0x80, 0x800, 0x10000, 0], tf.minimum(sizes, 5))
    surrogate = tf.bitwise.right_shift(codes, 11) == 0xD800 >> 11
    valid = (sizes == expected) & (first < 0xF8) & ~surrogate
    return codes, tf.reduce_all(valid & (codes >= lowest) & (codes <= 0x10FFFF))


def row_numbers(splits: tf.Tensor, num: tf.Tensor) -> tf.Tensor:
    """The row (num,) of everything in rows that start at splits (B + 1,).

    `value_rowids` takes the longer, the more the rows differ in length.

    Example:
        >>> row_numbers(tf.constant([0, 2, 2, 3]), 3).numpy().tolist()
        [0, 0, 2]
    """
    ends = tf.cast(splits[1:, None], tf.int32)
    return tf.cumsum(tf.scatter_nd(ends, tf.ones_like(ends[:, 0]), [num + 1])[:num])


def marked(indices: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Boolean (size,): is the place among the indices, which may count up to size?"""
    return tf.scatter_nd(indices[:, None], tf.ones_like(indices), [size + 1])[:size] > 0


def laid_out(starts: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Stretches (W,) laid one after the other, to work on them without what lies between.

    Returns:
        places: int32 (P,), the original place of everything in the stretches.
        word: int32 (P,), the number of its stretch.
        splits: int32 (W + 1,), where each stretch now starts.

    Example:
        >>> laid_out(tf.constant([1, 7]), tf.constant([3, 8]))[0].numpy().tolist()
        [1, 2, 7]
    """
    splits = tf.concat([[0], tf.cumsum(ends - starts)], 0)
    word = row_numbers(splits, splits[-1])
    return tf.range(splits[-1]) + tf.gather(starts - splits[:-1], word), word, splits


def before(values: tf.Tensor, steps: int, fill: object) -> tf.Tensor:
    """Moves values (N,) so that each place holds what stood `steps` before it."""
    filling = tf.fill([steps], tf.cast(fill, values.dtype))
    return tf.concat([filling, values], 0)[: tf.size(values)]


def after(values: tf.Tensor, steps: int, fill: object) -> tf.Tensor:
    """Moves values (N,) so that each place holds what stands `steps` after it."""
    filling = tf.fill([steps], tf.cast(fill, values.dtype))
    return tf.concat([values, filling], 0)[steps : steps + tf.size(values)]


def with_spaces(chars: Characters, wanted: tf.Tensor) -> Characters:
    """Puts a space, with the same span, before the characters where `wanted` (N,) is true."""
    added = tf.concat([[0], tf.cumsum(tf.cast(wanted, tf.int32))], 0)  # (N + 1,), before each
    size = tf.size(chars.codes) + added[-1]
    places = (tf.range(tf.size(chars.codes)) + added[1:])[:, None]
    spaces = tf.boolean_mask(places, wanted) - 1

    def spread(values: tf.Tensor) -> tf.Tensor:
        return tf.tensor_scatter_nd_update(tf.fill([size], ord(" ")), places, values)

    return Characters(
        spread(chars.codes),
        *(
            tf.tensor_scatter_nd_update(spread(part), spaces, tf.boolean_mask(part, wanted))
            for part in (chars.starts, chars.ends)
        ),
        chars.row_splits + tf.gather(added, chars.row_splits),
        chars.original_splits,
    )


class SpecialTokenFinder(tf.Module):
    """Replaces special tokens that stand in a text by code points of their own, `SPECIALS`.

    Args:
        tokens: the special tokens, numbered in this order.
        takes_space_before: a token that swallows the white space to its left, or None.

    Raises:
        ValueError: "the special tokens '<a<' and '<b' overlap ..."
    """

    def __init__(self, tokens: Sequence[str], takes_space_before: str | None):
        super().__init__()
        for a in tokens:
            for b in tokens:
                tails = [a[i:] for i in range(1, len(a))] if a != b else []
                if any(tail.startswith(b) or b.startswith(tail) for tail in tails):
                    raise ValueError(
                        f"the special tokens {a!r} and {b!r} overlap, so that finding them in text "
                        "would be ambiguous; use special_tokens_in_text=False"
                    )
        by_length = sorted(enumerate(tokens), key=lambda item: len(item[1]))  # longest found last
        self._tokens = "\n".join(f"{i} {token}" for i, token in by_length)
        self._takes_space = takes_space_before
        self._spaces = CodePointTable(members("bpe_space").astype("int32"))

    def __call__(self, chars: Characters) -> Characters:
        """The characters with each special token as one."""
        text = tf.cumsum(tf.cast(chars.row_starts(), tf.int32))
        codes, lengths = chars.codes, tf.ones_like(chars.codes)
        for line in self._tokens.split("\n"):
            number, token = line.split(" ", 1)
            found = text == after(text, len(token) - 1, -1)  # it must end in the same text
            for i, letter in enumerate(token):
                found &= after(chars.codes, i, -1) == ord(letter)
            codes = tf.where(found, SPECIALS.start + int(number), codes)
            lengths = tf.where(found, len(token), lengths)
            if token == self._takes_space:
                mask = SPECIALS.start + int(number)
        first = tf.range(tf.size(codes))
        last = tf.minimum(first + lengths, tf.size(codes)) - 1
        inner = covered(first + 1, last + 1, lengths > 1)
        found_all = chars._replace(codes=codes, ends=tf.gather(chars.ends, last)).where(~inner)
        return found_all if self._takes_space is None else self._without_space(found_all, mask)

    def _without_space(self, chars: Characters, mask: int) -> Characters:
        """Leaves out the white space right before a mask."""
        is_space = self._spaces(chars.codes) > 0
        solid = tf.concat([tf.where(~is_space)[:, 0], [tf.size(is_space, tf.int64)]], 0)
        following = tf.gather(solid, tf.searchsorted(solid, tf.range(tf.size(is_space, tf.int64))))
        text = tf.concat([tf.cumsum(tf.cast(chars.row_starts(), tf.int32)), [-1]], 0)
        before_mask = tf.gather(tf.concat([chars.codes, [-1]], 0), following) == mask
        before_mask &= tf.gather(text, following) == text[:-1]
        return chars.where(~(is_space & before_mask))


def covered(starts: tf.Tensor, ends: tf.Tensor, which: tf.Tensor) -> tf.Tensor:
    """Boolean (N,): does the place lie in one of the half-open spans, as many as places?"""
    change = tf.where(which, 1, 0)
    num = tf.size(starts)
    delta = tf.scatter_nd(starts[:, None], change, [num + 1])
    delta -= tf.scatter_nd(ends[:, None], change, [num + 1])
    return tf.cumsum(delta)[:num] > 0
