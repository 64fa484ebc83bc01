"""Words that begin with "▁", as in SentencePiece, and lookup tables for these words."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.words import PreTokenizer, Words
from encoder_zoo.encoders.tokenizers.segmentation.word_table import (
    TextSplitter,
    split_at_white_space,
)
from encoder_zoo.encoders.tokenizers.steps import (
    KEPT_WORDS,
    METASPACE,
    QUOTES,
    REPLACED_SPACE,
    SPACE,
    SPACE_PREPENDED,
)
from encoder_zoo.encoders.tokenizers.text.characters import CodePointTable, mark_members
from encoder_zoo.encoders.tokenizers.text.charsmap import parse_charsmap_rules
from encoder_zoo.encoders.tokenizers.text.normalization import make_folding_map
from encoder_zoo.encoders.tokenizers.text.ragged import shift_right

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Steps


INSERTED_SPACE = [SPACE_PREPENDED, REPLACED_SPACE]


def marks_words(steps: Steps) -> bool:
    """Return whether words begin with "▁", as required by `mark_words`."""
    if steps.keeps_spaces:
        ends = steps.normalizer[-1:] == [REPLACED_SPACE]
        ends &= not any(token["normalized"] for token in steps.added_tokens)
        return ends and steps.pre_tokenizer in ([], [KEPT_WORDS]) and not steps.trims
    return steps.pre_tokenizer == [{"type": "WhitespaceSplit"}, METASPACE] and not steps.trims


def drop_word_steps(normalizer: list[dict]) -> list[dict]:
    """Return normalizer steps without the steps at the end that are executed by `mark_words`."""
    if normalizer[-2:] == INSERTED_SPACE:
        return normalizer[:-2]
    return normalizer[:-1] if normalizer[-1:] == [REPLACED_SPACE] else normalizer


def tokens_stay_in_words(tokens: Collection[str]) -> bool:
    """Return whether all tokens are limited to a single word.

    Example:
        >>> tokens_stay_in_words(["▁", "▁a", "▁▁"]), tokens_stay_in_words(["▁", "a▁b"])
        (True, False)
    """
    crosses = re.compile(f"[^{SPACE}]{SPACE}")
    # Without a token for "▁", it could be fused with other unknown characters.
    return SPACE in tokens and not any(map(crosses.search, tokens))


def mark_words(steps: Steps, splits_words: bool) -> PreTokenizer:
    """Create a pre-tokenizer to split texts into words that begin with "▁".

    Args:
        steps: `Steps` to execute.
        splits_words: Boolean. Whether to split texts at "▁" if spaces are kept.
    """
    white = CodePointTable(mark_members("white_space").astype(np.int32))

    def keep_spaces(words: Words) -> Words:
        codes = words.chars.codes
        codes = tf.where(codes == ord(" "), ord(SPACE), codes)
        words = words._replace(chars=words.chars._replace(codes=codes))
        if steps.normalizer[-2:] == INSERTED_SPACE:
            words = words.insert(ord(SPACE), words.begins)
        if not splits_words:
            return words
        is_sign = words.chars.codes == ord(SPACE)
        return words._replace(begins=words.begins | (is_sign & ~shift_right(is_sign, 1, False)))

    def remove_spaces(words: Words) -> Words:
        codes = words.chars.codes
        is_sign, solid = codes == ord(SPACE), white(codes) == 0
        after_space = shift_right(~solid, 1, False)
        first = solid & (words.begins | after_space | is_sign)
        return words._replace(begins=first).insert(ord(SPACE), first & ~is_sign, kept=solid)

    return keep_spaces if steps.keeps_spaces else remove_spaces


def make_splitter(steps: Steps) -> TextSplitter | None:
    """Create a function to split texts at white space before they are normalized.

    Return None if this is not possible with these steps.
    """
    types = [step["type"] for step in steps.normalizer if step not in QUOTES]
    charsmaps = [s["precompiled_charsmap"] for s in steps.normalizer if s["type"] == "Precompiled"]
    lowers, strips = "Lowercase" in types, "StripAccents" in types
    accents = ["NFKD", "StripAccents"] * strips
    known = [*accents, *["Lowercase"] * lowers, *["Precompiled"] * len(charsmaps)]
    if types != known or "WhitespaceSplit" not in steps.list_types("pre_tokenizer"):
        return None
    mapping = make_folding_map(lowers, not strips)
    rules = parse_charsmap_rules(charsmaps[0] if charsmaps else None)
    return split_at_white_space(rules, mapping, lowers)
