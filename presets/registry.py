"""The list of presets, and the local folder of a preset's name or address."""

from __future__ import annotations

import functools
import html
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from encoder_zoo.common.wording import close_names, did_you_mean

BUNDLED = pathlib.Path(__file__).parent / "data"
KNOWN = BUNDLED / "known"

# organisation/name[@revision], as the hub allows them.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


class PresetInfo(NamedTuple):
    """One row of `list_presets()`.

    Attributes:
        name: for `from_preset`.
        family: "bert", "xlm-roberta" or another of `encoders.FAMILIES`.
        parameters: number of weights of encoder and pooler.
        languages: codes of ISO 639, or "multi" and their number.
        licence: of the weights, as their publisher states it.
        source: "bundled", or the address of the repository.
        description: of the model.
    """

    name: str
    family: str
    parameters: int
    languages: str
    licence: str
    source: str
    description: str


class PresetTable(Sequence[PresetInfo]):
    """Rows of `list_presets()`, shown as a table, also in notebooks."""

    def __init__(self, rows: list[PresetInfo]):
        self._rows = rows

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def _cells(self) -> list[list[str]]:
        rows = [row._replace(parameters=f"{row.parameters / 1e6:.1f} M") for row in self._rows]
        return [[str(value) for value in row] for row in rows]

    def __repr__(self) -> str:
        fields = PresetInfo._fields
        return format_table([fields, *self._cells()], fields.index("parameters"))

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{inner}</tr>"

        body = "".join(row(cells, "td") for cells in self._cells())
        return f"<table><thead>{row(PresetInfo._fields, 'th')}</thead><tbody>{body}</tbody></table>"


def format_table(rows: Sequence[Sequence[str]], right: int) -> str:
    """Return rows as lines of aligned columns.

    Args:
        rows: of cells.
        right: index of the column that is aligned to the right.

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
    """Return the presets that have a name: those in the package, and well-known ones on the hub.

    Any other checkpoint of these families loads by its folder or address.

    Returns:
        A sequence of `PresetInfo`, the bundled ones first, shown as a table.

    Example:
        >>> [row.parameters for row in list_presets() if row.name == "bert_base_en_uncased"]
        [109482240]
    """
    rows = []
    for name, entry in _entries().items():
        row = PresetInfo(name, **{field: v for field, v in entry.items() if field != "embedding"})
        if row.source != "bundled" or (BUNDLED / row.name / "config.json").exists():
            rows.append(row)
    rows.sort(key=lambda row: (row.source != "bundled", row.family, row.parameters))
    return PresetTable(rows)


@functools.cache
def _entries() -> dict[str, dict]:
    """Return {name: contents of its file}. It is cached, so do not change it."""
    paths = sorted(KNOWN.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def listed_settings(source: str | os.PathLike[str]) -> dict[str, object]:
    """Return the settings of embeddings that the list holds where a repository does not.

    Args:
        source: as for `resolve`; of a listed repository also at any revision.

    Returns:
        `prompts`, `default_prompt`, `pooling` or `normalize`, if the list has them.

    Example:
        >>> listed_settings("hf://intfloat/e5-base-v2")["prompts"]["query"]
        'query: '
    """
    return listed_entry(os.fspath(source)).get("embedding", {})


def listed_entry(name: str) -> dict:
    """Return the contents of the file of a listed preset; {} of any other.

    Args:
        name: in the list, or the address of its repository, at any revision.

    Example:
        >>> listed_entry("hf://google-bert/bert-base-uncased")["licence"], listed_entry("mine")
        ('Apache-2.0', {})
    """
    repository = name.removeprefix("hf://").split("@")[0]
    for known, entry in _entries().items():
        if name == known or f"hf://{repository}" == entry["source"]:
            return entry
    return {}


def resolve(
    source: str | os.PathLike[str],
    verify: bool = True,
    max_bytes: int = 2**63,
    weights: bool = True,
) -> pathlib.Path:
    """Return the local folder of a preset, downloaded if needed.

    Args:
        source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, also
            without `hf://` if there is no such folder, or
            `kaggle://organisation/model/keras/variant[/version]`.
        verify: whether to verify the checksums of downloads.
        max_bytes: limit of the size of a download.
        weights: whether to download the weights from the Hugging Face hub.

    Raises:
        ValueError: If there is no such preset.
    """
    from encoder_zoo.presets import hub

    presets = {row.name: row for row in list_presets()}
    name = os.fspath(source)
    if (BUNDLED / name / "config.json").is_file() and os.path.basename(name) == name:
        return BUNDLED / name
    if _entries().get(name, {}).get("source") == "bundled":
        raise ValueError(
            f"The preset {name!r} is in the repository, not in the wheel. Install from a clone "
            f"with `pip install -e .`, or give the path of its folder there, presets/data/{name}."
        )
    if name in presets:
        name = presets[name].source
    if name.startswith("hf://"):
        return hub.from_hugging_face(name, verify, max_bytes, weights)
    if name.startswith("kaggle://"):
        return hub.from_kaggle(name)
    folder = pathlib.Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is a file. Expected a preset's folder.")
    if REPOSITORY.fullmatch(name):
        try:
            return hub.from_hugging_face(f"hf://{name}", verify, max_bytes, weights)
        except ValueError as error:
            raise ValueError(f"There is no folder {name!r}, and on the hub: {error}") from None
    raise ValueError(f"No preset '{name}'.{_hint(name, presets)}")


def _hint(name: str, presets: Mapping[str, PresetInfo]) -> str:
    """Return a hint with presets of the same repository or with similar names."""
    same = [known for known, row in presets.items() if row.source.endswith(f"/{name}")]
    own = name.split("/")[-1].replace("-", "_")
    begun = [known for known in presets if known.startswith(own)]
    close = same or begun or close_names(own, presets, most=3, least=0.5)
    names = "Names are in list_presets(); any other must be an existing folder."
    return f"{did_you_mean(close[:5])} {names}"
