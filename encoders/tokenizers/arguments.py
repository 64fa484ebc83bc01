"""The arguments that all tokenizers have, and the vocabulary that they describe."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from encoder_zoo.common.configuration import ConfigFromSignature, argument_defaults, argument_names
from encoder_zoo.common.validation import (
    PositiveInt,
    SequenceLength,
    SpecialToken,
    validate_arguments,
)
from encoder_zoo.common.wording import unknown_argument, with_type
from encoder_zoo.encoders.tokenizers.files.added_tokens import (
    complete_added_tokens,
    tokens_with_added,
)
from encoder_zoo.encoders.tokenizers.files.reading import SPECIAL_TOKENS
from encoder_zoo.encoders.tokenizers.text.text_input import LONE_SURROGATE

if TYPE_CHECKING:
    from typing import Self


class Vocabulary:
    """Holds tokens in the order of their ids; of equal tokens the last id counts.

    Example:
        >>> Vocabulary(["[UNK]", "cat"]).id("cat")
        1
    """

    def __init__(self, tokens: Sequence[str]):
        self.tokens = list(tokens)
        _check_tokens(self.tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}

    def id(self, token: str) -> int:
        """Return the id of a token; raise an error with similar tokens if there is none."""
        if token in self.ids:
            return self.ids[token]
        near = difflib.get_close_matches(str(token), self.ids, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"{token!r} is not among the {len(self.ids)} tokens{hint}")

    def token(self, token_id: int) -> str:
        """Return the token of an id; raise an error if it is out of range."""
        if not 0 <= token_id < len(self.tokens):
            raise ValueError(f"token id {token_id} is outside 0..{len(self.tokens) - 1}")
        return self.tokens[token_id]


def _check_tokens(tokens: Sequence[str]) -> None:
    """Raise an error for tokens that are no strings or cannot be encoded as UTF-8.

    Raises:
        ValueError: "vocabulary[3] is 7 (int); expected a string", "vocabulary[4] is '\\ud800' ..."
    """
    try:
        "".join(tokens).encode("utf-8")
    except TypeError:
        i = next(i for i, token in enumerate(tokens) if not isinstance(token, str))
        raise ValueError(f"vocabulary[{i}] is {with_type(tokens[i])}; expected a string") from None
    except UnicodeEncodeError:
        i = next(i for i, token in enumerate(tokens) if LONE_SURROGATE.search(token))
        raise ValueError(
            f"vocabulary[{i}] is {with_type(tokens[i])}, with half of a character, which UTF-8 "
            "cannot hold; expected a string of whole ones"
        ) from None


def check_no_overlap(tokens: Sequence[str]) -> None:
    """Raise an error for special tokens of which two may overlap in a text.

    Raises:
        ValueError: "the special tokens '<a<' and '<b' overlap ..."
    """
    for a in tokens:
        for b in tokens:
            tails = [a[i:] for i in range(1, len(a))] if a != b else []
            if any(tail.startswith(b) or b.startswith(tail) for tail in tails):
                raise ValueError(
                    f"the special tokens {a!r} and {b!r} overlap, so that finding them in text "
                    "would be ambiguous; use special_tokens_in_text=False"
                )


BERT_DEFAULTS = {
    "start_token": "[CLS]",
    "end_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
    "unknown_token": "[UNK]",
    "pair_separators": 1,
}


class TokenizerArguments(ConfigFromSignature):
    """Holds the vocabulary, special and added tokens; saves, copies and prints a tokenizer.

    Arguments, attributes and errors are documented in `Tokenizer`.
    """

    defaults: ClassVar[Mapping[str, object]] = {}  # of a subclass, instead of those of `__init__`

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        special_tokens_in_text: bool = False,
        start_token: SpecialToken = "<s>",
        end_token: SpecialToken = "</s>",
        pad_token: SpecialToken = "<pad>",
        mask_token: SpecialToken = "<mask>",
        unknown_token: SpecialToken = "<unk>",
        uses_segments: bool = False,
        pair_separators: PositiveInt = 2,
        truncation_side: Literal["right", "left"] = "right",
        padding_side: Literal["right", "left"] = "right",
        model_max_length: SequenceLength | None = None,
        added_tokens: Sequence[str | Mapping] = (),
        **options: object,
    ):
        for name in options:
            known = argument_names(type(self))
            raise TypeError(unknown_argument(type(self).__name__, name, known))
        super().__init__()
        self._vocabulary = Vocabulary(vocabulary)  # of the model, without added tokens
        added = complete_added_tokens(added_tokens, self._vocabulary.ids)
        self._added = added
        self._all_tokens = (
            Vocabulary(tokens_with_added(vocabulary, added)) if added else self._vocabulary
        )
        self.special_tokens_in_text = special_tokens_in_text
        self.uses_segments, self.pair_separators = uses_segments, pair_separators
        self.truncation_side, self.padding_side = truncation_side, padding_side
        self.model_max_length = model_max_length
        self.start_token, self.end_token, self.pad_token = start_token, end_token, pad_token
        self.mask_token, self.unknown_token = mask_token, unknown_token
        self.special_tokens = (start_token, end_token, pad_token, mask_token, unknown_token)
        if special_tokens_in_text:
            check_no_overlap(self.special_tokens)
        ids = [
            self._id_of_role(argument, token)
            for argument, token in zip(SPECIAL_TOKENS, self.special_tokens, strict=True)
        ]
        self.start_token_id, self.end_token_id, self.pad_token_id = ids[:3]
        self.mask_token_id, self.unknown_token_id = ids[3:]

    def _id_of_role(self, argument: str, token: str) -> int:
        """Return the id of a special token; the error has the names of its role."""
        try:
            return self._vocabulary.id(token)
        except ValueError as error:
            names = " or ".join(SPECIAL_TOKENS[argument])
            raise ValueError(f"{argument} ({names} in files): {error}") from None

    def __repr__(self) -> str:
        defaults = argument_defaults(type(self))
        settings = [
            f"{name}={value!r}"
            for name, value in self.get_config().items()
            if defaults.get(name, value) != value and (value or defaults[name])
        ]
        parts = [f"{self.vocabulary_size:,} tokens", *settings]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple:
        """Pickle and copy the arguments, since graphs cannot be pickled."""
        return type(self).from_config, (self.get_config(),)

    @classmethod
    def from_config(cls, config: dict) -> Self:
        """Build a tokenizer from the arguments of `get_config`; paths are refused.

        Raises:
            ValueError: "vocabulary is '/etc/passwd'. Expected the tokens, not a path ..."
        """
        for name in ("vocabulary", "merges"):
            if isinstance(config.get(name), str | Path):
                raise ValueError(
                    f"{name} is {with_type(config[name])}. Expected the tokens, not a path: a file "
                    "that holds a tokenizer must not say what else is read."
                )
        return cls(**config)

    @property
    def vocabulary(self) -> list[str]:
        """The tokens of the model, in the order of their ids."""
        return list(self._vocabulary.tokens)

    @property
    def added_tokens(self) -> list[dict]:
        """The added tokens as entries of tokenizer.json."""
        return [dict(token) for token in self._added]

    @property
    def special_token_ids(self) -> tuple[int, ...]:
        """Ids of the start, end, padding, mask and unknown token, and of special added tokens."""
        ids = (self.start_token_id, self.end_token_id, self.pad_token_id)
        added = (token["id"] for token in self.added_tokens if token["special"])
        return (*ids, self.mask_token_id, self.unknown_token_id, *added)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return len(self._all_tokens.tokens)

    def get_vocabulary(self) -> list[str]:
        """Return all tokens in the order of their ids."""
        return list(self._all_tokens.tokens)

    def token_to_id(self, token: str) -> int:
        """Return the id of a token."""
        return self._all_tokens.id(token)

    def id_to_token(self, token_id: int) -> str:
        """Return the token of an id."""
        return self._all_tokens.token(int(token_id))
