"""Checks that a tokenizer belongs to the checkpoint of a backbone's weights.

The checkpoints of a family may have different tokenizers, so that a loaded backbone stores the
vocabulary of its checkpoint; a backbone with new weights accepts any tokenizer.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from encoder_zoo.encoders.backbone import Backbone

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Class and tokens of a tokenizer.

    Attributes:
        kind: name of the class.
        size: number of tokens; None if they were not read.
        sha256: of the tokens; likewise.

    Example:
        >>> from encoder_zoo import BertTokenizer
        >>> tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"]
        >>> known = Vocabulary.of(BertTokenizer(tokens))
        >>> known.is_of(BertTokenizer(tokens, added_tokens=["dog"]))
        True
        >>> known.is_of(BertTokenizer([*tokens[:-1], "dog"]))
        False
    """

    kind: str
    size: int | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Return the vocabulary of a tokenizer."""
        tokens = tokenizer.get_vocabulary()
        return cls(type(tokenizer).__name__, len(tokens), _digest(tokens))

    def is_of(self, tokenizer: Tokenizer) -> bool:
        """Return whether a tokenizer has this vocabulary, possibly followed by added tokens."""
        if self.kind not in {cls.__name__ for cls in type(tokenizer).__mro__}:
            return False
        first = tokenizer.get_vocabulary()[: self.size]
        return self.sha256 is None or _digest(first) == self.sha256


def _digest(tokens: list[str]) -> str:
    text = "\n".join(tokens).encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d\n%s" % (len(tokens), text)).hexdigest()


def check_tokenizer(backbone: Backbone, tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer is not that of the backbone's checkpoint.

    Raises:
        ValueError: "The tokenizer is a RobertaTokenizer of 50265 tokens, but the backbone's
            checkpoint has a BertTokenizer of 30522, ..."
    """
    known = backbone.checkpoint_vocabulary
    if known is None or known.is_of(tokenizer):
        return
    size = "" if known.size is None else f" of {known.size}"
    raise ValueError(
        f"The tokenizer is a {type(tokenizer).__name__} of {tokenizer.vocabulary_size} tokens, but "
        f"the backbone's checkpoint has a {known.kind}{size}, whose ids are of other tokens. Load "
        "the tokenizer from the preset that the backbone is from, with Tokenizer.from_preset."
    )
