"""Create small tokenizers, backbones, tasks and inputs for testing.

In comments, B is the batch size and L is the sequence length.
"""

from __future__ import annotations

import copy
import functools
import json
import pathlib
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
    serialize_model,
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
# Tokenizer files with 30 tokens, for each tokenizer class. A SentencePiece model is stored as two
# lists, special tokens and other pieces.
TOKENIZER_FILES = json.loads(
    pathlib.Path(__file__).with_name("tiny_tokenizers.json").read_text(encoding="utf-8")
)


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
    return serialize_model(SentencePieceModel([*first, *scored]))


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
    """Create preprocessed inputs for three examples, with the maximum length, 1 and 6 tokens."""
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
