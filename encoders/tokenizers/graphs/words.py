"""Pre-tokenizers for tokenizer.json, implemented with TensorFlow core operations.

Comments use these letters for shapes: N characters, W words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.patterns import make_finder, mark_runs
from encoder_zoo.encoders.tokenizers.segmentation.pre_tokenization import (
    find_byte_level_words,
    find_llama_words,
    make_byte_level_classes,
)
from encoder_zoo.encoders.tokenizers.steps import (
    GPT2_WORDS,
    LLAMA_WORDS,
    PYTHON_SPACE,
    TWEET_WORDS,
    make_split_step,
    make_unsupported_error,
)
from encoder_zoo.encoders.tokenizers.text.characters import (
    NUM_CODE_POINTS,
    Characters,
    CodePointTable,
    load_unicode_data,
    mark_members,
)
from encoder_zoo.encoders.tokenizers.text.ragged import (
    compute_row_ids,
    make_index_mask,
    shift_right,
)

# Character kinds to split at, per pre-tokenizer type.
KINDS = {"WhitespaceSplit": "white_space", "Punctuation": "punctuation", "Digits": "numeric"}


class Words(NamedTuple):
    """The words of a batch of texts. The characters between words are removed.

    Attributes:
        chars: `Characters` in all words.
        begins: Boolean tensor of shape (N,). True for the first character in each word.
    """

    chars: Characters
    begins: tf.Tensor

    @classmethod
    def from_texts(cls, chars: Characters) -> Words:
        """Create one word from each text."""
        return cls(chars, chars.mark_row_starts())

    @property
    def starts(self) -> tf.Tensor:
        """Return the index of the first character in each word, as an int32 tensor."""
        return tf.cast(tf.where(self.begins)[:, 0], tf.int32)

    def insert(self, code: int, wanted: tf.Tensor, kept: tf.Tensor | bool = True) -> Words:
        """Insert a character before each `wanted` character, with the same span.

        `wanted` is a boolean tensor of shape (N,). If a wanted character starts a word, the
        inserted character starts it instead. All characters that are not `kept` are removed.
        """
        counts = tf.cast(kept, tf.int32) + tf.cast(wanted, tf.int32)
        splits = tf.concat([[0], tf.cumsum(counts)], 0)
        owner = compute_row_ids(splits, splits[-1])
        is_new = make_index_mask(tf.boolean_mask(splits[:-1], wanted), splits[-1])
        chars = self.chars.take(owner)
        chars = chars._replace(codes=tf.where(is_new, code, chars.codes))
        begins = tf.gather(self.begins, owner) & (is_new | ~tf.gather(wanted, owner))
        return Words(chars, begins)

    def prepend(self, code: int, where: tf.Tensor | bool = True) -> Words:
        """Insert a character before words that do not start with it.

        Words can be selected with `where`, a boolean tensor of shape (N,).
        """
        codes = self.chars.codes
        return self.insert(code, self.begins & where & (codes != code))


def is_text_start(chars: Characters) -> tf.Tensor:
    """Return a mask with shape (N,) for characters with a span at the start of a text.

    Characters that only start a part of a text are not included.
    """
    splits = chars.original_splits
    return tf.gather(make_index_mask(splits, splits[-1] + 1), chars.starts)


PreTokenizer = Callable[[Words], Words]


def split(words: Words, matched: tf.Tensor, first: tf.Tensor, behavior: str) -> Words:
    """Split words at pattern matches.

    Args:
        words: `Words` to split.
        matched: Boolean tensor of shape (N,). Whether each character is part of a match.
        first: Boolean tensor of shape (N,). True for the first character in matches and for the
            first character after matches.
        behavior: String. Behavior to use, as defined for tokenizer.json.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> words = Words.from_texts(decode_characters(tf.constant(["a--b"])))
        >>> matched, first = tf.constant([False, True, True, False]), tf.fill([4], True)
        >>> split(words, matched, first, "MergedWithPrevious").begins.numpy().tolist()
        [True, False, True, True]
    """
    first |= words.begins
    # Whether the previous character is in a match, shape (N,).
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
    return Words(words.chars.select(~matched), tf.boolean_mask(begins, ~matched))


def make_kind_splitter(step: Mapping) -> PreTokenizer:
    """Create a pre-tokenizer to split at single characters with a given kind."""
    if step["type"] == "CharDelimiterSplit":
        belongs = np.arange(NUM_CODE_POINTS) == ord(step["delimiter"])
    else:
        belongs = mark_members(KINDS[step["type"]])
    table = CodePointTable(belongs.astype(np.int32))
    behavior = step.get("behavior", "Removed")
    if step["type"] == "Digits":
        behavior = "Isolated" if step["individual_digits"] else "Contiguous"

    def apply(words: Words) -> Words:
        matched = table(words.chars.codes) > 0
        return split(words, matched, matched | shift_right(matched, 1, False), behavior)

    return apply


def make_run_splitter(kind: str, space: str, is_isolated: bool = False) -> PreTokenizer:
    """Create a pre-tokenizer to remove spaces, and to split words where the kind changes.

    Args:
        kind: String. Kind of the characters to separate from other characters.
        space: String. Kind of the characters to remove.
        is_isolated: Boolean. Whether each character of this kind is a word. Defaults to False.
    """
    kinds = np.where(mark_members(kind), 1, 0)
    kinds[mark_members(space)] = 2
    table = CodePointTable(kinds.astype(np.int32))

    def apply(words: Words) -> Words:
        found = table(words.chars.codes)
        first = mark_runs(found) | ((found == 1) & is_isolated)
        return split(words, found == 2, first, "Removed")

    return apply


def make_script_splitter(step: Mapping) -> PreTokenizer:
    """Create a pre-tokenizer to split words when the script changes."""
    scripts = np.zeros(NUM_CODE_POINTS, np.int32)
    for first, last, number in load_unicode_data()["script"]:
        scripts[first : last + 1] = number
    table = CodePointTable(scripts)

    def apply(words: Words) -> Words:
        found = table(words.chars.codes)
        positions = tf.range(tf.size(found))
        word = tf.cumsum(tf.cast(words.begins, tf.int32))
        # Find the previous character with a script, as 0 is used for common characters.
        known = tf.boolean_mask(positions, found > 0)
        before = tf.searchsorted(known, positions) - 1
        last = tf.gather(tf.concat([known, [0]], 0), tf.maximum(before, 0))
        same = (before >= 0) & (tf.gather(word, last) == word)
        begins = (found > 0) & ~(same & (tf.gather(found, last) == found))
        kept = same | (found > 0)  # common characters are removed at the start of words
        return Words(words.chars.select(kept), tf.boolean_mask(begins, kept))

    return apply


def make_pattern_splitter(step: Mapping) -> PreTokenizer | None:
    """Create a pre-tokenizer that splits at a pattern, or return None if RE2 cannot match it."""
    if step == TWEET_WORDS:
        return make_tweet_splitter()
    for pattern, starts in ((GPT2_WORDS, find_byte_level_words), (LLAMA_WORDS, find_llama_words)):
        if step == make_split_step(pattern):
            return make_byte_splitter(starts)
    if (find := make_finder(step["pattern"])) is None:
        return None

    def apply(words: Words) -> Words:
        matched, first = find(words.chars, words.begins)
        matched = ~matched if step["invert"] else matched
        return split(words, matched, first, step["behavior"])

    return apply


def make_tweet_splitter() -> PreTokenizer:
    """Create a pre-tokenizer for `TWEET_WORDS`, which is faster than a regular expression."""
    spaces = np.zeros(NUM_CODE_POINTS, np.int32)
    spaces[[*map(ord, PYTHON_SPACE)]] = 1
    table = CodePointTable(spaces)

    def apply(words: Words) -> Words:
        codes = words.chars.codes
        solid = table(codes) == 0
        after_word = shift_right(solid, 1, False) & ~words.begins
        kept = solid | (after_word & (codes == ord("\n")))
        return Words(words.chars.select(kept), tf.boolean_mask(~after_word, kept))

    return apply


def make_byte_splitter(starts: Callable[..., tf.Tensor]) -> PreTokenizer:
    """Create a pre-tokenizer from a function that finds word starts."""
    kinds = CodePointTable(make_byte_level_classes())

    def apply(words: Words) -> Words:
        codes = words.chars.codes
        found = starts(codes, kinds(codes), words.begins)
        return words._replace(begins=make_index_mask(found, tf.size(codes)))

    return apply


def make_byte_level(step: Mapping) -> PreTokenizer:
    """Create a ByteLevel pre-tokenizer. Characters will be encoded as bytes by the model."""
    split_words = (
        make_byte_splitter(find_byte_level_words) if step["use_regex"] else lambda words: words
    )
    space = ord(" ")
    return lambda words: split_words(words.prepend(space) if step["add_prefix_space"] else words)


def make_metaspace(step: Mapping) -> PreTokenizer:
    """Create a Metaspace pre-tokenizer."""
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


# Functions that create a pre-tokenizer, by step type. They return None for unsupported steps.
PRE_TOKENIZERS: dict[str, Callable[[Mapping], PreTokenizer | None]] = {
    "BertPreTokenizer": lambda step: make_run_splitter(
        "punctuation", "white_space", is_isolated=True
    ),
    "ByteLevel": make_byte_level,
    "Metaspace": make_metaspace,
    "Split": make_pattern_splitter,
    "UnicodeScripts": make_script_splitter,
    "Whitespace": lambda step: make_run_splitter("word_character", "bpe_space"),  # \w+|[^\w\s]+
    **dict.fromkeys((*KINDS, "CharDelimiterSplit"), make_kind_splitter),
}


def make_pre_tokenizer(steps: Sequence[Mapping]) -> PreTokenizer:
    """Create a function to execute pre-tokenizer steps from tokenizer.json.

    Args:
        steps: List of pre-tokenizer steps.

    Raises:
        ValueError: If a step is not supported, or if a step follows ByteLevel.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> split_words = make_pre_tokenizer([{"type": "WhitespaceSplit"}])
        >>> words = split_words(Words.from_texts(decode_characters(tf.constant(["a b"]))))
        >>> words.chars.codes.numpy().tolist(), words.begins.numpy().tolist()
        ([97, 98], [True, True])
    """
    found = []
    for i, step in enumerate(steps):
        one = PRE_TOKENIZERS.get(step["type"], lambda step: None)(step)
        if one is None or (step["type"] == "ByteLevel" and i < len(steps) - 1):
            raise make_unsupported_error("pre_tokenizer", [step])
        found.append(one)
    return lambda words: functools.reduce(lambda words, one: one(words), found, words)
