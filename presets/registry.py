"""List all known presets, and find the local folder for a preset name or address."""

from __future__ import annotations

import functools
import html
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from encoder_zoo.common.validation import FilePath, validate_arguments
from encoder_zoo.common.wording import find_close_names, suggest_names

BUNDLED_FOLDER = pathlib.Path(__file__).parent / "data"
KNOWN_FOLDER = BUNDLED_FOLDER / "known"

# organisation/name[@revision], as allowed on the hub.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


class PresetInfo(NamedTuple):
    """Row in the table of `list_presets()`.

    Attributes:
        name: String. The name to pass to `from_preset`.
        family: String. Encoder family, such as "bert" or "xlm-roberta".
        task: String. The class whose weights the checkpoint contains, such as "TextEmbedder", or
            "Backbone" for a checkpoint without a head. If the checkpoint is loaded as a different
            task, the head starts from random weights.
        parameters: Integer. The number of weights in the encoder and the pooler.
        languages: String. ISO 639 codes, or "multi" and the number of languages. "zxx" stands for
            sequences without a language, such as proteins.
        licence: String. The licence of the weights according to the publisher.
        source: String. "bundled", or a repository address.
        description: String. A short description of the model.
        verified: Boolean. Whether the layout of the files was checked on the page of the
            repository. If False, the layout was assumed from similar checkpoints. If the assumption
            is wrong, loading raises an error that names the file and the key. Defaults to True.
    """

    name: str
    family: str
    task: str
    parameters: int
    languages: str
    licence: str
    source: str
    description: str
    verified: bool = True


class PresetTable(Sequence[PresetInfo]):
    """Sequence of `PresetInfo` that is displayed as a table in terminals and notebooks."""

    def __init__(self, rows: list[PresetInfo]):
        self._rows = rows

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def _format_cells(self) -> list[list[str]]:
        rows = [row._replace(parameters=f"{row.parameters / 1e6:.1f} M") for row in self._rows]
        return [[str(value) for value in row] for row in rows]

    def __repr__(self) -> str:
        fields = PresetInfo._fields
        return format_table([fields, *self._format_cells()], fields.index("parameters"))

    def _repr_html_(self) -> str:
        def format_row(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{inner}</tr>"

        head = format_row(PresetInfo._fields, "th")
        body = "".join(format_row(cells, "td") for cells in self._format_cells())
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def format_table(rows: Sequence[Sequence[str]], right: int) -> str:
    """Format rows as lines of text with aligned columns.

    Args:
        rows: List of lists of strings. Table cells.
        right: Integer. The index of the column to align to the right.

    Example:
        >>> print(format_table([["name", "size"], ["bert", "9"]], right=1))
        name  size
        bert     9
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if i == right else "<" for i in range(len(widths))]
    lines = [
        [f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)]
        for row in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def list_presets() -> PresetTable:
    """List all presets with a name: bundled presets and well-known models on the hub.

    Other checkpoints for supported families can be loaded from a folder or an address.

    Returns:
        A sequence of `PresetInfo`, displayed as a table. Bundled presets come first.

    Example:
        >>> [row.parameters for row in list_presets() if row.name == "bert_base_en_uncased"]
        [109482240]
    """
    rows = []
    for name, entry in _read_entries().items():
        row = PresetInfo(name, **{field: v for field, v in entry.items() if field != "embedding"})
        if row.source != "bundled" or (BUNDLED_FOLDER / row.name / "config.json").exists():
            rows.append(row)
    rows.sort(key=lambda row: (row.source != "bundled", row.family, row.parameters))
    return PresetTable(rows)


@functools.cache
def _read_entries() -> dict[str, dict]:
    """Read the list of presets as a dict {name: entry}. The cached result must not be modified."""
    paths = sorted(KNOWN_FOLDER.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def get_listed_settings(source: str | os.PathLike[str]) -> dict[str, object]:
    """Return the embedding settings that the repository of a listed preset does not contain.

    Args:
        source: String or path, as in `fetch_preset`. The revision of a repository is ignored.

    Returns:
        A dict that can contain `prompts`, `default_prompt`, `pooling` and `normalize`.

    Example:
        >>> get_listed_settings("hf://intfloat/e5-base-v2")["prompts"]["query"]
        'query: '
    """
    return get_listed_entry(os.fspath(source)).get("embedding", {})


def get_listed_entry(name: str) -> dict:
    """Return the list entry for a preset, or {} for an unlisted preset.

    Args:
        name: String. The name in the list, or address of the repository with any revision.

    Example:
        >>> get_listed_entry("hf://google-bert/bert-base-uncased")["licence"]
        'Apache-2.0'
        >>> get_listed_entry("mine")
        {}
    """
    repository = name.removeprefix("hf://").split("@")[0]
    for known, entry in _read_entries().items():
        if name == known or f"hf://{repository}" == entry["source"]:
            return entry
    return {}


@validate_arguments
def fetch_preset(
    source: FilePath, verify: bool = True, max_bytes: int = 2**63, weights: bool = True
) -> pathlib.Path:
    """Return the local preset folder, and download missing files.

    Args:
        source: String or path. A name in `list_presets()`, a folder,
            `hf://organisation/name[@revision]`, or
            `kaggle://organisation/model/keras/variant[/version]`. `hf://` can be omitted if no
            folder has the same path.
        verify: Boolean. Whether to verify the checksums of downloaded files. Defaults to True.
        max_bytes: Integer. The maximum download size in bytes. Defaults to 2**63.
        weights: Boolean. Whether to download the weights from the Hugging Face Hub. Defaults to
            True.

    Returns:
        The path to the folder.

    Raises:
        ValueError: If `source` does not exist or cannot be downloaded.
    """
    from encoder_zoo.presets import hub

    name = os.fspath(source)
    if (BUNDLED_FOLDER / name / "config.json").is_file() and os.path.basename(name) == name:
        return BUNDLED_FOLDER / name
    address = _read_entries().get(name, {}).get("source", name)
    if address == "bundled" != name:
        raise ValueError(
            f"The preset {name!r} is not part of the wheel, only of the repository. Install from a "
            f"clone with `pip install -e .`, or pass the path of the folder presets/data/{name}."
        )
    if address.startswith("hf://"):
        return hub.download_from_hugging_face(address, verify, max_bytes, weights)
    if address.startswith("kaggle://"):
        return hub.download_from_kaggle(address)
    folder = pathlib.Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is a file. Expected a folder with a preset.")
    if REPOSITORY.fullmatch(name):
        try:
            return hub.download_from_hugging_face(f"hf://{name}", verify, max_bytes, weights)
        except ValueError as error:
            raise ValueError(
                f"The folder {name!r} does not exist, and loading it from the Hugging Face Hub "
                f"failed: {error}"
            ) from None
    raise ValueError(f"The preset '{name}' does not exist.{_suggest_presets(name)}")


def _suggest_presets(name: str) -> str:
    """Suggest presets of the same repository or with a similar name in an error message."""
    presets = {row.name: row.source for row in list_presets()}
    same = [known for known, source in presets.items() if source.endswith(f"/{name}")]
    own = name.split("/")[-1].replace("-", "_")
    begun = [known for known in presets if known.startswith(own)]
    close = same or begun or find_close_names(own, presets, max_names=3, cutoff=0.5)
    names = "Expected a name in list_presets() or an existing folder."
    return f"{suggest_names(close[:5])} {names}"
