"""The tokenizer's files of a preset, as plain data for the tokenizer to read."""

from __future__ import annotations

import pathlib

from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.encoders.tokenizers.files import TokenizerFiles
from encoder_zoo.presets.files.plain_files import read_bytes, read_json, read_text
from encoder_zoo.presets.preset_files import TOKENIZER_JSON


def read_tokenizer_files(folder: pathlib.Path, tokenizer: TokenizerClass) -> TokenizerFiles:
    """What the files of a folder say of its tokenizer.

    Args:
        folder: of a preset.
        tokenizer: the class, which knows what the files mean.

    Returns:
        Their contents, unread: `tokenizer.load().from_files(...)` makes the tokenizer of them.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    contents = {}
    for name in (*TOKENIZER_JSON, *tokenizer.files):
        path = folder / name
        if path.exists():
            read = {".json": read_json, ".model": read_bytes}.get(path.suffix, read_text)
            contents[name] = read(path)
    return TokenizerFiles(folder, contents)
