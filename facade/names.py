"""Find the public names, based on the stub file `__init__.pyi`."""

from __future__ import annotations

import ast
import importlib
import pkgutil


def read_stub(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Parse a stub file. Return two dicts, which map names to modules and aliases to names.

    Example:
        >>> read_stub("from a.b import C as C\\nD = C\\n")
        ({'C': 'a.b'}, {'D': 'C'})
    """
    homes, aliases = {}, {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            homes |= {name.name: node.module for name in node.names}
        elif isinstance(node, ast.Assign):
            aliases[node.targets[0].id] = node.value.id
    return homes, aliases


def load(module: str, name: str) -> object:
    """Import a name from a module, as in `from module import name`.

    Example:
        >>> load("encoder_zoo.presets.registry", "list_presets").__name__
        'list_presets'
    """
    home = importlib.import_module(module)
    if hasattr(home, "__path__") and name not in vars(home):
        return importlib.import_module(f"{module}.{name}")
    return getattr(home, name)


HOMES, ALIASES = read_stub(pkgutil.get_data("encoder_zoo", "__init__.pyi").decode())
