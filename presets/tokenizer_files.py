"""The tokenizer's files of a preset, as plain data for the tokenizer to read."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from encoder_zoo.encoders.family import Family
from encoder_zoo.encoders.tokenizers import TokenizerClass
from encoder_zoo.encoders.tokenizers.choice import choose_tokenizer
from encoder_zoo.encoders.tokenizers.files import TokenizerFiles
from encoder_zoo.presets.files.plain_files import read_bytes, read_json, read_text
from encoder_zoo.presets.preset_files import TOKENIZER_JSON


class StoredTokenizer(NamedTuple):
    """A tokenizer that has not been made yet.

    Attributes:
        kind: which it is.
        files: that describe it.
    """

    kind: TokenizerClass
    files: TokenizerFiles

    def template(self, family: Family | None) -> dict[str, object]:
        """How it joins two texts, as arguments of its constructor.

        tokenizer.json counts, then what is usual for this kind. A family without segments has none
        with any tokenizer.

        Args:
            family: of the model that it feeds; None where that is not known.
        """
        said = self.files.template() or self.kind
        segments = said.uses_segments and (family is None or family.uses_segments)
        return {"uses_segments": segments, "pair_separators": said.pair_separators}


def read_stored_tokenizer(
    folder: pathlib.Path, config: Mapping, default: TokenizerClass | None
) -> StoredTokenizer:
    """Chooses the tokenizer that the files of a folder describe, and reads them.

    Args:
        folder: of a preset.
        config: contents of its config.json, {} where there is none.
        default: the kind that its family's checkpoints have, where the files do not say it.

    Raises:
        ValueError: naming the file and what is wrong with it, see `choose_tokenizer`.
    """
    files = TokenizerFiles(folder, _contents(folder, TOKENIZER_JSON))
    kind = choose_tokenizer(files, config, [path.name for path in folder.iterdir()], default)
    others = tuple(name for name in kind.files if name not in files)
    contents = {**files.contents, **_contents(folder, others)}
    return StoredTokenizer(kind, TokenizerFiles(folder, contents))


def read_tokenizer_files(folder: pathlib.Path, tokenizer: TokenizerClass) -> TokenizerFiles:
    """Reads the files of a folder that a tokenizer of a known kind may have.

    Args:
        folder: of a preset.
        tokenizer: the kind.

    Returns:
        Their contents: `tokenizer.load().from_files(...)` makes the tokenizer of them.

    Raises:
        ValueError: naming the file and what is wrong with it.
    """
    return TokenizerFiles(folder, _contents(folder, (*TOKENIZER_JSON, *tokenizer.files)))


def _contents(folder: pathlib.Path, names: tuple[str, ...]) -> dict[str, object]:
    contents = {}
    for name in names:
        path = folder / name
        if path.exists():
            read = {".json": read_json, ".model": read_bytes}.get(path.suffix, read_text)
            contents[name] = read(path)
    return contents
