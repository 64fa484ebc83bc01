"""Display pictures in notebooks and terminals."""

from __future__ import annotations

import os
import pathlib
import re

from encoder_zoo.common.escaping import escape_html, escape_line
from encoder_zoo.presets.files.atomic import replace_file

_CONTROLS = re.compile(r"[^\n\t]+")  # without line breaks and tabs, which are kept
PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="generator" content="encoder_zoo">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em; }}
h1 {{ font-size: 1.4em; }}
</style></head>
<body>{heading}{body}</body></html>
"""


class Picture:
    """A picture that notebooks display as HTML and terminals display as text.

    Notebooks display pictures on the last line of a cell. Use `+` to combine pictures.

    Args:
        html: String. The picture as HTML, with styles and escaped texts.
        text: String. The picture as text.

    Example:
        >>> print(Picture("<b>Rome</b>", "[Rome]") + Picture("<i>Oslo</i>", "[Oslo]"))
        [Rome]
        <BLANKLINE>
        [Oslo]
    """

    def __init__(self, html: str, text: str):
        self.html = html
        self.text = _CONTROLS.sub(lambda found: escape_line(found[0]), text)

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text

    def __add__(self, other: Picture) -> Picture:
        return Picture(self.html + other.html, f"{self.text}\n\n{other.text}")

    def show(self) -> None:
        """Display this picture in a notebook, or print it as text outside of notebooks.

        Use this method in loops and functions, where notebooks do not display results
        automatically.
        """
        try:
            from IPython.display import display
        except ImportError:
            print(self)
        else:
            display(self)

    def save(self, path: str | os.PathLike[str], title: str = "") -> None:
        """Write the picture to a file as an HTML page.

        Args:
            path: File path, such as "entities.html".
            title: String. The title above the picture. Defaults to "".

        Raises:
            ValueError: If `path` exists and was not written by this method.
        """
        title = escape_html(title)
        heading = f"<h1>{title}</h1>" if title else ""
        page = PAGE.format(title=title, heading=heading, body=self.html)
        with replace_file(path, _is_saved_picture) as new:
            new.write_text(page, encoding="utf-8")


def _is_saved_picture(path: pathlib.Path) -> bool:
    """Return whether a file was written by `Picture.save`."""
    with open(path, "rb") as file:
        return b'<meta name="generator" content="encoder_zoo">' in file.read(500)
