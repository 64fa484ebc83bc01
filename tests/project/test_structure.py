"""The package's structure: which folders import which, and how docstrings begin."""

import ast
import pathlib

import pytest
from paths import ROOT

# Each imports only from those before it. "encoder_zoo" is the facade's own folder, and
# "encoders.backbone" a module: the core is below the kernels, and the choice between them above.
FOLDERS = [
    "common",
    "encoders.tokenizers.text",
    "encoders.tokenizers.segmentation",
    "encoders.tokenizers.files",
    "encoders.tokenizers.graphs",
    "encoders.tokenizers",
    "encoders",
    "encoders.kernels",
    "encoders.backbone",
    "encoders.families",
    "presets.files",
    "presets.formats",
    "presets",
    "tasks",
    "tasks.preprocessing",
    "tasks.losses",
    "tasks.training",
    "tasks.serving",
    "tasks.base",
    "tasks.bulk",
    "tasks.retrieval",
    "tasks.classification",
    "tasks.tagging",
    "tasks.ranking",
    "tasks.question_answering",
    "tasks.pretraining",
    "tasks.embedding",
    "tasks.distillation",
    "tasks.display",
    "encoder_zoo",
    "testing",
]


def modules() -> dict[str, pathlib.Path]:
    """Return {name without "encoder_zoo.": file} of all modules."""
    found = {}
    for top in ("common", "encoders", "presets", "tasks", "facade"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = [*path.relative_to(ROOT).parts[:-1], path.stem]
            if top == "facade":
                parts = parts[1:] if len(parts) > 2 else ["encoder_zoo", *parts[1:]]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def folder_of(module: str) -> str:
    if module in FOLDERS:
        return module
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def imports_of(path: pathlib.Path) -> set[str]:
    """Return the modules that a file imports when it runs, in functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("encoder_zoo"):
            home = node.module.removeprefix("encoder_zoo").removeprefix(".")
            inner = {f"{home}.{alias.name}".removeprefix(".") for alias in node.names}
            names |= {name if name in MODULES else home or "encoder_zoo" for name in inner}
        elif isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if alias.name.startswith("encoder_zoo")]
            names |= {name.removeprefix("encoder_zoo.") for name in ours}
    return names


def test_every_folder_has_a_rank():
    assert {folder_of(module) for module in MODULES} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_from_those_below(folder):
    above = FOLDERS[FOLDERS.index(folder) + 1 :]
    for module, path in MODULES.items():
        if folder_of(module) == folder:
            homes = {name: folder_of(name) for name in imports_of(path) if name in MODULES}
            assert not {name for name, home in homes.items() if home in above}, module


def test_no_module_imports_itself_through_others():
    graph = {module: imports_of(path) & MODULES.keys() for module, path in MODULES.items()}
    while leaves := {module for module, imported in graph.items() if not imported - {module}}:
        graph = {m: imported - leaves for m, imported in graph.items() if m not in leaves}
    assert not graph, "a circle is among these"


def test_docstrings_say_what_the_code_does():
    """So that each begins with a verb or with the thing itself."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    trees = [ast.parse(path.read_text("utf-8")) for path in MODULES.values()]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    texts = [ast.get_docstring(node) or "" for node in nodes]
    assert not [text for text in texts if text.startswith("What ")]
