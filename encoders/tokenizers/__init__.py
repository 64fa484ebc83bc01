"""The tokenizers of the checkpoints, exact to the id, and what they are made of.

What families list of a tokenizer stands here, where TensorFlow is not needed to read it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

_FOLDER = "encoder_zoo.encoders.tokenizers"


class TokenizerClass(NamedTuple):
    """A tokenizer by name: importing it, and TensorFlow with it, is put off until `load`.

    Attributes:
        name: of the class.
        module: in this folder.
        files: that hold its vocabulary in a checkpoint's folder, all of them together, where
            tokenizer.json does not.
        checkpoint_names: what tokenizer_config.json calls the classes, without "Fast", that do
            the same to a text; the first is written.
    """

    name: str
    module: str
    files: tuple[str, ...]
    checkpoint_names: tuple[str, ...]

    def load(self) -> type[Tokenizer]:
        """The class itself.

        Example:
            >>> WORDPIECE.load().__name__
            'BertTokenizer'
        """
        return getattr(importlib.import_module(f"{_FOLDER}.{self.module}"), self.name)


WORDPIECE = TokenizerClass(
    "BertTokenizer",
    "wordpiece",
    ("vocab.txt",),
    ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"),
)
BYTE_BPE = TokenizerClass(
    "RobertaTokenizer",
    "byte_bpe",
    ("vocab.json", "merges.txt"),
    ("RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer"),
)
MODERN_BPE = TokenizerClass(
    "ModernBertTokenizer",
    "modern_bpe",
    ("vocab.json", "merges.txt"),
    ("PreTrainedTokenizer",),
)
XLM_SENTENCEPIECE = TokenizerClass(
    "XLMRobertaTokenizer",
    "sentencepiece",
    ("sentencepiece.bpe.model",),
    ("XLMRobertaTokenizer",),
)
CAMEMBERT_SENTENCEPIECE = TokenizerClass(
    "CamembertTokenizer",
    "sentencepiece",
    ("sentencepiece.bpe.model",),
    ("CamembertTokenizer",),
)
ALBERT_SENTENCEPIECE = TokenizerClass(
    "AlbertTokenizer",
    "sentencepiece",
    ("spiece.model",),
    ("AlbertTokenizer",),
)
DEBERTA_SENTENCEPIECE = TokenizerClass(
    "DebertaV2Tokenizer",
    "sentencepiece",
    ("spm.model",),
    # transformers' own class replaces the model's normalisation by another one.
    ("PreTrainedTokenizer", "DebertaV2Tokenizer"),
)
