"""Create tokenizers, and compare tokenizer.json with the steps that they execute."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.tokenizers import ANY_STEPS
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles, make_byte_alphabet
from encoder_zoo.encoders.tokenizers.files.special_tokens import collect_template_ids
from encoder_zoo.encoders.tokenizers.files.vocab_txt import WHITE_SPACE
from encoder_zoo.encoders.tokenizers.steps import (
    COMPOSING,
    KEPT_WORDS,
    REPLACED_SPACE,
    describe_steps,
    get_model_settings,
)
from encoder_zoo.encoders.tokenizers.text.charsmap import parse_charsmap_rules

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger("encoder_zoo")

MERGED_SPACES = {"Regex": " {2,}"}
WHITESPACE_SPLIT = {"type": "WhitespaceSplit"}


def create_tokenizer(cls: type[Tokenizer], files: TokenizerFiles, **template) -> Tokenizer:
    """Create a tokenizer that executes all steps in tokenizer.json.

    If `cls` does not support a step, a `GenericTokenizer` is returned. However, if
    tokenizer_config.json contains a class name, transformers would ignore unsupported steps. In
    this case, an error is raised.

    Args:
        cls: Tokenizer class that `choose_tokenizer` selected.
        files: `TokenizerFiles` with a vocabulary or a tokenizer.json.
        **template: Arguments `uses_segments`, `pair_separators` and `post_processor`.

    Raises:
        FileNotFoundError: If the folder does not contain a vocabulary.
        ValueError: If a field has an invalid value, or if a step is not supported. See
            `compare_steps`.
    """
    any_steps = ANY_STEPS.load()
    if cls is any_steps:
        return any_steps.from_files(files, **template)
    tokenizer, has_own_steps = None, False
    try:
        tokenizer = cls.from_files(files, **template)
        if "tokenizer.json" in files:
            compare_steps(files, tokenizer)
            has_own_steps = True
            compare_processors(files, tokenizer, type(tokenizer).__name__)
        return tokenizer
    except ValueError as own:
        error = own
        if "tokenizer.json" in files and not files.has_class_name:
            try:
                return any_steps.from_files(files, cls, **template)
            except ValueError as general:
                # If only the steps of `cls` differ, the second error says why the file is refused.
                error = own if tokenizer is None or has_own_steps else general
        with files.add_folder_to_errors():
            raise error from None


def normalize_steps(
    normalizer: Sequence[Mapping], words: Sequence[Mapping]
) -> tuple[list[Mapping], list[Mapping]]:
    """Convert equivalent normalizer and pre-tokenizer steps to a common form.

    - In a BERT normalizer, `strip_accents` can be None to follow `lowercase`. A normalizer
      without any changes is removed.
    - Spans are only trimmed by the post-processor, so `trim_offsets` is ignored here.
    - If all spaces are replaced by "▁", a split at spaces has no effect.
    - Steps to merge or strip spaces do not change words between white space. After such steps, and
      with a charsmap that converts all white space to spaces, Metaspace will split texts in the
      same way with or without WhitespaceSplit.

    Example:
        >>> step = {"type": "ByteLevel", "trim_offsets": True}
        >>> normalize_steps([], [step])
        ([], [{'type': 'ByteLevel'}])
    """
    normalizer = [same for step in normalizer if (same := _normalize_bert_step(step))]
    words = [{k: v for k, v in step.items() if k != "trim_offsets"} for step in words]
    if REPLACED_SPACE in normalizer:
        words = [step for step in words if step != KEPT_WORDS]
    merges = [step for step in normalizer if step.get("pattern") == MERGED_SPACES]
    strips = [step for step in normalizer if step.get("type") == "Strip"]
    if merges and [step.get("type") for step in words] == ["Metaspace"] and joins_words(normalizer):
        if not any(step["strip_right"] for step in strips):
            logger.warning(
                "tokenizer.json does not strip white space at the end of texts. transformers adds "
                "a token for this white space, but this tokenizer does not."
            )
        words = [WHITESPACE_SPLIT, *words]
    if words[:1] == [WHITESPACE_SPLIT] and normalizer != COMPOSING:
        normalizer = [step for step in normalizer if step not in merges and step not in strips]
    return normalizer, words


def _normalize_bert_step(step: Mapping) -> Mapping | None:
    """Return a BertNormalizer step with all fields set, or None if it has no effect."""
    if step.get("type") != "BertNormalizer":
        return step
    if step["strip_accents"] is None:
        step = {**step, "strip_accents": step["lowercase"]}
    return step if True in step.values() else None


def joins_words(normalizer: Sequence[Mapping]) -> bool:
    """Return whether a charsmap removes white space or converts it to spaces, except for U+0085."""
    charsmaps = [s["precompiled_charsmap"] for s in normalizer if s.get("type") == "Precompiled"]
    rules = parse_charsmap_rules(charsmaps[0] if charsmaps else None)
    spaces = {*WHITE_SPACE} - {" ", "\x85"}  # U+0085 is not included in NMT charsmaps
    return all(rules.get(space, space) in (" ", "") for space in spaces)


def normalize_model(model: Mapping, settings: Mapping, words: Sequence[Mapping]) -> Mapping:
    """Convert equivalent model settings to a common form.

    For example, characters are never unknown if the vocabulary contains all bytes.

    Args:
        model: Dict with the model, including the vocabulary.
        settings: Dict with all settings. See `get_model_settings`.
        words: List of pre-tokenizer steps.
    """
    is_byte_level = any(step.get("type") == "ByteLevel" for step in words)
    if is_byte_level and set(make_byte_alphabet()) <= model["vocab"].keys():
        never = ("unk_token", "fuse_unk", "byte_fallback")
        return {name: value for name, value in settings.items() if name not in never}
    fused = not is_byte_level and settings.get("byte_fallback") and "fuse_unk" in settings
    return {**settings, "fuse_unk": True} if fused else settings


def compare_steps(files: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer does not execute the steps in tokenizer.json.

    All steps and fields are compared, so that no setting will be ignored. Equivalent steps are
    described in `normalize_steps` and `normalize_model`. The decoder is not compared, since it is
    not used by `detokenize`.

    Raises:
        ValueError: If a step is not supported by this tokenizer class, which would change ids.
    """
    ours, parts = tokenizer.steps, ("normalizer", "pre_tokenizer")
    theirs = [files.get_steps(part) for part in parts]
    own = [getattr(ours, part) for part in parts]
    alike = zip(normalize_steps(*theirs), normalize_steps(*own), strict=True)
    for i, (found, expected) in enumerate(alike):
        if found != expected:
            raise files.make_mismatch_error(
                f"{parts[i]} is {describe_steps(theirs[i])}", describe_steps(own[i])
            )
    model = tokenizer._make_model()
    found, expected = (
        normalize_model(model, get_model_settings(settings, model["type"]), ours.pre_tokenizer)
        for settings in (files.get_part("model"), model)
    )
    for field, value in found.items():
        if value != expected[field]:
            of_token = f" for unk_token {tokenizer.unknown_token!r}" * (field == "unk_id")
            raise files.make_mismatch_error(
                f"model.{field} is {quote(value)}", f"{expected[field]!r}{of_token}"
            )


def compare_processors(
    files: TokenizerFiles, tokenizer: Tokenizer, class_name: str | None = None
) -> None:
    """Compare the special tokens added around texts, and the settings to trim spans.

    Args:
        files: `TokenizerFiles` with a tokenizer.json.
        tokenizer: `Tokenizer` loaded from these files.
        class_name: Optional string. The name of a class that executes the steps in the file. The
            error for a file without special tokens suggests to name this class.

    Raises:
        ValueError: If the file adds no special tokens and names no class, if the id of a special
            token differs, or if the spans of tokens in the vocabulary would differ.
    """
    found, expected = files.get_steps("post_processor"), tokenizer.steps.post_processor
    template = files.get_template()
    if template is None and not files.has_class_name:
        advice = class_name and (
            f", or name a tokenizer_class in tokenizer_config.json, such as {class_name}"
        )
        raise ValueError(
            f"{files.json_path}: post_processor is {describe_steps(found)}, which adds no special "
            f"tokens. Expected a template such as {tokenizer.start_token} $A "
            f"{tokenizer.end_token}{advice or ''}."
        )
    for token, token_id in collect_template_ids(found):
        if tokenizer.token_to_id(token) != token_id:
            raise files.make_mismatch_error(
                f"post_processor uses the id {quote(token_id)} for {quote(token)}",
                f"the id {tokenizer.token_to_id(token)}",
            )
    if not found or _list_trimming_steps(found) == _list_trimming_steps(expected):
        return
    # For tokens with leading or trailing spaces, only the spans differ.
    differing = set(filter(_has_space, tokenizer.get_vocabulary()))
    added = differing & {token["content"] for token in tokenizer.added_tokens}
    if differing - added:
        raise files.make_mismatch_error(
            f"post_processor is {describe_steps(found)}", describe_steps(expected)
        )
    if added:
        logger.warning(
            "%s: post_processor is %s, but this kind of tokenizer uses %s. The ids are equal, but "
            "the spans of the added tokens %s differ in leading and trailing spaces.",
            files.json_path,
            describe_steps(found),
            describe_steps(expected),
            quote(sorted(added)),
        )


def _list_trimming_steps(steps: Sequence[Mapping]) -> list[tuple[int, bool]]:
    """Return (index, add_prefix_space) of each post-processor with `trim_offsets`."""
    return [
        (i, step.get("add_prefix_space") is True)
        for i, step in enumerate(steps)
        if step.get("trim_offsets") is True
    ]


def _has_space(token: str) -> bool:
    """Return whether a token has leading or trailing white space, which would be trimmed."""
    return token.strip() != token or token.strip("Ġ") != token
