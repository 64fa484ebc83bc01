"""Add the file name to errors raised while reading a file.

Files from unknown sources are validated before use. This module handles the errors that validation
does not find, such as a `KeyError` or a panic of a Rust library.
"""

from __future__ import annotations

import contextlib
import dis
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from encoder_zoo.common.wording import decode_exactly, invalid, quote

_PACKAGE = __name__.partition(".")[0]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_MESSAGE_LENGTH = 300  # maximum number of characters for messages from other libraries


@contextlib.contextmanager
def convert_read_errors(
    name: object, expected: str = "The file is damaged or has another format."
) -> Iterator[None]:
    """Context manager that converts errors to a ValueError with the file name.

    For errors raised by this package, the file name is added to the message. `OSError` and
    `ImportError` will not be converted.

    Args:
        name: String. Name of the file, row or line, with which the message starts.
        expected: String. Second sentence of the message, except for errors raised by this package.

    Raises:
        ValueError: If the `with` block raises an exception, including a panic of a Rust library.

    Example:
        >>> with convert_read_errors("tasks.json"):
        ...     {"id": 3}["data"]
        Traceback (most recent call last):
        ValueError: tasks.json cannot be read: KeyError 'data'. The file is damaged or ...
    """
    try:
        yield
    except (OSError, ImportError):
        raise
    except BaseException as error:
        if _is_raised_by_package(error) and isinstance(error, ValueError):
            if str(name) in str(error):
                raise
            raise ValueError(f"{name}: {error}") from error
        if _is_program_exit(error):
            raise
        raise ValueError(f"{name} cannot be read: {describe_error(error)}. {expected}") from error


@contextlib.contextmanager
def convert_load_errors(name: object) -> Iterator[None]:
    """Context manager that converts Python errors to a ValueError with the folder name.

    For example, the TypeError "'int' object is not iterable" and panics in a Rust library will be
    converted. Errors from a `raise` statement in this package, in Keras or in a registered class
    will not be converted, because the reason could be an invalid argument.

    Args:
        name: String. Name of the folder, with which the message starts.

    Raises:
        ValueError: If the `with` block raises an exception that does not come from a `raise`
            statement.

    Example:
        >>> with convert_load_errors("my_preset"):
        ...     len(5)
        Traceback (most recent call last):
        ValueError: my_preset cannot be loaded: TypeError object of type 'int' has no len(). ...
    """
    try:
        yield
    except (OSError, ImportError):
        raise
    except BaseException as error:
        if _is_program_exit(error) or find_raising_instruction(error)[1] == "RAISE_VARARGS":
            raise
        raise ValueError(
            f"{name} cannot be loaded: {describe_error(error)}. A file in the folder is damaged, "
            "or an argument has a wrong type."
        ) from error


def describe_error(error: BaseException) -> str:
    """Format an error as a single line, without a period at the end.

    Example:
        >>> describe_error(RecursionError("maximum recursion depth exceeded"))
        'it is nested too deeply'
        >>> describe_error(AttributeError("'str' object has no attribute 'get'"))
        "AttributeError 'str' object has no attribute 'get'"
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).split("\n")[0].strip().rstrip(".")
    return f"{type(error).__name__} {lines:.{_MAX_MESSAGE_LENGTH}}".strip()


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a text file in UTF-8, with or without a byte order mark.

    Line endings are not converted, because this would change the offsets in the text.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If `path` is a folder, or if the file is not encoded as UTF-8.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Expected a file.")
    content = path.read_bytes().removeprefix(_BYTE_ORDER_MARK)
    return decode_exactly(content, path.name)


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines. Line endings can be "\n", "\r\n" or "\r".

    `str.splitlines` would also split at U+0085 and other characters.

    Example:
        >>> split_lines("a\r\nb\rc\n\nd\x85e")
        ['a', 'b', 'c', '', 'd\x85e']
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def parse_json(text: str, name: object) -> Any:
    """Parse a string as JSON.

    Args:
        text: String to parse.
        name: String. File name and line number in error messages.

    Raises:
        ValueError: If `text` is not valid JSON, is nested too deeply, or contains an integer with
            too many digits.

    Example:
        >>> parse_json("[" * 100_000, "rows.json")
        Traceback (most recent call last):
        ValueError: rows.json is not readable as JSON: it is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{name} is not readable as JSON: {describe_error(error)}.") from None
    except ValueError as error:
        reason = error if text.strip() else "it is empty"
        raise ValueError(f"{name} is not readable as JSON: {reason}.") from None


def read_field(
    holder: Any, key: str, kind: type | tuple[type, ...], where: str, *default: Any
) -> Any:
    """Get a field from a JSON object, and check the type of the value.

    Args:
        holder: Dict. The JSON object.
        key: String. Name of the field.
        kind: Type or tuple of types. The types that are accepted.
        where: String. Name of the file, row or line in error messages.
        *default: Value to return if the field is missing. Without this argument, the field is
            required.

    Raises:
        ValueError: If `holder` is not a dict, or if `holder[key]` is missing or is not of type
            `kind`.

    Example:
        >>> read_field({"id": 3}, "id", int, "Row 0"), read_field({}, "id", int, "Row 0", None)
        (3, None)
        >>> read_field({"id": "a"}, "id", int, "Row 0")
        Traceback (most recent call last):
        ValueError: Row 0: 'id' is 'a'. Expected an integer.
    """
    if not isinstance(holder, dict):
        raise invalid(where, holder, f"an object with {key!r}")
    if key not in holder:
        if default:
            return default[0]
        keys = quote(list(holder))
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


def _is_program_exit(error: BaseException) -> bool:
    """Return whether an error stops the program, such as KeyboardInterrupt.

    A panic in a Rust library does not stop the program, although it is not an `Exception`.
    """
    return not isinstance(error, Exception) and type(error).__name__ != "PanicException"


def find_raising_instruction(error: BaseException) -> tuple[str, str]:
    """Find the module and the bytecode instruction that raised an error."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return "", ""
    code = place.tb_frame.f_code
    module = place.tb_frame.f_globals.get("__name__", "")
    return module, dis.opname[code.co_code[place.tb_lasti]]


def _is_raised_by_package(error: BaseException) -> bool:
    """Return whether an error was raised by a `raise` statement in this package."""
    module, instruction = find_raising_instruction(error)
    return module.partition(".")[0] == _PACKAGE and instruction == "RAISE_VARARGS"
