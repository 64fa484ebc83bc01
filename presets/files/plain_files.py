"""Files of a preset, opened as what they are: plain data under plain names, from a stranger."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable, Iterator

JSON_BYTES = 256 * 2**20
# Layers of Keras that run whatever code or program a file holds.
_CODE = {"Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"}
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
        raise ValueError(f"{named_in or folder}: {name!r} is not a plain file name in the preset.")
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
        ValueError: "...: file not found", "...: not readable as JSON: ...", "...: expected a JSON
            object ...", "...: class_name 'Lambda' ..."
    """
    path = preset_file(path.parent, path.name)
    size = path.stat().st_size
    if size > JSON_BYTES:
        raise ValueError(f"{path} has {size} bytes. Expected at most {JSON_BYTES}.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path}: not readable as JSON: nested too deeply.") from None
    except ValueError as error:
        reason = error if size else "the file is empty"
        raise ValueError(f"{path}: not readable as JSON: {reason}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object. Received: {type(value).__name__}.")
    for field, name in _class_names(value):
        if name in _CODE:
            raise ValueError(
                f"{path}: {field} is {name!r}, a layer that runs code from the file. "
                "Presets are plain data; such a one is never opened."
            )
    return value


def read_text(path: pathlib.Path) -> str:
    """The text in a file.

    Raises:
        ValueError: "...: file not found", "... is not text in UTF-8: ..."
    """
    path = preset_file(path.parent, path.name)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8: {error}.") from None


def read_bytes(path: pathlib.Path) -> bytes:
    """The bytes in a file.

    Raises:
        ValueError: "...: file not found"
    """
    return preset_file(path.parent, path.name).read_bytes()


def _class_names(value: object) -> Iterator[tuple[str, str]]:
    """Every `class_name` in nested data, with the path of its field."""
    waiting = [("", value)]
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, dict):
            name = value.get("class_name")
            if isinstance(name, str):
                yield f"{field}.class_name".lstrip("."), name
            waiting += [(f"{field}.{key}", v) for key, v in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{field}[{i}]", v) for i, v in enumerate(value)]
