"""Write error messages, with suggestions for names from other libraries."""

from __future__ import annotations

import difflib
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

_MAX_QUOTE_LENGTH = 60
_MAX_NAMES, _MAX_NAME_LENGTH = 1000, 200  # limits for the comparisons in `find_close_names`


def quote(value: Any) -> str:
    """Format a value for error messages, in at most 60 characters.

    Example:
        >>> quote(["cat"]), quote("a" * 10**6)
        ("['cat']", "'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'")
    """
    # Long values are shortened before they are formatted.
    if isinstance(value, str | bytes | list | tuple) and len(value) > 4 * _MAX_QUOTE_LENGTH:
        long: Any = value
        value = long[:_MAX_QUOTE_LENGTH] + long[-_MAX_QUOTE_LENGTH:]
    try:
        text = repr(value)
    except ValueError:  # an integer with too many digits
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else "a number"
    except RecursionError:
        text = f"a {type(value).__name__} that is nested too deeply"
    half = (_MAX_QUOTE_LENGTH - 3) // 2
    return text if len(text) <= _MAX_QUOTE_LENGTH else f"{text[:half]}...{text[-half - 1 :]}"


def quote_with_type(value: object) -> str:
    """Format a value for error messages, followed by the type in parentheses.

    Example:
        >>> quote_with_type(None)
        'None (NoneType)'
    """
    return f"{quote(value)} ({type(value).__name__})"


def invalid(
    name: str, value: object, expected: str, error: type[Exception] = ValueError
) -> Exception:
    """Create an exception for an invalid argument or field.

    Args:
        name: String. Name of the argument, or file name and field, such as
            "config.json: num_labels".
        value: The invalid value. Long values are shortened.
        expected: String. The valid values, as the end of the sentence "Expected {expected}."
        error: Exception class to use. Defaults to `ValueError`.

    Returns:
        The exception, which the caller raises.

    Example:
        >>> raise invalid("overlap", 300, "less than length=256")
        Traceback (most recent call last):
        ValueError: overlap is 300. Expected less than length=256.
    """
    return error(f"{name} is {quote(value)}. Expected {expected}.")


@functools.cache
def read_other_names(kind: str) -> dict[str, str]:
    """Read a dict that maps names from other libraries to replacements in this package.

    Example:
        >>> read_other_names("arguments")["num_labels"]
        'num_classes'
    """
    path = pathlib.Path(__file__).with_name("other_libraries.json")
    return json.loads(path.read_text(encoding="utf-8"))[kind]


def describe_unknown_argument(function: str, name: str, known: Iterable[str]) -> str:
    """Create an error message for an unknown argument, and suggest the correct name.

    Example:
        >>> describe_unknown_argument("fit", "epoch", ["epochs", "verbose"])
        "fit got an unknown argument 'epoch'. Did you mean 'epochs'?"
        >>> describe_unknown_argument("embed", "convert_to_numpy", ["texts"])
        "embed got an unknown argument 'convert_to_numpy'. Remove it: the result is a NumPy array."
    """
    if reason := read_other_names("arguments_not_needed").get(name):
        return f"{function} got an unknown argument {name!r}. Remove it: {reason}."
    known, call = sorted(known), read_other_names("arguments_of_fit").get(name)
    if call and function.rpartition(".")[2] == "fit":
        return f"{function} got an unknown argument {name!r}. Call {call}."
    other = read_other_names("arguments").get(name)
    close = [other] if other in known else find_close_names(name, known, max_names=2, cutoff=0.7)
    hint = suggest_names(close) or f" Expected one of {', '.join(known)}."
    return f"{function} got an unknown argument {name!r}.{hint}"


def find_close_names(
    name: str, known: Iterable[str], max_names: int = 1, cutoff: float = 0.6
) -> list[str]:
    """Find the names that are most similar to an unknown name, starting with the best match.

    Comparing names is slow, so the number of comparisons is limited. If `name` has more than 200
    characters, no names are returned. If `known` contains more than 1,000 names, only names with
    the same first two characters are compared.

    Args:
        name: String. The unknown name.
        known: Iterable of strings. Names to compare with `name`.
        max_names: Integer. Maximum number of names to return. Defaults to 1.
        cutoff: Float between 0 and 1. Minimum similarity, as in `difflib`. Defaults to 0.6.

    Example:
        >>> find_close_names("epoch", ["epochs", "verbose"])
        ['epochs']
    """
    if len(name) > _MAX_NAME_LENGTH:
        return []
    known = [each for each in known if isinstance(each, str) and len(each) <= _MAX_NAME_LENGTH]
    if len(known) > _MAX_NAMES:
        begin = name[:2].lower()
        known = [each for each in known if each[:2].lower() == begin][:_MAX_NAMES]
    return difflib.get_close_matches(name, known, n=max_names, cutoff=cutoff)


def suggest_names(names: Sequence[str]) -> str:
    """Create a sentence that suggests similar names. For an empty list, return "".

    Example:
        >>> suggest_names(["epochs", "epoch"])
        " Did you mean 'epochs' or 'epoch'?"
    """
    return f" Did you mean {' or '.join(map(repr, names))}?" if names else ""


def decode_text(content: bytes, name: object) -> str:
    r"""Decode a UTF-8 text file and convert its line endings to "\n".

    A single "\r" is kept, because it can be part of a token, as in the `tokenizers` library.

    Raises:
        ValueError: If `content` is not valid UTF-8, or starts with a byte order mark.

    Example:
        >>> decode_text("é".encode("utf-16"), "vocab.txt")
        Traceback (most recent call last):
        ValueError: vocab.txt cannot be read as UTF-8: the encoding is UTF-16. Save the file as ...
    """
    return decode_exactly(content, name).replace("\r\n", "\n")


def decode_exactly(content: bytes, name: object) -> str:
    """Decode a UTF-8 text file without changing its line endings. See `decode_text`."""
    try:
        text = content.decode("utf-8")
        wrong = "a byte order mark was found" if text.startswith("\ufeff") else None
    except UnicodeDecodeError as error:
        found = content[error.start : error.start + 4]
        is_utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        wrong = "the encoding is UTF-16" if is_utf16 else f"byte {error.start} is {found!r}"
    if wrong:
        raise ValueError(
            f"{name} cannot be read as UTF-8: {wrong}. Save the file as UTF-8 without a byte order "
            "mark."
        )
    return text


def describe_mismatch(said: Mapping[str, object]) -> str:
    """Create the end of an error message about files with conflicting values.

    Args:
        said: Dict mapping file names to values. None stands for a missing value.

    Example:
        >>> describe_mismatch({"vocab.txt": 5, "tokenizer.json": None})
        '5 in vocab.txt, but missing in tokenizer.json. Expected the same value. Download all ...'
    """
    parts = [f"{'missing' if v is None else quote(v)} in {file}" for file, v in said.items()]
    return f"{', but '.join(parts)}. Expected the same value. Download all files again."


class ForeignName:
    """Attribute that raises an error for a name from another library, and suggests a replacement.

    Reading or setting the attribute raises an AttributeError, so `hasattr` returns False. By
    default, Python would not raise an error for setting an unknown attribute.

    Args:
        meant: String. The code to suggest, for example "from_preset(source)".

    Example:
        >>> class Model:
        ...     from_pretrained = ForeignName("from_preset(source)")
        >>> hasattr(Model, "from_pretrained")
        False
        >>> Model.from_pretrained
        Traceback (most recent call last):
        AttributeError: Model has no 'from_pretrained'. Use Model.from_preset(source).
        >>> Model().from_pretrained
        Traceback (most recent call last):
        AttributeError: Model has no 'from_pretrained'. Use from_preset(source).
    """

    def __init__(self, meant: str):
        self._meant = meant

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        called = self._meant if instance is not None else f"{owner.__name__}.{self._meant}"
        self._raise_error(owner, called)

    def __set__(self, instance: object, value: object) -> NoReturn:
        self._raise_error(type(instance), self._meant)

    def _raise_error(self, owner: type, called: str) -> NoReturn:
        # Python adds another suggestion to the message, unless `name` is passed without `obj`.
        raise AttributeError(
            f"{owner.__name__} has no {self._name!r}. Use {called}.", name=self._name
        )
