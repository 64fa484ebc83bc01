"""Print which of the recorded repositories can be opened, from a local server.

    python tests/replay.py [--write FILE]

This script shows that every recorded layout can be read. The weights are tiny. To check the real
repositories over a network, use `tests/check_known.py`.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import tempfile

from fake_hub import Hub, environment
from replayed_hub import ENCODER, REPOSITORIES, write_repositories

SOURCE = "recorded file lists of 2024-2026, replayed with tiny weights"

# Fields that the replay cannot determine for the real repositories.
_NOT_REAL = {"commit": None, "parameters": None, "fetched": 0}


def replay(folder: pathlib.Path) -> dict[str, list]:
    """Check the recorded repositories in all formats of their weights.

    Args:
        folder: Path. Folder to write the repositories to.

    Returns:
        Dict {repository: list with a `Finding` per format}. Equal repositories are checked once.
    """
    from check_known import check_source

    folders = write_repositories(folder)
    hub = Hub({ENCODER: folder / ENCODER.replace("/", "-")})
    before = dict(os.environ)
    os.environ.update(environment(hub, folder))
    found: dict[pathlib.Path, object] = {}
    try:
        for name, formats in folders.items():
            for path in formats:
                if path not in found:
                    hub.folders[name] = path
                    found[path] = check_source(f"hf://{name}")
    finally:
        hub.stop()
        os.environ.clear()
        os.environ.update(before)
    return {name: [found[path] for path in formats] for name, formats in folders.items()}


def main() -> None:
    """Print the table. With --write, also store the results for the listed presets."""
    import check_known

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
        kept = {
            sources[name]: dataclasses.replace(found[0], source=f"hf://{name}", **_NOT_REAL)
            for name, found in findings.items()
            if name in sources
        }
        check_known.write_record(given.write, kept, SOURCE)
        record = json.loads(given.write.read_text("utf-8"))
        for recorded in REPOSITORIES:
            if (name := sources.get(recorded["repository"])) in record["presets"]:
                record["presets"][name]["evidence"] = recorded["evidence"]
        given.write.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
