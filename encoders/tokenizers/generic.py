"""Tokenizer for tokenizer.json files with arbitrary steps."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import re
from collections.abc import Callable

from encoder_zoo.common.configuration import get_argument_defaults
from encoder_zoo.common.lazy import xp
from encoder_zoo.common.reading import convert_read_errors
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.tokenizers.comparison import compare_processors
from encoder_zoo.encoders.tokenizers.files.reading import (
    SPECIAL_TOKENS,
    TokenizerFiles,
    check_count,
    check_vocabulary,
    get_token_bytes,
    sort_tokens_by_id,
)
from encoder_zoo.encoders.tokenizers.files.special_tokens import read_template
from encoder_zoo.encoders.tokenizers.library import make_decoder, parse_steps
from encoder_zoo.encoders.tokenizers.steps import (
    BYTE_TOKENS,
    SEQUENCES,
    flatten_steps,
    get_model_type,
)
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

FILE = "tokenizer.json"
BEFORE = "\ue000"  # placed before a token to get its text


@serializable
class GenericTokenizer(Tokenizer):
    """Tokenizer that executes the steps in a tokenizer.json.

    `Tokenizer.from_preset` returns this class if the steps are not supported by a more specific
    class, such as `BertTokenizer`. Texts in memory are tokenized with the `tokenizers` library.
    Datasets and exports require a TensorFlow implementation for each step.

    Args:
        tokenizer_json: String. The content of the file.
        **options: Other arguments for `Tokenizer`. `added_tokens` defaults to the added tokens in
            the file.

    Raises:
        ValueError: If the library cannot read the file, or if a step in a dataset or export is not
            supported by TensorFlow operations.

    Example:
        >>> words = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "cat"]
        >>> vocabulary = {word: i for i, word in enumerate(words)}
        >>> model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
        >>> file = {"version": "1.0", "model": model, "added_tokens": []}
        >>> file["pre_tokenizer"] = {"type": "Whitespace"}
        >>> tokenizer = GenericTokenizer(json.dumps(file))
        >>> tokenizer.tokenize(["a black cat"]).to_list()
        [[5, 1, 6]]
    """

    lstrip_mask = False

    @validate_arguments
    def __init__(self, tokenizer_json: str, **options):
        self.tokenizer_json = tokenizer_json
        arguments = {**get_argument_defaults(type(self)), **options}
        roles = {arguments[name] for name in SPECIAL_TOKENS}
        with convert_read_errors(FILE):
            self._file = parse_steps(tokenizer_json)
            self._model_of_file = {
                "type": get_model_type(self._file["model"]),
                **self._file["model"],
            }
            if dropout := self._model_of_file.get("dropout"):
                raise ValueError(
                    f"model.dropout is {quote(dropout)}, so the ids would be random. Set it to 0."
                )
            entries = self._file.get("added_tokens") or []
            self._entries = {entry["content"]: entry for entry in entries}
            others = [entry for token, entry in self._entries.items() if token not in roles]
            tokens = sort_tokens_by_id(self._make_vocabulary(roles))
        super().__init__(tokens, **{"added_tokens": others, **options})
        with convert_read_errors(FILE):
            self._engines["library"] = self._make_library()

    def get_config(self) -> dict:
        """Return the constructor arguments, except for the vocabulary in the file."""
        return {name: v for name, v in super().get_config().items() if name != "vocabulary"}

    def _make_vocabulary(self, roles: set[str]) -> dict[str, int]:
        """Return {token: id} for tokens in the model, and for added tokens with a role."""
        vocabulary = self._model_of_file["vocab"]
        if isinstance(vocabulary, list):  # tokens with scores
            check_count(len(vocabulary), "model.vocab")
            vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
        added = {token: entry["id"] for token, entry in self._entries.items() if token in roles}
        return check_vocabulary({**vocabulary, **added}, "model.vocab")

    @classmethod
    def from_files(
        cls, files: TokenizerFiles, named: type[Tokenizer] | None = None, **template
    ) -> GenericTokenizer:
        """Load a tokenizer from tokenizer.json.

        Args:
            files: `TokenizerFiles` with a tokenizer.json.
            named: Optional class to use for default special tokens.
            **template: Arguments `uses_segments` and `pair_separators`.

        Raises:
            ValueError: If tokenizer.json is not supported by the library or by this package.
        """
        with files.add_folder_to_errors():
            roles = files.read_special_tokens(named or cls)
            roles["unknown_token"] = files.get_unknown_token() or roles["unknown_token"]
            tokens = files.list_added_tokens()
            added = [token for token in tokens if token["content"] not in roles.values()]
            text = json.dumps(files.contents[FILE], ensure_ascii=False)
            tokenizer = cls(text, added_tokens=added, **roles, **template)
            compare_processors(files, tokenizer)
            return tokenizer

    @functools.cached_property
    def _has_graph(self) -> bool:
        """Return whether all steps are supported by TensorFlow operations."""
        with contextlib.suppress(ValueError):
            return self.graph is not None
        return False

    def _runs_in_graph(self, texts: xp.Tensor) -> bool:
        needs_graph = xp.is_symbolic_tensor(texts)
        return super()._runs_in_graph(texts) and (needs_graph or self._has_graph)

    def _make_steps(self) -> dict:
        steps = {part: self._file.get(part) for part in (*SEQUENCES, "decoder")}
        template = read_template(steps["post_processor"] or {}, "post_processor")
        if template != self.template:
            processors = flatten_steps(steps["post_processor"], "post_processor")
            trims = [
                {"type": "ByteLevel", "use_regex": True, "trim_offsets": True}
                | {"add_prefix_space": step["add_prefix_space"]}
                for step in processors
                if step.get("trim_offsets")
            ]
            processors = [*trims, self._make_template()]
            steps["post_processor"] = {"type": "Sequence", "processors": processors}
        return steps

    def _make_model(self) -> dict:
        return copy.deepcopy(self._model_of_file)

    def make_special_entries(self) -> list[dict]:
        """Return entries for special tokens in tokenizer.json, with options."""
        return [
            {**e, **self._entries.get(e["content"], {})} for e in super().make_special_entries()
        ]

    @property
    def _decoders(self) -> list[dict]:
        """The decoder steps in the file."""
        decoder = self._file.get("decoder") or {}
        return [step for step in decoder.get("decoders", [decoder]) if step]

    @functools.cached_property
    def _decode(self) -> Callable[[list[str]], str]:
        """Return a function that joins tokens to a text with the decoder steps before "Fuse"."""
        steps = itertools.takewhile(lambda step: step["type"] != "Fuse", self._decoders)
        return make_decoder([*steps]) if self._decoders else " ".join

    def _get_text(self, token: str) -> bytes:
        """Return the text that the decoder produces for a token inside a text."""
        decoders = {step["type"]: step for step in self._decoders}
        if "ByteLevel" in decoders:
            return get_token_bytes(token)
        if "ByteFallback" in decoders and token in BYTE_TOKENS:
            return bytes([BYTE_TOKENS.index(token)])
        if suffix := decoders.get("BPEDecoder", {}).get("suffix"):
            is_end = token.endswith(suffix)
            return (f"{token.removesuffix(suffix)} " if is_end else token).encode()
        return self._decode([BEFORE, token]).removeprefix(BEFORE).encode()

    def list_spellings(self) -> list[bytes]:
        """Return the text for each id."""
        return [self._get_text(token) for token in self.get_vocabulary()]

    def starts_word(self, token: str) -> bool:
        """Return whether a token starts a word."""
        return self._get_text(token).startswith(b" ")

    def _clean_up(self, texts: xp.Tensor) -> xp.Tensor:
        types = [step["type"] for step in self._decoders]
        if "Fuse" not in types:
            return xp.strings.strip(texts)
        for step in self._decoders[types.index("Fuse") + 1 :]:
            if step["type"] == "Strip":
                content = re.escape(step["content"])
                for end in (
                    f"^({content}){{0,{step['start']}}}",
                    f"({content}){{0,{step['stop']}}}$",
                ):
                    texts = xp.strings.regex_replace(texts, end, "")
        return texts
