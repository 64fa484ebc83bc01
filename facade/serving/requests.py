"""Parse and validate requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from encoder_zoo.common.wording import find_close_names, invalid, suggest_names


class RequestError(Exception):
    """Exception that rejects a request with an error response.

    Args:
        status: Integer. HTTP status code of the response.
        message: String. Error message for the client.
        field: Optional string. Name of the invalid field.
        code: Optional string. Error code in the OpenAI API, such as "model_not_found".
    """

    def __init__(
        self, status: int, message: str, field: str | None = None, code: str | None = None
    ):
        super().__init__(message)
        self.status, self.field, self.code = status, field, code

    def make_body(self) -> dict:
        """Convert the error to a response body in the OpenAI API format."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.field, "code": self.code}
        return {"error": error}


def reject_constant(name: str) -> None:
    """Raise a ValueError for NaN and Infinity."""
    raise ValueError(f"{name} is not a valid JSON value")


def read_json(content: bytes) -> dict[str, Any]:
    """Parse the body of a request.

    Raises:
        RequestError: If the body is not a valid JSON object in UTF-8.

    Example:
        >>> read_json(b'{"texts": ["Hello."]}')
        {'texts': ['Hello.']}
    """
    try:
        fields = json.loads(content.decode("utf-8"), parse_constant=reject_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(
            422, f"The body is not valid JSON in UTF-8: {reason}.", "body"
        ) from error
    if not isinstance(fields, dict):
        raise RequestError(422, str(invalid("body", fields, "a JSON object")), "body")
    return fields


class Fields:
    """The fields of a request. Call `reject_unknown_fields` after reading all supported fields.

    Args:
        given: Dict mapping field names to values. None is the same as a missing field.
        max_texts: Integer. Maximum number of texts per field.

    Example:
        >>> fields = Fields({"texts": "Hello.", "top_k": 2}, max_texts=8)
        >>> fields.read_texts("texts"), fields.read_options("top_k", "threshold")
        (['Hello.'], {'top_k': 2})
        >>> fields.reject_unknown_fields()
    """

    def __init__(self, given: dict[str, Any], max_texts: int):
        self._given = {name: value for name, value in given.items() if value is not None}
        self._max_texts = max_texts
        self.known: list[str] = []

    def has(self, name: str) -> bool:
        """Return True if the request contains a field."""
        return name in self._given

    def is_single(self, name: str) -> bool:
        """Return True if a field contains a single text instead of a list."""
        return isinstance(self._given.get(name), str)

    def read(
        self, name: str, holds: Callable[[Any], bool], expected: str, default: Any = None
    ) -> Any:
        """Return the value of an optional field.

        Args:
            name: String. Name of the field.
            holds: A function that returns whether a value is valid.
            expected: String. The valid values, for the error message.
            default: Value to return if the field is missing. Defaults to None.

        Raises:
            RequestError: If the value is invalid.
        """
        self.known.append(name)
        value = self._given.get(name, default)
        if name in self._given and not holds(value):
            raise RequestError(422, str(invalid(name, value, expected)), name)
        return value

    def read_text(self, name: str) -> str:
        """Return the value of a required field, which must be a single text."""
        self._require(name, "a text")
        return self.read(name, is_text, "a text")

    def read_texts(self, name: str, pairs: bool = False) -> list:
        """Return the value of a required field as a list of texts.

        Args:
            name: String. Name of the field.
            pairs: Boolean. Whether to accept pairs of texts. Defaults to False.

        Raises:
            RequestError: If the field is missing or invalid, or if there are too many texts.
        """
        expected = "a text or a list of texts" + (", or a list of pairs of texts" if pairs else "")
        self._require(name, expected)
        value = self.read(name, lambda v: isinstance(v, str | list) and v != [], expected)
        texts = [value] if isinstance(value, str) else value
        if len(texts) > self._max_texts:
            count = f"{len(texts)} texts"
            raise RequestError(
                413, f"`{name}` has {count}. Expected at most {self._max_texts}.", name
            )
        is_valid = is_pair if pairs and isinstance(texts[0], list) else is_text
        for i, text in enumerate(texts):
            if not is_valid(text):
                what = "a pair of texts" if is_valid is is_pair else "a text"
                raise RequestError(422, str(invalid(f"{name}[{i}]", text, what)), name)
        return [tuple(text) if is_valid is is_pair else text for text in texts]

    def read_options(self, *names: str) -> dict[str, Any]:
        """Return the given options as a dict. The model validates their values.

        Raises:
            RequestError: If a value contains a lone surrogate or is nested too deeply. Models do
                not check this.
        """
        self.known += names
        options = {name: self._given[name] for name in names if name in self._given}
        for name, value in options.items():
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except (UnicodeEncodeError, RecursionError) as error:
                raise RequestError(
                    422, f"{name} is not valid JSON in UTF-8: {error}.", name
                ) from error
        return options

    def reject_unknown_fields(self) -> None:
        """Raise a RequestError for unknown fields."""
        for name in self._given:
            if name not in self.known:
                hint = suggest_names(find_close_names(name, self.known))
                hint = hint or f" Expected one of {', '.join(sorted(self.known))}."
                raise RequestError(422, f"The field {name!r} is unknown.{hint}", name[:100])

    def _require(self, name: str, expected: str) -> None:
        if name not in self._given:
            self.known.append(name)
            raise RequestError(422, f"{name} is missing. Expected {expected}.", name)


def is_text(value: object) -> bool:
    """Return True for strings, except for strings with lone surrogates.

    Example:
        >>> is_text("Hello."), is_text("\\ud800"), is_text(3)
        (True, False, False)
    """
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:  # a lone surrogate
        return False


def is_pair(value: object) -> bool:
    """Return True for a list of two texts."""
    return isinstance(value, list) and len(value) == 2 and all(map(is_text, value))
