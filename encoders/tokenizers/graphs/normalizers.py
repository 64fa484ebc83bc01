"""The normalizers of tokenizer.json in TensorFlow's core operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from encoder_zoo.encoders.tokenizers.steps import (
    COMPOSING,
    QUOTES,
    without_interpreter,
)
from encoder_zoo.encoders.tokenizers.text.characters import Characters, members
from encoder_zoo.encoders.tokenizers.text.charsmap import charsmap_rules
from encoder_zoo.encoders.tokenizers.text.composition import NFCNormalizer
from encoder_zoo.encoders.tokenizers.text.normalization import (
    folding_map,
    normalize_quotation_marks,
    normalize_white_space,
)
from encoder_zoo.encoders.tokenizers.text.precompiled import CharacterMap, PrecompiledNormalizer

Normalizer = Callable[[Characters], Characters]


def fold(lowercase: bool, keep_accents: bool) -> Normalizer:
    """Make the normalizer of ALBERT's case and accents."""
    return CharacterMap(folding_map(lowercase, keep_accents))


def replace_character(step: Mapping) -> Normalizer | None:
    """Make the normalizer of a Replace of one character; None for other patterns."""
    replaced = step["pattern"].get("String", "")
    return (
        CharacterMap({ord(replaced): [*map(ord, step["content"])]}) if len(replaced) == 1 else None
    )


NFKD, STRIP_ACCENTS, LOWERCASE = ({"type": t} for t in ("NFKD", "StripAccents", "Lowercase"))
# Steps that one normalizer executes, the longest first.
RUNS: tuple[tuple[Sequence[Mapping], Callable[[], Sequence[Normalizer]]], ...] = (
    (COMPOSING, lambda: [normalize_white_space, NFCNormalizer()]),
    ([NFKD, STRIP_ACCENTS, LOWERCASE], lambda: [fold(lowercase=True, keep_accents=False)]),
    ([NFKD, STRIP_ACCENTS], lambda: [fold(lowercase=False, keep_accents=False)]),
    (QUOTES, lambda: [normalize_quotation_marks]),
    ([LOWERCASE], lambda: [fold(lowercase=True, keep_accents=True)]),
    ([{"type": "NFC"}], lambda: [NFCNormalizer()]),
)
# {type of a step: function that makes its normalizer, or None if it cannot execute the step}
NORMALIZERS: dict[str, Callable[[Mapping], Normalizer | None]] = {
    "Precompiled": lambda step: PrecompiledNormalizer(charsmap_rules(step["precompiled_charsmap"])),
    "Replace": replace_character,
    "StripAccents": lambda step: CharacterMap({c: [] for c in np.flatnonzero(members("any_mark"))}),
}


def make_normalizers(steps: Sequence[Mapping]) -> list[Normalizer]:
    """Make the functions that execute the normalizer of tokenizer.json one after the other.

    Args:
        steps: List of steps of the normalizer.

    Raises:
        ValueError: If no function executes a step.

    Example:
        >>> import tensorflow as tf
        >>> from encoder_zoo.encoders.tokenizers.text.characters import characters
        >>> [lower] = make_normalizers([{"type": "Lowercase"}])
        >>> lower(characters(tf.constant(["A"]))).codes.numpy().tolist()
        [97]
    """
    steps, found = list(steps), []
    while steps:
        run = next((run for run in RUNS if steps[: len(run[0])] == [*run[0]]), None)
        if run and not (found and {"type": "NFC"} in run[0]):  # with spans of characters as given
            found += run[1]()
        elif (one := NORMALIZERS.get(steps[0]["type"], lambda step: None)(steps[0])) is not None:
            found.append(one)
        else:
            raise without_interpreter("normalizer", steps[:1])
        del steps[: len(run[0]) if run else 1]
    return found
