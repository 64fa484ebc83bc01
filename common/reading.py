"""Convert errors raised while reading a file to errors that name the file.

Files from unknown sources can break any assumption of the code that reads them. The code checks as
much as possible. This module handles all other errors, for example a `KeyError` or a panic in a
Rust library.
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
_MOST = 300  # maximum length of messages from other libraries


@contextlib.contextmanager
def convert_read_errors(
    name: object, expected: str = "The file is damaged or has another format."
) -> Iterator[None]:
    """Convert all errors inside the `with` block to errors that name the file.

    Errors raised by this package keep their messages. `OSError` and `ImportError` are not
    converted.

    Args:
        name: String. The name of the file, row or line, with which the message starts.
        expected: String. The second sentence of the message. It is not used for errors raised by
            this package.

    Raises:
        ValueError: If the block raises an error, including a panic in a Rust library.

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
        if _is_own(error) and isinstance(error, ValueError):
            if str(name) in str(error):
                raise
            raise ValueError(f"{name}: {error}") from error
        if _is_program_exit(error):
            raise
        raise ValueError(f"{name} cannot be read: {describe_error(error)}. {expected}") from error


@contextlib.contextmanager
def convert_load_errors(name: object) -> Iterator[None]:
    """Convert errors that Python raises inside the `with` block to errors that name the folder.

    For example, Python raises "'int' object is not iterable". Panics in a Rust library are also
    converted. Errors raised by a `raise` statement are not converted, because user arguments can
    cause them. The statement can be in this package, in Keras or in a registered class.

    Args:
        name: String. The name of the folder, with which the message starts.

    Raises:
        ValueError: If the block raises an error without a `raise` statement.

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
        if _is_program_exit(error) or _find_statement(error)[1] == "RAISE_VARARGS":
            raise
        raise ValueError(
            f"{name} cannot be loaded: {describe_error(error)}. A file in the folder is damaged, "
            "or an argument has a wrong type."
        ) from error


def describe_error(error: BaseException) -> str:
    """Return the type and message of an error on one line, without the final period.

    Example:
        >>> describe_error(RecursionError("maximum recursion depth exceeded"))
        'it is nested too deeply'
        >>> describe_error(AttributeError("'str' object has no attribute 'get'"))
        "AttributeError 'str' object has no attribute 'get'"
    """
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    lines = str(error).split("\n")[0].strip().rstrip(".")
    return f"{type(error).__name__} {lines:.{_MOST}}".strip()


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a UTF-8 text file with or without a byte order mark.

    Line endings are kept, because offsets can depend on them.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the path is a folder, or if the file is not encoded as UTF-8.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder. Expected a file.")
    content = path.read_bytes().removeprefix(_BYTE_ORDER_MARK)
    return decode_exactly(content, path.name)


def split_lines(text: str) -> list[str]:
    r"""Split a text at the line endings of Linux, Windows and old Macs.

    `str.splitlines` would also split at characters used inside words, such as U+0085.

    Example:
        >>> split_lines("a\r\nb\rc\n\nd\x85e")
        ['a', 'b', 'c', '', 'd\x85e']
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def parse_json(text: str, name: object) -> Any:
    """Parse a JSON text.

    Args:
        text: String. The JSON text.
        name: String. The file name and line number for error messages.

    Raises:
        ValueError: If the text is not valid JSON, is nested too deeply, or contains an integer with
            too many digits for Python.

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
    """Read a field of a JSON object and check its type.

    Args:
        holder: Dictionary with the field.
        key: String. The field name.
        kind: Type or tuple of types that the value may have.
        where: String. The file, row or line, for error messages.
        *default: Value to return if the field is missing. Without it, the field is required.

    Raises:
        ValueError: If `holder` is not a dictionary, or if the field is missing or has another type.

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


def is_panic(error: BaseException) -> bool:
    """Check whether an error is a panic in a Rust library. Panics are not `Exception` instances."""
    return type(error).__name__ == "PanicException"


def _is_program_exit(error: BaseException) -> bool:
    """Return whether an error stops the program, for example KeyboardInterrupt."""
    return not isinstance(error, Exception) and not is_panic(error)


def _find_statement(error: BaseException) -> tuple[str, str]:
    """Return the module that raised an error, and the bytecode instruction."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None:
        return "", ""
    code = place.tb_frame.f_code
    module = place.tb_frame.f_globals.get("__name__", "")
    return module, dis.opname[code.co_code[place.tb_lasti]]


def _is_own(error: BaseException) -> bool:
    """Check whether an error was raised by a `raise` statement in this package."""
    module, statement = _find_statement(error)
    return module.partition(".")[0] == _PACKAGE and statement == "RAISE_VARARGS"
