"""The tokenizers of the checkpoints, exact to the id, and what they are made of.

The kinds of tokenizers are listed here as plain data, which is read without TensorFlow; which of
them a checkpoint has is decided in `choice`.
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
        pair_separators: how many end tokens stand between the two texts of a pair, where
            tokenizer.json does not say it.
        uses_segments: whether the second text of a pair has segment id 1, likewise.
    """

    name: str
    module: str
    files: tuple[str, ...]
    checkpoint_names: tuple[str, ...]
    pair_separators: int = 1
    uses_segments: bool = False

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
    uses_segments=True,
)
BYTE_BPE = TokenizerClass(
    "RobertaTokenizer",
    "byte_bpe",
    ("vocab.json", "merges.txt"),
    ("RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer"),
    pair_separators=2,
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
    pair_separators=2,
)
CAMEMBERT_SENTENCEPIECE = TokenizerClass(
    "CamembertTokenizer",
    "sentencepiece",
    ("sentencepiece.bpe.model",),
    ("CamembertTokenizer",),
    pair_separators=2,
)
ALBERT_SENTENCEPIECE = TokenizerClass(
    "AlbertTokenizer",
    "sentencepiece",
    ("spiece.model",),
    ("AlbertTokenizer",),
    uses_segments=True,
)
DEBERTA_SENTENCEPIECE = TokenizerClass(
    "DebertaV2Tokenizer",
    "sentencepiece",
    ("spm.model",),
    # transformers' own class replaces the model's normalisation by another one.
    ("PreTrainedTokenizer", "DebertaV2Tokenizer"),
    uses_segments=True,
)
GEMMA_BPE = TokenizerClass(
    "GemmaTokenizer",
    "gemma",
    ("tokenizer.json",),
    ("PreTrainedTokenizer", "GemmaTokenizer"),
)
BERTWEET = TokenizerClass(
    "BertweetTokenizer",
    "bertweet",
    ("vocab.txt", "bpe.codes"),
    ("BertweetTokenizer",),
    pair_separators=2,
)
TOKENIZERS = (
    WORDPIECE,
    BYTE_BPE,
    MODERN_BPE,
    XLM_SENTENCEPIECE,
    CAMEMBERT_SENTENCEPIECE,
    ALBERT_SENTENCEPIECE,
    DEBERTA_SENTENCEPIECE,
    GEMMA_BPE,
    BERTWEET,
)
