"""HTTP service for tasks, opened exports and saved indexes.

To install the requirements, run `pip install "encoder-zoo[serve]"`. To start the service, run
`python -m encoder_zoo.serving FOLDER --port 8000`.

Example:
    >>> from encoder_zoo.serving import Limits
    >>> Limits(max_texts=64).max_texts
    64
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from encoder_zoo.serving.app import create_app as create_app
    from encoder_zoo.serving.folders import open_folders as open_folders
    from encoder_zoo.serving.limits import Limits as Limits

__all__ = ["Limits", "create_app", "open_folders"]
_HOMES = {"Limits": "limits", "create_app": "app", "open_folders": "folders"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'encoder_zoo.serving' has no attribute '{name}'")
    try:
        home = importlib.import_module(f"encoder_zoo.serving.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"encoder_zoo.serving.{name} requires {error.name}, which is not installed. Run "
            '`pip install "encoder-zoo[serve]"`.'
        ) from error
    return getattr(home, name)


def __dir__() -> list[str]:
    return __all__
