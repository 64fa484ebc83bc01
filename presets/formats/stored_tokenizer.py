"""Reads the tokenizer files of a preset as plain data."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.encoders.tokenizers.choice import choose_tokenizer
from encoder_zoo.encoders.tokenizers.files.reading import TokenizerFiles
from encoder_zoo.presets.files.folder_files import FolderFiles
from encoder_zoo.presets.formats.preset_files import TOKENIZER_JSON

_BINARY = (".model", ".spm")  # SentencePiece's


class StoredTokenizer(NamedTuple):
    """The class and the files of a tokenizer that is not built yet.

    Attributes:
        kind: its class.
        files: their contents.
    """

    kind: TokenizerClass
    files: TokenizerFiles

    def template(self, family: Family | None) -> dict[str, object]:
        """Return the constructor arguments for pairs of texts.

        They are those of tokenizer.json, or else the defaults of the class; a family without
        segments has none with any tokenizer.

        Args:
            family: of the model; None if unknown.

        Raises:
            ValueError: "FILE: post_processor puts the start token at position -1 ..."
        """
        template = self.files.template() or self.kind
        if template.first_column != self.kind.first_column:
            last, first = "behind the texts", "before them"
            puts, expected = (last, first) if self.kind.first_column else (first, last)
            raise ValueError(
                f"{self.files.json_path}: post_processor puts the start token {puts}; a "
                f"{self.kind.name} has it {expected}, so the ids would differ"
            )
        segments = template.uses_segments and (family is None or family.uses_segments)
        return {"uses_segments": segments, "pair_separators": template.pair_separators}


def read_stored_tokenizer(
    files: FolderFiles, config: Mapping, default: TokenizerClass | None
) -> StoredTokenizer:
    """Read the tokenizer files of a folder, and choose the class that they describe.

    Args:
        files: of a preset.
        config: contents of its config.json, {} if there is none.
        default: class of the family's own checkpoints, if the files do not tell.

    Raises:
        ValueError: naming the file and what is wrong with it, see `choose_tokenizer`.
    """
    kind = choose_tokenizer(_contents(files, TOKENIZER_JSON), config, files.listed, default)
    return StoredTokenizer(kind, read_tokenizer_files(files, kind))


def read_tokenizer_files(files: FolderFiles, kind: TokenizerClass) -> TokenizerFiles:
    """Read the tokenizer files of a folder for a known class.

    Args:
        files: of a preset.
        kind: the class.

    Returns:
        Their contents, for `kind.load().from_files(...)`.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    return _contents(files, (*TOKENIZER_JSON, *kind.files))


def _contents(files: FolderFiles, names: Iterable[str]) -> TokenizerFiles:
    contents = {name: read_content(files, name) for name in names if name in files}
    return TokenizerFiles(files.path, contents)


def read_content(files: FolderFiles, name: str, inside: str = "") -> dict | str | bytes:
    """Read a tokenizer file by its suffix: JSON, a SentencePiece model, or text."""
    suffix = pathlib.PurePath(name).suffix
    if suffix == ".json":
        return files.read_json(name, inside)
    return files.read_bytes(name, inside) if suffix in _BINARY else files.read_text(name, inside)
