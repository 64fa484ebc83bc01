"""The steps of tokenizer.json: what both engines of a tokenizer execute."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from encoder_zoo.common.wording import invalid

SPACE = "▁"  # of SentencePiece
WORD_END = "</w>"  # on the last character of a word, in the merges of BERTweet
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# Steps of a normalizer: those that make "▁" of every space, the quotation marks of ALBERT, and
# what transformers 5 writes for DeBERTa.
SPACE_PREPENDED = {"type": "Prepend", "prepend": SPACE}
REPLACED_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
QUOTES = [{"type": "Replace", "pattern": {"String": q}, "content": '"'} for q in ("``", "''")]
COMPOSING = [
    {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "},
    {"type": "NFC"},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]
# The words that begin with "▁", and those of Gemma, which has no space left to split at.
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
KEPT_WORDS = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
# White space of Python, which separates the words of BERTweet; a line break belongs to the word
# before it.
PYTHON_SPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
TWEET_WORDS = {
    "type": "Split",
    "pattern": {"Regex": f"[^{re.escape(PYTHON_SPACE)}]+\\n?"},
    "behavior": "Removed",
    "invert": True,
}
# The words of GPT-2, which ByteLevel finds, and of Llama 3.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_at(words: str) -> dict:
    """Return the pre-tokenizer of tokenizer.json whose words a regular expression finds."""
    pattern = {"Regex": words}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


class Steps(NamedTuple):
    """Holds the steps of a tokenizer around its model, and the tokens found in texts before them.

    The library `tokenizers` executes them in `library.py`, TensorFlow's core operations in
    `graphs/`.

    Attributes:
        normalizer, pre_tokenizer, post_processor: Lists of steps of tokenizer.json, without
            sequences and with all their fields, see `flat_steps`.
        unknown_id: Integer. The id of the unknown token.
        skipped_ids: Tuple of integers. The ids of special tokens, which `detokenize` may leave out.
        special_tokens: Entries of tokenizer.json for the special tokens to find in texts.
        added_tokens: Entries of tokenizer.json for the other tokens to find in texts.
    """

    normalizer: list[dict]
    pre_tokenizer: list[dict]
    post_processor: list[dict]
    unknown_id: int
    skipped_ids: Sequence[int] = ()
    special_tokens: Sequence[Mapping] = ()
    added_tokens: Sequence[Mapping] = ()

    def types(self, part: str) -> list[str]:
        """Return the types of the steps of a part, such as "normalizer"."""
        return [step["type"] for step in getattr(self, part)]

    @property
    def trims(self) -> list[bool]:
        """Return for each time that spans are trimmed whether a space was inserted before."""
        trimming = (step for step in self.post_processor if step.get("trim_offsets"))
        return [step["add_prefix_space"] for step in trimming]

    @property
    def keeps_spaces(self) -> bool:
        """Return whether every space becomes "▁", so that tokens may span words."""
        return REPLACED_SPACE in self.normalizer

    @property
    def inserts_space(self) -> bool:
        """Return whether a space is inserted before a text."""
        steps = [*self.normalizer, *self.pre_tokenizer]
        return any(
            step.get("add_prefix_space") or step["type"] in ("Prepend", "Metaspace")
            for step in steps
        )

    @property
    def words_depend(self) -> bool:
        """Return whether words depend on the white space around them, as after DeBERTa's NFC."""
        composes = "NFC" in self.types("normalizer")
        return composes and "Metaspace" in self.types("pre_tokenizer")

    @property
    def words_are_independent(self) -> bool:
        """Return whether words can be tokenized apart. Added tokens may span several words."""
        return not (self.special_tokens or self.added_tokens or self.words_depend)

    @property
    def library_is_equal(self) -> bool:
        """Return whether the library gives the graph's ids and offsets for all texts.

        Where spaces are kept, the library wants one before some added tokens. After DeBERTa's NFC
        it gives composed characters other spans.
        """
        return not (self.words_depend or (self.keeps_spaces and self.added_tokens))


class Model(NamedTuple):
    """Holds the model of a tokenizer, which splits words into tokens.

    Attributes:
        settings: The model of tokenizer.json. Tokens that no text contains have names with a space.
        ids: The token id of each of the model's ids. Without one, an id of the model is the
            token's.
    """

    settings: dict
    ids: Sequence[int] = ()


def without_interpreter(part: str, steps: Sequence[Mapping]) -> ValueError:
    """Return the error for steps that TensorFlow's operations do not execute here."""
    return ValueError(
        f"tokenizer.json: {part} is {describe_steps(steps)}, which only the library tokenizers "
        "executes. Pass texts in memory: TensorFlow's graphs (tf.data, exports) lack this step."
    )


def describe_steps(steps: Sequence[Mapping]) -> str:
    """Describe steps for an error message, without long values."""
    parts = [
        {k: v if len(str(v)) < 60 else f"{str(v)[:20]}..." for k, v in s.items()} for s in steps
    ]
    return ", ".join(map(str, parts))[:400] or "null"


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
        ValueError: If a step is not an object with a type.

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
        raise invalid(f"tokenizer.json: a step of {part}", step, "an object with a type")
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


def model_type(model: Mapping) -> str:
    """Return the type of a model, which older files lack.

    Example:
        >>> model_type({"vocab": {"a": 0}, "merges": []})
        'BPE'
    """
    if "type" in model:
        return model["type"]
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "BPE" if "merges" in model else "WordPiece"


def processor_kind(step: Mapping) -> object:
    """Return the type of a post-processor as the library `tokenizers` reads it.

    It takes the first type that has all fields: RobertaProcessing without one is BertProcessing.

    Example:
        >>> processor_kind({"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]})
        'BertProcessing'
    """
    kind = step.get("type")
    whole = {"trim_offsets", "add_prefix_space"} <= step.keys()
    return "BertProcessing" if kind == "RobertaProcessing" and not whole else kind
