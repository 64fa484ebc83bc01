"""Define the file names in a preset."""

from __future__ import annotations

import re
from typing import NamedTuple

from encoder_zoo.encoders.tokenizers import TOKENIZERS
from encoder_zoo.presets.files.manifest import CARD as CARD
from encoder_zoo.presets.files.manifest import MANIFEST_NAME as MANIFEST

CONFIG = "config.json"
GLINER = "gliner_config.json"  # replaces config.json in folders of gliner
# sentence-transformers: list of modules, and settings such as prompts and similarity.
MODULES, MODEL_SETTINGS = "modules.json", "config_sentence_transformers.json"
# Original ColBERT: markers and lengths.
COLBERT_SETTINGS = "artifact.metadata"
# BGE-M3: linear layers for token weights and token vectors.
SPARSE_LINEAR, COLBERT_LINEAR = "sparse_linear.pt", "colbert_linear.pt"
# Models with a separate query encoder: routes, and a table of query term weights.
ROUTER, IDF = "router_config.json", "idf.json"
TRANSFORMER_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
# Additional files without weights, and additional files with weights.
MODULE_SETTINGS = (MODULES, MODEL_SETTINGS, COLBERT_SETTINGS, *TRANSFORMER_SETTINGS, ROUTER, IDF)
LINEAR = (SPARSE_LINEAR, COLBERT_LINEAR)
_MODULE_FOLDER = "[0-9]*_*"  # such as 1_Pooling
_ROUTE_FOLDER = "*_[0-9]_*"  # such as query_0_SparseStaticEmbedding


class WeightFormat(NamedTuple):
    """File names of a weight format: a single file, or shards with an index.

    Attributes:
        file: String. The name of a file with all weights.
        index: String. The name of the shard index.
        shards: String. Regular expression for the file names of shards.
        patterns: Tuple of strings. The patterns for all names, including names from other programs.
    """

    file: str
    index: str
    shards: str
    patterns: tuple[str, ...]

    def is_index_or_shard(self, name: str) -> bool:
        """Return whether a file is a shard or a shard index.

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
WEIGHT_FORMATS = (SAFETENSORS, PYTORCH)  # Formats of weights, in order of preference.
# Files that all tokenizer classes can have.
TOKENIZER_JSON = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


def list_preset_patterns() -> list[str]:
    """List patterns for all preset files except the model card.

    Example:
        >>> {"config.json", "*.safetensors", "vocab.txt"} <= set(list_preset_patterns())
        True
    """
    return [*list_replaced_preset_patterns(), *SAFETENSORS.patterns]


def list_replaced_preset_patterns() -> list[str]:
    """List the patterns of the preset files that saving replaces.

    Adapters and other additional weights are kept.
    """
    shards = "model-*-of-*.safetensors"
    weights = [SAFETENSORS.file, SAFETENSORS.index, shards, *PYTORCH.patterns]
    return [CONFIG, GLINER, MANIFEST, *weights, *list_tokenizer_files()]


def list_module_patterns() -> list[str]:
    """List patterns for all additional files of sentence-transformers.

    Example:
        >>> {"modules.json", "[0-9]*_*/config.json"} <= set(list_module_patterns())
        True
    """
    inner = [*list_preset_patterns(), *TRANSFORMER_SETTINGS, IDF]
    folders = (_MODULE_FOLDER, _ROUTE_FOLDER)
    deep = [f"{folder}/{name}" for folder in folders for name in inner]
    return [*MODULE_SETTINGS, *LINEAR, *deep]


def list_replaced_module_patterns() -> list[str]:
    """List the patterns of the additional files and folders that saving replaces."""
    kinds = ("Transformer", "Pooling", "SpladePooling", "Dense", "Normalize")
    kinds += ("Classifier", "MultiVectorMask", "StaticEmbedding")
    routed = ("Transformer", "MLMTransformer", "SpladePooling", "SparseStaticEmbedding", "IDF")
    routed = [f"{role}_[0-9]_{kind}" for role in ("query", "document") for kind in routed]
    folders = (f"[0-9]*_{kind}" for kind in kinds)
    return [*MODULE_SETTINGS, *LINEAR, *folders, *routed]


def list_tokenizer_files() -> list[str]:
    """List the file names of all tokenizer classes."""
    vocabularies = [file for kind in TOKENIZERS for file in kind.files]
    return list(dict.fromkeys([*TOKENIZER_JSON, *vocabularies]))
