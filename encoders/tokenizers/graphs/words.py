"""The pre-tokenizers of tokenizer.json in TensorFlow's core operations.

Comment letters: N characters, W words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.patterns import make_finder, runs
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import (
    byte_level_character_kinds,
    byte_level_word_starts,
    llama_word_starts,
)
from encoder_zoo.encoders.tokenizers.steps import (
    GPT2_WORDS,
    LLAMA_WORDS,
    split_at,
    without_interpreter,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    SPECIALS,
    Characters,
    CodePointTable,
    members,
    unicode_data,
)
from encoder_zoo.encoders.tokenizers.text.normalization import is_special_token
from encoder_zoo.encoders.tokenizers.text.ragged import index_mask, row_ids, shift_right

# {type of a pre-tokenizer: kind of the characters that it splits at}
KINDS = {"WhitespaceSplit": "white_space", "Punctuation": "punctuation", "Digits": "numeric"}


class Words(NamedTuple):
    """Holds the words of a batch of texts. Removed characters separate words.

    Attributes:
        chars: Characters of the words. A special token is a word with one character.
        begins: Boolean tensor of shape (N,). The first character of each word.
    """

    chars: Characters
    begins: tf.Tensor

    @classmethod
    def from_texts(cls, chars: Characters) -> Words:
        """Return the texts between special tokens as words."""
        special = is_special_token(chars.codes)
        return cls(chars, chars.row_starts() | special | shift_right(special, 1, False))

    def insert(self, code: int, wanted: tf.Tensor) -> Words:
        """Insert a character, with the same span, before the first characters `wanted` (N,)."""
        splits = tf.concat([[0], tf.cumsum(1 + tf.cast(wanted, tf.int32))], 0)
        owner = row_ids(splits, splits[-1])
        is_new = index_mask(tf.boolean_mask(splits[:-1], wanted), splits[-1])
        chars = self.chars.take(owner)
        chars = chars._replace(codes=tf.where(is_new, code, chars.codes))
        begins = tf.gather(self.begins, owner) & (is_new | ~tf.gather(wanted, owner))
        return Words(chars, begins)

    def prepend(self, code: int, where: tf.Tensor | bool = True) -> Words:
        """Insert a character before the words that do not start with it, `where` (N,) is true."""
        codes = self.chars.codes
        return self.insert(code, self.begins & where & (codes != code) & ~is_special_token(codes))


def is_text_start(chars: Characters) -> tf.Tensor:
    """Return a mask (N,) of characters whose span starts with a text, not only with a part."""
    splits = chars.original_splits
    return tf.gather(index_mask(splits, splits[-1] + 1), chars.starts)


PreTokenizer = Callable[[Words], Words]


def split(words: Words, matched: tf.Tensor, first: tf.Tensor, behavior: str) -> Words:
    """Split words at the matches of a pattern.

    Args:
        words: Words to split.
        matched: Boolean tensor of shape (N,). Whether a match contains the character.
        first: Boolean tensor of shape (N,). The first characters of matches and of other parts.
        behavior: String. Field of tokenizer.json.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> words = Words.from_texts(characters(tf.constant(["a--b"])))
        >>> matched, first = tf.constant([False, True, True, False]), tf.fill([4], True)
        >>> split(words, matched, first, "MergedWithPrevious").begins.numpy().tolist()
        [True, False, True, True]
    """
    matched &= ~is_special_token(words.chars.codes)
    first |= words.begins
    # Whether the part before is a match, (N,).
    after_match = shift_right(matched, 1, False)
    joins = {
        "Removed": tf.zeros_like(matched),
        "Isolated": tf.zeros_like(matched),
        "Contiguous": matched == after_match,
        "MergedWithPrevious": matched & ~after_match,
        "MergedWithNext": ~matched & after_match,
    }[behavior]
    begins = words.begins | (first & ~joins)
    if behavior != "Removed":
        return words._replace(begins=begins)
    return Words(words.chars.where(~matched), tf.boolean_mask(begins, ~matched))


def split_at_kind(step: Mapping) -> PreTokenizer:
    """Make the pre-tokenizer that splits at single characters of one kind."""
    if step["type"] == "CharDelimiterSplit":
        belongs = np.arange(SPECIALS.stop) == ord(step["delimiter"])
    else:
        belongs = members(KINDS[step["type"]])
    table = CodePointTable(belongs.astype(np.int32))
    behavior = step.get("behavior", "Removed")
    if step["type"] == "Digits":
        behavior = "Isolated" if step["individual_digits"] else "Contiguous"

    def apply(words: Words) -> Words:
        matched = table(words.chars.codes) > 0
        return split(words, matched, matched | shift_right(matched, 1, False), behavior)

    return apply


def split_whitespace(step: Mapping) -> PreTokenizer:
    r"""Make the pre-tokenizer of `\w+|[^\w\s]+`."""
    kinds = np.where(members("word_character"), 1, 0)
    kinds[members("bpe_space")] = 2
    table = CodePointTable(kinds.astype(np.int32))

    def apply(words: Words) -> Words:
        found = table(words.chars.codes)
        return split(words, found == 2, runs(found), "Removed")

    return apply


def split_scripts(step: Mapping) -> PreTokenizer:
    """Make the pre-tokenizer that splits where the script changes."""
    scripts = np.ones(SPECIALS.stop, np.int32)  # of special tokens
    scripts[: SPECIALS.start] = 0
    for first, last, number in unicode_data()["script"]:
        scripts[first : last + 1] = number
    table = CodePointTable(scripts)

    def apply(words: Words) -> Words:
        found = table(words.chars.codes)
        positions = tf.range(tf.size(found))
        word = tf.cumsum(tf.cast(words.begins, tf.int32))
        # The last character before with a script: 0 belongs to any.
        known = tf.boolean_mask(positions, found > 0)
        before = tf.searchsorted(known, positions) - 1
        last = tf.gather(tf.concat([known, [0]], 0), tf.maximum(before, 0))
        same = (before >= 0) & (tf.gather(word, last) == word)
        begins = (found > 0) & ~(same & (tf.gather(found, last) == found))
        kept = same | (found > 0)  # characters of any script are lost at the start of a word
        return Words(words.chars.where(kept), tf.boolean_mask(begins, kept))

    return apply


def split_pattern(step: Mapping) -> PreTokenizer | None:
    """Make the pre-tokenizer that splits at a pattern. None if RE2 cannot express it."""
    for pattern, starts in ((GPT2_WORDS, byte_level_word_starts), (LLAMA_WORDS, llama_word_starts)):
        if step == split_at(pattern):
            return split_bytes(starts)
    if (find := make_finder(step["pattern"])) is None:
        return None

    def apply(words: Words) -> Words:
        matched, first = find(words.chars, words.begins)
        matched = ~matched if step["invert"] else matched
        return split(words, matched, first, step["behavior"])

    return apply


def split_bytes(starts: Callable[..., tf.Tensor]) -> PreTokenizer:
    """Make the pre-tokenizer of a function that finds the first characters of words."""
    kinds = CodePointTable(byte_level_character_kinds())

    def apply(words: Words) -> Words:
        codes = words.chars.codes
        found = starts(codes, kinds(codes), words.begins)
        return words._replace(begins=index_mask(found, tf.size(codes)))

    return apply


def byte_level(step: Mapping) -> PreTokenizer:
    """Make the pre-tokenizer ByteLevel. The model encodes characters as bytes."""
    split_words = split_bytes(byte_level_word_starts) if step["use_regex"] else lambda words: words
    space = ord(" ")
    return lambda words: split_words(words.prepend(space) if step["add_prefix_space"] else words)


def metaspace(step: Mapping) -> PreTokenizer:
    """Make the pre-tokenizer Metaspace."""
    sign, scheme = ord(step["replacement"]), step["prepend_scheme"]

    def apply(words: Words) -> Words:
        chars = words.chars
        codes = tf.where(chars.codes == ord(" "), sign, chars.codes)
        words = words._replace(chars=chars._replace(codes=codes))
        if scheme == "always":
            words = words.prepend(sign)
        elif scheme == "first":
            words = words.prepend(sign, is_text_start(chars))
        if not step["split"]:
            return words
        matched = words.chars.codes == sign
        return split(words, matched, matched | shift_right(matched, 1, False), "MergedWithNext")

    return apply


def split_bert(step: Mapping) -> PreTokenizer:
    """Make the pre-tokenizer of BERT."""
    spaces = split_at_kind({"type": "WhitespaceSplit"})
    signs = split_at_kind({"type": "Punctuation", "behavior": "Isolated"})
    return lambda words: signs(spaces(words))


# {type of a step: function that makes its pre-tokenizer, or None if it cannot execute the step}
PRE_TOKENIZERS: dict[str, Callable[[Mapping], PreTokenizer | None]] = {
    "BertPreTokenizer": split_bert,
    "ByteLevel": byte_level,
    "Metaspace": metaspace,
    "Split": split_pattern,
    "UnicodeScripts": split_scripts,
    "Whitespace": split_whitespace,
    **dict.fromkeys((*KINDS, "CharDelimiterSplit"), split_at_kind),
}


def make_pre_tokenizer(steps: Sequence[Mapping]) -> PreTokenizer:
    """Make the function that executes the pre-tokenizer of tokenizer.json.

    Args:
        steps: List of steps of the pre-tokenizer.

    Raises:
        ValueError: If no function executes a step, or if a step follows ByteLevel.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> split_words = make_pre_tokenizer([{"type": "WhitespaceSplit"}])
        >>> words = split_words(Words.from_texts(characters(tf.constant(["a b"]))))
        >>> words.chars.codes.numpy().tolist(), words.begins.numpy().tolist()
        ([97, 98], [True, True])
    """
    found = []
    for i, step in enumerate(steps):
        one = PRE_TOKENIZERS.get(step["type"], lambda step: None)(step)
        if one is None or (step["type"] == "ByteLevel" and i < len(steps) - 1):
            raise without_interpreter("pre_tokenizer", [step])
        found.append(one)
    return lambda words: functools.reduce(lambda words, one: one(words), found, words)
