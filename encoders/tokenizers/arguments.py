"""The arguments that all tokenizers have, and the vocabulary that they describe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from encoder_zoo.common.configuration import (
    ConfigFromSignature,
    argument_defaults,
    argument_names,
)
from encoder_zoo.common.validation import PositiveInt, SpecialToken, validate_arguments
from encoder_zoo.common.wording import unknown_argument, with_type
from encoder_zoo.encoders.tokenizers.files.added_tokens import (
    complete_added_tokens,
    tokens_with_added,
)
from encoder_zoo.encoders.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    from typing_extensions import Self


class Defaults(NamedTuple):
    """Holds the defaults of a tokenizer class for the arguments of the same names."""

    start_token: str = "<s>"
    end_token: str = "</s>"
    pad_token: str = "<pad>"
    mask_token: str = "<mask>"
    unknown_token: str = "<unk>"
    uses_segments: bool = False
    pair_separators: int = 2


BERT_DEFAULTS = Defaults("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]", pair_separators=1)


class TokenizerArguments(ConfigFromSignature):
    """Holds the vocabulary, special and added tokens; saves, copies and prints a tokenizer.

    Args:
        vocabulary: tokens in the order of their ids.
        special_tokens_in_text: read a literal special token in a text, such as "[SEP]" or "</s>",
            as that token. By default it is ordinary text, so that a text cannot forge structure.
        start_token, end_token, pad_token, mask_token, unknown_token: tokens of the vocabulary.
            None: those of the class, `defaults`; likewise below.
        uses_segments: whether the second text of a pair has segment id 1.
        pair_separators: number of end tokens between the two texts of a pair.
        added_tokens: tokens to find in texts before the model splits them, see
            `files.added_tokens.complete_added_tokens`.

    Attributes:
        start_token_id, end_token_id, pad_token_id, mask_token_id, unknown_token_id: int.
        special_tokens: the start, end, padding, mask and unknown token.

    Raises:
        ValueError: "'[CLS]' is not among the 3 tokens ..."
        TypeError: "BertTokenizer got an unknown argument 'lower_case'. Did you mean 'lowercase'?"
    """

    defaults: ClassVar[Defaults] = Defaults()

    @validate_arguments
    def __init__(
        self,
        vocabulary: Sequence[str],
        special_tokens_in_text: bool = False,
        start_token: SpecialToken | None = None,
        end_token: SpecialToken | None = None,
        pad_token: SpecialToken | None = None,
        mask_token: SpecialToken | None = None,
        unknown_token: SpecialToken | None = None,
        uses_segments: bool | None = None,
        pair_separators: PositiveInt | None = None,
        added_tokens: Sequence[str | Mapping] = (),
        **options: object,
    ):
        for name in options:
            known = argument_names(type(self))
            raise TypeError(unknown_argument(type(self).__name__, name, known))
        super().__init__()
        self._vocabulary = Vocabulary(vocabulary)  # of the model, without added tokens
        added = complete_added_tokens(added_tokens, self._vocabulary.ids)
        self._added_json = json.dumps(added)  # tf.Module would wrap a list
        self._all_tokens = (
            Vocabulary(tokens_with_added(vocabulary, added)) if added else self._vocabulary
        )
        self.special_tokens_in_text = special_tokens_in_text
        special_tokens = (start_token, end_token, pad_token, mask_token, unknown_token)
        given = (*special_tokens, uses_segments, pair_separators)
        *special_tokens, self.uses_segments, self.pair_separators = (
            default if value is None else value
            for value, default in zip(given, self.defaults, strict=True)
        )
        self.start_token, self.end_token, self.pad_token = special_tokens[:3]
        self.mask_token, self.unknown_token = special_tokens[3:]
        self.special_tokens = tuple(special_tokens)
        ids = [self._vocabulary.id(token) for token in special_tokens]
        self.start_token_id, self.end_token_id, self.pad_token_id = ids[:3]
        self.mask_token_id, self.unknown_token_id = ids[3:]

    def __repr__(self) -> str:
        defaults = argument_defaults(type(self)) | self.defaults._asdict()
        settings = [
            f"{name}={value!r}"
            for name, value in self.get_config().items()
            if defaults.get(name, value) != value and (value or defaults[name])
        ]
        parts = [f"{self.vocabulary_size:,} tokens", *settings]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple:
        """Pickle and copy the arguments, since TensorFlow's tables cannot be pickled."""
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
        return json.loads(self._added_json)

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
