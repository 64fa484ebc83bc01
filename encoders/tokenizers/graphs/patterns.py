"""Convert patterns in tokenizer.json to RE2, and find matches with TensorFlow string ops.

Comments use these letters for shapes: N characters, S bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import tensorflow as tf

from encoder_zoo.encoders.tokenizers.segmentation.word_table import make_character_class
from encoder_zoo.encoders.tokenizers.text.characters import Characters, encode_utf8, mark_members
from encoder_zoo.encoders.tokenizers.text.ragged import shift_right

BYTES = [bytes([byte]) for byte in range(256)]
OPENED, CLOSED = 0xFE, 0xFF  # bytes to mark matches, which do not occur in UTF-8
MARKED = bytes([OPENED]) + rb"\0" + bytes([CLOSED])
# Character classes, as observed in the library.
CLASSES = {
    r"\s": "bpe_space",
    r"\w": "pattern_word",
    r"\d": "pattern_digit",
    r"\p{L}": "bpe_letter",
    r"\p{N}": "bpe_number",
}
_CLASS = r"\\[sSwWdD]|\\[pP]\{[LN]\}"
_LETTER = r"\\[nrtfv]|\\[!-/:-@\[-`{-~]"
OUTSIDE = re.compile(rf"({_CLASS})|{_LETTER}|[^\\\[\](){{}}*+?^$]|\((?:\?:|(?!\?))|\)")
QUANTIFIER = re.compile(r"[*+?]\??(?![*+?{])|\{\d+(?:,\d*)?\}(?![*+?{])")
INSIDE = re.compile(rf"({_CLASS})(?!-[^\]])|{_LETTER}|[^\\\[\]&]")


def convert_to_re2(pattern: str) -> str | None:
    """Convert an Oniguruma pattern to RE2, or return None if RE2 could find different matches.

    Example:
        >>> convert_to_re2(r"a|(?:bc){2,}"), convert_to_re2(r"a(?!b)"), convert_to_re2("^a")
        ('a|(?:bc){2,}', None, None)
    """
    found, position, in_class = [], 0, False
    while position < len(pattern):
        if in_class and pattern[position] == "]":
            found.append("]")
            in_class, position = False, position + 1
            continue
        if not in_class and (bracket := re.compile(r"\[\^?(?!\])").match(pattern, position)):
            found.append(bracket[0])
            in_class, position = True, bracket.end()
            continue
        match = (INSIDE if in_class else OUTSIDE).match(pattern, position)
        if not match and not in_class and found:
            match = QUANTIFIER.match(pattern, position)
        if not match:
            return None
        is_class = match.re is not QUANTIFIER and match[1]
        found.append(_convert_class(match[1], in_class) if is_class else match[0])
        position = match.end()
    return None if in_class else "".join(found)


def _convert_class(name: str, in_class: bool) -> str:
    """Convert a character class such as "\\s" to ranges for RE2."""
    kind = name[0] + name[1].lower() + name[2:]
    belongs = mark_members(CLASSES[kind])
    if in_class and kind == r"\w":  # fractions and superscripts are excluded by Oniguruma
        belongs &= mark_members("word_character")
    ranges = make_character_class(belongs if kind == name else ~belongs)
    return ranges[1:-1] if in_class else ranges


def mark_runs(values: tf.Tensor) -> tf.Tensor:
    """Return a mask (N,) for values that differ from the previous value."""
    return values != shift_right(values, 1, -1)


def join_words(chars: Characters, begins: tf.Tensor) -> tf.Tensor:
    """Join the characters of each word, and return strings (W,).

    Args:
        chars: `Characters` in all words.
        begins: Boolean tensor of shape (N,). True for the first character in each word.
    """
    symbols, splits, _ = encode_utf8(chars.codes)
    ends = tf.concat([tf.boolean_mask(splits[:-1], begins), [tf.size(symbols)]], 0)
    rows = tf.RaggedTensor.from_row_splits(tf.gather(BYTES, symbols), ends, validate=False)
    return tf.strings.reduce_join(rows, axis=1)


def make_finder(
    pattern: Mapping[str, str],
) -> Callable[[Characters, tf.Tensor], tuple[tf.Tensor, tf.Tensor]] | None:
    """Create a function to find pattern matches in words.

    Args:
        pattern: Dict with a "String" or a "Regex", as in tokenizer.json.

    Returns:
        Function to be called with characters and a mask (N,) for the first character in each word.
        It returns two masks (N,): whether a character is part of a match, and whether a character
        is the first one in a match or in a part between matches. None is returned if the pattern is
        not supported by RE2, or if it matches an empty text.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> chars = decode_characters(tf.constant(["abcab"]))
        >>> matched, first = make_finder({"String": "ab"})(chars, chars.mark_row_starts())
        >>> matched.numpy().tolist(), first.numpy().tolist()
        ([True, True, False, True, True], [True, False, True, True, False])
    """
    text = pattern.get("String", "")
    expression = re.escape(text) if "String" in pattern else convert_to_re2(pattern["Regex"])
    if not expression or _is_refused(expression):
        return None

    def find_character(chars: Characters, begins: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        matched = chars.codes == ord(text)
        return matched, matched | shift_right(matched, 1, False) | begins

    def find(chars: Characters, begins: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        marked = tf.strings.regex_replace(join_words(chars, begins), expression, MARKED)
        flat = tf.io.decode_raw(tf.strings.reduce_join(marked), tf.uint8)
        opened, closed = flat == OPENED, flat == CLOSED
        depth = tf.cumsum(tf.cast(opened, tf.int32)) - tf.cumsum(tf.cast(closed, tf.int32))
        kept = ~(opened | closed)
        marks = tf.stack([depth > 0, shift_right(~kept, 1, False)], 1)
        marks = tf.boolean_mask(marks, kept)  # (S, 2)
        marks = tf.gather(marks, encode_utf8(chars.codes)[1][:-1])
        return marks[:, 0], marks[:, 1] | begins

    return find_character if len(text) == 1 else find


def _is_refused(expression: str) -> bool:
    """Return whether RE2 cannot compile an expression, or the expression matches an empty text."""
    try:
        with tf.init_scope():
            return bool(tf.strings.regex_full_match(tf.constant(""), expression))
    except tf.errors.InvalidArgumentError:
        return True
