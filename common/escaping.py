"""Escapes data that is written into Markdown, YAML, HTML, Python code or a line of the log.

Names of labels, folders and metrics, texts and tokens are data: whatever they hold, a reader of the
result finds the same string, and nothing else.
"""

from __future__ import annotations

import html
import json
import logging
import os
import re

# Not writable in UTF-8, or left out by parsers: lone surrogates, NUL.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
# What Markdown gives a meaning to inside of a line, also that of GitHub.
_MARKDOWN = re.compile(
    r"[\\`*\[\]<>&|~#$@{}]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=[Ww])\.| (?= )|^ | \Z"
    "|[\t\n\x0c\r\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)
# Beside what JSON escapes: what is not printable in YAML 1.1, and all ends of lines.
_CONTROLS = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_IN_LINE = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def in_html(text: object) -> str:
    """Return a text for HTML, also for an attribute in quotes.

    Example:
        >>> in_html("a < 'b'\\r")
        'a &lt; &#x27;b&#x27;&#13;'
    """
    return html.escape(visible(str(text))).replace("\r", "&#13;")


def in_markdown(text: object) -> str:
    """Return a text for a line of Markdown, a heading or a cell of a table.

    Example:
        >>> in_markdown("bert_base *new* | <b>")
        'bert_base &#42;new&#42; &#124; &#60;b&#62;'
    """
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", visible(str(text)))


def in_yaml(text: str) -> str:
    """Return a text as a scalar of YAML in double quotes.

    Example:
        >>> in_yaml("no: \\x85")
        '"no: \\\\u0085"'
    """
    return _CONTROLS.sub(_unicode_escape, json.dumps(text, ensure_ascii=False))


def in_python(text: str) -> str:
    """Return a text as a string of Python in double quotes, on one line and without backticks.

    Example:
        >>> in_python('my "preset"')
        '"my \\\\"preset\\\\""'
    """
    return in_yaml(text).replace("`", "\\x60")


def in_line(text: str) -> str:
    """Return a text for a line of a log or a terminal, where it neither ends nor colours the line.

    Example:
        >>> in_line("a\\nb \\x1b[31m")
        'a\\\\nb \\\\x1b[31m'
    """
    return _IN_LINE.sub(lambda found: ascii(found[0])[1:-1], text)


def visible(text: str) -> str:
    """Return a text that UTF-8 can hold: NUL and lone surrogates become escapes of Python.

    Example:
        >>> visible("a\\0b")
        'a\\\\x00b'
    """
    return _UNWRITABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def check_writable(text: str, name: str) -> None:
    """Raise an error for a text that no file in UTF-8 can hold.

    Raises:
        ValueError: If the text has a lone surrogate, which UTF-8 cannot hold.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has the lone surrogate {text[error.start]!a} at character {error.start}, "
            "which no file in UTF-8 can hold. Replace it, by "
            'text.encode("utf-8", "replace").decode(), or decode the text anew.'
        ) from None


def _unicode_escape(found: re.Match) -> str:
    return f"\\u{ord(found[0]):04x}"


class EscapesData(logging.Filter):
    """Escapes the texts that a log line is about, so that it stays one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_escaped, record.args))
        return True


class _Line(str):
    """A text that `%s` escapes, as `%r` does."""

    def __str__(self) -> str:
        return in_line(str.__str__(self))


def _escaped(value: object) -> object:
    return _Line(value) if isinstance(value, str | BaseException | os.PathLike) else value


logging.getLogger("encoder_zoo").addFilter(EscapesData())
