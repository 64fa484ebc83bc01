"""Files of a preset, opened as what they are: plain data under plain names, from a stranger."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable

from encoder_zoo.encoders.wording import decoded, shown
from encoder_zoo.presets.files.json_data import (
    SETTINGS,
    VOCABULARY,
    parse_object,
)

TEXT_BYTES = 32 * 2**20  # of a vocabulary: that of 900,000 tokens has 18 MB
_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocabulary.json")
_LFS = b"version https://git-lfs"


def preset_file(
    folder: pathlib.Path, name: str, named_in: str = "", inside: str = ""
) -> pathlib.Path:
    """The path of a file that must lie in the preset's folder.

    Args:
        folder: of the preset.
        name: a file's name without any folder.
        named_in: file and field that the name is from, for the error.
        inside: folder in the preset that holds the file, for formats with more than one.

    Returns:
        The path of an existing regular file.

    Raises:
        ValueError: "...: '../x' is not a plain file name ...", "... is a link out of the preset",
            "...: file not found", "... is a Git-LFS pointer ..."
    """
    if not is_plain(name):
        raise ValueError(
            f"{named_in or folder}: {shown(name)} is not a plain file name in the preset."
        )
    path = folder / inside / name
    if not path.exists():
        by = f" {named_in} names it." if named_in else ""
        raise ValueError(f"{path}: file not found.{by}")
    _check_link(folder, path)
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file.")
    with open(path, "rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise ValueError(
                f"{path} is a Git-LFS pointer, not the file itself. Run `git lfs pull` in the "
                "repository it is from, or download the file from the hub."
            )
    return path


def is_plain(name: object) -> bool:
    """Whether a name stands for a file in the folder at hand and nowhere else.

    Example:
        >>> [is_plain(name) for name in ("vocab.txt", "../vocab.txt", "a/b", "C:x", "a\\0")]
        [True, False, False, False, False]
    """
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and re.search(r"[/\\:\x00-\x1f]", name) is None
    )


def check_files(folder: pathlib.Path, patterns: Iterable[str]) -> None:
    """Looks at every file of the preset before any is used.

    Args:
        folder: of the preset.
        patterns: of the names of its files; others in the folder are nobody's business here.

    Raises:
        ValueError: see `preset_file` and `read_json`.
    """
    for path in sorted(folder.iterdir()):
        if any(path.match(pattern) for pattern in patterns):
            preset_file(folder, path.name)
            if path.suffix == ".json":
                read_json(path)


def _check_link(folder: pathlib.Path, path: pathlib.Path) -> None:
    real, home = path.resolve(), folder.resolve()
    allowed = [home]
    # The hub's cache keeps the contents beside the snapshots, or beside the repositories, and
    # links to them.
    if home.parent.name == "snapshots" and home.parents[1].name.startswith("models--"):
        allowed += [home.parents[1] / "blobs", home.parents[2] / "blobs"]
    if not any(place in real.parents for place in allowed):
        raise ValueError(
            f"{path} is a link out of the preset, to {real}. Put the file itself into the folder."
        )


def read_json(path: pathlib.Path) -> dict:
    """A JSON object from a file, as plain data.

    Raises:
        ValueError: "...: file not found", "... has 300000000 bytes ...", and see `parse_object`.
    """
    limit = VOCABULARY if path.name in _VOCABULARIES else SETTINGS
    return parse_object(_read(path, limit.content), path, limit)


def read_text(path: pathlib.Path) -> str:
    """The text in a file.

    Raises:
        ValueError: "...: file not found", "... has 3000000000 bytes ...", "... is not text in
            UTF-8: ..."
    """
    return decoded(_read(path, TEXT_BYTES), path)


def read_bytes(path: pathlib.Path) -> bytes:
    """The bytes in a file.

    Raises:
        ValueError: "...: file not found", "... has 3000000000 bytes ..."
    """
    return _read(path, TEXT_BYTES)


def _read(path: pathlib.Path, most: int) -> bytes:
    path = preset_file(path.parent, path.name)
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{path} has {size} bytes. Expected at most {most}.")
    with open(path, "rb") as file:
        return file.read(most)
