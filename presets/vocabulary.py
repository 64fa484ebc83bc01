"""Checks that a tokenizer is that of the checkpoint whose weights a backbone holds.

A family does not say which: its checkpoints may have tokenizers of any kind. So a backbone
remembers what was found beside its weights; one with new weights takes any tokenizer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from typing import TYPE_CHECKING

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.tokenizers.absent import AbsentTokenizer

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Kind and tokens of a tokenizer.

    Attributes:
        kind: name of its class.
        size: number of its tokens.
        sha256: of them all.

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
    size: int
    sha256: str

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        """Return that of a tokenizer."""
        tokens = tokenizer.get_vocabulary()
        return cls(type(tokenizer).__name__, len(tokens), _digest(tokens))

    def is_of(self, tokenizer: Tokenizer) -> bool:
        """Return whether a tokenizer has this vocabulary, perhaps with tokens added behind it."""
        tokens = tokenizer.get_vocabulary()
        kinds = {cls.__name__ for cls in type(tokenizer).__mro__}
        return self.kind in kinds and _digest(tokens[: self.size]) == self.sha256


def _digest(tokens: list[str]) -> str:
    text = "\n".join(tokens).encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%d\n%s" % (len(tokens), text)).hexdigest()


def remember_tokenizer(backbone: Backbone, tokenizer: Tokenizer | AbsentTokenizer | None) -> None:
    """Note the tokenizer found beside a backbone's weights, if there is one to be read."""
    if tokenizer is not None and not isinstance(tokenizer, AbsentTokenizer):
        backbone.checkpoint_vocabulary = Vocabulary.of(tokenizer)


def remember_folder(backbone: Backbone, folder: pathlib.Path) -> None:
    """Note the folder of a backbone's weights, whose tokenizer is read when another one comes."""
    backbone.checkpoint_vocabulary = folder


def check_tokenizer(backbone: Backbone, tokenizer: Tokenizer | AbsentTokenizer) -> None:
    """Refuse a tokenizer that is not that of the backbone's checkpoint.

    Raises:
        ValueError: "The tokenizer is a RobertaTokenizer of 50265 tokens, but the backbone's
            checkpoint has a BertTokenizer of 30522, ..."
    """
    if isinstance(tokenizer, AbsentTokenizer):
        return
    if isinstance(backbone.checkpoint_vocabulary, pathlib.Path):
        backbone.checkpoint_vocabulary = _read_vocabulary(backbone.checkpoint_vocabulary)
    known = backbone.checkpoint_vocabulary
    if known is None or known.is_of(tokenizer):
        return
    raise ValueError(
        f"The tokenizer is a {type(tokenizer).__name__} of {tokenizer.vocabulary_size} tokens, but "
        f"the backbone's checkpoint has a {known.kind} of {known.size}, whose ids are of other "
        "tokens. Load the tokenizer from the preset that the backbone is from, with "
        "Tokenizer.from_preset."
    )


def _read_vocabulary(folder: pathlib.Path) -> Vocabulary | None:
    """Return that of a checkpoint's tokenizer; None where there is none that can be read."""
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

    try:
        return Vocabulary.of(Tokenizer.from_preset(folder, verify=False))
    except (OSError, ValueError):
        return None
