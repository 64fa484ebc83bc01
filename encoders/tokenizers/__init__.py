"""Tokenizers with the same ids as the tokenizers of the checkpoints.

This module lists the tokenizer classes as plain data. `choice` selects the class of a checkpoint.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

_FOLDER = "encoder_zoo.encoders.tokenizers"


class TokenizerClass(NamedTuple):
    """Description of a tokenizer class that `load` imports.

    Attributes:
        name: String. The name of the class.
        module: String. The name of the module in this folder.
        files: Tuple of the names of the vocabulary files in checkpoints without a tokenizer.json.
        checkpoint_names: Tuple of the names of equivalent classes in transformers, without "Fast".
            The first name is written to tokenizer_config.json.
        pair_separators: Integer. The default number of end tokens between the two texts of a pair,
            if tokenizer.json contains no template.
        uses_segments: Boolean. The default for whether the second text of a pair has segment id 1,
            if tokenizer.json contains no template.
        first_column: Integer. See `Tokenizer`.
    """

    name: str
    module: str
    files: tuple[str, ...]
    checkpoint_names: tuple[str, ...]
    pair_separators: int = 1
    uses_segments: bool = False
    first_column: int = 1

    def load(self) -> type[Tokenizer]:
        """Import and return the class.

        Example:
            >>> WORDPIECE.load().__name__
            'BertTokenizer'
        """
        return getattr(importlib.import_module(f"{_FOLDER}.{self.module}"), self.name)


WORDPIECE = TokenizerClass(
    "BertTokenizer",
    "wordpiece",
    ("vocab.txt",),
    ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
    uses_segments=True,
)
MPNET_WORDPIECE = TokenizerClass(
    "MPNetTokenizer", "wordpiece", ("vocab.txt",), ("MPNetTokenizer",), pair_separators=2
)
BYTE_BPE = TokenizerClass(
    "RobertaTokenizer",
    "byte_bpe",
    ("vocab.json", "merges.txt"),
    ("RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer"),
    pair_separators=2,
)
MODERN_BPE = TokenizerClass(
    "ModernBertTokenizer", "byte_bpe", ("vocab.json", "merges.txt"), ("PreTrainedTokenizer",)
)
LLAMA_BPE = TokenizerClass(
    "EuroBertTokenizer", "byte_bpe", ("tokenizer.json",), ("PreTrainedTokenizer",)
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
    "AlbertTokenizer", "sentencepiece", ("spiece.model",), ("AlbertTokenizer",), uses_segments=True
)
XLNET_SENTENCEPIECE = TokenizerClass(
    "XLNetTokenizer",
    "sentencepiece",
    ("spiece.model",),
    ("XLNetTokenizer",),
    uses_segments=True,
    first_column=0,
)
DEBERTA_SENTENCEPIECE = TokenizerClass(
    "DebertaV2Tokenizer",
    "sentencepiece",
    ("spm.model",),
    # transformers' DebertaV2Tokenizer replaces the model's normalizer.
    ("PreTrainedTokenizer", "DebertaV2Tokenizer"),
    uses_segments=True,
)
GEMMA_BPE = TokenizerClass(
    "GemmaTokenizer", "gemma", ("tokenizer.json",), ("PreTrainedTokenizer", "GemmaTokenizer")
)
ESM_RESIDUES = TokenizerClass("EsmTokenizer", "esm", ("vocab.txt",), ("EsmTokenizer",))
BERTWEET = TokenizerClass(
    "BertweetTokenizer",
    "bertweet",
    ("vocab.txt", "bpe.codes"),
    ("BertweetTokenizer",),
    pair_separators=2,
)
# Used for a tokenizer.json with steps that no class in `TOKENIZERS` supports.
ANY_STEPS = TokenizerClass(
    "GenericTokenizer", "generic", ("tokenizer.json",), ("PreTrainedTokenizer",), pair_separators=2
)
TOKENIZERS = (
    WORDPIECE,
    MPNET_WORDPIECE,
    BYTE_BPE,
    MODERN_BPE,
    LLAMA_BPE,
    XLM_SENTENCEPIECE,
    CAMEMBERT_SENTENCEPIECE,
    ALBERT_SENTENCEPIECE,
    XLNET_SENTENCEPIECE,
    DEBERTA_SENTENCEPIECE,
    GEMMA_BPE,
    ESM_RESIDUES,
    BERTWEET,
)
