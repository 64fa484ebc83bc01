"""Escape data for Markdown, YAML, HTML, Python code and log messages.

Use these functions for label names, folder names, metrics, texts and tokens, which are not trusted.
A parser converts the escaped text back to the original string, except for NUL and lone surrogates.
"""

from __future__ import annotations

import html
import json
import logging
import os
import re

# NUL (skipped by some parsers) and lone surrogates (not supported by UTF-8).
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
# Characters to escape in Markdown, including GitHub Flavored Markdown.
_MARKDOWN = re.compile(
    r"[\\`*\[\]<>&|~#$@{}]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=[Ww])\.| (?= )|^ | \Z"
    "|[\t\n\x0c\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)
# Characters to escape in YAML 1.1 in addition to JSON: line endings and non-printable characters.
_CONTROLS = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_IN_LINE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_html(text: object) -> str:
    """Escape a string for HTML, including quoted attributes.

    Example:
        >>> escape_html("a < 'b'\\r")
        'a &lt; &#x27;b&#x27;&#13;'
    """
    return html.escape(escape_unencodable(str(text))).replace("\r", "&#13;")


def escape_markdown(text: object) -> str:
    """Escape a string for Markdown, for example for a heading or a table cell.

    Example:
        >>> escape_markdown("bert_base *new* | <b>")
        'bert_base &#42;new&#42; &#124; &#60;b&#62;'
    """
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", escape_unencodable(str(text)))


def escape_yaml(text: str) -> str:
    """Convert a string to a YAML string in double quotes.

    Example:
        >>> escape_yaml("no: \\x85")
        '"no: \\\\u0085"'
    """
    text = json.dumps(text, ensure_ascii=False)
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def escape_python(text: str) -> str:
    """Convert a string to a Python string in double quotes. Backticks are also escaped.

    Example:
        >>> escape_python('my "preset"')
        '"my \\\\"preset\\\\""'
    """
    return escape_yaml(text).replace("`", "\\x60")


def escape_line(text: str) -> str:
    """Escape control characters for log messages and terminals.

    Example:
        >>> escape_line("a\\nb \\x1b[31m")
        'a\\\\nb \\\\x1b[31m'
    """
    return _IN_LINE.sub(lambda found: ascii(found[0])[1:-1], text)


def escape_unencodable(text: str) -> str:
    """Escape NUL and lone surrogates, so that the result can be encoded as UTF-8.

    Example:
        >>> escape_unencodable("a\\0b")
        'a\\\\x00b'
    """
    return _UNWRITABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def check_encodable(text: str, name: str) -> None:
    """Check that a string can be encoded as UTF-8.

    Raises:
        ValueError: If `text` contains a lone surrogate.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has the lone surrogate {text[error.start]!a} at character {error.start}, "
            "which UTF-8 cannot encode. Replace it with "
            'text.encode("utf-8", "replace").decode(), or decode the original bytes again.'
        ) from None


class EscapingFilter(logging.Filter):
    """Logging filter that escapes control characters in the arguments of log messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_escape, record.args))
        return True


class _EscapedString(str):
    """String that is escaped in log messages, even for `%s`."""

    def __str__(self) -> str:
        return escape_line(str.__str__(self))


def _escape(value: object) -> object:
    return _EscapedString(value) if isinstance(value, str | BaseException | os.PathLike) else value


logging.getLogger("encoder_zoo").addFilter(EscapingFilter())
