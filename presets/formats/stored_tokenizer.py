"""The tokenizer's files of a preset, as plain data for the tokenizer to read."""

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
    """A tokenizer that has not been made yet.

    Attributes:
        kind: which it is.
        files: that describe it.
    """

    kind: TokenizerClass
    files: TokenizerFiles

    def template(self, family: Family | None) -> dict[str, object]:
        """Return how it joins two texts, as arguments of its constructor.

        tokenizer.json counts, then what is usual for this kind. A family without segments has none
        with any tokenizer.

        Args:
            family: of the model that it feeds; None where that is not known.
        """
        said = self.files.template() or self.kind
        segments = said.uses_segments and (family is None or family.uses_segments)
        return {"uses_segments": segments, "pair_separators": said.pair_separators}


def read_stored_tokenizer(
    files: FolderFiles, config: Mapping, default: TokenizerClass | None
) -> StoredTokenizer:
    """Chooses the tokenizer that the files of a folder describe, and reads them.

    Args:
        files: of a preset.
        config: contents of its config.json, {} where there is none.
        default: the kind that its family's checkpoints have, where the files do not say it.

    Raises:
        ValueError: naming the file and what is wrong with it, see `choose_tokenizer`.
    """
    kind = choose_tokenizer(_contents(files, TOKENIZER_JSON), config, files.listed, default)
    return StoredTokenizer(kind, read_tokenizer_files(files, kind))


def read_tokenizer_files(files: FolderFiles, kind: TokenizerClass) -> TokenizerFiles:
    """Reads the files of a folder that a tokenizer of a known kind may have.

    Args:
        files: of a preset.
        kind: of the tokenizer.

    Returns:
        Their contents: `kind.load().from_files(...)` makes the tokenizer of them.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    return _contents(files, (*TOKENIZER_JSON, *kind.files))


def _contents(files: FolderFiles, names: Iterable[str]) -> TokenizerFiles:
    contents = {name: read_content(files, name) for name in names if name in files}
    return TokenizerFiles(files.path, contents)


def read_content(files: FolderFiles, name: str, inside: str = "") -> dict | str | bytes:
    """Reads a tokenizer's file as what it is: JSON, a SentencePiece model, or text."""
    suffix = pathlib.PurePath(name).suffix
    if suffix == ".json":
        return files.read_json(name, inside)
    return files.read_bytes(name, inside) if suffix in _BINARY else files.read_text(name, inside)
