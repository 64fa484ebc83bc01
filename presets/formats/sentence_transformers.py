"""Reads the folders of sentence-transformers, of all its versions.

`modules.json` lists the modules: an encoder, a pooling, dense layers, a normalization, each with
its files in the root or in a subfolder. The classes that it names are never imported.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder, is_plain
from encoder_zoo.presets.formats.preset_files import (
    CONFIG,
    MODEL_SETTINGS,
    MODULES,
    TRANSFORMER_SETTINGS,
)

ENCODERS = ("Transformer", "MLMTransformer")  # the second up to version 5.3
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
KINDS += ("MLMTransformer", "SpladePooling", "MultiVectorMask")
_TYPE = re.compile(r"(?:sentence_transformers|pylate)(?:\.\w+)*\.(\w+)")
_LONGEST = 2**20  # tokens; tokenizers without a limit say 1e30
_TEXT_OUTPUT = "last_hidden_state"


class Module(NamedTuple):
    """An entry of `modules.json`.

    Attributes:
        kind: name of its class.
        path: of its subfolder; "" for the root.
    """

    kind: str
    path: str


def encoder_files(files: FolderFiles) -> FolderFiles:
    """Return the files of the encoder: those of the folder, or of `0_Transformer` inside it.

    Args:
        files: of a preset; its modules need not be supported.

    Raises:
        ValueError: "...: [0]: type is '....Router'. Models that have other encoders ..."
    """
    entries = files.read_json_array(MODULES) if MODULES in files else []
    first = entries[0] if entries and isinstance(entries[0], dict) else {}
    path, matched = first.get("path"), _TYPE.fullmatch(str(first.get("type")))
    if matched is not None and matched[1] == "Router":
        raise ValueError(
            f"{files.path / MODULES}: [0]: type is {shown(first['type'])}. Models that have "
            "other encoders for queries and documents, such as a table for queries "
            "(SparseStaticEmbedding), are not implemented."
        )
    is_encoder = matched is not None and matched[1] in ENCODERS
    if is_encoder and is_plain(path) and f"{path}/{CONFIG}" in files:
        return Subfolder(files, path)
    return files


def read_modules(files: FolderFiles) -> list[Module]:
    """Read `modules.json`.

    Args:
        files: of the whole folder.

    Raises:
        ValueError: ".../modules.json: [1]: type is 'custom.Model'. Expected ..."
    """
    modules = []
    for i, entry in enumerate(files.read_json_array(MODULES)):
        field = f"{files.path / MODULES}: [{i}]"
        if not isinstance(entry, dict):
            raise ValueError(f"{field} is {shown(entry)}. Expected an object with type and path.")
        kind, path = entry.get("type"), entry.get("path")
        matched = _TYPE.fullmatch(kind) if isinstance(kind, str) else None
        if matched is None or matched[1] not in KINDS:
            raise ValueError(
                f"{field}: type is {shown(kind)}. Expected sentence_transformers' "
                f"{', '.join(KINDS)}. Others are not implemented, and code that a folder brings "
                "along is never run."
            )
        if not (is_plain(path) or (path == "" and matched[1] in ENCODERS)):
            raise ValueError(
                f"{field}: path is {shown(path)}. Expected a subfolder such as '{i}_{matched[1]}'."
            )
        modules.append(Module(matched[1], path))
    return modules


def embedding_modules(files: FolderFiles) -> list[Module]:
    """Read the `modules.json` of a model of text embeddings.

    Args:
        files: of the whole folder.

    Raises:
        ValueError: "...: the modules are Transformer, Normalize. Expected ...", and see
            `read_modules`.
    """
    modules = read_modules(files)
    kinds = [module.kind for module in modules]
    if not re.fullmatch(r"Transformer Pooling( Dense)*( Normalize)?", " ".join(kinds)):
        raise ValueError(
            f"{files.path / MODULES}: the modules are {', '.join(kinds) or 'none'}. Expected a "
            "Transformer, a Pooling, any number of Dense, and at most one Normalize, in this order."
        )
    return modules


def check_transformer(files: FolderFiles, task: str) -> None:
    """Check that the encoder's module computes what this package does.

    Args:
        files: of the encoder.
        task: "feature-extraction" or another of transformers.

    Raises:
        ValueError: "...: transformer_task is 'fill-mask'. Expected 'feature-extraction'."
    """
    name, settings = transformer_settings(files)
    modalities = settings.get("modality_config") or {}
    text = modalities.get("text", {}) if isinstance(modalities, dict) else modalities
    output = text.get("method_output_name", _TEXT_OUTPUT) if isinstance(text, dict) else text
    for field, value, expected in (
        ("transformer_task", settings.get("transformer_task", task), task),
        ("modality_config", output, _TEXT_OUTPUT if task == "feature-extraction" else output),
    ):
        if value != expected:
            raise ValueError(
                f"{files.path / name}: {field} is {shown(value)}. Expected {expected!r}."
            )


def transformer_settings(files: FolderFiles) -> tuple[str, dict]:
    """Return the name and the contents of `sentence_bert_config.json`; {} if it is missing.

    Args:
        files: of the encoder.
    """
    name = next((name for name in TRANSFORMER_SETTINGS if name in files), None)
    return (name, files.read_json(name)) if name else (TRANSFORMER_SETTINGS[0], {})


def read_length(files: FolderFiles) -> int | None:
    """Return the number of tokens to which texts are truncated; None if the files have none.

    Args:
        files: of the encoder.

    Raises:
        ValueError: "...: max_seq_length is 0. Expected an integer of 3 or more."

    Source: sentence-transformers 6.2, `base/modules/transformer.py`; before 5.4
    `models/Transformer.py`.
    """
    name, settings = transformer_settings(files)
    for field in ("processor_kwargs", "tokenizer_args"):
        own = settings.get(field)
        if isinstance(own, dict) and (length := own.get("model_max_length")) is not None:
            return _checked_length(length, f"{files.path / name}: {field}: model_max_length")
    if (length := settings.get("max_seq_length")) is not None:
        return _checked_length(length, f"{files.path / name}: max_seq_length")
    name = "tokenizer_config.json"
    length = files.read_json(name).get("model_max_length") if name in files else None
    if length is None:
        return None
    return _checked_length(length, f"{files.path / name}: model_max_length")


def _checked_length(length: object, field: str) -> int | None:
    whole = isinstance(length, int | float) and not isinstance(length, bool) and length >= 3
    if not whole or (length < _LONGEST and length != int(length)):
        raise ValueError(f"{field} is {shown(length)}. Expected an integer of 3 or more.")
    return int(length) if length < _LONGEST else None


def check_case(files: FolderFiles, tokenizer) -> None:
    """Check that a tokenizer lower-cases where sentence-transformers is told to.

    Args:
        files: of the encoder.
        tokenizer: read from them.

    Raises:
        ValueError: "...: do_lower_case is true, but the tokenizer keeps upper case. ..."
    """
    name, settings = transformer_settings(files)
    if settings.get("do_lower_case") and getattr(tokenizer, "lowercase", None) is False:
        raise ValueError(
            f"{files.path / name}: do_lower_case is true, but the tokenizer keeps upper case. "
            'Expected the same: write "do_lower_case": true into tokenizer_config.json.'
        )


def read_prompts(files: FolderFiles) -> dict[str, object]:
    """Return the arguments of the preprocessor in `config_sentence_transformers.json`.

    Args:
        files: of the whole folder.

    Raises:
        ValueError: "...: prompts is 'query: '. Expected ..."
    """
    settings, path = model_settings(files), files.path / MODEL_SETTINGS
    default, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(
        isinstance(text, str | type(None)) for text in prompts.values()
    ):
        raise ValueError(f"{path}: prompts is {shown(prompts)}. Expected names and texts.")
    # Without prompts of its own a model has empty ones of these names.
    empty = {n for n, text in prompts.items() if not text and n in ("query", "document")}
    prompts = {n: text or "" for n, text in prompts.items() if n not in empty or n == default}
    if default is not None and default not in prompts:
        raise ValueError(
            f"{path}: default_prompt_name is {shown(default)}. Expected one of "
            f"{', '.join(prompts) or 'the prompts, of which there are none'}."
        )
    found = {"prompts": prompts, "default_prompt": default}
    return {name: value for name, value in found.items() if value}


def model_settings(files: FolderFiles) -> dict:
    """Return the contents of `config_sentence_transformers.json`; {} if it is missing."""
    return files.read_json(MODEL_SETTINGS) if MODEL_SETTINGS in files else {}
