"""Create small tokenizers, backbones, tasks and inputs for testing.

In comments, B is the batch size and L is the sequence length.
"""

from __future__ import annotations

import copy
import functools
from typing import TypeVar

import keras
import numpy as np

from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.encoders.tokenizers.comparison import create_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.encoders.tokenizers.files.sentencepiece_model import (
    CONTROL,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    write_model,
)
from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer
from encoder_zoo.tasks.base.task import Task

M = TypeVar("M", bound=keras.Model)

# Default arguments for all backbones. For additional arguments, see `Family.tiny`.
SIZES = {
    "vocabulary_size": 30,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "max_sequence_length": 16,
}
# Tokenizer files with 30 tokens, for each tokenizer class.
PIECES = ["▁", *"abcdefghijklmnop", "▁a", "▁b", "▁c", "ab", "cd"]
BPE_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *"abcdefghijklmnopqrst", "ab", "Ġc"]
MODERN_TOKENS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *BPE_TOKENS[5:]]
GEMMA_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *PIECES, "q", "r", "s"]
GEMMA_MODEL = {
    "type": "BPE",
    "unk_token": "<unk>",
    "fuse_unk": True,
    "vocab": {token: i for i, token in enumerate(GEMMA_TOKENS)},
    "merges": [["▁", "a"], ["▁", "b"], ["▁", "c"], ["a", "b"], ["c", "d"]],
}
GEMMA_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
LLAMA_WORDS = [
    {
        "type": "Split",
        "pattern": {
            "Regex": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        },
        "behavior": "Isolated",
        "invert": False,
    },
    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
]
LLAMA_MODEL = {
    "type": "BPE",
    "unk_token": "<|end_of_text|>",
    "ignore_merges": True,
    "vocab": {
        token: i
        for i, token in enumerate(
            ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "u", "v", *BPE_TOKENS[5:]]
        )
    },
    "merges": [["a", "b"], ["Ġ", "c"]],
}
TOKENIZER_FILES = {
    "GemmaTokenizer": {
        "tokenizer.json": {
            "normalizer": GEMMA_SPACES,
            "post_processor": {"type": "BertProcessing", "cls": ["<bos>", 2], "sep": ["<eos>", 1]},
            "model": GEMMA_MODEL,
        }
    },
    "BertTokenizer": {
        "vocab.txt": "\n".join(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop", "##a", "##b", "ab"]
        )
    },
    "EuroBertTokenizer": {
        "tokenizer.json": {
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": LLAMA_WORDS},
            "post_processor": {
                "type": "BertProcessing",
                "cls": ["<|begin_of_text|>", 0],
                "sep": ["<|end_of_text|>", 1],
            },
            "model": LLAMA_MODEL,
        }
    },
    "MPNetTokenizer": {
        "vocab.txt": "\n".join(
            ["<s>", "<pad>", "</s>", "[UNK]", "<mask>", *"abcdefghijklmnop", "##a", "##b", "ab"]
        )
    },
    "RobertaTokenizer": {
        "vocab.json": {token: i for i, token in enumerate(BPE_TOKENS)},
        "merges.txt": "#version: 0.2\na b\nĠ c\n",
    },
    "ModernBertTokenizer": {
        "vocab.json": {token: i for i, token in enumerate(MODERN_TOKENS)},
        "merges.txt": "#version: 0.2\na b\nĠ c\n",
    },
    "XLMRobertaTokenizer": {
        "sentencepiece.bpe.model": (["<unk>", "<s>", "</s>"], [*PIECES, "ef", "gh", "ij"])
    },
    "DebertaV2Tokenizer": {
        "spm.model": (["[PAD]", "[CLS]", "[SEP]", "[UNK]"], [*PIECES, "ef", "gh", "ij"])
    },
    "XLNetTokenizer": {
        "spiece.model": (
            ["<unk>", "<cls>", "<sep>", "<pad>", "<mask>"],
            [*PIECES, "ef", "gh", "ij"],
        )
    },
    "EsmTokenizer": {
        "vocab.txt": "\n".join(
            ["<cls>", "<pad>", "<eos>", "<unk>", *"abcdefghijklmnopqrstuvwx", "-", "<mask>"]
        )
    },
    "CamembertTokenizer": {"sentencepiece.bpe.model": (["<unk>", "<s>", "</s>"], PIECES)},
    "BertweetTokenizer": {
        "vocab.txt": "".join(f"{token} 1\n" for token in [*"abcdefghijklmnop", "a@@", "ab"]),
        "bpe.codes": "a b</w> 1\n",
    },
    "AlbertTokenizer": {
        "spiece.model": (
            ["<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]"],
            [*PIECES, "ef", "gh", "ij"],
        )
    },
}


@functools.cache
def build_tokenizer(kind: TokenizerClass, **template: object) -> Tokenizer:
    """Create a tokenizer with 30 tokens.

    Args:
        kind: Class from `encoders.tokenizers`.
        **template: Keyword arguments for `create_tokenizer`.
    """
    contents = {
        name: _build_sentencepiece_model(*content) if name.endswith(".model") else content
        for name, content in TOKENIZER_FILES[kind.name].items()
    }
    return create_tokenizer(kind.load(), TokenizerFiles("tiny", contents), **template)


def _build_sentencepiece_model(special: list[str], pieces: list[str]) -> bytes:
    """Create a SentencePiece model file with special tokens and other pieces."""
    first = [
        Piece(token, 0.0, UNKNOWN if token in ("<unk>", "[UNK]") else CONTROL) for token in special
    ]
    scored = [Piece(piece, -1.0 - 0.1 * i) for i, piece in enumerate(pieces)]
    return write_model(SentencePieceModel([*first, *scored]))


def tokenizer(family: Family) -> Tokenizer:
    """Create a tokenizer for a family."""
    return build_tokenizer(family.tokenizer, uses_segments=family.uses_segments)


def sizes(family: Family) -> dict[str, object]:
    """Return the arguments for a small backbone."""
    return copy.deepcopy({**SIZES, **family.tiny})


def backbone(family: Family, **arguments: object) -> Backbone:
    """Create a small backbone, including the pooler if the family has one.

    Args:
        family: The `Family` of the backbone.
        **arguments: Arguments for the backbone that replace the defaults.

    Example:
        >>> from encoder_zoo.encoders import get_family
        >>> backbone(get_family("electra")).embedding_dim
        6
    """
    arguments = {**sizes(family), "pooler": family.pooler is not None, **arguments}
    return randomize_weights(family.backbone(**arguments))


def task(family: Family, cls: type[Task], **arguments: object) -> Task:
    """Create a small task. The backbone has a pooler if the head needs it.

    Args:
        family: The `Family` of the backbone.
        cls: The task class.
        **arguments: Arguments for the backbone that replace the defaults.
    """
    arguments = {"pooler": cls.get_family_head(family).pooled, **arguments}
    preprocessor = cls.record.preprocessor_class(tokenizer(family))
    own = cls.tiny_data().arguments
    return randomize_weights(cls(backbone(family, **arguments), preprocessor, **own))


def randomize_weights(model: M) -> M:
    """Add random values to all trainable weights of a model. The standard deviation is 0.3.

    Weights that are initialized to zeros or ones would not change the outputs.
    """
    rng = np.random.default_rng(0)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model


def examples(family: Family) -> dict[str, np.ndarray]:
    """Create preprocessed inputs for three examples, with 1, 6 and the maximum number of tokens."""
    rng = np.random.default_rng(0)
    length = SIZES["max_sequence_length"]
    mask = np.arange(length) < np.array([[length], [1], [6]])
    ids = rng.integers(5, SIZES["vocabulary_size"], mask.shape)
    inputs = {
        "token_ids": np.where(mask, ids, tokenizer(family).pad_token_id),
        "padding_mask": mask,
    }
    if family.uses_segments:
        inputs["segment_ids"] = (mask & (np.arange(length) > 3)).astype("int32")
    if family.uses_global_mask:
        inputs["global_mask"] = (np.arange(length) % 5 == np.array([[0], [0], [3]])).astype("int32")
    return inputs
