"""The public surface, one line each: names, arguments, defaults.

`python tests/public_api.py --write` renews `tests/recorded/public_api.txt`, which
`tests/facade/test_public_api.py` compares with the package.
"""

import inspect
import pathlib
import sys
import types
from collections.abc import Iterator

RECORD = pathlib.Path(__file__).parent / "recorded" / "public_api.txt"


def lines() -> list[str]:
    """The lines of all public names, and of the bases that tasks of one's own have, sorted."""
    import encoder_zoo as ez
    from encoder_zoo.tasks.base.task import Task
    from encoder_zoo.tasks.preprocessing.preprocessor import Preprocessor

    public = {name: getattr(ez, name) for name in ez.__all__}
    public |= {"Task": Task, "Preprocessor": Preprocessor}
    listed = [value for value in public.values() if inspect.isclass(value)]
    found: set[str] = set()
    for name, value in public.items():
        found.update(lines_of(name, value, listed))
    return sorted(found)


def lines_of(name: str, value: object, listed: list[type]) -> Iterator[str]:
    """The lines of a public name: a module, a class, another name of one, or a function."""
    if isinstance(value, types.ModuleType):
        for each in public_names(value):
            yield from lines_of(f"{name}.{each}", getattr(value, each), listed)
    elif not inspect.isclass(value):
        yield name + arguments_of(value)
    elif value.__name__ != name.split(".")[-1]:
        yield f"{name} = {value.__name__}"
    elif hasattr(value, "__total__"):  # a TypedDict
        yield f"{name}{{{', '.join(value.__annotations__)}}}"
    else:
        yield name + arguments_of(value.__init__)
        yield from lines_of_attributes(name, value, listed)


def public_names(module: types.ModuleType) -> list[str]:
    """The names of a module: those in its `__all__`, else what it has of this package."""
    own = [name for name in vars(module) if not name.startswith("_")]
    return [
        name
        for name in getattr(module, "__all__", own)
        if getattr(getattr(module, name), "__module__", "").startswith("encoder_zoo.")
    ]


def lines_of_attributes(name: str, cls: type, listed: list[type]) -> Iterator[str]:
    """The methods and properties of a class that are not those of a listed base."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("encoder_zoo.")]
    bases = [base for base in ours[1:] if base in listed]
    for each in {n for base in ours for n in vars(base) if not n.startswith("_")}:
        value = inspect.getattr_static(cls, each)
        if any(value is inspect.getattr_static(base, each, None) for base in bases):
            continue
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if inspect.isfunction(value):
            yield f"{name}.{each}{arguments_of(value)}"
        elif isinstance(value, property) or hasattr(value, "func"):
            yield f"{name}.{each}"


def arguments_of(function) -> str:
    """The arguments of a function, without `self` and types; those of a TypedDict by name."""
    from encoder_zoo.common.validation import known_names

    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=named(parameter.default))
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    ]
    known = known_names(function) or set()
    further = sorted(name for name in known if not name.startswith("_"))
    further = [n for n in further if n not in inspect.signature(function).parameters]
    if further:
        parameters[-1] = parameters[-1].replace(name="_")
    text = str(inspect.Signature(parameters))
    return text.replace("**_", f"**{{{', '.join(further)}}}") if further else text


def named(default: object) -> object:
    """A default as it is written: a class by its name."""
    is_class = inspect.isclass(default) and default is not inspect.Parameter.empty
    return Name(default.__name__) if is_class else default


class Name(str):
    """A string whose `repr` is itself."""

    __repr__ = str.__str__


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("Usage: python tests/public_api.py --write")
    RECORD.write_text("\n".join(lines()) + "\n", encoding="utf-8")
