"""Prints which of the recorded repositories open, from a server on this machine.

    python tests/replay.py [--write FILE]

It shows that the code reads every layout on record. The weights are tiny: what the numbers in the
real repositories are, `python -m encoder_zoo.presets.check_known` looks at, with a network.
"""

import argparse
import os
import pathlib
import tempfile

from fake_hub import Hub, environment
from replayed_hub import REPOSITORIES, write_repositories

SOURCE = "recorded file lists of 2024-2026, replayed with tiny weights"


def replay(folder: pathlib.Path, names: list[str] | None = None) -> dict[str, list]:
    """Checks recorded repositories, in each of the formats that their weights may have.

    Args:
        folder: to write them to.
        names: of the repositories; None is all of them.

    Returns:
        {repository: a `Finding` for each format}.
    """
    from encoder_zoo.presets.check_known import check_source

    folders = write_repositories(folder)
    hub = Hub({})
    before = dict(os.environ)
    os.environ.update(environment(hub, folder))
    findings: dict[str, list] = {}
    try:
        for name in names or folders:
            for hub.folders[name] in folders[name]:
                findings.setdefault(name, []).append(check_source(f"hf://{name}"))
    finally:
        hub.stop()
        os.environ.clear()
        os.environ.update(before)
    return findings


def main() -> None:
    """Prints the table; with --write, also keeps what was found of the listed presets."""
    from encoder_zoo.presets import check_known
    from encoder_zoo.presets.registry import list_presets

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=pathlib.Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        findings = replay(pathlib.Path(folder))
    print("repository | asked for | evidence | layout | formats | opens")
    for recorded in REPOSITORIES:
        found = findings[recorded["repository"]]
        why = [f.why_not for f in found if not f.opens]
        cells = [recorded["repository"], recorded["asked_for"], recorded["evidence"] or "none"]
        cells += [recorded["layout"], " or ".join(recorded["weights"]), why[0] if why else "yes"]
        print(" | ".join(cells))
    if given.write:
        sources = {row.source.removeprefix("hf://"): row.name for row in list_presets()}
        evidence = {r["repository"]: r["evidence"] for r in REPOSITORIES}
        kept = {sources[name]: found[0] for name, found in findings.items() if name in sources}
        check_known.write_record(given.write, kept, SOURCE, evidence)


if __name__ == "__main__":
    main()
