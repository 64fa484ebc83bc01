"""Open presets by name, path or address, and validate all files."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from encoder_zoo.common.extras import load_formats
from encoder_zoo.encoders import find_family
from encoder_zoo.presets import adapters, hub
from encoder_zoo.presets.files.folder_files import FolderFiles, Safeguards, matches_any
from encoder_zoo.presets.files.manifest import read_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.formats.checkpoint import Checkpoint, TokenizerPreset
from encoder_zoo.presets.formats.config import check_config, check_sizes
from encoder_zoo.presets.formats.gliner import GlinerCheckpoint, find_encoder_address, read_encoder
from encoder_zoo.presets.formats.huggingface import HuggingFaceCheckpoint
from encoder_zoo.presets.formats.preset_files import (
    CONFIG,
    GLINER,
    MANIFEST,
    SAFETENSORS,
    list_module_patterns,
    list_preset_patterns,
    list_tokenizer_files,
)
from encoder_zoo.presets.formats.sentence_transformers import find_encoder_files
from encoder_zoo.presets.formats.static_folder import StaticCheckpoint, find_static_module
from encoder_zoo.presets.formats.stored_tokenizer import read_stored_tokenizer
from encoder_zoo.presets.registry import fetch_preset, get_listed_settings

logger = logging.getLogger("encoder_zoo")

_TOKENIZER_FILES = [CONFIG, GLINER, MANIFEST, *list_tokenizer_files()]


def open_preset(source: str | os.PathLike, safeguards: Safeguards) -> Checkpoint:
    """Open and validate a preset in any format.

    Args:
        source: String or path. Preset to load, as in `from_preset`.
        safeguards: The `Safeguards` to use.

    Returns:
        A `Checkpoint`, which is a context manager that closes all files. The weights are not read
        yet.

    Raises:
        ValueError: If a file is missing, damaged or invalid.
    """
    folder = fetch_preset(source, safeguards.verify, safeguards.max_bytes)
    others = [name for format in load_formats() for name in format.list_files()]
    files = OpenFolder(folder, [*list_preset_patterns(), *list_module_patterns(), *others])
    files.safeguards, files.not_downloaded = safeguards, hub.list_not_downloaded(folder)
    checkpoint = open_files(files)
    checkpoint.listed_settings = get_listed_settings(source)
    if adapters.ADAPTER_CONFIG in checkpoint.files.listed:
        logger.warning(
            "%s: the adapters in %s are not loaded. To load the adapters, call load_adapters(%r) "
            "of a task.",
            checkpoint.folder.name,
            adapters.ADAPTER_CONFIG,
            os.fspath(folder),
        )
    return checkpoint


def open_files(files: FolderFiles) -> Checkpoint:
    """Open and validate the checkpoint in a folder.

    Args:
        files: `FolderFiles`. The files of a local or remote folder. They are closed after an error.

    Returns:
        A `Checkpoint`. See `open_preset`.

    Raises:
        ValueError: If a file is missing, damaged or invalid.
    """
    try:
        checkpoint = _open_checkpoint(files)
        config, family, path = checkpoint.config, checkpoint.family, checkpoint.config_file
        check_config(config, family, path, checkpoint.config_names)
        check_sizes(config, family, checkpoint.shapes, path, files.safeguards.max_bytes)
    except BaseException:
        files.close()
        raise
    return checkpoint


@contextlib.contextmanager
def open_tokenizer(source: str | os.PathLike, safeguards: Safeguards) -> Iterator[TokenizerPreset]:
    """Context manager that opens the tokenizer of a preset in any format.

    Args:
        source: String or path. Preset to load, as in `from_preset`. The model files can be missing.
        safeguards: The `Safeguards` to use.

    Yields:
        A `TokenizerPreset` with open files.

    Raises:
        ValueError: If a file is missing, damaged or invalid.
    """
    folder = fetch_preset(source, safeguards.verify, safeguards.max_bytes, weights=False)
    others = [name for format in load_formats() for name in format.list_tokenizer_file_names()]
    with OpenFolder(folder, [*_TOKENIZER_FILES, *list_module_patterns(), *others]) as files:
        files.safeguards = safeguards
        preset = _read_tokenizer_preset(files)
        preset.listed_settings = get_listed_settings(source)
        yield preset
        files.check_unchanged()


def _read_tokenizer_preset(files: FolderFiles) -> TokenizerPreset:
    settings = read_manifest(files, files.safeguards.verify, weights=False)
    files = find_encoder_files(files)
    _check_files(files, _TOKENIZER_FILES)
    if GLINER in files:
        with _open_named_encoder(files) as encoder:
            config, stored = read_encoder(files, encoder)
        family = find_family(config.get("model_type"))
        config = family.read(config) if family else config
        return TokenizerPreset(files, config, files.path / GLINER, family, settings, stored)
    for format in load_formats():
        if preset := format.open_tokenizer(files, settings):
            return preset
    config = files.read_json(CONFIG) if CONFIG in files else {}
    family = find_family(config.get("model_type"))
    config = family.read(config) if family else config
    stored = read_stored_tokenizer(files, config, family.tokenizer if family else None)
    return TokenizerPreset(files, config, files.path / CONFIG, family, settings, stored)


def _open_checkpoint(files: FolderFiles) -> Checkpoint:
    """Open the checkpoint in a folder. The format is detected from the files."""
    settings = read_manifest(files, files.safeguards.verify)
    if module := find_static_module(files):
        _check_files(files, [CONFIG, MANIFEST, SAFETENSORS.file])
        return StaticCheckpoint(files, settings, module)
    files = find_encoder_files(files)
    _check_files(files, list_preset_patterns())
    if GLINER in files:
        with _open_named_encoder(files) as encoder:
            return GlinerCheckpoint(files, settings, encoder)
    for format in load_formats():
        if checkpoint := format.open_checkpoint(files, settings):
            return checkpoint
    return HuggingFaceCheckpoint(files, settings)


@contextlib.contextmanager
def _open_named_encoder(files: FolderFiles) -> Iterator[FolderFiles | None]:
    """Context manager that downloads and opens the encoder for an incomplete gliner folder.

    For all other folders, None is yielded.
    """
    if (address := find_encoder_address(files)) is None:
        yield None
        return
    try:
        folder = fetch_preset(address, files.safeguards.verify, weights=False)
    except ValueError as error:
        raise ValueError(
            f"The encoder named in {files.path / GLINER} cannot be opened. {error}"
        ) from None
    with OpenFolder(folder, _TOKENIZER_FILES) as encoder:
        yield encoder


def _check_files(files: FolderFiles, patterns: list[str]) -> None:
    """Open all files that match a pattern, and parse JSON files, to detect errors early."""
    for name in files.listed:
        if matches_any(name, patterns):
            files.read_json(name) if name.endswith(".json") else files.open_file(name)
