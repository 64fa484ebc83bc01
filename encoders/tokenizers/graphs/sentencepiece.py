"""Split texts into words that begin with "▁", as in SentencePiece."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from encoder_zoo.encoders.tokenizers.graphs.words import Words
from encoder_zoo.encoders.tokenizers.segmentation import word_table
from encoder_zoo.encoders.tokenizers.steps import METASPACE, QUOTES, SPACE
from encoder_zoo.encoders.tokenizers.text.charsmap import parse_charsmap_rules
from encoder_zoo.encoders.tokenizers.text.normalization import make_folding_map
from encoder_zoo.encoders.tokenizers.text.ragged import shift_right

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.steps import Steps


def are_tokens_within_words(tokens: Collection[str]) -> bool:
    """Return whether all tokens are limited to a single word.

    Example:
        >>> are_tokens_within_words(["▁", "▁a", "▁▁"]), are_tokens_within_words(["▁", "a▁b"])
        (True, False)
    """
    crosses = re.compile(f"[^{SPACE}]{SPACE}")
    # Without a token for "▁", it could be fused with other unknown characters.
    return SPACE in tokens and not any(map(crosses.search, tokens))


def split_at_meta_symbols(words: Words) -> Words:
    """Split words before "▁", but not between several "▁"."""
    is_sign = words.chars.codes == ord(SPACE)
    return words._replace(begins=words.begins | (is_sign & ~shift_right(is_sign, 1, False)))


def make_splitter(steps: Steps) -> word_table.TextSplitter | None:
    """Create a function to split texts at white space before they are normalized.

    Return None if this is not possible with these steps.
    """
    types = [step["type"] for step in steps.normalizer if step not in QUOTES]
    charsmaps = [s["precompiled_charsmap"] for s in steps.normalizer if s["type"] == "Precompiled"]
    lowers, strips = "Lowercase" in types, "StripAccents" in types
    accents = ["NFKD", "StripAccents"] * strips
    known = [*accents, *["Lowercase"] * lowers, *["Precompiled"] * len(charsmaps)]
    if types != known or steps.pre_tokenizer != [{"type": "WhitespaceSplit"}, METASPACE]:
        return None
    mapping = make_folding_map(lowers, not strips)
    rules = parse_charsmap_rules(charsmaps[0] if charsmaps else None)
    return word_table.make_white_space_splitter(rules, mapping, lowers)
