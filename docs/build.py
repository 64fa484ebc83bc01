"""Build the site: the guides as notebooks and pages, and the reference of the public names.

    pip install -e ".[docs]"
    python docs/build.py                     # all guides are run, which takes twenty minutes
    python docs/build.py your_own_csv        # of the guides only this one
    python docs/build.py --no-execute        # none is run

The pages are in `docs/pages`, their order in `docs/mkdocs.yml`. Notebooks are written beside the
guides, where their data is, and the site to `docs/site/index.html`. Neither is part of the
repository. A guide that is not run has the outputs of its last run, if it is still the same.
"""

import argparse
import os
import pathlib

import notebooks
from mkdocs.commands.build import build
from mkdocs.config import load_config

CONFIG = pathlib.Path(__file__).with_name("mkdocs.yml")


def build_site(folder: pathlib.Path | None = None) -> pathlib.Path:
    """Write all pages, and return the first one.

    Args:
        folder: for the pages; default `docs/site`.
    """
    folder = folder or CONFIG.with_name("site")
    config = load_config(os.fspath(CONFIG), strict=True, site_dir=os.fspath(folder))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder / "index.html"


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds docs/site.")
    parser.add_argument("guides", nargs="*", help="names of guides to run; default all")
    parser.add_argument("--no-execute", action="store_true", help="run none")
    options = parser.parse_args()
    paths = {path.stem: path for path in sorted(notebooks.GUIDES.glob("*.py"))}
    unknown = {*options.guides} - {*paths}
    if unknown:
        raise SystemExit(f"No guide {sorted(unknown)}. There are {sorted(paths)}.")
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # of progress bars as widgets
    for name in [] if options.no_execute else options.guides or paths:
        if name not in notebooks.PROGRAMS:
            print(f"running {name} ...", flush=True)
            notebooks.run(paths[name])
    print(f"Site: {build_site()}")


if __name__ == "__main__":
    main()
