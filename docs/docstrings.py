"""The docstrings' sections, as mkdocstrings shows them."""

import re
import textwrap

import griffe

# Sections of plain text, and of names with a text each, which Griffe's Google style does not know.
PLAIN = ("Returns", "Yields", "Source")
NAMED = ("Call arguments",)
SECTION = r"^{}:(.*(?:\n(?: +.*)?)*)"


class Sections(griffe.Extension):
    """Makes Markdown of the sections that Griffe would misread."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring with sections as Griffe knows them, or as Markdown."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    for name in PLAIN:
        text = re.sub(SECTION.format(name), _plain(name), text, flags=re.MULTILINE)
    for name in NAMED:
        text = re.sub(SECTION.format(name), _named(name), text, flags=re.MULTILINE)
    return text


def _plain(name: str):
    return lambda found: f"**{name}:**\n\n{_dedented(found[1])}\n\n"


def _named(name: str):
    def replaced(found: re.Match) -> str:
        entries = re.sub(r"^(\w[\w, ]*):", r"- **`\1`**:", _dedented(found[1]), flags=re.MULTILINE)
        return f"**{name}:**\n\n{entries}\n\n"

    return replaced


def _dedented(text: str) -> str:
    first, _, rest = text.partition("\n")
    return f"{first.strip()}\n{textwrap.dedent(rest)}".strip()
