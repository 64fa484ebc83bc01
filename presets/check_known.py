"""Checks that the presets of `list_presets()` open, without downloading them.

    python -m encoder_zoo.presets.check_known [NAME ...] [--write FILE]

needs a network. Of every listed Hugging Face repository it opens the configuration, the tokenizer's
files and the headers of the weights, a few hundred kilobytes, in the way `from_preset` does, and
prints which open, and why others do not. It exits with 1 if one does not. `--write` keeps what was
found: `tests/recorded/known_presets.json` is the newest such file.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence

from encoder_zoo.presets.hub import open_remote
from encoder_zoo.presets.loading import check_loads
from encoder_zoo.presets.opening import Safeguards, open_files
from encoder_zoo.presets.registry import PresetInfo, list_presets

_HUB = "hf://"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The findings about one preset.

    Attributes:
        source: address of its repository.
        opens: whether `from_preset` would load it.
        why_not: the error, where it would not.
        commit: that was looked at.
        weights: names of the files with the weights.
        family: of the model.
        parameters: number of weights in encoder and pooler.
        fetched: bytes that were fetched.
    """

    source: str
    opens: bool
    why_not: str | None = None
    commit: str | None = None
    weights: tuple[str, ...] = ()
    family: str | None = None
    parameters: int | None = None
    fetched: int = 0


def check_preset(preset: PresetInfo) -> Finding:
    """Check one preset on the hub against its entry in the list.

    Args:
        preset: a row of `list_presets()` whose source is `hf://...`.

    Returns:
        What was found. Any error is part of it.
    """
    found = check_source(preset.source)
    for field in ("family", "parameters"):
        listed, seen = getattr(preset, field), getattr(found, field)
        if found.opens and seen != listed:
            why_not = f"{field} is {seen} there, but {listed} in the list"
            found = dataclasses.replace(found, opens=False, why_not=why_not)
    return found


def check_source(source: str) -> Finding:
    """Checks one repository on the hub.

    Args:
        source: `hf://organisation/name[@revision]`.

    Returns:
        What was found. Any error is part of it.
    """
    found = Finding(source, opens=False)
    try:
        with open_remote(source) as files:
            weights = tuple(name for name in files.listed if _holds_weights(name))
            found = dataclasses.replace(found, commit=files.commit, weights=weights)
            try:
                checkpoint = open_files(files, Safeguards(verify=False))
                found = dataclasses.replace(found, family=checkpoint.family.name)
                parameters = check_loads(checkpoint)
                found = dataclasses.replace(found, opens=True, parameters=parameters)
            finally:
                found = dataclasses.replace(found, fetched=files.fetched)
    except Exception as error:  # of the hub, the connection or the files
        reason = " ".join(str(error).split()) or type(error).__name__
        found = dataclasses.replace(found, why_not=reason)
    return found


def _holds_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", ".h5"))


def print_table(findings: dict[str, Finding]) -> None:
    """Prints a line for each preset.

    Args:
        findings: {name: what was found}.

    Example:
        >>> print_table({"some": Finding("hf://a/b", False, "no model.safetensors ...")})
        preset  repository  commit  weights  fetched  opens
        some    hf://a/b    -       -           0 kB  no: no model.safetensors ...
    """
    rows = [("preset", "repository", "commit", "weights", "fetched", "opens")]
    for name, found in findings.items():
        weights = found.weights[0] if found.weights else "-"
        opens = "yes" if found.opens else f"no: {found.why_not}"
        fetched = f"{found.fetched / 1e3:.0f} kB"
        rows.append((name, found.source, (found.commit or "-")[:8], weights, fetched, opens))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{'>' if i == 4 else '<'}{widths[i]}}" for i, cell in enumerate(row[:-1])]
        print("  ".join([*cells, row[-1]]))


def write_record(path: pathlib.Path, findings: Mapping[str, Finding], source: str) -> None:
    """Writes what was found, and today's date, as JSON.

    Args:
        path: of the file.
        findings: {name: what was found}.
        source: where it was found.
    """
    presets = {name: dataclasses.asdict(findings[name]) for name in sorted(findings)}
    record = {"date": datetime.date.today().isoformat(), "source": source, "presets": presets}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        arguments: of the command line, sys.argv's if None.

    Returns:
        1 if a preset does not open, else 0.
    """
    parser = argparse.ArgumentParser(prog="encoder_zoo.presets.check_known", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help="of presets; all if none is given")
    parser.add_argument(
        "--write", type=pathlib.Path, metavar="FILE", help="to keep the findings in"
    )
    given = parser.parse_args(arguments)
    findings = {}
    for preset in _chosen(given.names):
        print(f"{preset.name} ...", file=sys.stderr, flush=True)
        findings[preset.name] = check_preset(preset)
    print_table(findings)
    if given.write:
        write_record(given.write, findings, "the hub")
    failed = sum(not found.opens for found in findings.values())
    print(f"{len(findings) - failed} of {len(findings)} open.")
    return 1 if failed else 0


def _chosen(names: Iterable[str]) -> list[PresetInfo]:
    """Return the listed presets of these names, or all, that are on the Hugging Face hub."""
    known = {row.name: row for row in list_presets() if row.source.startswith(_HUB)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: no preset on the Hugging Face hub is called so.")
    return [known[name] for name in names] if names else list(known.values())


if __name__ == "__main__":
    sys.exit(main())
