"""Errors of readers: what a file makes Python or a library raise becomes an error that names it.

A file that somebody else wrote may break any assumption of the code that reads it. Readers check
what they can, and everything else, such as a `KeyError` of Python or a panic of a library, ends
here.
"""

from __future__ import annotations

import contextlib
import dis
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from encoder_zoo.common.wording import decoded_exactly, invalid, shown

_PACKAGE = __name__.partition(".")[0]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST = 300  # characters of another library's message


@contextlib.contextmanager
def reading(name: object, expected: str = "It is damaged, or of another format.") -> Iterator[None]:
    """Turn every error of a block that reads a file into one that names the file.

    Errors that this package raises keep their words. An `OSError` and an `ImportError` stay as they
    are.

    Args:
        name: Name of the file, of a row or of a line. It begins the message.
        expected: String. Second sentence of errors that this package has not raised itself.

    Raises:
        ValueError: If the block raises any error, a panic of a library in Rust included.

    Example:
        >>> with reading("tasks.json"):
        ...     {"id": 3}["data"]
        Traceback (most recent call last):
        ValueError: tasks.json cannot be read: KeyError 'data'. It is damaged, or of another format.
    """
    try:
        yield
    except (OSError, ImportError):
        raise
    except BaseException as error:
        if _is_own(error) and isinstance(error, ValueError):
            if str(name) in str(error):
                raise
            raise ValueError(f"{name}: {error}") from error
        if _is_of_the_program(error):
            raise
        raise ValueError(f"{name} cannot be read: {described(error)}. {expected}") from error


@contextlib.contextmanager
def loading(name: object) -> Iterator[None]:
    """Turn the errors of a block that nobody raised on purpose into one that names a folder.

    Such an error is one of Python, as "'int' object is not iterable", or a panic of a library. What
    a `raise` statement raises, here, in Keras or in a registered class, is kept: arguments of the
    caller may be its cause.

    Args:
        name: Name of the folder. It begins the message.

    Raises:
        ValueError: If the block raises an error that no `raise` statement has raised.

    Example:
        >>> with loading("my_preset"):
        ...     len(5)
        Traceback (most recent call last):
        ValueError: my_preset cannot be loaded: TypeError object of type 'int' has no len(). ...
    """
    try:
        yield
    except (OSError, ImportError):
        raise
    except BaseException as error:
        if _is_of_the_program(error) or _statement(error)[1] == "RAISE_VARARGS":
            raise
        raise ValueError(
            f"{name} cannot be loaded: {described(error)}. A file in it is damaged, or an argument "
            "has a wrong type."
        ) from error


def described(error: BaseException) -> str:
    """Return the type and the message of an error, in one line without a full stop.

    Example:
        >>> described(RecursionError("maximum recursion depth exceeded"))
        'it is nested too deeply'
        >>> described(AttributeError("'str' object has no attribute 'get'"))
        "AttributeError 'str' object has no attribute 'get'"
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).split("\n")[0].strip().rstrip(".")
    return f"{type(error).__name__} {lines:.{_MOST}}".strip()


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark.

    Line ends are kept as they are: offsets may count them.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the path is a folder, or the text is not in UTF-8.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Expected a file.")
    content = path.read_bytes().removeprefix(_BYTE_ORDER_MARK)
    return decoded_exactly(content, path.name)


def parse_json(text: str, name: object) -> Any:
    """Return the value of a text in JSON.

    Args:
        text: String.
        name: Name of the file, and of the line, for errors.

    Raises:
        ValueError: If the text is not JSON, is nested too deeply, or has an integer of more digits
            than Python reads.

    Example:
        >>> parse_json("[" * 100_000, "rows.json")
        Traceback (most recent call last):
        ValueError: rows.json is not readable as JSON: it is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{name} is not readable as JSON: {described(error)}.") from None
    except ValueError as error:
        reason = error if text.strip() else "it is empty"
        raise ValueError(f"{name} is not readable as JSON: {reason}.") from None


def field_of(
    holder: Any, key: str, kind: type | tuple[type, ...], where: str, *default: Any
) -> Any:
    """Return a field of an object that was read from a file.

    Args:
        holder: Dict with the field.
        key: String. Name of the field.
        kind: Type of its values, or a tuple of types.
        where: String. File, row or line, for errors.
        *default: Value of a field that is missing. Without one, the field is required.

    Raises:
        ValueError: If the holder is no dict, or the field is missing or of another type.

    Example:
        >>> field_of({"id": 3}, "id", int, "Row 0"), field_of({}, "id", int, "Row 0", None)
        (3, None)
        >>> field_of({"id": "a"}, "id", int, "Row 0")
        Traceback (most recent call last):
        ValueError: Row 0: 'id' is 'a'. Expected an integer.
    """
    if not isinstance(holder, dict):
        raise invalid(where, holder, f"an object with {key!r}")
    if key not in holder:
        if default:
            return default[0]
        keys = shown(list(holder))
        raise ValueError(f"{where} has no {key!r}. Its keys are {keys}.")
    value = holder[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        words = " or ".join(_WORDS[each] for each in kinds)
        raise invalid(f"{where}: {key!r}", value, words)
    return value


_WORDS = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "a text",
    type(None): "null",
}


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust, which is no `Exception`."""
    return type(error).__name__ == "PanicException"


def _is_of_the_program(error: BaseException) -> bool:
    """Return whether an error stops the program, such as KeyboardInterrupt."""
    return not isinstance(error, Exception) and not is_panic(error)


def _statement(error: BaseException) -> tuple[str, str]:
    """Return the module that an error comes from, and the name of its instruction there."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return "", ""
    code = place.tb_frame.f_code
    module = place.tb_frame.f_globals.get("__name__", "")
    return module, dis.opname[code.co_code[place.tb_lasti]]


def _is_own(error: BaseException) -> bool:
    """Return whether a `raise` statement of this package has raised an error."""
    module, statement = _statement(error)
    return module.partition(".")[0] == _PACKAGE and statement == "RAISE_VARARGS"
