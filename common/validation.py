"""Type annotations that describe valid arguments, and a decorator that validates arguments."""

from __future__ import annotations

import functools
import inspect
import os
import pathlib
import types
from collections.abc import Callable
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    is_typeddict,
)

import numpy as np

from encoder_zoo.common.wording import describe_unknown_argument, invalid

F = TypeVar("F", bound=Callable)


class Rule(NamedTuple):
    """A rule for the values of an argument, with a description for error messages.

    Attributes:
        holds: A function that returns whether a value is valid.
        words: String. Description of valid values.

    Example:
        >>> rule = Rule(lambda v: v in "abc", "a letter up to c")
        >>> rule.holds("b"), rule.holds("d")
        (True, False)
    """

    holds: Callable[[Any], bool]
    words: str


def one_of(*values: object) -> Rule:
    """Create a rule that only accepts the given values.

    Example:
        >>> one_of(None, "absolute").words
        "None or 'absolute'"
    """
    return Rule(lambda v: v in values, " or ".join(map(repr, values)))


def min_integer(least: int) -> Rule:
    """Create a rule that accepts integers from `least` to 2**31 - 1.

    Example:
        >>> rule = min_integer(1)
        >>> rule.holds(3), rule.holds(True), rule.holds(3.0), rule.words
        (True, False, False, 'an integer of 1 or more')
    """
    return Rule(lambda v: type(v) is int and least <= v < 2**31, f"an integer of {least} or more")


SMALLEST, LARGEST = 1e-30, 1e30  # inside the range of float32


def is_number(value: Any) -> bool:
    """Return True for 0, and for numbers with an absolute value from 1e-30 to 1e30.

    Values are limited to the range of float32. Booleans are not accepted.

    Example:
        >>> [is_number(value) for value in (0, -2.5, float("nan"), 1e-300, 10**400, True)]
        [True, True, False, False, False, False]
    """
    return type(value) in (int, float) and (value == 0 or SMALLEST <= abs(value) <= LARGEST)


def _make_number_rule(holds: Callable[[float], bool], words: str) -> Rule:
    return Rule(lambda v: is_number(v) and holds(v), words)


FLAG = Rule(lambda v: type(v) is bool, "True or False")  # for arguments with the annotation `bool`

Name = Annotated[str, Rule(lambda v: isinstance(v, str) and v != "", "a name")]
PositiveInt = Annotated[int, min_integer(1)]
NonNegativeInt = Annotated[int, min_integer(0)]
SequenceLength = Annotated[int, min_integer(3)]  # one token and two special tokens
Number = Annotated[float, Rule(is_number, "a number")]
PositiveFloat = Annotated[float, _make_number_rule(lambda v: v > 0, "a number greater than 0")]
Temperature = Annotated[
    float, _make_number_rule(lambda v: 1e-3 <= v <= 1e3, "a number from 0.001 to 1000")
]
NonNegativeFloat = Annotated[float, _make_number_rule(lambda v: v >= 0, "a number of 0 or more")]
Fraction = Annotated[float, _make_number_rule(lambda v: 0 < v < 1, "a number between 0 and 1")]
Rate = Annotated[float, _make_number_rule(lambda v: 0 <= v < 1, "a number in [0, 1)")]
Ratio = Annotated[float, _make_number_rule(lambda v: 0 < v <= 1, "a number in (0, 1]")]
Probability = Annotated[float, _make_number_rule(lambda v: 0 <= v <= 1, "a number from 0 to 1")]
PATH = Rule(
    lambda v: isinstance(v, str | os.PathLike) and str(v) != "" and "\0" not in str(v), "a path"
)
FilePath = Annotated[str | os.PathLike[str], PATH]
SpecialToken = Annotated[
    str,
    Rule(
        lambda v: isinstance(v, str) and v.strip() != "" and v.isprintable(),
        "a token, such as '[CLS]'",
    ),
]
Verbosity = Literal[0, 1, 2, "auto"]

_BOUNDS = f", and {SMALLEST:g} <= |value| <= {LARGEST:g} or 0"

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def validate_arguments(function: F) -> F:
    """Decorator that validates arguments according to their type annotations.

    Annotations can be types from this module, `Annotated[..., Rule(...)]`, `bool`, `Literal[...]`,
    or unions of these types. All types must be imported at run time, not only under
    `TYPE_CHECKING`. Unknown argument names are rejected. To allow the names in a TypedDict, use
    `**options: Unpack[Options]`.

    Args:
        function: The function or method to decorate. Do not decorate `call` and other methods whose
            arguments are tensors.

    Returns:
        The decorated function, with the same signature.

    Raises:
        ValueError: If an argument has an invalid value.
        TypeError: If an argument is unknown.

    Example:
        >>> @validate_arguments
        ... def read(path, batch_size: PositiveInt | None = None):
        ...     return batch_size
        >>> read("a.csv", batch_size=8)
        8
        >>> read("a.csv", batch_size=0)
        Traceback (most recent call last):
        ValueError: batch_size is 0. Expected an integer of 1 or more, or None.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind in POSITIONAL]
    rules = functools.cache(lambda: get_rules(function))  # annotations can use names defined later
    names = functools.cache(lambda: list_argument_names(function))

    @functools.wraps(function)
    def call_validated(*args, **kwargs):
        _check_names(function, names(), args, kwargs)
        given = {**dict(zip(positional, args, strict=False)), **kwargs}
        for name, rule in rules().items():
            if name in given:
                check_argument(name, given[name], rule)
        return function(*args, **kwargs)

    marked = cast(Any, call_validated)
    marked.autograph_info__ = {}  # disable AutoGraph for this function
    marked.__signature__ = signature  # Keras finds the argument names here
    return cast(F, call_validated)


def list_argument_names(function: Callable) -> set[str] | None:
    """Return the names of all arguments, or None if the function accepts any name.

    Example:
        >>> def read(path, top_k=1): ...
        >>> def write(path, **options): ...
        >>> sorted(list_argument_names(read)), list_argument_names(write)
        (['path', 'top_k'], None)
    """
    names = set()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            annotation = _evaluate(parameter.annotation, _find_names(function))
            options = next(iter(get_args(annotation)), None)
            if options is None or not is_typeddict(options):
                return None
            names |= options.__required_keys__ | options.__optional_keys__
        else:
            names.add(parameter.name)
    return names


def _check_names(function: Callable, known: set[str] | None, args: tuple, kwargs: dict) -> None:
    """Raise a TypeError for unknown arguments. The message includes the class or function name."""
    if known is None or kwargs.keys() <= known:
        return
    named, called = known - {"self", "cls"}, function.__qualname__
    if args and named < known:
        owner, method = args[0], function.__name__
        if isinstance(owner, type):
            called = f"{owner.__name__}.{method}"
        else:  # the class of an object can be internal, as in opened exports
            called = type(owner).__name__ if method == "__init__" else method
    unknown = next(name for name in kwargs if name not in known)
    raise TypeError(describe_unknown_argument(called, unknown, named))


def get_rules(function: Callable) -> dict[str, Rule]:
    """Map argument names to rules according to their type annotations.

    Example:
        >>> def read(path: str, top_k: PositiveInt | None = None, shuffle: bool = True): ...
        >>> {name: rule.words for name, rule in get_rules(read).items()}
        {'top_k': 'an integer of 1 or more, or None', 'shuffle': 'True or False'}
    """
    names = _find_names(function)
    rules = {
        name: get_rule(_evaluate(parameter.annotation, names))
        for name, parameter in inspect.signature(function).parameters.items()
    }
    return {name: rule for name, rule in rules.items() if rule is not None}


def _find_names(function: Callable) -> dict[str, object]:
    """Return the global variables of a function, except modules of other packages.

    With these modules, evaluating an annotation such as `tf.Tensor` would import TensorFlow.
    """
    variables = inspect.unwrap(function).__globals__.items()
    return {n: v for n, v in variables if not isinstance(v, types.ModuleType) or _is_in_package(v)}


def _is_in_package(module: types.ModuleType) -> bool:
    return module.__name__.partition(".")[0] == __name__.partition(".")[0]


def _evaluate(annotation: object, names: dict) -> object:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except NameError:  # a module, or a name imported under TYPE_CHECKING
        return None


def get_rule(annotation: Any) -> Rule | None:
    """Return the rule for a type annotation, or None to accept any value.

    Example:
        >>> get_rule(PositiveInt | None).words
        'an integer of 1 or more, or None'
    """
    origin = get_origin(annotation)
    if annotation is bool:
        return FLAG
    if annotation is types.NoneType:
        return one_of(None)
    if origin is Annotated:
        return next((m for m in annotation.__metadata__ if isinstance(m, Rule)), None)
    if origin is Literal:
        return one_of(*get_args(annotation))
    if origin in (Union, types.UnionType):
        members = get_args(annotation)
        rules = [rule for rule in map(get_rule, members) if rule is not None]
        if len(rules) == len(members):  # otherwise, accept any value
            words = ", or ".join(rule.words for rule in rules)
            return Rule(lambda v: any(rule.holds(v) for rule in rules), words)
    return None


def check_path(path: Any, name: str = "path") -> pathlib.Path:
    """Validate the path of a file or folder, and convert the path to `pathlib.Path`.

    Raises:
        ValueError: If `path` is empty, contains NUL, or has a different type.

    Example:
        >>> check_path(None, "folder")
        Traceback (most recent call last):
        ValueError: folder is None. Expected a path.
    """
    check_argument(name, path, PATH)
    return pathlib.Path(path)


def check_argument(name: str, value: Any, rule: Rule) -> None:
    """Validate an argument.

    Raises:
        ValueError: If `value` does not satisfy `rule`.
    """
    if isinstance(value, np.generic):
        value = value.item()
    try:
        holds = rule.holds(value)
    except (TypeError, ValueError, OverflowError):  # e.g. for arrays and unhashable values
        holds = False
    if not holds:
        size = abs(value) if type(value) in (int, float) else 1
        bounds = _BOUNDS if 0 < size < SMALLEST or size > LARGEST else ""
        raise invalid(name, value, f"{rule.words}{bounds}")
