"""The docstrings' sections, as mkdocstrings shows them."""

import re
import textwrap

import griffe

# A name and the indented lines below it, as of a section whose contents are plain text.
PLAIN = re.compile(r"^(Returns|Yields):\n((?:(?: .*)?(?:\n|$))+)", re.MULTILINE)
# The same, of entries "name: text".
NAMED = re.compile(r"^(Call arguments):\n((?:(?: .*)?(?:\n|$))+)", re.MULTILINE)


class Sections(griffe.Extension):
    """Makes Markdown of the sections that Griffe's Google style would misread."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring with sections as Griffe knows them, or as Markdown."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    text = re.sub(r"^Source: ", "**Source:** ", text, flags=re.MULTILINE)
    text = PLAIN.sub(lambda found: section(found[1], found[2]), text)
    return NAMED.sub(lambda found: section(found[1], entries(found[2])), text)


def section(title: str, contents: str) -> str:
    return f"**{title}:**\n\n{textwrap.dedent(contents).strip()}\n\n"


def entries(contents: str) -> str:
    names = re.compile(r"^(\w[\w, ]*):", re.MULTILINE)
    return names.sub(r"- **`\1`**:", textwrap.dedent(contents))
