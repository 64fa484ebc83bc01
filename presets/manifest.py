"""`encoder_zoo.json`: what a preset's other files do not say, and the checksums of them all."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Mapping

NAME = "encoder_zoo.json"


def write_manifest(folder: pathlib.Path, settings: Mapping) -> None:
    """Writes the manifest of a folder; call it when the folder's other files are written.

    Args:
        folder: holds the files to list.
        settings: what else to write, plain data.
    """
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
    }
    manifest = {**settings, "files": files}
    manifest["sha256"] = digest(manifest)
    (folder / NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def sha256(path: pathlib.Path) -> str:
    """The SHA-256 of a file's contents, as hexadecimal digits."""
    checksum = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            checksum.update(block)
    return checksum.hexdigest()


def digest(manifest: Mapping) -> str:
    """The SHA-256 of a manifest without its own `sha256`."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
