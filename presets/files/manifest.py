"""Read and write the manifest `encoder_zoo.json` and other files with a checksum.

The manifest contains the checksums of all files, and all settings that are not stored elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, BinaryIO

from encoder_zoo.common.version import __version__
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.presets.files.folder_files import FolderFiles, Subfolder, get_size
from encoder_zoo.presets.files.json_data import encode_json

MANIFEST_NAME = "encoder_zoo.json"
MANIFEST_FORMAT = 1
CARD = "README.md"  # not verified, because users can edit this file
# (subfolder, name). KerasHub's tokenizer and sentence-transformers' modules are in subfolders.
_SUBFOLDER = re.compile(r"(assets/tokenizer|(?:[A-Za-z]\w*_)?\d+_\w+)/")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".h5")
_PLAIN = "an object of null, booleans, numbers and strings, and lists or objects of these"


def write_manifest(folder: pathlib.Path, settings: Mapping, name: str = MANIFEST_NAME) -> None:
    """Write the folder manifest. All other files must be written first.

    Args:
        folder: Path. The folder, which contains all other files.
        settings: Dictionary of additional fields with plain data.
        name: String. Manifest file name. Defaults to "encoder_zoo.json".
    """
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": compute_checksum(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    versions = {"format": MANIFEST_FORMAT, "encoder_zoo": __version__}
    manifest = {**versions, **settings, "files": files}
    manifest["sha256"] = compute_manifest_digest(manifest)
    (folder / name).write_bytes(encode_json(manifest))


def read_manifest(files: FolderFiles, verify: bool, weights: bool = True) -> dict:
    """Read and verify the folder manifest.

    Args:
        files: The `FolderFiles` with the preset files.
        verify: Boolean. Whether to verify the checksums of all files.
        weights: Boolean. Whether to also verify files with weights. Defaults to True.

    Returns:
        A dictionary with the contents of the manifest, or {} if there is no manifest.

    Raises:
        ValueError: If a file is truncated, damaged or modified.
    """
    if MANIFEST_NAME not in files:
        return {}
    path = files.path / MANIFEST_NAME
    manifest = files.read_json(MANIFEST_NAME)
    _check_schema(manifest, path)
    if not verify:
        return manifest
    if manifest.get("sha256") != compute_manifest_digest(manifest):
        raise ValueError(_describe_change(path, "the checksum of this file does not match"))
    for name, entry in manifest["files"].items():
        if name != CARD and (weights or not name.endswith(_WEIGHTS)):
            found = _SUBFOLDER.match(name)
            folder, start = (Subfolder(files, found[1]), found.end()) if found else (files, 0)
            _check_entry(folder.open_file(name[start:], f"{path}: files"), entry)
    return manifest


def _check_schema(manifest: Mapping, path: pathlib.PurePath) -> None:
    """Check the type and value of every manifest field."""
    files: Any = manifest.get("files")
    kinds = {"bytes": int, "sha256": str}
    rate = manifest.get("learning_rate", 1e-5)
    for field, is_valid, words in (
        ("format", manifest.get("format") == MANIFEST_FORMAT, f"{MANIFEST_FORMAT}"),
        ("task", isinstance(manifest.get("task"), str), "a string"),
        ("learning_rate", type(rate) is float and 0 < rate < 1, "a number between 0 and 1"),
        ("preprocessor", _is_plain(manifest.get("preprocessor", {})), _PLAIN),
        ("head", _is_plain(manifest.get("head", {})), _PLAIN),
        ("files", isinstance(files, dict), "an object"),
    ):
        if not is_valid:
            raise invalid(f"{path}: {field}", manifest.get(field), words)
    for name, entry in files.items():
        good = isinstance(entry, dict) and all(type(entry.get(k)) is t for k, t in kinds.items())
        if not good:
            raise invalid(f"{path}: files: {quote(name)}", entry, "an object with bytes and sha256")


def _is_plain(settings: object) -> bool:
    """Return whether all values are plain data, or lists or dicts of plain data.

    Plain data are None, booleans, numbers and strings.
    """
    plain = (bool, int, float, str, type(None))

    def list_parts(value: object) -> list:
        if isinstance(value, dict):
            return list(value.values())
        return value if isinstance(value, list) else [value]

    return isinstance(settings, dict) and all(
        isinstance(part, plain) for value in settings.values() for part in list_parts(value)
    )


def _check_entry(file: BinaryIO, entry: Mapping) -> None:
    size = get_size(file)
    if size < entry["bytes"]:
        raise ValueError(
            f"{file.name} is truncated: the file has {size} bytes. Expected {entry['bytes']} bytes."
            " Download it again."
        )
    if size > entry["bytes"]:
        raise ValueError(
            _describe_change(file.name, f"the file has {size} bytes instead of {entry['bytes']}")
        )
    found = hash_file(file)
    if found != entry["sha256"]:
        expected = entry["sha256"][:12]
        change = f"the SHA-256 checksum is {found[:12]} instead of {expected}"
        raise ValueError(_describe_change(file.name, change))


def _describe_change(path: str | pathlib.PurePath, how: str) -> str:
    return (
        f"{path} is damaged or changed: {how}. Download the file again. If you changed it on "
        "purpose, load the preset with verify=False and save the preset again."
    )


def hash_file(file: BinaryIO, algorithm: str = "sha256", prefix: bytes = b"") -> str:
    """Compute the hexadecimal checksum of an open file, optionally after a prefix.

    Example:
        >>> import io
        >>> hash_file(io.BytesIO())[:12]
        'e3b0c44298fc'
    """
    bytes_file: Any = file  # `BinaryIO` does not declare `readinto`
    bytes_file.seek(0)
    return hashlib.file_digest(bytes_file, lambda: hashlib.new(algorithm, prefix)).hexdigest()


def compute_checksum(path: pathlib.Path, algorithm: str = "sha256", prefix: bytes = b"") -> str:
    """Compute the checksum of a file. See `hash_file`."""
    with open(path, "rb") as file:
        return hash_file(file, algorithm, prefix)


def compute_manifest_digest(manifest: Mapping) -> str:
    """Compute the manifest checksum without the field `sha256`.

    Example:
        >>> digest = compute_manifest_digest({"format": 1})
        >>> compute_manifest_digest({"format": 1, "sha256": "..."}) == digest
        True
    """
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
