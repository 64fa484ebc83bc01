"""Checks that the presets of `list_presets()` open, without downloading them.

    python tests/check_known.py [NAME ...] [--write FILE]

It needs a network. As `from_preset` does, it opens the configuration, the tokenizer files and the
headers of the weights of every listed Hugging Face repository, a few hundred kilobytes, and prints
which open, and the errors of others. It exits with 1 if one does not open. `--write` writes the
findings: `tests/recorded/known_presets.json` is the latest such file.
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
from encoder_zoo.presets.registry import PresetInfo, format_table, list_presets

_HUB = "hf://"
_WEIGHTS = (".safetensors", ".bin", ".h5")


@dataclasses.dataclass
class Finding:
    """The findings about one preset.

    Attributes:
        source: address of its repository.
        opens: whether `from_preset` loads it.
        why_not: the error, if it does not.
        commit: the checked commit.
        weights: names of the files with the weights.
        family: of the model.
        parameters: number of weights of encoder and pooler.
        fetched: bytes that were fetched.
    """

    source: str
    opens: bool = False
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
        The findings, with any error.
    """
    found = check_source(preset.source)
    for field in ("family", "parameters"):
        listed, seen = getattr(preset, field), getattr(found, field)
        if found.opens and seen != listed:
            found.opens = False
            found.why_not = f"{field} is {seen} there, but {listed} in the list"
    return found


def check_source(source: str) -> Finding:
    """Check one repository on the hub.

    Args:
        source: `hf://organisation/name[@revision]`.

    Returns:
        The findings, with any error.
    """
    found = Finding(source)
    try:
        with open_remote(source) as files:
            found.commit = files.commit
            found.weights = tuple(n for n in files.listed if n.endswith(_WEIGHTS))
            try:
                checkpoint = open_files(files, Safeguards(verify=False))
                found.family = checkpoint.family.name
                found.parameters = check_loads(checkpoint)
                found.opens = True
            finally:
                found.fetched = files.fetched
    except Exception as error:  # of the hub, the connection or the files
        found.why_not = " ".join(str(error).split()) or type(error).__name__
    return found


def print_table(findings: dict[str, Finding]) -> None:
    """Print a row for each preset.

    Args:
        findings: {name of the preset: finding}.

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
    print(format_table(rows, right=4))


def write_record(path: pathlib.Path, findings: Mapping[str, Finding], source: str) -> None:
    """Write findings and today's date as JSON.

    Args:
        path: of the file.
        findings: {name of the preset: finding}.
        source: of the findings, such as "the hub".
    """
    presets = {name: dataclasses.asdict(findings[name]) for name in sorted(findings)}
    record = {"date": datetime.date.today().isoformat(), "source": source, "presets": presets}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program.

    Args:
        arguments: of the command line; None for those of `sys.argv`.

    Returns:
        1 if a preset does not open, else 0.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help="of presets; all if none is given")
    parser.add_argument(
        "--write", type=pathlib.Path, metavar="FILE", help="to write the findings to"
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
        raise SystemExit(f"{', '.join(unknown)}: no preset on the Hugging Face hub has this name.")
    return [known[name] for name in names] if names else list(known.values())


if __name__ == "__main__":
    sys.exit(main())
