"""Normalizers for tokenizer.json, implemented with TensorFlow core operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from encoder_zoo.encoders.tokenizers.graphs.patterns import make_finder
from encoder_zoo.encoders.tokenizers.graphs.wordpiece import get_bert_options
from encoder_zoo.encoders.tokenizers.graphs.words import Words
from encoder_zoo.encoders.tokenizers.steps import QUOTES, make_unsupported_error
from encoder_zoo.encoders.tokenizers.text import normalization
from encoder_zoo.encoders.tokenizers.text.characters import (
    NUM_CODE_POINTS,
    Characters,
    CodePointTable,
    mark_members,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import parse_charsmap_rules
from encoder_zoo.encoders.tokenizers.text.composition import UnicodeNormalizer
from encoder_zoo.encoders.tokenizers.text.precompiled import CharacterMap, PrecompiledNormalizer
from encoder_zoo.encoders.tokenizers.text.ragged import shift_left

Normalizer = Callable[[Characters], Characters]


def make_folding_normalizer(lowercase: bool, keep_accents: bool) -> Normalizer:
    """Create a normalizer that lowercases text and strips accents, as in ALBERT."""
    return CharacterMap(normalization.make_folding_map(lowercase, keep_accents))


def make_replace_normalizer(step: Mapping) -> Normalizer | None:
    """Create a normalizer for a Replace step, or return None if RE2 cannot match the pattern."""
    content = [*map(ord, step["content"])]
    replaced = step["pattern"].get("String", "")
    if len(replaced) == 1:
        return CharacterMap({ord(replaced): content})
    if (find := make_finder(step["pattern"])) is None:
        return None
    new = normalization.Expansions([content])

    def apply(chars: Characters) -> Characters:
        words = Words.from_texts(chars)
        matched, first = find(chars, words.begins)
        # Assign the span from the last replaced character to all new characters.
        last = matched & shift_left(first, 1, True)
        chars = chars._replace(codes=tf.where(last, normalization.FIRST_COMPLEX, chars.codes))
        return new.expand(chars.select(last | ~matched))

    return apply


def make_prepend_normalizer(step: Mapping) -> Normalizer:
    """Create a normalizer for a Prepend step."""

    def apply(chars: Characters) -> Characters:
        words = Words.from_texts(chars)
        for letter in reversed(step["prepend"]):
            words = words.insert(ord(letter), words.begins)
        return words.chars

    return apply


def make_strip_normalizer(step: Mapping) -> Normalizer:
    """Create a normalizer for a Strip step."""
    spaces = CodePointTable(mark_members("white_space").astype(np.int32))

    def apply(chars: Characters) -> Characters:
        text = tf.cumsum(tf.cast(Words.from_texts(chars).begins, tf.int32)) - 1
        positions, num = tf.range(tf.size(text)), tf.size(text)
        is_space = spaces(chars.codes) > 0
        kept = tf.ones_like(is_space)
        if step["strip_left"]:
            first = tf.math.unsorted_segment_min(tf.where(is_space, num, positions), text, num)
            kept &= positions >= tf.gather(first, text)
        if step["strip_right"]:
            last = tf.math.unsorted_segment_max(tf.where(is_space, -1, positions), text, num)
            kept &= positions <= tf.gather(last, text)
        return chars.select(kept)

    return apply


def make_bert_normalizer(step: Mapping) -> Normalizer:
    """Create a normalizer for a BertNormalizer step.

    The normalizer returns code points. With `handle_chinese_chars`, it adds spaces around Chinese
    characters.
    """
    lowercase, strips, splits_chinese, clean_text = get_bert_options([step])
    chinese = np.flatnonzero(mark_members("chinese") & splits_chinese).tolist()
    separate = CharacterMap({code: (ord(" "), code, ord(" ")) for code in chinese})
    codes = np.arange(NUM_CODE_POINTS)
    if clean_text:
        codes[mark_members("space")] = ord(" ")
    packed = normalization.BertNormalizer(lowercase, strips, False, clean_text, codes)

    def apply(chars: Characters) -> Characters:
        chars = packed(separate(chars))
        return chars._replace(codes=normalization.unpack_codes(chars.codes))

    return apply


class NormalizerSequence(tf.Module):
    """Applies normalizers in sequence. As a module, it keeps their tables in a SavedModel."""

    def __init__(self, normalizers: Sequence[Normalizer]):
        super().__init__()
        self._normalizers = normalizers

    def __call__(self, chars: Characters) -> Characters:
        """Normalize characters."""
        return functools.reduce(lambda chars, normalize: normalize(chars), self._normalizers, chars)


NFKD, STRIP_ACCENTS, LOWERCASE = ({"type": t} for t in ("NFKD", "StripAccents", "Lowercase"))
Run = tuple[Sequence[Mapping], Callable[[], Sequence[Normalizer]]]
# Sequences to be executed by a single normalizer, with the longest sequence first.
RUNS: tuple[Run, ...] = (
    (
        [NFKD, STRIP_ACCENTS, LOWERCASE],
        lambda: [make_folding_normalizer(lowercase=True, keep_accents=False)],
    ),
    ([NFKD, STRIP_ACCENTS], lambda: [make_folding_normalizer(lowercase=False, keep_accents=False)]),
    (QUOTES, lambda: [normalization.normalize_quotation_marks]),
)
# Functions that create a normalizer, by step type. They return None for unsupported steps.
NORMALIZERS: dict[str, Callable[[Mapping], Normalizer | None]] = {
    "BertNormalizer": make_bert_normalizer,
    "Lowercase": lambda step: make_folding_normalizer(lowercase=True, keep_accents=True),
    "Precompiled": lambda step: PrecompiledNormalizer(
        parse_charsmap_rules(step["precompiled_charsmap"])
    ),
    "Prepend": make_prepend_normalizer,
    "Replace": make_replace_normalizer,
    "Strip": make_strip_normalizer,
    "StripAccents": lambda step: CharacterMap(
        dict.fromkeys(np.flatnonzero(mark_members("any_mark")).tolist(), ())
    ),
    **dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD"), lambda step: UnicodeNormalizer(step["type"])),
}


def make_normalizer(steps: Sequence[Mapping]) -> Normalizer:
    """Create a function to execute normalizer steps from tokenizer.json.

    Args:
        steps: List of normalizer steps.

    Raises:
        ValueError: If a step is not supported.

    Example:
        >>> from encoder_zoo.encoders.tokenizers.text.characters import decode_characters
        >>> lower = make_normalizer([{"type": "Lowercase"}])
        >>> lower(decode_characters(tf.constant(["A"]))).codes.numpy().tolist()
        [97]
    """
    steps, found = list(steps), []
    while steps:
        run = next((run for run in RUNS if steps[: len(run[0])] == [*run[0]]), None)
        if run:
            found += run[1]()
        elif (one := NORMALIZERS.get(steps[0]["type"], lambda step: None)(steps[0])) is not None:
            found.append(one)
        else:
            raise make_unsupported_error("normalizer", steps[:1])
        del steps[: len(run[0]) if run else 1]
    return NormalizerSequence(found)
