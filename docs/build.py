"""Build the site: the guides as notebooks and pages, and the reference of the public names.

    pip install -e ".[docs]"
    python docs/build.py                     # all guides are run, which takes a quarter of an hour
    python docs/build.py your_own_csv        # of the guides only this one
    python docs/build.py --no-execute        # none is run: pages without outputs

Notebooks are written beside the guides, where their data is, and the site is written to
`docs/site/index.html`. Neither is part of the repository.
"""

import argparse
import html
import os
import pathlib
import re

import jupytext
import nbformat
import pdoc
import pdoc.render
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from traitlets.config import Config

import encoder_zoo as ez

ROOT = pathlib.Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
FIELDS = ("Title", "Author", "Date created", "Last modified", "Description", "Accelerator")
# Programs with arguments, or of several processes: shown, not run.
PROGRAMS = (
    "distributed_training",
    "many_languages",
    "many_texts",
    "pretraining",
    "small_encoders",
    "small_embedder",
)
# The reference also has `display`, and the classes with `from_preset`, `save_to_preset`, `export`,
# `fit`, `compile` of every task.
PARTS = (
    "encoder_zoo.tasks.display",
    "encoder_zoo.tasks.preprocessing.preprocessor",
    "encoder_zoo.tasks.base.task",
    "encoder_zoo.tasks.training.trainer",
)
# Pages that fetch nothing from elsewhere.
PAGES = {
    "exclude_input_prompt": True,
    "exclude_output_prompt": True,
    "mathjax_url": "",
    "require_js_url": "",
}
LOG_LINES = re.compile(r"^(WARNING: All log messages|[IWE]\d{4} ).*\n", re.MULTILINE)
HOME = """<style>
main { max-width: 60em; margin: auto; }
.jp-RenderedHTMLCommon :is(td, th, td code) { white-space: normal; overflow-wrap: anywhere; }
.home { margin: 1em 28px 0; font: 16px system-ui, sans-serif; }
.jp-RenderedText[data-mime-type="application/vnd.jupyter.stderr"] { background: #fff8e1; }
</style><p class="home"><a href="index.html">encoder_zoo</a></p>"""
STYLE = """<style>
body { font: 16px/1.6 system-ui, sans-serif; max-width: 44em; margin: 2em auto; padding: 0 1em; }
a { color: #1f6feb; text-decoration: none; } dt { margin-top: 1em; font-weight: 600; }
dd { margin: 0; } :root { color-scheme: light dark; }
</style>"""


def header(text: str) -> dict[str, str]:
    """Return the fields of a guide's first cell.

    Raises:
        ValueError: "The first cell has no line 'Accelerator: ...'."
    """
    fields = dict(re.findall(r"^([A-Z][a-z ]+): (.+)$", text.split("\n\n")[0], re.MULTILINE))
    for name in FIELDS:
        if name not in fields:
            raise ValueError(f"The first cell has no line '{name}: ...'.")
    return fields


def notebook(path: pathlib.Path) -> nbformat.NotebookNode:
    """Return a guide as a notebook for its folder, not run."""
    book = jupytext.read(path, fmt="py:percent")
    first = book.cells[0]
    fields = header(first.source)
    dates = f"**Author:** {fields['Author']}, {fields['Date created']}, last modified "
    dates += f"{fields['Last modified']}. **Accelerator:** {fields['Accelerator']}."
    _, _, rest = first.source.partition("\n\n")
    first.source = f"# {fields['Title']}\n\n{fields['Description']}\n\n{dates}\n\n{rest}"
    book.metadata["title"] = fields["Title"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for cell in book.cells:  # a notebook has no __file__, and runs in its own folder
        cell.source = cell.source.replace("pathlib.Path(__file__).parent", "pathlib.Path()")
    return book


def tidy_logs(book: nbformat.NotebookNode) -> None:
    """Move log lines above the printed output, without TensorFlow's about the machine."""
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = LOG_LINES.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [o for o in cell.outputs if o.get("text") != ""]
            cell.outputs.sort(key=lambda output: output.get("name") != "stderr")


def build_guide(path: pathlib.Path, execute: bool) -> None:
    """Write the notebook and the page of a guide."""
    book = notebook(path)
    if execute and path.stem not in PROGRAMS:
        print(f"running {path.name} ...", flush=True)
        resources = {"metadata": {"path": path.parent}}
        NotebookClient(book, timeout=1800, resources=resources, coalesce_streams=True).execute()
        tidy_logs(book)
    nbformat.write(book, path.with_suffix(".ipynb"))
    page, _ = HTMLExporter(config=Config({"HTMLExporter": PAGES})).from_notebook_node(book)
    page = page.replace("<main>", f"<main>{HOME}", 1)
    (SITE / f"{path.stem}.html").write_text(page, encoding="utf-8")


def build_reference() -> None:
    """Write pages of all public names and of their base classes."""
    for name in ez.__all__:
        getattr(ez, name)  # names are imported when first used, and pdoc reads the imported ones
    pdoc.render.configure(docformat="google", show_source=False, search=True)
    pdoc.pdoc("encoder_zoo", *PARTS, output_directory=SITE / "reference")


def build_index(paths: list[pathlib.Path]) -> None:
    """Write the first page: the guides in the README's order, and the reference."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    paths = sorted(paths, key=lambda path: readme.index(f"[`guides/{path.name}`]"))
    headers = {path.stem: header(jupytext.read(path).cells[0].source) for path in paths}
    entries = "".join(
        f'<dt><a href="{stem}.html">{html.escape(fields["Title"])}</a></dt>'
        f"<dd>{html.escape(fields['Description'])}</dd>"
        for stem, fields in headers.items()
    )
    (SITE / "index.html").write_text(
        '<!doctype html><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>encoder_zoo</title>{STYLE}<h1>encoder_zoo {ez.__version__}</h1>"
        "<p>BERT and its relatives for Keras 3, from raw text to answers.</p>"
        '<p><a href="reference/encoder_zoo.html">Reference of all public names</a></p>'
        f"<h2>Guides</h2><dl>{entries}</dl>",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds docs/site.")
    parser.add_argument("guides", nargs="*", help="names of guides; default all")
    parser.add_argument("--no-execute", action="store_true", help="pages without outputs")
    options = parser.parse_args()
    SITE.mkdir(exist_ok=True)
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # of progress bars as widgets
    paths = sorted((ROOT / "guides").glob("*.py"))
    chosen = [path for path in paths if not options.guides or path.stem in options.guides]
    unknown = {*options.guides} - {path.stem for path in chosen}
    if unknown:
        raise SystemExit(f"No guide {sorted(unknown)}. There are {[p.stem for p in paths]}.")
    build_reference()
    for path in chosen:
        build_guide(path, not options.no_execute)
    build_index([path for path in paths if (SITE / f"{path.stem}.html").exists()])
    print(f"Site: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()
