"""List the public API, with one line per name: arguments and default values.

`python tests/public_api.py --write` updates `tests/recorded/public_api.txt`.
`tests/facade/test_public_api.py` compares this file with the package.
"""

import inspect
import pathlib
import sys
import types

from reference import documented_names, find_object

RECORD = pathlib.Path(__file__).parent / "recorded" / "public_api.txt"


def lines() -> list[str]:
    """Return the sorted lines of all names and members that the reference documents."""
    found: set[str] = set()
    objects = {name: find_object(name) for name in documented_names()}
    classes = [value for value in objects.values() if inspect.isclass(value)]
    for name, members in documented_names().items():
        value = objects[name]
        bases = [base for base in getattr(value, "__mro__", ())[1:] if base in classes]
        find = inspect.getattr_static if inspect.isclass(value) else getattr
        found.add(line_of(name, value))
        for member in members:
            each = find(value, member)
            if not any(each is inspect.getattr_static(base, member, None) for base in bases):
                found.add(line_of(f"{name}.{member}", each))
    return sorted(found - {""})


def line_of(name: str, value: object) -> str:
    """Return the line of a public name, or "" for a module."""
    if isinstance(value, types.ModuleType):
        return ""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if hasattr(value, "__total__"):  # a TypedDict
        return f"{name}{{{', '.join(value.__annotations__)}}}"
    if inspect.isclass(value):
        value = value.__init__
    return name + arguments_of(value) if inspect.isfunction(value) else name


def arguments_of(function) -> str:
    """Format the arguments of a function without `self` and types, and the keys of a TypedDict."""
    from encoder_zoo.common.validation import list_argument_names

    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=named(parameter.default))
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    ]
    known = list_argument_names(function) or set()
    further = sorted(name for name in known if not name.startswith("_"))
    further = [n for n in further if n not in inspect.signature(function).parameters]
    if further:
        parameters[-1] = parameters[-1].replace(name="_")
    text = str(inspect.Signature(parameters))
    return text.replace("**_", f"**{{{', '.join(further)}}}") if further else text


def named(default: object) -> object:
    """Return a default value for the signature. Classes are shown by name."""
    is_class = inspect.isclass(default) and default is not inspect.Parameter.empty
    return Name(default.__name__) if is_class else default


class Name(str):
    """A string whose `repr` is itself."""

    __repr__ = str.__str__


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("Usage: python tests/public_api.py --write")
    RECORD.write_text("\n".join(lines()) + "\n", encoding="utf-8")
