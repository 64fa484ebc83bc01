"""The names of the files that a preset is made of, said once."""

from __future__ import annotations

from encoder_zoo.encoders.tokenizers import TOKENIZERS
from encoder_zoo.presets.files.manifest import CARD as CARD
from encoder_zoo.presets.files.manifest import NAME as MANIFEST

CONFIG = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PYTORCH_WEIGHTS, PYTORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# What any tokenizer may have, beside the files of its class.
TOKENIZER_JSON = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


def preset_files() -> list[str]:
    """Patterns of the names of a preset's files, without its card.

    Example:
        >>> {"config.json", "*.safetensors", "vocab.txt", "merges.txt"} <= set(preset_files())
        True
    """
    safetensors = ["*.safetensors", "*.safetensors.index.json"]
    pytorch = [PYTORCH_WEIGHTS, PYTORCH_INDEX, "pytorch_model-*.bin"]
    return [CONFIG, MANIFEST, *safetensors, *pytorch, *tokenizer_file_names()]


def tokenizer_file_names() -> list[str]:
    """The names of the files that hold a tokenizer of any kind."""
    vocabularies = [file for kind in TOKENIZERS for file in kind.files]
    return list(dict.fromkeys([*TOKENIZER_JSON, *vocabularies]))
