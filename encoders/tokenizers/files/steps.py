"""The steps of tokenizer.json: read whole, and compared with those of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from encoder_zoo.common.wording import shown
from encoder_zoo.encoders.tokenizers.files.templates import processor_kind

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
