"""Measure the structure of the package: files, code lines, base classes and imports.

    python docs/house.py            # this repository
    python docs/house.py FOLDER     # another checkout

Blank lines, comments and docstrings are not counted as code lines. The package is parsed and not
imported, so the checkout can contain any release.
"""

from __future__ import annotations

import argparse
import ast
import collections
import functools
import io
import pathlib
import tokenize
from dataclasses import dataclass

PACKAGE = "encoder_zoo"
TOPS = ("common", "encoders", "presets", "tasks", "extras", "facade")
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
AUTHORS = ("TextModel", "Task", "LabelledTask")  # base classes for authors of tasks


@dataclass(frozen=True)
class Module:
    """A Python file of the package.

    Attributes:
        name: String. Module name without the package, such as "tasks.base.task". Modules in the
            facade folder start with "encoder_zoo".
        path: Path relative to the repository.
        tree: Syntax tree of the file.
        lines: List of strings. The lines of the file.
    """

    name: str
    path: pathlib.Path
    tree: ast.Module
    lines: list[str]

    @property
    def folder(self) -> str:
        """Return the folder that contains the file."""
        return self.path.parent.as_posix()

    @functools.cached_property
    def code_lines(self) -> set[int]:
        """Return the line numbers that contain code."""
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {
            number
            for node in ast.walk(self.tree)
            if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None
            for number in range(node.body[0].lineno, node.body[0].end_lineno + 1)
        }
        tokens = tokenize.generate_tokens(io.StringIO("".join(self.lines)).readline)
        code = {
            number
            for token in tokens
            if token.type not in SKIPPED and token.type != tokenize.ENDMARKER
            for number in range(token.start[0], token.end[0] + 1)
        }
        return code - docstrings

    @functools.cached_property
    def import_lines(self) -> set[int]:
        """Return the line numbers of imports and of `if TYPE_CHECKING`."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                found |= set(range(node.lineno, node.end_lineno + 1))
            elif _of_types(node):
                found.add(node.lineno)
        return found & self.code_lines


@dataclass(frozen=True)
class Class:
    """A class of the package with its module, the names of its base classes and its syntax tree."""

    module: Module
    name: str
    bases: tuple[str, ...]
    node: ast.ClassDef

    @property
    def abstract(self) -> bool:
        """Return whether subclasses have to implement a method."""
        return any(
            (isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node))
            or (
                isinstance(node, ast.Name | ast.Attribute)
                and ast.unparse(node).endswith("abstractmethod")
            )
            for node in ast.walk(self.node)
        )

    @functools.cached_property
    def members(self) -> set[str]:
        """Return the names of methods, properties and attributes, except special methods."""
        names = set()
        for node in self.node.body:
            if isinstance(node, ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
        return {name for name in names if not name.startswith("__")}


def _of_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


class House:
    """The modules and classes of the package, with their imports and base classes.

    Args:
        root: Path of the repository.
    """

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.modules: dict[str, Module] = {}
        for top in TOPS:
            for path in sorted((root / top).rglob("*.py")):
                text = path.read_text("utf-8")
                inner = path.relative_to(root)
                module = Module(_name(inner), inner, ast.parse(text), text.splitlines(True))
                self.modules[module.name] = module
        self.classes = {
            (module.name, node.name): Class(
                module, node.name, tuple(map(_base_name, node.bases)), node
            )
            for module in self.modules.values()
            for node in module.tree.body
            if isinstance(node, ast.ClassDef)
        }

    # -- imports --------------------------------------------------------------------

    def imports(self, module: Module, types: bool = False) -> set[str]:
        """Return the modules of the package that a module imports, also inside functions.

        Args:
            module: Module of the package.
            types: Boolean. Whether to include imports under `TYPE_CHECKING`. Defaults to False.
        """
        skipped = set()
        if not types:
            for node in filter(_of_types, ast.walk(module.tree)):
                skipped |= {id(inner) for child in node.body for inner in ast.walk(child)}
        found = set()
        for node in ast.walk(module.tree):
            if id(node) not in skipped:
                found |= self._imported(node)
        return found & self.modules.keys() - {module.name}

    def _imported(self, node: ast.AST) -> set[str]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            home = node.module.removeprefix(PACKAGE).removeprefix(".")
            if node.module in self.modules:  # the facade's own
                home = node.module
            inner = [f"{home}.{alias.name}".removeprefix(".") for alias in node.names]
            return {name if name in self.modules else home or PACKAGE for name in inner}
        if isinstance(node, ast.Import):
            return {alias.name.removeprefix(f"{PACKAGE}.") for alias in node.names}
        return set()

    @functools.cached_property
    def arrows(self) -> dict[str, set[str]]:
        """Return a dict {module: imported modules}, including imports for types."""
        return {name: self.imports(module, types=True) for name, module in self.modules.items()}

    def reached(self, name: str) -> set[str]:
        """Return all modules that a module imports, directly or through other modules."""
        found, waiting = set(), [name]
        while waiting:
            module = waiting.pop()
            if module not in found:
                found.add(module)
                waiting += self.imports(self.modules[module])
        return found

    def circles(self) -> list[list[str]]:
        """Return all import cycles, starting with the largest one. Imports for types count."""
        order, low, stack, groups = {}, {}, [], []

        def visit(name: str) -> None:
            order[name] = low[name] = len(order)
            stack.append(name)
            for other in self.arrows[name]:
                if other not in order:
                    visit(other)
                    low[name] = min(low[name], low[other])
                elif other in stack:
                    low[name] = min(low[name], order[other])
            if low[name] == order[name]:
                start = stack.index(name)
                groups.append(sorted(stack[start:]))
                del stack[start:]

        for name in self.modules:
            if name not in order:
                visit(name)
        return sorted((group for group in groups if len(group) > 1), key=len, reverse=True)

    def arrows_between(self, top: str) -> int:
        """Count pairs of subfolders in which one imports the other at run time."""
        pairs = set()
        for module in self.modules.values():
            home = _room(module.path, top)
            for other in self.imports(module):
                there = _room(self.modules[other].path, top)
                if home and there and home != there:
                    pairs.add((home, there))
        return len(pairs)

    def arrows_to_extras(self) -> int:
        """Count imports of `extras/` in lower folders, including imports for types."""
        core = [name for name in self.modules if name.split(".")[0] in TOPS[:-2]]
        return sum(other.startswith("extras") for name in core for other in self.arrows[name])

    # -- base classes --------------------------------------------------------------------

    def base_of(self, cls: Class, name: str) -> Class | None:
        """Return the base class with this name in the module of a class, or None."""
        first, _, rest = name.partition(".")
        if (cls.module.name, name) in self.classes:
            return self.classes[cls.module.name, name]
        for node in ast.walk(cls.module.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                for alias in node.names:
                    if (alias.asname or alias.name) == first:
                        home = node.module.removeprefix(PACKAGE).removeprefix(".")
                        if home not in self.modules:  # the facade's own
                            home = node.module
                        if rest:
                            return self.classes.get((f"{home}.{alias.name}", rest))
                        return self.classes.get((home, alias.name))
        return None

    def ancestors(self, cls: Class) -> list[Class]:
        """Return all base classes that belong to the package, starting with direct bases."""
        found: list[Class] = []
        for name in cls.bases:
            base = self.base_of(cls, name)
            if base is not None:
                found += [one for one in (base, *self.ancestors(base)) if one not in found]
        return found

    def single_bases(self) -> list[tuple[Class, Class]]:
        """Return (base class, subclass) for bases with exactly one subclass, except TypedDicts."""
        children = collections.defaultdict(list)
        for cls in self.classes.values():
            for name in cls.bases:
                base = self.base_of(cls, name)
                if base is not None:
                    children[base.module.name, base.name].append(cls)
        return [
            (self.classes[key], extending[0])
            for key, extending in sorted(children.items())
            if len(extending) == 1 and not self._is_record(self.classes[key])
        ]

    def slices(self) -> list[Class]:
        """Return bases with one subclass that are neither public nor used anywhere else."""
        named = collections.Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for module in self.modules.values()
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
        bases = [base for base, _ in self.single_bases()]
        return [base for base in bases if base.name not in self.public and named[base.name] == 1]

    def _is_record(self, cls: Class) -> bool:
        return any("TypedDict" in base for one in (cls, *self.ancestors(cls)) for base in one.bases)

    @functools.cached_property
    def public(self) -> set[str]:
        """Return the public names in the stub and in the packages that the stub imports."""
        stub = ast.parse((self.root / "facade" / "__init__.pyi").read_text("utf-8"))
        trees, found = [stub], set()
        for tree in trees:
            for node in tree.body:
                if isinstance(node, ast.ImportFrom):
                    found |= {alias.asname or alias.name for alias in node.names}
                    home = (node.module or "").removeprefix(f"{PACKAGE}.")
                    inner = [self.modules.get(f"{home}.{alias.name}") for alias in node.names]
                    trees += [one.tree for one in inner if one and one.path.name == "__init__.py"]
        return found

    def tasks(self) -> list[Class]:
        """Return the public models in `tasks/`, except base classes."""
        models = [
            cls
            for cls in self.classes.values()
            if cls.name in self.public
            and cls.module.name.startswith("tasks.")
            and any("keras.Model" in one.bases for one in (cls, *self.ancestors(cls)))
        ]
        return [cls for cls in models if cls.name not in ("Task", "Embedder")]

    def overridden(self, bases: tuple[str, ...] = AUTHORS) -> dict[str, list[str]]:
        """Return a dict {member of a base class: names of the classes that override it}."""
        own = [cls for cls in self.classes.values() if cls.name in bases]
        found = collections.defaultdict(list)
        for cls in self.classes.values():
            above = [base for base in self.ancestors(cls) if base in own]
            if cls not in own and above:
                for name in sorted(cls.members & set().union(*(base.members for base in above))):
                    found[name].append(cls.name)
        return dict(sorted(found.items()))

    # -- counts --------------------------------------------------------------------------------

    def code_lines(self, folder: str = "") -> int:
        """Count the code lines in a folder and its subfolders."""
        return sum(
            len(module.code_lines)
            for module in self.modules.values()
            if module.path.as_posix().startswith(folder)
        )

    def import_share(self) -> float:
        """Return the fraction of code lines that are imports."""
        imports = sum(len(module.import_lines) for module in self.modules.values())
        return imports / self.code_lines()

    def rooms(self, top: str) -> list[str]:
        """Return the subfolders of a folder."""
        homes = {_room(module.path, top) for module in self.modules.values()}
        return sorted(homes - {"", None})

    def files_of(self, top: str) -> int:
        """Count the files in a folder and its subfolders, except empty `__init__` files."""
        return sum(
            module.path.as_posix().startswith(f"{top}/")
            and not (module.path.name == "__init__.py" and len(module.code_lines) == 0)
            for module in self.modules.values()
        )

    def levels_of(self, top: str) -> int:
        """Return the length of the longest chain of imports between modules in a folder."""
        prefix = top.replace("/", ".") + "."
        inner = {
            name: self.imports(m) for name, m in self.modules.items() if name.startswith(prefix)
        }

        @functools.cache
        def level(name: str) -> int:
            return 1 + max(map(level, inner[name] & inner.keys()), default=0)

        return max(map(level, inner), default=0)

    def repeated_names(self, more_than: int = 3) -> dict[str, int]:
        """Return a dict {file name: count} for file names that occur in several folders."""
        names = collections.Counter(
            module.path.name for module in self.modules.values() if module.path.stem != "__init__"
        )
        return {name: count for name, count in names.most_common() if count > more_than}


def _name(path: pathlib.Path) -> str:
    """Return the module name for a path, without the name of the package."""
    parts = [*path.parts[:-1], path.stem]
    if parts[0] == "facade":
        parts = parts[1:] if len(parts) > 2 else [PACKAGE, *parts[1:]]
    return ".".join(parts).removesuffix(".__init__")


def _base_name(base: ast.expr) -> str:
    return ast.unparse(base.value if isinstance(base, ast.Subscript) else base)


def _room(path: pathlib.Path, top: str) -> str | None:
    """Return the subfolder of `top` that contains a file. Files in `top` return ""."""
    inner = path.as_posix()
    if not inner.startswith(f"{top}/"):
        return None
    first, _, rest = inner.removeprefix(f"{top}/").partition("/")
    return first if rest else ""


def report(house: House) -> list[str]:
    """Return the lines of the report."""
    modules = house.modules.values()
    lines = [f"files {len(modules)}"]
    lines.append(f"  of at most 50 lines {sum(len(m.lines) <= 50 for m in modules)}")
    lines.append(f"  of more than 600 lines {sum(len(m.lines) > 600 for m in modules)}")
    extras = house.code_lines("extras/")
    lines.append(f"code lines {house.code_lines()}, without extras {house.code_lines() - extras}")
    folders = sorted({module.folder for module in modules})
    own = {
        folder: sum(len(m.code_lines) for m in modules if m.folder == folder) for folder in folders
    }
    counts = collections.Counter(module.folder for module in modules)
    for top in TOPS:
        lines.append(f"  {top} {house.code_lines(f'{top}/')}")
        for folder in folders:
            if folder.startswith(f"{top}/"):
                lines.append(f"    {folder} {own[folder]} in {counts[folder]} files")
    singles = house.single_bases()
    allowed = [one for one, _ in singles if one.name in house.public and one.abstract]
    lines.append(
        f"bases with exactly one subclass {len(singles)}, public and abstract {len(allowed)}"
    )
    slices = house.slices()
    lines.append(f"  of which are not public and not used anywhere else {len(slices)}")
    lines += [
        f"  {base.module.name}.{base.name} <- "
        f"{child.name}{' (not used anywhere else)' * (base in slices)}"
        for base, child in singles
    ]
    lines.append("classes of the package between a task and keras.Model")
    for task in house.tasks():
        bases = house.ancestors(task)
        files = {cls.module.name for cls in (task, *bases)}
        names = " ".join(cls.name for cls in bases)
        lines.append(f"  {task.name} {len(bases)} in {len(files)} files: {names}")
    overridden = house.overridden()
    alone = [name for name, classes in overridden.items() if len(classes) == 1]
    lines.append(
        f"members of {', '.join(AUTHORS)} that subclasses override {len(overridden)}, of which "
        f"only one class overrides {len(alone)}"
    )
    lines += [f"  {name} {len(found)}: {' '.join(found)}" for name, found in overridden.items()]
    lines.append(f"import lines {100 * house.import_share():.1f} %")
    for task in house.tasks():
        if task.name == "TokenClassifier":
            files = {cls.module.name for cls in (task, *house.ancestors(task))}
            reached = house.reached(task.module.name)
            lines.append(
                f"to read TokenClassifier: {1 + len(house.ancestors(task))} classes, "
                f"{len(files)} files; {len(reached)} modules are imported"
            )
    circles = house.circles()
    lines.append(
        f"import cycles, including imports for types {[len(circle) for circle in circles]}"
    )
    lines += [f"  {' '.join(circle)}" for circle in circles]
    lines.append(
        f"folders in tasks/ {len(house.rooms('tasks'))}, with imports between "
        f"{house.arrows_between('tasks')}"
    )
    for top in ("tasks/training", "tasks/retrieval", "encoders/tokenizers"):
        levels = f" on {house.levels_of(top)} levels" if top == "tasks/training" else ""
        lines.append(f"modules in {top} {house.files_of(top)}{levels}")
    lines.append(f"imports of extras in the core {house.arrows_to_extras()}")
    repeated = house.repeated_names()
    lines.append(f"file names that occur more than three times {len(repeated)}")
    lines += [f"  {name} {count}" for name, count in repeated.items()]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).parents[1])
    print("\n".join(report(House(pathlib.Path(parser.parse_args().root)))))
