"""Tokenizers with the same ids as the tokenizers of the checkpoints.

This module lists the tokenizer classes as plain data. `choice` selects the class of a checkpoint.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

_FOLDER = "encoder_zoo.encoders.tokenizers"
# Default start, end, padding, mask and unknown tokens.
BERT_TOKENS = ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]")
ROBERTA_TOKENS = ("<s>", "</s>", "<pad>", "<mask>", "<unk>")


class TokenizerClass(NamedTuple):
    """Description of a tokenizer class that `load` imports.

    Attributes:
        name: String. The name of the class.
        module: String. The name of the module in this folder.
        files: Tuple of the names of the vocabulary files in checkpoints without a tokenizer.json.
        checkpoint_names: Tuple of the names of equivalent classes in transformers, without "Fast".
            The first name is written to tokenizer_config.json.
        special_tokens: Tuple with the default start, end, padding, mask and unknown tokens.
        pair_separators: Integer. The default number of end tokens between the two texts of a pair,
            if tokenizer.json contains no template.
        uses_segments: Boolean. The default for whether the second text of a pair has segment id 1,
            if tokenizer.json contains no template.
        padding_side: String. The default for the padding side.
        first_column: Integer. See `Tokenizer`.
        lstrip_mask: Boolean. Whether mask tokens in texts include preceding white space.
        names_bos: Boolean. Whether the start and end tokens are also written as `bos_token` and
            `eos_token`.
        settings: Tuple of (name, attribute) pairs. The attributes of a tokenizer to write to
            tokenizer_config.json, with their names in this file.
        requirements: Tuple of (attribute, value) pairs. Values that the class in transformers
            requires. For other values, a generic class is written.
        class_settings: Tuple of (name, value) pairs to write if the requirements are met.
        names_inputs: Boolean. Whether `model_input_names` is always written. Otherwise, it is only
            written if it differs from the default of the class in transformers.
    """

    name: str
    module: str
    files: tuple[str, ...]
    checkpoint_names: tuple[str, ...]
    special_tokens: tuple[str, str, str, str, str] = ROBERTA_TOKENS
    pair_separators: int = 1
    uses_segments: bool = False
    padding_side: str = "right"
    first_column: int = 1
    lstrip_mask: bool = False
    names_bos: bool = True
    settings: tuple[tuple[str, str], ...] = ()
    requirements: tuple[tuple[str, object], ...] = ()
    class_settings: tuple[tuple[str, object], ...] = ()
    names_inputs: bool = False

    @property
    def defaults(self) -> dict[str, object]:
        """Default values for the arguments of the class."""
        names = ("start_token", "end_token", "pad_token", "mask_token", "unknown_token")
        others = ("pair_separators", "uses_segments", "padding_side")
        values = {name: getattr(self, name) for name in others}
        return {**dict(zip(names, self.special_tokens, strict=True)), **values}

    def load(self) -> type:
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
    BERT_TOKENS,
    uses_segments=True,
    names_bos=False,
    settings=(
        ("do_lower_case", "lowercase"),
        ("strip_accents", "strip_accents"),
        ("tokenize_chinese_chars", "split_chinese_characters"),
    ),
    requirements=(("clean_text", True),),
)
MPNET_WORDPIECE = WORDPIECE._replace(
    name="MPNetTokenizer",
    checkpoint_names=("MPNetTokenizer",),
    special_tokens=("<s>", "</s>", "<pad>", "<mask>", "[UNK]"),
    pair_separators=2,
    uses_segments=False,
    lstrip_mask=True,
    names_inputs=True,
)
BYTE_BPE = TokenizerClass(
    "RobertaTokenizer",
    "byte_bpe",
    ("vocab.json", "merges.txt"),
    ("RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer"),
    pair_separators=2,
    lstrip_mask=True,
    settings=(("add_prefix_space", "add_prefix_space"), ("trim_offsets", "trim_offsets")),
)
MODERN_BPE = BYTE_BPE._replace(
    name="ModernBertTokenizer",
    checkpoint_names=("PreTrainedTokenizer",),
    special_tokens=BERT_TOKENS,
    pair_separators=1,
    names_bos=False,
    settings=(("add_prefix_space", "add_prefix_space"),),
)
LLAMA_BPE = TokenizerClass(
    "EuroBertTokenizer",
    "byte_bpe",
    ("tokenizer.json",),
    ("PreTrainedTokenizer",),
    ("<|begin_of_text|>", "<|end_of_text|>", "<|end_of_text|>", "<|mask|>", "<|end_of_text|>"),
    lstrip_mask=True,
)
XLM_SENTENCEPIECE = TokenizerClass(
    "XLMRobertaTokenizer",
    "sentencepiece",
    ("sentencepiece.bpe.model",),
    ("XLMRobertaTokenizer",),
    pair_separators=2,
    lstrip_mask=True,
    # The classes in transformers only support Unigram models that split texts at white space.
    requirements=(("merges", None), ("remove_extra_whitespaces", True)),
    class_settings=(("add_prefix_space", True),),
)
CAMEMBERT_SENTENCEPIECE = XLM_SENTENCEPIECE._replace(
    name="CamembertTokenizer", checkpoint_names=("CamembertTokenizer",)
)
DEBERTA_SENTENCEPIECE = XLM_SENTENCEPIECE._replace(
    name="DebertaV2Tokenizer",
    files=("spm.model",),
    # transformers' DebertaV2Tokenizer replaces the model's normalizer.
    checkpoint_names=("PreTrainedTokenizer", "DebertaV2Tokenizer"),
    special_tokens=BERT_TOKENS,
    pair_separators=1,
    uses_segments=True,
    lstrip_mask=False,
)
ALBERT_SENTENCEPIECE = XLM_SENTENCEPIECE._replace(
    name="AlbertTokenizer",
    files=("spiece.model",),
    checkpoint_names=("AlbertTokenizer",),
    special_tokens=("[CLS]", "[SEP]", "<pad>", "[MASK]", "<unk>"),
    pair_separators=1,
    uses_segments=True,
    settings=(("do_lower_case", "lowercase"), ("keep_accents", "keep_accents")),
    names_inputs=True,  # segment ids are omitted by default in transformers 5
)
XLNET_SENTENCEPIECE = ALBERT_SENTENCEPIECE._replace(
    name="XLNetTokenizer",
    checkpoint_names=("XLNetTokenizer",),
    special_tokens=("<cls>", "<sep>", "<pad>", "<mask>", "<unk>"),
    padding_side="left",
    first_column=0,
    names_bos=False,  # <s> and </s> are not used
)
GEMMA_BPE = TokenizerClass(
    "GemmaTokenizer",
    "gemma",
    ("tokenizer.json",),
    ("PreTrainedTokenizer", "GemmaTokenizer"),
    ("<bos>", "<eos>", "<pad>", "<mask>", "<unk>"),
)
ESM_RESIDUES = TokenizerClass(
    "EsmTokenizer",
    "esm",
    ("vocab.txt",),
    ("EsmTokenizer",),
    ("<cls>", "<eos>", "<pad>", "<mask>", "<unk>"),
)
BERTWEET = TokenizerClass(
    "BertweetTokenizer",
    "bertweet",
    ("vocab.txt", "bpe.codes"),
    ("BertweetTokenizer",),
    pair_separators=2,
    class_settings=(("normalization", False),),
)
# Used for a tokenizer.json with steps that no class in `TOKENIZERS` supports.
ANY_STEPS = TokenizerClass(
    "GenericTokenizer",
    "generic",
    ("tokenizer.json",),
    ("PreTrainedTokenizer",),
    pair_separators=2,
    names_bos=False,
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
