"""Find out which backend Keras will use, without importing Keras."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys


def backend() -> str:
    """Return the name of the Keras backend. This function does not import Keras.

    Example:
        >>> import keras
        >>> backend() == keras.config.backend()
        True
    """
    if "keras" in sys.modules:
        return sys.modules["keras"].config.backend()
    return os.environ.get("KERAS_BACKEND") or _read_backend_setting()


@functools.cache
def _read_backend_setting() -> str:
    return read_backend(get_keras_file())


def get_keras_file() -> pathlib.Path:
    """Return the path of keras.json, the configuration file of Keras."""
    home = os.environ.get("KERAS_HOME")
    if home is None:  # the same steps as in Keras
        user = os.path.expanduser("~")
        home = os.path.join(user if os.access(user, os.W_OK) else "/tmp", ".keras")
    return pathlib.Path(home, "keras.json")


def read_backend(file: pathlib.Path) -> str:
    """Read the backend from keras.json. If the file is not valid, return the default backend."""
    try:
        return json.loads(file.read_text()).get("backend", "tensorflow")
    except (OSError, ValueError):
        return "tensorflow"
