"""From a preset's name or address to a local folder."""

from __future__ import annotations

import difflib
import os
import pathlib

BUNDLED = pathlib.Path(__file__).parent / "data"


def resolve(source: str | os.PathLike, verify: bool = True) -> pathlib.Path:
    """The folder behind a preset's name.

    Args:
        source: a bundled preset's name, or a folder.

    Returns:
        The folder.

    Raises:
        ValueError: "No preset 'bert_nano'. Did you mean 'bert_nano_en_uncased'? ..."
    """
    bundled = {path.parent.name: path.parent for path in BUNDLED.glob("*/config.json")}
    if str(source) in bundled:
        return bundled[str(source)]
    folder = pathlib.Path(source)
    if folder.is_dir():
        return folder
    close = difflib.get_close_matches(str(source), bundled, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise ValueError(
        f"No preset '{source}'.{hint} Expected a folder or one of {', '.join(sorted(bundled))}."
    )
