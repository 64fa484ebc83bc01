"""Build the site: the guides as notebooks and pages, and the reference of the public names.

    pip install -e ".[docs]"
    python docs/build.py                     # runs all guides, which takes twenty minutes
    python docs/build.py your_own_csv        # runs only this guide
    python docs/build.py --no-execute        # does not run any guide

The pages are in `docs/pages`. Their order is defined in `docs/mkdocs.yml`. Notebooks are written to
the folder of the guides, which contains their data, and the site to `docs/site/index.html`. These
files are not part of the repository. If a guide is not run, the page shows the outputs of its last
run, unless the guide has changed.
"""

import argparse
import os
import pathlib

import notebooks
from mkdocs.commands.build import build
from mkdocs.config import load_config

CONFIG = pathlib.Path(__file__).with_name("mkdocs.yml")


def build_site(folder: pathlib.Path | None = None) -> pathlib.Path:
    """Write all pages and return the path of the first page.

    Args:
        folder: Path. Folder for the pages. Defaults to None, which means `docs/site`.
    """
    folder = folder or CONFIG.with_name("site")
    config = load_config(os.fspath(CONFIG), strict=True, site_dir=os.fspath(folder))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder / "index.html"


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds docs/site.")
    parser.add_argument("guides", nargs="*", help="names of the guides to run (default: all)")
    parser.add_argument("--no-execute", action="store_true", help="do not run any guide")
    options = parser.parse_args()
    paths = {path.stem: path for path in sorted(notebooks.GUIDES.glob("*.py"))}
    unknown = {*options.guides} - {*paths}
    if unknown:
        raise SystemExit(f"Unknown guides: {sorted(unknown)}. Expected names from {sorted(paths)}.")
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # about widgets for progress bars
    for name in [] if options.no_execute else options.guides or paths:
        if name not in notebooks.PROGRAMS:
            print(f"running {name} ...", flush=True)
            notebooks.run(paths[name])
    print(f"Site: {build_site()}")


if __name__ == "__main__":
    main()
