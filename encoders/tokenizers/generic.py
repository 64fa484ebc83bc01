"""Tokenizer for tokenizer.json files with arbitrary steps."""

from __future__ import annotations

import functools
import json

from encoder_zoo.common.configuration import get_argument_defaults
from encoder_zoo.common.reading import convert_read_errors
from encoder_zoo.common.serializable import serializable
from encoder_zoo.common.validation import validate_arguments
from encoder_zoo.common.wording import quote
from encoder_zoo.encoders.tokenizers import ANY_STEPS
from encoder_zoo.encoders.tokenizers.comparison import compare_processors
from encoder_zoo.encoders.tokenizers.files import reading
from encoder_zoo.encoders.tokenizers.files.special_tokens import read_template
from encoder_zoo.encoders.tokenizers.library import LibraryTokenizer, parse_steps
from encoder_zoo.encoders.tokenizers.steps import flatten_steps, get_model_type, list_trimming_steps
from encoder_zoo.encoders.tokenizers.token_format import TokenFormat, get_token_format
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

FILE = "tokenizer.json"


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

    kind = ANY_STEPS

    @validate_arguments
    def __init__(self, tokenizer_json: str, **options):
        self.tokenizer_json = tokenizer_json
        arguments = {**get_argument_defaults(type(self)), **options}
        roles = {arguments[name] for name in reading.SPECIAL_TOKENS}
        with convert_read_errors(FILE):
            self._file = parse_steps(tokenizer_json)
            model = self._file["model"]
            model.setdefault("type", get_model_type(model))
            if dropout := model.get("dropout"):
                raise ValueError(
                    f"model.dropout is {quote(dropout)}, so the ids would be random. Set it to 0."
                )
            entries = self._file.get("added_tokens") or []
            self._entries = {entry["content"]: entry for entry in entries}
            others = [entry for token, entry in self._entries.items() if token not in roles]
            tokens = reading.sort_tokens_by_id(self._make_vocabulary(roles))
        super().__init__(tokens, **{"added_tokens": others, **options})
        with convert_read_errors(FILE):
            self._get_engine("library", LibraryTokenizer)

    def get_config(self) -> dict:
        """Return the constructor arguments, except for the vocabulary in the file."""
        return {name: v for name, v in super().get_config().items() if name != "vocabulary"}

    def _make_vocabulary(self, roles: set[str]) -> dict[str, int]:
        """Return {token: id} for tokens in the model, and for added tokens in `roles`."""
        vocabulary = self._file["model"]["vocab"]
        if isinstance(vocabulary, list):  # tokens with scores
            reading.check_vocabulary_size(len(vocabulary), "model.vocab")
            vocabulary = {token: i for i, (token, _) in enumerate(vocabulary)}
        added = {token: entry["id"] for token, entry in self._entries.items() if token in roles}
        return reading.check_vocabulary({**vocabulary, **added}, "model.vocab")

    @classmethod
    def from_files(
        cls, files: reading.TokenizerFiles, named: type[Tokenizer] | None = None, **template
    ) -> GenericTokenizer:
        """Load a tokenizer from tokenizer.json.

        Args:
            files: `TokenizerFiles` with a tokenizer.json.
            named: Optional tokenizer class whose default special tokens are used.
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
    def token_format(self) -> TokenFormat:
        """Return the token format of the decoder."""
        return get_token_format(self._file.get("decoder") or {})

    def _make_steps(self) -> dict:
        return {part: self._file.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")}

    def _make_post_processor(self) -> dict:
        given = self._file.get("post_processor")
        if read_template(given or {}, "post_processor") == self.template:
            return given
        trims = list_trimming_steps(flatten_steps(given, "post_processor"))
        return super()._make_post_processor(trims)

    def _make_model(self) -> dict:
        return self._file["model"]

    def make_special_entries(self) -> list[dict]:
        """Return entries for special tokens, with the options in tokenizer.json."""
        return [
            {**e, **self._entries.get(e["content"], {})} for e in super().make_special_entries()
        ]
