"""Convert guides to notebooks and pages.

A guide is a script in `guides/` in jupytext's percent format. When a guide is run, a notebook is
written to the same folder. The page of the guide shows the outputs of this notebook if its cells
are equal to the cells of the script.
"""

import base64
import json
import pathlib
import re

import jupytext
import nbformat

GUIDES = pathlib.Path(__file__).parents[1] / "guides"
FIELDS = ("Title", "Author", "Date created", "Last modified", "Description", "Accelerator")
# Programs with arguments or several processes are shown without being run.
PROGRAMS = (
    "distributed_training",
    "many_languages",
    "many_texts",
    "many_texts_on_ray",
    "pretraining",
    "small_encoders",
    "small_embedder",
    "train_colbert",
)
# TensorFlow messages about the machine.
LOG_LINES = re.compile(
    r"^(WARNING: All log messages|[IWE]\d{4} |To enable the following instr).*\n", re.MULTILINE
)
COLORS = re.compile(r"\x1b\[[\d;]*m")
FENCE = "`````"  # longer than any fence in a text
FILES = (
    "Open this guide as a [notebook]({name}.ipynb) or as a [script]({name}.py). "
    "The data is in `guides/data`."
)


def header(text: str) -> dict[str, str]:
    """Return the fields in the first cell of a guide.

    Raises:
        ValueError: If a field is missing.
    """
    fields = dict(re.findall(r"^([A-Z][a-z ]+): (.+)$", text.split("\n\n")[0], re.MULTILINE))
    for name in FIELDS:
        if name not in fields:
            raise ValueError(f"The first cell has no line '{name}: ...'.")
    return fields


def notebook(path: pathlib.Path) -> nbformat.NotebookNode:
    """Convert a guide to a notebook for the same folder, without running it."""
    book = jupytext.read(path, fmt="py:percent")
    first = book.cells[0]
    fields = header(first.source)
    dates = f"**Author:** {fields['Author']}, {fields['Date created']}, last modified "
    dates += f"{fields['Last modified']}. **Accelerator:** {fields['Accelerator']}."
    _, _, rest = first.source.partition("\n\n")
    first.source = f"# {fields['Title']}\n\n{fields['Description']}\n\n{dates}\n\n{rest}"
    book.metadata.update(title=fields["Title"], description=fields["Description"])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for cell in book.cells:  # a notebook has no __file__, and runs in its own folder
        cell.source = cell.source.replace("pathlib.Path(__file__).parent", "pathlib.Path()")
    return book


def run(path: pathlib.Path) -> None:
    """Run a guide in its folder and write a notebook with the outputs to the same folder."""
    from nbclient import NotebookClient

    book, resources = notebook(path), {"metadata": {"path": path.parent}}
    NotebookClient(book, timeout=1800, resources=resources, coalesce_streams=True).execute()
    tidy_logs(book)
    nbformat.write(book, path.with_suffix(".ipynb"))


def tidy_logs(book: nbformat.NotebookNode) -> None:
    """Move log lines above the printed output and remove messages about the machine."""
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = LOG_LINES.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [o for o in cell.outputs if o.get("text") != ""]
            cell.outputs.sort(key=lambda output: output.get("name") != "stderr")


def with_outputs(path: pathlib.Path) -> nbformat.NotebookNode:
    """Return the notebook of a guide, with the outputs of the last run if no cell has changed."""
    book, last = notebook(path), path.with_suffix(".ipynb")
    if last.exists():
        ran = nbformat.read(last, as_version=4)
        if [cell.source for cell in ran.cells] == [cell.source for cell in book.cells]:
            return ran
    return book


def files_of(path: pathlib.Path) -> dict[str, str | bytes]:
    """Return a dict {name: contents} with the page, pictures, script and notebook of a guide."""
    book, name = with_outputs(path), path.stem
    title, description = json.dumps(book.metadata.title), json.dumps(book.metadata.description)
    parts = [f"---\ntitle: {title}\ndescription: {description}\n---"]
    pictures: dict[str, str | bytes] = {}
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(fenced(cell.source, "python"))
        for output in cell.outputs:
            picture = f"{name}_{len(pictures)}.png"
            parts.append(shown(output, picture, pictures))
    parts.insert(2, FILES.format(name=name))
    page = "\n\n".join(parts) + "\n"
    script, notes = path.read_text(encoding="utf-8"), nbformat.writes(book)
    return {f"{name}.md": page, **pictures, f"{name}.py": script, f"{name}.ipynb": notes}


def shown(output: nbformat.NotebookNode, name: str, pictures: dict) -> str:
    """Convert an output to Markdown. Pictures are added to `pictures` under this name."""
    if output.output_type == "stream":
        kind = "log" if output.name == "stderr" else "output"
        return fenced(COLORS.sub("", output.text), f"{{ .text .{kind} }}")
    if "image/png" in output.data:
        pictures[name] = base64.b64decode(output.data["image/png"])
        return f"![Picture of the cell above]({name})"
    if "text/html" in output.data:
        return f'<div class="output">{output.data["text/html"]}</div>'
    return fenced(output.data["text/plain"], "{ .text .output }")


def fenced(text: str, language: str) -> str:
    return f"{FENCE}{language}\n{text.strip()}\n{FENCE}"
