"""Check the types of the folders that are listed under `tool.mypy` in pyproject.toml.

    .venv/bin/python .ci/check_types.py

mypy does not find packages whose folders are mapped by setuptools, so the folders are first linked
as they are installed.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIG = ROOT / "pyproject.toml"


def link_package(folder: pathlib.Path) -> None:
    """Link all folders of the package below `folder`."""
    places = tomllib.loads(CONFIG.read_text("utf-8"))["tool"]["setuptools"]["package-dir"]
    package = folder / "encoder_zoo"
    package.mkdir()
    for path in (ROOT / places.pop("encoder_zoo")).iterdir():
        (package / path.name).symlink_to(path)
    for name, place in places.items():
        (package / name.removeprefix("encoder_zoo.")).symlink_to(ROOT / place)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        link_package(pathlib.Path(folder))
        command = [sys.executable, "-m", "mypy", "--config-file", CONFIG]
        return subprocess.run(command, env={**os.environ, "MYPYPATH": folder}).returncode


if __name__ == "__main__":
    sys.exit(main())
