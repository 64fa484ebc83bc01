"""The list of presets, and from a preset's name or address to a local folder."""

from __future__ import annotations

import difflib
import html
import json
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

BUNDLED = pathlib.Path(__file__).parent / "data"
KNOWN = BUNDLED / "known"

# organisation/name[@revision], as the hub allows them.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")


class PresetInfo(NamedTuple):
    """One line of `list_presets()`.

    Attributes:
        name: what `from_preset` takes.
        family: "bert", "xlm-roberta" or another of `encoders.FAMILIES`.
        parameters: number of weights in encoder and pooler.
        languages: codes of ISO 639, or "multi" and how many.
        licence: of the weights, as their publisher states it.
        source: "bundled", or the address of the repository they are in.
        description: what they are.
    """

    name: str
    family: str
    parameters: int
    languages: str
    licence: str
    source: str
    description: str


class PresetTable(Sequence):
    """Lines of `list_presets()`; prints as a table, in notebooks too."""

    def __init__(self, rows: list[PresetInfo]):
        self._rows = rows

    def __getitem__(self, index):
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def _cells(self) -> list[list[str]]:
        return [[_shown(value) for value in row] for row in self._rows]

    def __repr__(self) -> str:
        lines = [list(PresetInfo._fields), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        # Numbers stand right, words left.
        align = [">" if field == "parameters" else "<" for field in PresetInfo._fields]
        return "\n".join(
            "  ".join(
                f"{cell:{side}{width}}"
                for cell, side, width in zip(line, align, widths, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            inner = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{inner}</tr>"

        body = "".join(row(cells, "td") for cells in self._cells())
        return f"<table><thead>{row(PresetInfo._fields, 'th')}</thead><tbody>{body}</tbody></table>"


def list_presets() -> PresetTable:
    """Return the presets that have a name: those in the package, and well-known ones on the hub.

    Any other checkpoint of these families loads by its folder or address all the same.

    Returns:
        A sequence of `PresetInfo`, the bundled ones first, that prints as a table.

    Example:
        >>> [row.parameters for row in list_presets() if row.name == "bert_base_en_uncased"]
        [109482240]
    """
    rows = []
    for path in sorted(KNOWN.glob("*.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        row = PresetInfo(path.stem, **entry)
        if row.source != "bundled" or (BUNDLED / row.name / "config.json").exists():
            rows.append(row)
    return PresetTable(sorted(rows, key=_order))


def _order(row: PresetInfo) -> tuple:
    return (row.source != "bundled", row.family, row.parameters)


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"{value / 1e6:.1f} M"
    return str(value)


def resolve(
    source: str | os.PathLike, verify: bool = True, max_bytes: int = 2**63, weights: bool = True
) -> pathlib.Path:
    """Return the folder behind a preset's name or address.

    Args:
        source: a name of `list_presets()`, a folder, `hf://organisation/name[@revision]`, also
            without the `hf://` where there is no such folder, or
            `kaggle://organisation/model/keras/variant[/version]`.
        verify: whether to compare what a hub sent with its checksums.
        max_bytes: the most that a download may have.
        weights: whether the weights are needed; without them, none are downloaded from the
            Hugging Face hub.

    Returns:
        The folder.

    Raises:
        ValueError: "No preset 'bert_nano'. Did you mean 'bert_nano_en_uncased'? ..."
    """
    from encoder_zoo.presets import hub

    presets = {row.name: row for row in list_presets()}
    name = os.fspath(source)
    if (BUNDLED / name / "config.json").is_file() and os.path.basename(name) == name:
        return BUNDLED / name
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
    """Return a preset of the same repository, or with a similar name."""
    same = [known for known, row in presets.items() if row.source.endswith(f"/{name}")]
    own = name.split("/")[-1].replace("-", "_")
    close = same or difflib.get_close_matches(own, presets, n=3, cutoff=0.5)
    meant = f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return f"{meant} Names are in list_presets(); any other must be an existing folder."
