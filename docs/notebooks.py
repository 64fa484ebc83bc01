"""Guides as notebooks and as pages.

A guide is a script of `guides/` in jupytext's percent format. Running it writes a notebook beside
it; its page shows the outputs of that notebook, as long as the cells are those of the script.
"""

import base64
import json
import pathlib
import re

import jupytext
import nbformat

GUIDES = pathlib.Path(__file__).parents[1] / "guides"
FIELDS = ("Title", "Author", "Date created", "Last modified", "Description", "Accelerator")
# Programs with arguments, or of several processes: shown, not run.
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
# TensorFlow's own, about the machine.
LOG_LINES = re.compile(
    r"^(WARNING: All log messages|[IWE]\d{4} |To enable the following instr).*\n", re.MULTILINE
)
COLORS = re.compile(r"\x1b\[[\d;]*m")
FENCE = "`````"  # longer than any in a text
FILES = "[Script]({name}.py) · [Notebook]({name}.ipynb) · the data of guides is in `guides/data`"


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
    book.metadata.update(title=fields["Title"], description=fields["Description"])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for cell in book.cells:  # a notebook has no __file__, and runs in its own folder
        cell.source = cell.source.replace("pathlib.Path(__file__).parent", "pathlib.Path()")
    return book


def run(path: pathlib.Path) -> None:
    """Run a guide in its folder, and write the notebook with its outputs beside it."""
    from nbclient import NotebookClient

    book, resources = notebook(path), {"metadata": {"path": path.parent}}
    NotebookClient(book, timeout=1800, resources=resources, coalesce_streams=True).execute()
    tidy_logs(book)
    nbformat.write(book, path.with_suffix(".ipynb"))


def tidy_logs(book: nbformat.NotebookNode) -> None:
    """Move log lines above the printed output, without TensorFlow's about the machine."""
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = LOG_LINES.sub("", output.text)
        if "outputs" in cell:
            cell.outputs = [o for o in cell.outputs if o.get("text") != ""]
            cell.outputs.sort(key=lambda output: output.get("name") != "stderr")


def with_outputs(path: pathlib.Path) -> nbformat.NotebookNode:
    """Return a guide's notebook, with the outputs of its last run if the cells are the same."""
    book, last = notebook(path), path.with_suffix(".ipynb")
    if last.exists():
        ran = nbformat.read(last, as_version=4)
        if [cell.source for cell in ran.cells] == [cell.source for cell in book.cells]:
            return ran
    return book


def files_of(path: pathlib.Path) -> dict[str, str | bytes]:
    """Return {name: contents} of a guide: its page, the pictures in it, script and notebook."""
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
    """Return an output as Markdown; a picture is added to `pictures` under the name."""
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
