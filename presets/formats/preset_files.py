"""Names of the files of a preset."""

from __future__ import annotations

import re
from typing import NamedTuple

from encoder_zoo.encoders.tokenizers import TOKENIZERS
from encoder_zoo.presets.files.manifest import CARD as CARD
from encoder_zoo.presets.files.manifest import NAME as MANIFEST

CONFIG = "config.json"


class WeightFormat(NamedTuple):
    """Names of files with weights: one file, or shards and their index.

    Attributes:
        file: with all weights.
        index: of the shards.
        shards: regular expression of their names.
        patterns: of the names of all these files, also as other programs write them.
    """

    file: str
    index: str
    shards: str
    patterns: tuple[str, ...]

    def is_index_or_shard(self, name: str) -> bool:
        """Return whether a file is one of the shards or their index.

        Example:
            >>> WEIGHT_FORMATS[0].is_index_or_shard("model-00001-of-00002.safetensors")
            True
        """
        return name == self.index or bool(re.fullmatch(self.shards, name))


SAFETENSORS = WeightFormat(
    "model.safetensors",
    "model.safetensors.index.json",
    r"model-\d+-of-\d+\.safetensors",
    ("*.safetensors", "*.safetensors.index.json"),
)
PYTORCH = WeightFormat(
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    r"pytorch_model-\d+-of-\d+\.bin",
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"),
)
WEIGHT_FORMATS = (SAFETENSORS, PYTORCH)  # in order of preference
# Files of tokenizers of all classes.
TOKENIZER_JSON = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


def preset_files() -> list[str]:
    """Return patterns of the names of a preset's files, without its model card.

    Example:
        >>> {"config.json", "*.safetensors", "vocab.txt", "merges.txt"} <= set(preset_files())
        True
    """
    weights = [pattern for weights in WEIGHT_FORMATS for pattern in weights.patterns]
    return [CONFIG, MANIFEST, *weights, *tokenizer_file_names()]


def tokenizer_file_names() -> list[str]:
    """Return the names of the files of all tokenizer classes."""
    vocabularies = [file for kind in TOKENIZERS for file in kind.files]
    return list(dict.fromkeys([*TOKENIZER_JSON, *vocabularies]))
