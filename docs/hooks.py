"""Add guides, project pages, tables and the package to the pages in `pages/`.

The page of a task shows the methods first, in the listed order, and the constructor last. In a
page, `<!-- guides -->` is replaced by a list of all guides in the order of the navigation, and
`<!-- presets: bert -->` is replaced by a table with the presets of this family.
"""

import pathlib
import re
import shutil
import tempfile

import notebooks
from arguments import table_of_arguments
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File

from encoder_zoo.presets.registry import list_presets

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
NO_CODE = shutil.ignore_patterns("data", "__pycache__")
# A class in the reference, with the methods listed on its page.
CLASS = re.compile(
    r"^::: encoder_zoo\.(\w+)\n    options:\n(?: {6}\w.*\n)*? {6}members: \[(.+)\]$", re.MULTILINE
)
DEEPER = "{heading_level: 3, show_docstring_attributes: false}"
_package = tempfile.TemporaryDirectory()


@event_priority(100)  # before mkdocstrings reads its configuration
def on_config(config):
    """Copy all folders to a single package folder for mkdocstrings, as pip does."""
    package = pathlib.Path(_package.name) / "encoder_zoo"
    parts = {"facade": package}
    parts |= {name: package / name for name in ("common", "encoders", "presets", "tasks", "extras")}
    for name, folder in parts.items():
        shutil.copytree(ROOT / name, folder, ignore=NO_CODE, dirs_exist_ok=True)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_package.name]
    return config


def on_files(files, config):
    """Add pages for the guides, Markdown files in the root of the repository, and llms.txt."""
    for path in sorted(notebooks.GUIDES.glob("*.py")):
        for name, content in notebooks.files_of(path).items():
            files.append(File.generated(config, f"guides/{name}", content=content))
    for name in PROJECT:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"project/{name.lower()}", content=text))
    llms = (ROOT / "facade" / "llms.txt").read_text(encoding="utf-8")
    files.append(File.generated(config, "llms.txt", content=link_to_pages(llms)))
    return files


def link_to_pages(text: str) -> str:
    """Replace links to files in the repository by links to the pages of the site."""
    text = re.sub(r"\(docs/pages/(\S+)\.md\)", r"(\1.html)", text)
    text = re.sub(r"\(guides/(\S+)\.py\)", r"(guides/\1.html)", text)
    text = text.replace("(CONTRIBUTING.md)", "(project/contributing.html)")
    return text.replace("relative to the root of the repository", "relative to this file")


def on_page_markdown(markdown, page, config, files):
    """Insert the lists and tables into a page."""
    if "<!-- guides -->" in markdown:
        markdown = markdown.replace("<!-- guides -->", list_of_guides(config.nav))
    if page.file.src_uri.startswith("reference/tasks/"):
        markdown = CLASS.sub(lambda found: methods_first(found[1], found[2]), markdown)
    return re.sub(r"<!-- presets: (\S+) -->", lambda found: table_of_presets(found[1]), markdown)


def methods_first(name: str, members: str) -> str:
    """Create a block for each method of a task in the listed order, and one for the constructor."""
    blocks = ["## Methods"]
    for member in map(str.strip, members.split(",")):
        blocks.append(f"::: encoder_zoo.{name}.{member}\n    options: {DEEPER}")
        if member == "from_preset":
            blocks.append(table_of_arguments(name))
    blocks += ["## Constructor", f"::: encoder_zoo.{name}\n    options: {DEEPER}"]
    return "\n\n".join(blocks)


def list_of_guides(nav: list) -> str:
    """Create a list of the guides and their descriptions, grouped by section."""
    [sections] = [entry["Guides"] for entry in nav if "Guides" in entry]
    lines = []
    for section in sections[1:]:
        for title, pages in section.items():
            lines.append(f"\n## {title}\n")
            for page in pages:
                path = notebooks.GUIDES / f"{pathlib.Path(page).stem}.py"
                about = notebooks.notebook(path).metadata
                lines.append(f"- [{about.title}]({path.stem}.md): {about.description}")
    return "\n".join(lines)


def table_of_presets(family: str) -> str:
    """Create a table with the listed presets of a family."""
    lines = ["| preset | task | parameters | languages | licence | source |"]
    lines.append("|---|---|---:|---|---|---|")
    for row in list_presets():
        if row.family == family:
            size = f"{row.parameters / 1e6:.1f} M"
            source = row.source.removeprefix("hf://")
            cells = (f"`{row.name}`", row.task, size, row.languages, row.licence, source)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
