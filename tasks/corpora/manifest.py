"""`corpus.json`, which describes the files of a corpus."""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import TYPE_CHECKING

from encoder_zoo.common.wording import shown
from encoder_zoo.presets.files.manifest import digest
from encoder_zoo.presets.files.open_folder import OpenFolder

if TYPE_CHECKING:
    from encoder_zoo.encoders.tokenizers.tokenizer import Tokenizer

NAME = "corpus.json"
FORMAT = 1
COUNTS = ("tokens", "sentences", "documents")
PART = "part"  # (i, n) of a part of a corpus; None of a whole one


def described_tokenizer(tokenizer: Tokenizer) -> dict:
    """Return class, size, and a checksum of all settings of a tokenizer."""
    config = json.dumps(tokenizer.get_config(), sort_keys=True).encode()
    return {
        "class": type(tokenizer).__name__,
        "vocabulary_size": tokenizer.vocabulary_size,
        "sha256": hashlib.sha256(config).hexdigest(),
    }


def read_manifest(folder: pathlib.Path) -> dict:
    """Return the contents of `corpus.json`, checked; {} if there is none.

    Raises:
        ValueError: "...: ... Expected ...", "... is damaged or changed"
    """
    if not folder.is_dir():
        return {}
    with OpenFolder(folder, [NAME]) as files:
        return manifest_in(files)


def manifest_in(files: OpenFolder) -> dict:
    """Return the contents of `corpus.json` in an open folder, checked; {} if there is none."""
    if NAME not in files:
        return {}
    path = files.path / NAME
    manifest = files.read_json(NAME)
    if manifest.get("format") != FORMAT:
        found = shown(manifest.get("format"))
        raise ValueError(f"{path}: format is {found}. Expected {FORMAT}, which this version reads.")
    if manifest.get("sha256") != digest(manifest) or not _is_sound(manifest):
        raise damaged(path)
    return manifest


def _is_sound(manifest: dict) -> bool:
    """Return whether all required fields exist and have their types."""
    numbers = dict.fromkeys(("bytes", *COUNTS), int)
    kinds = {"file": str, "sha256": str, **numbers}
    try:
        size = manifest["tokenizer"]["vocabulary_size"]
        whole = isinstance(manifest["complete"], bool) and type(size) is int and size > 0
        if not manifest["complete"]:
            kinds["position"] = list  # from where it is continued
        fields = [(s[name], kind) for s in manifest["shards"] for name, kind in kinds.items()]
        return whole and all(type(value) is kind for value, kind in fields)
    except (KeyError, TypeError):
        return False


def damaged(path: str | pathlib.Path) -> ValueError:
    """Return the error for a file whose size or checksum differs."""
    return ValueError(
        f"{path} is damaged or changed: its size or checksum is another. Make the corpus anew, in "
        "another folder."
    )
