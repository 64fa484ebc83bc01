"""The tokenizer's files of a preset, as plain data for the tokenizer to read."""

from __future__ import annotations

import pathlib

from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.encoders.tokenizers.files import TokenizerFiles
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.preset_files import TOKENIZER_JSON

_BINARY = (".model", ".spm")  # SentencePiece's


def read_tokenizer_files(files: FolderFiles, tokenizer: TokenizerClass) -> TokenizerFiles:
    """Reads what the files of a folder say of its tokenizer.

    Args:
        files: of a preset.
        tokenizer: the class, which knows what the files mean.

    Returns:
        Their contents, unread: `tokenizer.load().from_files(...)` makes the tokenizer of them.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    names = [name for name in (*TOKENIZER_JSON, *tokenizer.files) if name in files]
    return TokenizerFiles(files.path, {name: read_content(files, name) for name in names})


def read_content(files: FolderFiles, name: str, inside: str = "") -> dict | str | bytes:
    """Reads a tokenizer's file as what it is: JSON, a SentencePiece model, or text."""
    suffix = pathlib.PurePath(name).suffix
    if suffix == ".json":
        return files.read_json(name, inside)
    return files.read_bytes(name, inside) if suffix in _BINARY else files.read_text(name, inside)
