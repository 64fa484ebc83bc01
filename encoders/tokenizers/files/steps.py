"""The steps of tokenizer.json: read whole, and compared with those of a tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.templates import processor_kind, template_ids

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger("encoder_zoo")

# {part of tokenizer.json: field with the steps of a Sequence}
SEQUENCES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
}
# What the library `tokenizers` takes for a field that a step or a model lacks.
DEFAULTS = {
    "BertNormalizer": {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "Strip": {"strip_left": True, "strip_right": True},
    "ByteLevel": {"add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "Split": {"behavior": "Isolated", "invert": False},
}
MODEL_DEFAULTS = {
    "WordPiece": {
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
    "BPE": {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    },
    "Unigram": {"unk_id": None, "byte_fallback": False},
}


def flat_steps(step: object, part: str) -> list[dict]:
    """Return the steps of a part of tokenizer.json, without sequences and with all their fields.

    Raises:
        ValueError: "tokenizer.json: a step of normalizer is 3; expected an object with a type"

    Example:
        >>> flat_steps({"type": "Sequence", "normalizers": [{"type": "Strip"}]}, "normalizer")
        [{'strip_left': True, 'strip_right': True, 'type': 'Strip'}]
        >>> older = {"type": "Metaspace", "str_rep": "▁", "add_prefix_space": False}
        >>> [step] = flat_steps(older, "pre_tokenizer")
        >>> step["prepend_scheme"], step["split"]
        ('never', True)
    """
    if step is None or step == {}:
        return []
    name = SEQUENCES[part]
    inner = step.get(name, []) if isinstance(step, Mapping) else None
    if not isinstance(inner, list):
        raise ValueError(
            f"tokenizer.json: a step of {part} is {shown(step)}; expected an object with a type"
        )
    if step.get("type") == "Sequence":
        return [found for one in inner for found in flat_steps(one, part)]
    kind = processor_kind(step)
    if kind == "BertProcessing":
        return [{"type": kind, "cls": step.get("cls"), "sep": step.get("sep")}]
    return [_metaspace(step) if kind == "Metaspace" else {**_defaults(DEFAULTS, kind), **step}]


def _metaspace(step: Mapping) -> dict:
    """Return a Metaspace of any version of the library in the words of the last."""
    step = {"replacement": "▁", "split": True, **step}
    prepends = step.pop("add_prefix_space", True)
    step.pop("str_rep", None)
    return {"prepend_scheme": "always" if prepends else "never", **step}


def _defaults(known: Mapping[str, dict], kind: object) -> dict:
    return known.get(kind, {}) if isinstance(kind, str) else {}


def model_settings(model: Mapping, kind: str) -> dict:
    """Return all settings of a model in tokenizer.json, without its vocabulary.

    Example:
        >>> model = {"vocab": {"a": 0}, "max_input_chars_per_word": 9}
        >>> model_settings(model, "WordPiece")["max_input_chars_per_word"]
        9
    """
    defaults = _defaults(MODEL_DEFAULTS, kind)
    found = {name: model.get(name, default) for name, default in defaults.items()}
    found = {"type": model.get("type", kind), **found}
    # No text is as good as none.
    return {
        name: None if value == "" or (name == "dropout" and not value) else value
        for name, value in found.items()
    }


def describe_steps(steps: Sequence[Mapping]) -> str:
    """Describe steps for an error message, without long values."""
    parts = [
        {k: v if len(str(v)) < 60 else f"{str(v)[:20]}..." for k, v in s.items()} for s in steps
    ]
    return ", ".join(map(str, parts))[:400] or "null"


def compare_steps(files: TokenizerFiles, tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer does something else than the tokenizer.json it was read from.

    All steps and all their fields are compared, so that none is ignored. Two are alike where the
    tokenizer's `same_steps` and `same_model` say why. The decoder is not compared: `detokenize`
    spells the tokens, whatever it says.

    Raises:
        ValueError: "FILE: normalizer is {'type': 'Lowercase'}; this kind of tokenizer has null, so
            the ids would differ"
    """
    ours, parts = tokenizer._steps(), ("normalizer", "pre_tokenizer")
    theirs = [files.steps(part) for part in parts]
    own = [flat_steps(ours[part], part) for part in parts]
    alike = zip(tokenizer.same_steps(*theirs), tokenizer.same_steps(*own), strict=True)
    for i, (found, expected) in enumerate(alike):
        if found != expected:
            raise files.mismatch(
                f"{parts[i]} is {describe_steps(theirs[i])}", describe_steps(own[i])
            )
    kind = ours["model"]["type"]
    found, expected = (
        tokenizer.same_model(model_settings(model, kind))
        for model in (files.part("model"), ours["model"])
    )
    for field, value in found.items():
        if value != expected[field]:
            of_token = f" for unk_token {tokenizer.unknown_token!r}" * (field == "unk_id")
            raise files.mismatch(
                f"model.{field} is {shown(value)}", f"{expected[field]!r}{of_token}"
            )
    _compare_processors(files, tokenizer, flat_steps(ours["post_processor"], "post_processor"))


def _compare_processors(
    files: TokenizerFiles, tokenizer: Tokenizer, expected: Sequence[Mapping]
) -> None:
    """Compare what is put around texts, and how spans are trimmed."""
    found = files.steps("post_processor")
    template = files.template()
    if template is None and not files.names_class:
        raise ValueError(
            f"{files.json_path}: post_processor is {describe_steps(found)}, which puts no special "
            f"tokens around texts; a model expects them. Write one that does, such as "
            f"{tokenizer.start_token} $A {tokenizer.end_token}, or name the tokenizer_class in "
            f"tokenizer_config.json whose special tokens count, such as {type(tokenizer).__name__}"
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
