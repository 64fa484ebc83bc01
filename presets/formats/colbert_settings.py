"""Convert settings of late interaction models from the formats of four libraries.

The markers, lengths, query expansion and skiplists become arguments of
`LateInteractionPreprocessor`.
"""

from __future__ import annotations

import pathlib
import string

from encoder_zoo.common.validation import Rule, check_argument, one_of
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder
from encoder_zoo.presets.files.json_data import JSON_FLAG, JSON_TEXT, read_field
from encoder_zoo.presets.formats import sentence_transformers as theirs
from encoder_zoo.presets.formats.embedding_modules import check_fields
from encoder_zoo.presets.formats.preset_files import COLBERT_SETTINGS, CONFIG, MODEL_SETTINGS
from encoder_zoo.presets.formats.sentence_transformers import Module

MARKERS = ("query_marker", "document_marker")
PUNCTUATION = list(string.punctuation)
ROLE_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}
# Supported fields of `artifact.metadata`, and the supported values of other fields.
STANFORD_FIELDS = ("similarity", "mask_punctuation", "query_token_id", "doc_token_id", "dim")
STANFORD_FIELDS += ("query_maxlen", "doc_maxlen", "attend_to_mask_tokens")
STANFORD_BUILT_IN = {"interaction": "colbert", "relu": False, "similarity": "cosine"}
# Fields on which the vectors do not depend.
STANFORD_IRRELEVANT = (
    # Names of the markers. Only their ids are used.
    *("query_token", "doc_token"),
    # Paths of files.
    *("checkpoint", "triples", "collection", "queries", "index_name", "index_root", "root"),
    *("experiment", "name", "overwrite", "meta", "index_path", "model_name", "config"),
    # Options of the original programs.
    *("rank", "nranks", "amp", "gpus", "avoid_fork_if_possible", "total_visible_gpus"),
    # Options of training.
    *("bsize", "accumsteps", "lr", "maxsteps", "save_every", "resume", "warmup", "nway"),
    *("warmup_bert", "use_ib_negatives", "reranker", "distillation_alpha", "ignore_scores"),
    # Options of the original index.
    *("index_bsize", "nbits", "kmeans_niters", "ncells", "centroid_score_threshold", "ndocs"),
    *("load_index_with_mmap", "pool_factor", "clustering_mode", "protected_tokens"),
)
LENGTH = Rule(lambda v: type(v) is int and v >= 3, "an integer of 3 or more")
WORDS = Rule(
    lambda v: isinstance(v, list) and all(isinstance(word, str) for word in v), "a list of strings"
)
_MASK_FIELDS = ("skiplist_words", "skiplist_tasks", "keep_only_token_ids")
_PROBE = "a b"  # an arbitrary text with two words


def read_pylate(files: FolderFiles, tokenizer) -> dict[str, object]:
    """Read the settings of PyLate in `config_sentence_transformers.json`.

    Args:
        files: `FolderFiles`. The files of the encoder.
        tokenizer: The tokenizer of the encoder.

    Raises:
        ValueError: If a field value is invalid.

    Source: PyLate 1.6, `models/colbert.py`, for the defaults. sentence-transformers 6.2,
    `multi_vector_encoder/model.py`, for `query_expansion`.
    """
    settings, path = theirs.read_model_settings(files.root), files.root.path / MODEL_SETTINGS
    expands = read_field(settings, "do_query_expansion", JSON_FLAG, path, True)
    found = {
        "query_marker": read_field(settings, "query_prefix", JSON_TEXT, path, "[Q] ") or None,
        "document_marker": read_field(settings, "document_prefix", JSON_TEXT, path, "[D] ") or None,
        "prompts": _read_prompts(files.root),
        "query_length": read_field(settings, "query_length", LENGTH, path, 32),
        "document_length": read_field(settings, "document_length", LENGTH, path, 180),
        "expand_queries": expands,
        "attend_to_expansion": expands
        and read_field(settings, "attend_to_expansion_tokens", JSON_FLAG, path, False),
        "skiplist": list(read_field(settings, "skiplist_words", WORDS, path, PUNCTUATION)),
    }
    if "query_expansion" in settings:
        found |= _read_expansion(settings["query_expansion"], tokenizer, path)
    return found


def read_stanford(files: FolderFiles) -> dict[str, object]:
    """Read the settings of the original ColBERT in `artifact.metadata`.

    Args:
        files: `FolderFiles`. The files of the preset.

    Raises:
        ValueError: If a field is unknown or not supported.

    Source: Santhanam et al. 2022, ColBERTv2, released code, `infra/config/settings.py`.
    """
    known = COLBERT_SETTINGS in files
    settings = files.read_json(COLBERT_SETTINGS) if known else {}
    path = files.path / COLBERT_SETTINGS
    for name, value in settings.items():
        if value != STANFORD_BUILT_IN.get(name, value):
            raise invalid(f"{path}: {name}", value, f"{STANFORD_BUILT_IN[name]!r}")
        known = (*STANFORD_FIELDS, *STANFORD_BUILT_IN, *STANFORD_IRRELEVANT)
        if name not in known and value not in (None, False, [], {}):
            raise ValueError(
                f"{path} contains the unknown field {quote(name)}, which could change the vectors. "
                f"Expected {', '.join((*STANFORD_FIELDS, *STANFORD_BUILT_IN))}."
            )
    skips = read_field(settings, "mask_punctuation", JSON_FLAG, path, True)
    return {
        "query_marker": read_field(settings, "query_token_id", JSON_TEXT, path, "[unused0]"),
        "document_marker": read_field(settings, "doc_token_id", JSON_TEXT, path, "[unused1]"),
        "query_length": read_field(settings, "query_maxlen", LENGTH, path, 32),
        "document_length": read_field(settings, "doc_maxlen", LENGTH, path, 220),
        "attend_to_expansion": read_field(
            settings, "attend_to_mask_tokens", JSON_FLAG, path, False
        ),
        "skiplist": PUNCTUATION if skips else [],
    }


def read_sentence_transformers(
    files: FolderFiles, masks: list[Module], tokenizer
) -> dict[str, object]:
    """Read MultiVectorEncoder settings in sentence-transformers.

    The settings are in the files of the modules and in the prompts. A prompt with a single token
    becomes a marker.

    Args:
        files: `FolderFiles`. The files of the encoder.
        masks: List of `Module` objects of the class MultiVectorMask.
        tokenizer: The tokenizer of the encoder.

    Raises:
        ValueError: If a field is unknown or invalid.

    Source: sentence-transformers 6.2, `base/modules/transformer.py`, `multi_vector_encoder`.
    """
    name, settings = theirs.read_transformer_settings(files)
    path, longest = files.path / name, theirs.read_length(files)
    found = {
        "query_length": read_field(settings, "query_length", LENGTH, path, longest),
        "document_length": read_field(settings, "document_length", LENGTH, path, longest),
        "skiplist": _read_skiplist(files.root, masks),
    }
    expansion = settings.get("query_expansion")
    if expansion is not None and not masks:
        expected = "null for a model without MultiVectorMask"
        raise invalid(f"{path}: query_expansion", expansion, expected)
    found |= _read_expansion(expansion, tokenizer, path)
    prompts, markers = _read_prompts(files.root), {}
    for role, marker in zip(ROLE_PROMPTS, MARKERS, strict=True):
        markers[marker] = _find_marker(prompts.get(role, ""), tokenizer)
        if markers[marker] is not None:
            del prompts[role]
    return {**found, **markers, "prompts": prompts}


def read_bge_m3(files: FolderFiles) -> dict[str, object]:
    """Read the settings of BGE-M3, which uses neither markers nor query expansion.

    The first token does not have a vector.

    Args:
        files: `FolderFiles`. The files of the encoder.

    Raises:
        ValueError: If a field value is invalid.

    Source: FlagEmbedding 1.4, `finetune/embedder/encoder_only/m3/modeling.py`. The original code
    uses 512 tokens by default. This function uses the length in the folder.
    """
    settings, path = theirs.read_model_settings(files.root), files.root.path / MODEL_SETTINGS
    longest = theirs.read_length(files)
    return {
        "query_marker": None,
        "document_marker": None,
        "prompts": _read_prompts(files.root),
        "query_length": read_field(settings, "query_length", LENGTH, path, longest),
        "document_length": read_field(settings, "document_length", LENGTH, path, longest),
        "expand_queries": False,
        "skiplist": [],
        "score_first": False,
    }


def _read_expansion(expansion: object, tokenizer, path: pathlib.Path) -> dict[str, object]:
    """Convert the field `query_expansion` to preprocessor arguments."""
    if expansion is None:
        return {"expand_queries": False, "attend_to_expansion": False}
    known = ("strategy", "attend", "token", "length")
    if not isinstance(expansion, dict) or not set(expansion) <= set(known):
        expected = f"null, or an object with only the fields {', '.join(known)}"
        raise invalid(f"{path}: query_expansion", expansion, expected)
    field = f"{path}: query_expansion"
    check_argument(f"{field}: strategy", expansion.get("strategy"), one_of("fixed", "min"))
    read_field(expansion, "token", one_of(tokenizer.mask_token), field)  # null means the mask token
    length = expansion.get("length")
    check_argument(f"{field}: length", length, LENGTH)
    fixed = {"query_length": length, "expansion_length": None}
    return {
        "expand_queries": True,
        "attend_to_expansion": read_field(expansion, "attend", JSON_FLAG, field, False),
        **(fixed if expansion["strategy"] == "fixed" else {"expansion_length": length}),
    }


def _read_skiplist(files: FolderFiles, masks: list[Module]) -> list[str]:
    """Read the skiplist for documents from the MultiVectorMask modules."""
    words: list[str] = []
    for module in masks:
        inner = Subfolder(files, module.path)
        path, config = inner.path / CONFIG, inner.read_json(CONFIG) if CONFIG in inner else {}
        check_fields(config, _MASK_FIELDS, path)
        if config.get("keep_only_token_ids"):
            raise invalid(f"{path}: keep_only_token_ids", config["keep_only_token_ids"], "null")
        own = list(read_field(config, "skiplist_words", WORDS, path, []))
        if own and config.get("skiplist_tasks", ["document"]) != ["document"]:
            found = config["skiplist_tasks"]
            raise invalid(f"{path}: skiplist_tasks", found, "['document']")
        words += own
    return words


def _read_prompts(files: FolderFiles) -> dict[str, str]:
    """Read the prompts for queries and documents, except for empty prompts."""
    prompts = theirs.read_prompts(files).get("prompts", {})
    found = {
        role: next((prompts[name] for name in names if name in prompts), "")
        for role, names in ROLE_PROMPTS.items()
    }
    return {role: text for role, text in found.items() if text}


def _find_marker(prompt: str, tokenizer) -> str | None:
    """Return the marker token that can replace a prompt, or None.

    A marker must be a single token, and must not change how the following text is tokenized.
    """
    contents = {token["content"] for token in tokenizer.added_tokens}
    for token in (prompt, prompt.strip()):
        if token in contents:
            together = [
                tokenizer.tokenize(text).numpy().tolist() for text in (prompt + _PROBE, _PROBE)
            ]
            if together[0] == [tokenizer.token_to_id(token), *together[1]]:
                return token
    return None
