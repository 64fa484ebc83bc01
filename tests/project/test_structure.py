"""The package's structure: which folders import which, how it is cut, and how docstrings begin.

`docs/house.py` counts files, lines and imports.
"""

import ast
import importlib.util
import pathlib
import sys

import pytest
from paths import ROOT, TOPS

# Each imports only from those before it. "encoder_zoo" is the facade's own folder, and
# "encoders.backbone" a module: the core is below the kernels, and the choice between them above.
FOLDERS = [
    "common",
    "encoders.tokenizers.steps",
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
    "tasks.retrieval",
    "tasks.classification",
    "tasks.tagging",
    "tasks.ranking",
    "tasks.question_answering",
    "tasks.pretraining",
    "tasks.embedding",
    "tasks.distillation",
    "extras",
    "extras.annotations",
    "extras.bulk",
    "extras.corpora",
    "extras.display",
    "extras.explanations",
    "extras.formats",
    "encoder_zoo",
    "serving",
    "testing",
]


def modules() -> dict[str, pathlib.Path]:
    """Return {name without "encoder_zoo.": file} of all modules."""
    found = {}
    for top in TOPS:
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


def test_every_folder_is_installed():
    missing = [top for top in TOPS[:-1] if importlib.util.find_spec(f"encoder_zoo.{top}") is None]
    assert not missing, "a folder is new: pip install -e ."


def test_every_folder_has_a_rank():
    assert {folder_of(module) for module in MODULES} == set(FOLDERS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_from_those_below(folder):
    above = FOLDERS[FOLDERS.index(folder) + 1 :]
    for module, path in MODULES.items():
        if folder_of(module) == folder:
            homes = {name: folder_of(name) for name in imports_of(path) if name in MODULES}
            assert not {name for name, home in homes.items() if home in above}, module


@pytest.mark.slow
def test_no_module_imports_itself_through_others():
    graph = {module: imports_of(path) & MODULES.keys() for module, path in MODULES.items()}
    while leaves := {module for module, imported in graph.items() if not imported - {module}}:
        graph = {m: imported - leaves for m, imported in graph.items() if m not in leaves}
    assert not graph, "a circle is among these"


@pytest.mark.slow
def test_docstrings_say_what_the_code_does():
    """So that each begins with a verb or with the thing itself."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    trees = [ast.parse(path.read_text("utf-8")) for path in MODULES.values()]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]
    texts = [ast.get_docstring(node) or "" for node in nodes]
    assert not [text for text in texts if text.startswith("What ")]


# -- how it is cut ---------------------------------------------------------------------------------

BASES = 6  # own classes between a task and `keras.Model`, at most
ROOMS, LEVELS = 10, 5  # modules of tasks/training, and of the longest chain of their imports
TWO_KINDS = {"FewShotClassifier"}  # an embedder that also scores classes: two more
HOOKS = 24  # members of the bases of tasks that tasks override, at most
# Those that one task alone overrides, each with its reason.
OWN_HOOKS = {
    **dict.fromkeys(
        ("fit", "evaluate", "predict"),
        "`FewShotClassifier` takes texts and classes, but trains on pairs, and then its head",
    ),
    "preprocessor": "the model inside of `HybridEmbedder` reads that of its `TextEmbedder`",
}


@pytest.fixture(scope="module")
def house():
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module.House(ROOT)


@pytest.mark.slow
def test_a_task_is_read_in_few_classes(house):
    counts = {task.name: len(house.ancestors(task)) for task in house.tasks()}
    assert len(counts) > 12
    assert not {
        name: count for name, count in counts.items() if count > BASES + 2 * (name in TWO_KINDS)
    }


@pytest.mark.slow
def test_the_author_of_a_task_meets_few_hooks(house):
    overridden = house.overridden()
    assert len(overridden) <= HOOKS
    assert {name for name, by in overridden.items() if len(by) == 1} == OWN_HOOKS.keys()


@pytest.mark.slow
def test_training_is_read_in_few_rooms(house):
    assert house.files_of("tasks/training") <= ROOMS
    assert house.levels_of("tasks/training") <= LEVELS


@pytest.mark.slow
def test_no_base_is_a_slice_of_its_subclass(house):
    assert not house.slices()


@pytest.mark.slow
def test_a_module_begins_with_its_logger():
    late = []
    for name, path in MODULES.items():
        body = ast.parse(path.read_text(encoding="utf-8")).body
        kinds = [isinstance(node, ast.FunctionDef | ast.ClassDef) for node in body]
        after = body[kinds.index(True) :] if True in kinds else []
        late += [
            f"{name}:{node.lineno}"
            for node in after
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "logger"
        ]
    assert not late, late
