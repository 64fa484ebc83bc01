"""Compares the steps of a tokenizer.json with those of the tokenizer that was read from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles, byte_alphabet
from encoder_zoo.encoders.tokenizers.files.special_tokens import template_ids
from encoder_zoo.encoders.tokenizers.steps import (
    COMPOSING,
    KEPT_WORDS,
    REPLACED_SPACE,
    describe_steps,
    model_settings,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import charsmap_rules

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger("encoder_zoo")

MERGED_SPACES = {"Regex": " {2,}"}
WHITESPACE_SPLIT = {"type": "WhitespaceSplit"}
# White space of Unicode, without the space and U+0085, of which NMT's charsmap says nothing.
WHITE_SPACE = (*range(9, 14), 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029)
WHITE_SPACE += (0x202F, 0x205F, 0x3000)


def same_steps(
    normalizer: Sequence[Mapping], words: Sequence[Mapping]
) -> tuple[list[Mapping], list[Mapping]]:
    """Return the steps of normalizer and pre_tokenizer in one of the ways to write what they do.

    - A normalizer of BERT may say by None that accents follow the case; one without changes is no
      step.
    - Only the post-processor trims spans.
    - Where every space is "▁", none is left to split at.
    - What only merges or strips spaces leaves words between white space as they are. Metaspace
      alone splits as WhitespaceSplit before it would, after such steps and a charsmap that makes
      spaces of other white space.

    Example:
        >>> step = {"type": "ByteLevel", "trim_offsets": True}
        >>> same_steps([], [step])
        ([], [{'type': 'ByteLevel'}])
    """
    normalizer = [same for step in normalizer if (same := _same_bert(step))]
    words = [{k: v for k, v in step.items() if k != "trim_offsets"} for step in words]
    if REPLACED_SPACE in normalizer:
        words = [step for step in words if step != KEPT_WORDS]
    merges = [step for step in normalizer if step.get("pattern") == MERGED_SPACES]
    strips = [step for step in normalizer if step.get("type") == "Strip"]
    if merges and [step.get("type") for step in words] == ["Metaspace"] and joins_words(normalizer):
        if not any(step["strip_right"] for step in strips):
            logger.warning(
                "tokenizer.json does not strip white space at the end of texts, for which "
                "transformers then has a token; here it is left out."
            )
        words = [WHITESPACE_SPLIT, *words]
    if words[:1] == [WHITESPACE_SPLIT] and normalizer != COMPOSING:
        normalizer = [step for step in normalizer if step not in merges and step not in strips]
    return normalizer, words


def _same_bert(step: Mapping) -> Mapping | None:
    """Return a BertNormalizer with all its fields; None if it changes nothing."""
    if step.get("type") != "BertNormalizer":
        return step
    if step["strip_accents"] is None:
        step = {**step, "strip_accents": step["lowercase"]}
    return step if True in step.values() else None


def joins_words(normalizer: Sequence[Mapping]) -> bool:
    """Return whether a charsmap makes spaces of all white space, as NMT's but for U+0085."""
    charsmaps = [s["precompiled_charsmap"] for s in normalizer if s.get("type") == "Precompiled"]
    rules = charsmap_rules(charsmaps[0] if charsmaps else None)
    spaces = [chr(c) for c in WHITE_SPACE]
    return all(rules.get(space, space) in (" ", "") for space in spaces)


def same_model(model: Mapping, settings: Mapping, words: Sequence[Mapping]) -> Mapping:
    """Return settings of a model in one of the ways to write what they do.

    Where every byte has a token, no character is unknown.

    Args:
        model: The model, with its vocabulary.
        settings: All settings, see `model_settings`.
        words: The steps of pre_tokenizer.
    """
    is_byte_level = any(step.get("type") == "ByteLevel" for step in words)
    if is_byte_level and set(byte_alphabet()) <= model["vocab"].keys():
        never = ("unk_token", "fuse_unk", "byte_fallback")
        return {name: value for name, value in settings.items() if name not in never}
    fused = not is_byte_level and settings.get("byte_fallback") and "fuse_unk" in settings
    return {**settings, "fuse_unk": True} if fused else settings


def compare_steps(files: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer does something else than the tokenizer.json it was read from.

    All steps and all their fields are compared, so that none is ignored. Two are alike where
    `same_steps` and `same_model` say why. The decoder is not compared: `detokenize`
    spells the tokens, whatever it says.

    Raises:
        ValueError: If a step differs from what this kind of tokenizer does, so that the ids would
            differ.
    """
    ours, parts = tokenizer.steps, ("normalizer", "pre_tokenizer")
    theirs = [files.steps(part) for part in parts]
    own = [getattr(ours, part) for part in parts]
    alike = zip(same_steps(*theirs), same_steps(*own), strict=True)
    for i, (found, expected) in enumerate(alike):
        if found != expected:
            raise files.mismatch(
                f"{parts[i]} is {describe_steps(theirs[i])}", describe_steps(own[i])
            )
    model = tokenizer._model()
    found, expected = (
        same_model(model, model_settings(settings, model["type"]), ours.pre_tokenizer)
        for settings in (files.part("model"), model)
    )
    for field, value in found.items():
        if value != expected[field]:
            of_token = f" for unk_token {tokenizer.unknown_token!r}" * (field == "unk_id")
            raise files.mismatch(
                f"model.{field} is {shown(value)}", f"{expected[field]!r}{of_token}"
            )
    compare_processors(files, tokenizer)


def compare_processors(files: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Compare what is put around texts, and how spans are trimmed."""
    found, expected = files.steps("post_processor"), tokenizer.steps.post_processor
    template = files.template()
    if template is None and not files.names_class:
        raise ValueError(
            f"{files.json_path}: post_processor is {describe_steps(found)}, which puts no special "
            f"tokens around texts. Write one that does, such as {tokenizer.start_token} $A "
            f"{tokenizer.end_token}, or name a tokenizer_class in tokenizer_config.json, such as "
            f"{type(tokenizer).__name__}."
        )
    for token, token_id in template_ids(found):
        if tokenizer.token_to_id(token) != token_id:
            raise files.mismatch(
                f"post_processor puts {shown(token)} as {token_id}",
                f"the id {tokenizer.token_to_id(token)} for it",
            )
    if not found or _trimming(found) == _trimming(expected):
        return
    # Of tokens with spaces at their ends the spans differ, and never the ids.
    differing = set(filter(_has_space, tokenizer.get_vocabulary()))
    added = differing & {token["content"] for token in tokenizer.added_tokens}
    if differing - added:
        raise files.mismatch(f"post_processor is {describe_steps(found)}", describe_steps(expected))
    if added:
        logger.warning(
            "%s: post_processor is %s; this kind of tokenizer has %s. Ids are equal; spans of the "
            "added tokens %s differ by the spaces at their ends.",
            files.json_path,
            describe_steps(found),
            describe_steps(expected),
            shown(sorted(added)),
        )


def _trimming(steps: Sequence[Mapping]) -> list[tuple[int, bool]]:
    """Return position and add_prefix_space of the post-processors that take spaces off spans."""
    return [
        (i, step.get("add_prefix_space") is True)
        for i, step in enumerate(steps)
        if step.get("trim_offsets") is True
    ]


def _has_space(token: str) -> bool:
    """Return whether a token has what trimming takes off: white space, or its byte's letter."""
    return token.strip() != token or token.strip("Ġ") != token
