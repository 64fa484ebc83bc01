"""Write `.ci/constraints.txt`: the versions with which the tests were run last.

    .venv/bin/python .ci/constraints.py         # writes the file
    PIP_CONSTRAINT=.ci/constraints.txt .ci/run  # installs these versions and runs all tests

The file contains all packages that the extra `test` installs, directly or because another package
requires them. Run this script in the environment in which all tests have passed.
"""

import importlib.metadata
import pathlib
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FILE = pathlib.Path(__file__).with_name("constraints.txt")
PACKAGE = "encoder-zoo"


def find_requirements(name: str, extras: frozenset[str] = frozenset()) -> Iterator[Requirement]:
    """Yield what an installed package requires in this environment, with the given extras."""
    for text in importlib.metadata.requires(name) or []:
        requirement = Requirement(text)
        environments = [{"extra": extra} for extra in extras or {""}]
        if not requirement.marker or any(map(requirement.marker.evaluate, environments)):
            yield requirement


def find_versions() -> dict[str, str]:
    """Return the installed version of each package that the extra `test` requires."""
    waiting, seen, versions = [(PACKAGE, frozenset({"test"}))], set(), {}
    while waiting:
        entry = waiting.pop()
        if entry in seen:
            continue
        seen.add(entry)
        for requirement in find_requirements(*entry):
            name = canonicalize_name(requirement.name)
            waiting.append((name, frozenset(requirement.extras)))
            if name != PACKAGE:
                # Without the part after "+", which names a build such as "+cpu".
                versions[name] = Version(importlib.metadata.version(name)).public
    return dict(sorted(versions.items()))


def main() -> None:
    about = f"# Written by constraints.py with Python {platform.python_version()} on Linux."
    lines = [about, *(f"{name}=={version}" for name, version in find_versions().items())]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{FILE}: {len(lines) - 1} packages")


if __name__ == "__main__":
    main()
