"""Steps of tokenizer.json that both tokenizer engines execute."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from encoder_zoo.common.wording import invalid

SPACE = "▁"  # used by SentencePiece for spaces
WORD_END = "</w>"  # added to the last character in BERTweet words
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# Normalizer steps to replace spaces by "▁", to normalize quotation marks (ALBERT), and to compose
# characters (written for DeBERTa by transformers 5).
SPACE_PREPENDED = {"type": "Prepend", "prepend": SPACE}
REPLACED_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
QUOTES = [{"type": "Replace", "pattern": {"String": q}, "content": '"'} for q in ("``", "''")]
COMPOSING = [
    {"type": "Replace", "pattern": {"Regex": r"\s{2,}|[\n\r\t]"}, "content": " "},
    {"type": "NFC"},
    {"type": "Strip", "strip_left": False, "strip_right": True},
]
# Pre-tokenizers for words that begin with "▁", and for Gemma. In Gemma, this step has no effect,
# because all spaces have already been replaced.
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
KEPT_WORDS = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
# BERTweet splits words at white space as defined by Python. A line break is part of the word
# before it.
PYTHON_SPACE = "".join(chr(code) for code in range(0x3001) if chr(code).isspace())
TWEET_WORDS = {
    "type": "Split",
    "pattern": {"Regex": f"[^{re.escape(PYTHON_SPACE)}]+\\n?"},
    "behavior": "Removed",
    "invert": True,
}
# Patterns for words in GPT-2 (used by ByteLevel) and in Llama 3.
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_split_step(words: str) -> dict:
    """Return a pre-tokenizer step for tokenizer.json that finds words with a regular expression."""
    pattern = {"Regex": words}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


class Steps(NamedTuple):
    """The steps before and after a model, and the tokens to find in texts.

    The `tokenizers` library executes the steps in `library.py`. TensorFlow core operations
    execute them in `graphs/`.

    Attributes:
        normalizer, pre_tokenizer, post_processor: Lists of steps in tokenizer.json. Sequences are
            flattened and all fields are set. See `flatten_steps`.
        unknown_id: Integer. The id to use for unknown tokens.
        skipped_ids: Tuple of integers. The ids of special tokens, which `detokenize` may skip.
        special_tokens: List of tokenizer.json entries for special tokens to find in texts.
        added_tokens: List of tokenizer.json entries for added tokens to find in texts.
    """

    normalizer: list[dict]
    pre_tokenizer: list[dict]
    post_processor: list[dict]
    unknown_id: int
    skipped_ids: Sequence[int] = ()
    special_tokens: Sequence[Mapping] = ()
    added_tokens: Sequence[Mapping] = ()

    @property
    def tokens_in_texts(self) -> list[Mapping]:
        """Return the special tokens and added tokens to find in texts, with unique contents."""
        return [*{t["content"]: t for t in (*self.special_tokens, *self.added_tokens)}.values()]

    def list_types(self, part: str) -> list[str]:
        """Return the step types for a part, such as "normalizer"."""
        return [step["type"] for step in getattr(self, part)]

    @property
    def trims(self) -> list[bool]:
        """Return the value of `add_prefix_space` for each post-processor that trims spans."""
        return [step["add_prefix_space"] for step in list_trimming_steps(self.post_processor)]

    @property
    def keeps_spaces(self) -> bool:
        """Return whether spaces are replaced by "▁", which allows tokens to span words."""
        return REPLACED_SPACE in self.normalizer

    @property
    def inserts_space(self) -> bool:
        """Return whether a space is inserted before each text."""
        steps = [*self.normalizer, *self.pre_tokenizer]
        return any(
            step.get("add_prefix_space") or step["type"] in ("Prepend", "Metaspace")
            for step in steps
        )

    @property
    def has_independent_words(self) -> bool:
        """Return whether words can be tokenized separately.

        Added tokens may span several words, and NFC for DeBERTa depends on white space.
        """
        is_composed = "NFC" in self.list_types("normalizer")
        is_metaspace = "Metaspace" in self.list_types("pre_tokenizer")
        return not (self.tokens_in_texts or (is_composed and is_metaspace))


class Model(NamedTuple):
    """The tokenizer model, which splits words into tokens.

    Attributes:
        settings: Dict with the model in tokenizer.json. Tokens that cannot occur in texts have a
            name with a space.
        ids: List of integers. The token id for each id in the model. If it is empty (the default),
            the ids in the model are the token ids.
    """

    settings: dict
    ids: Sequence[int] = ()


def list_trimming_steps(post_processor: Sequence[Mapping]) -> list[dict]:
    """Return a ByteLevel step for each post-processor that excludes spaces from token spans."""
    trim = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    return [
        {**trim, "add_prefix_space": step["add_prefix_space"]}
        for step in post_processor
        if step.get("trim_offsets")
    ]


def hide_tokens(model: dict, ids: Collection[int]) -> dict:
    """Rename tokens of a model, so that they are never found in texts.

    Args:
        model: Dict with the model in tokenizer.json.
        ids: Ids of the tokens to rename. New names start with a space, which words do not contain.

    Example:
        >>> model = {"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1}}
        >>> hide_tokens(model, [0])["vocab"]
        {' 0': 0, 'a': 1}
    """
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        entries = enumerate(vocabulary)
        return {**model, "vocab": [[f" {i}", e[1]] if i in ids else [*e] for i, e in entries]}
    names = {token: f" {i}" if i in ids else token for token, i in vocabulary.items()}
    renamed = {names[token]: i for token, i in vocabulary.items()}
    return {**model, "unk_token": names.get(model["unk_token"]), "vocab": renamed}


def make_unsupported_error(part: str, steps: Sequence[Mapping]) -> ValueError:
    """Create the error for steps that TensorFlow graphs do not support."""
    return ValueError(
        f"tokenizer.json: {part} is {describe_steps(steps)}, which TensorFlow graphs (tf.data, "
        "exports) do not support. Pass texts in memory, which the library `tokenizers` can "
        "tokenize."
    )


def describe_steps(steps: Sequence[Mapping]) -> str:
    """Describe steps for an error message, with long values truncated."""
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
# Default values that the `tokenizers` library uses for missing fields in steps and models.
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
    "WordLevel": {"unk_token": None},
}


def make_bpe_model(
    vocabulary: Mapping[str, int], merges: Sequence[str], **settings: object
) -> dict:
    """Return a BPE model for tokenizer.json.

    Args:
        vocabulary: Dict mapping tokens to ids.
        merges: List of "a b" pairs in the order in which they were learned.
        **settings: Other fields of the model, such as `unk_token`.
    """
    settings = {"type": "BPE", **MODEL_DEFAULTS["BPE"], **settings}
    return {**settings, "vocab": vocabulary, "merges": [merge.split(" ") for merge in merges]}


def flatten_steps(step: object, part: str) -> list[dict]:
    """Return the steps for a part of tokenizer.json, with flattened sequences and all fields set.

    Raises:
        ValueError: If a step is not an object, or if the steps of a sequence are not a list.

    Example:
        >>> flatten_steps({"type": "Sequence", "normalizers": [{"type": "Strip"}]}, "normalizer")
        [{'strip_left': True, 'strip_right': True, 'type': 'Strip'}]
        >>> older = {"type": "Metaspace", "str_rep": "▁", "add_prefix_space": False}
        >>> [step] = flatten_steps(older, "pre_tokenizer")
        >>> step["prepend_scheme"], step["split"]
        ('never', True)
    """
    if step is None or step == {}:
        return []
    if not isinstance(step, Mapping):
        expected = "an object with the field 'type'"
        raise invalid(f"tokenizer.json: a {part} step", step, expected)
    name = SEQUENCES[part]
    inner = step.get(name, [])
    if not isinstance(inner, list):
        raise invalid(f"tokenizer.json: {name} of a {part} step", inner, "a list of steps")
    if step.get("type") == "Sequence":
        return [found for one in inner for found in flatten_steps(one, part)]
    kind = get_processor_kind(step)
    if kind == "BertProcessing":
        return [{"type": kind, "cls": step.get("cls"), "sep": step.get("sep")}]
    return [
        _update_metaspace(step)
        if kind == "Metaspace"
        else {**_get_defaults(DEFAULTS, kind), **step}
    ]


def _update_metaspace(step: Mapping) -> dict:
    """Convert a Metaspace step from any library version to the fields of the latest version."""
    step = {"replacement": "▁", "split": True, **step}
    prepends = step.pop("add_prefix_space", True)
    step.pop("str_rep", None)
    return {"prepend_scheme": "always" if prepends else "never", **step}


def _get_defaults(known: Mapping[str, dict], kind: object) -> dict:
    return known.get(kind, {}) if isinstance(kind, str) else {}


def get_model_settings(model: Mapping, kind: str) -> dict:
    """Return all settings for a model in tokenizer.json, without the vocabulary.

    Example:
        >>> model = {"vocab": {"a": 0}, "max_input_chars_per_word": 9}
        >>> get_model_settings(model, "WordPiece")["max_input_chars_per_word"]
        9
    """
    defaults = _get_defaults(MODEL_DEFAULTS, kind)
    found = {name: model.get(name, default) for name, default in defaults.items()}
    found = {"type": model.get("type", kind), **found}
    # An empty string has the same effect as None.
    return {
        name: None if value == "" or (name == "dropout" and not value) else value
        for name, value in found.items()
    }


def get_model_type(model: Mapping) -> str:
    """Return the model type, which is missing in older files.

    Example:
        >>> get_model_type({"vocab": {"a": 0}, "merges": []})
        'BPE'
    """
    if "type" in model:
        return model["type"]
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "BPE" if "merges" in model else "WordPiece"


def get_processor_kind(step: Mapping) -> object:
    """Return the post-processor type that the `tokenizers` library will use.

    The library selects the first type with matching fields. For example, it reads a
    RobertaProcessing step with a missing field as BertProcessing.

    Example:
        >>> get_processor_kind({"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]})
        'BertProcessing'
    """
    kind = step.get("type")
    whole = {"trim_offsets", "add_prefix_space"} <= step.keys()
    return "BertProcessing" if kind == "RobertaProcessing" and not whole else kind
