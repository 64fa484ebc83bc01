"""The backend of Keras where TensorFlow, which Keras takes if nothing is said, is not installed."""

import importlib.util
import json
import logging
import os
import pathlib
import sys

BACKENDS = ("tensorflow", "jax", "torch")

logger = logging.getLogger(__name__)


def choose_installed_backend() -> None:
    """Set KERAS_BACKEND to an installed backend, if Keras would take TensorFlow and it is missing.

    A variable that is set counts as it is; so does Keras when it is imported already. The file
    keras.json counts unless it names TensorFlow: Keras writes that itself in its first import.

    Raises:
        ImportError: "encoder_zoo needs a backend of Keras, and none is installed. Install one:
            `pip install tensorflow`, `pip install jax` or `pip install torch`."
    """
    if os.environ.get("KERAS_BACKEND") or "keras" in sys.modules:
        return
    if _backend_in_file() != "tensorflow" or _is_installed("tensorflow"):
        return
    installed = [name for name in BACKENDS if _is_installed(name)]
    if not installed:
        raise ImportError(
            "encoder_zoo needs a backend of Keras, and none is installed. Install one: "
            "`pip install tensorflow`, `pip install jax` or `pip install torch`."
        )
    os.environ["KERAS_BACKEND"] = installed[0]
    logger.info(
        "Keras's backend is %s: KERAS_BACKEND is not set, and TensorFlow is not installed.",
        installed[0],
    )


def _backend_in_file() -> str:
    """Return the backend that keras.json names, or Keras's default."""
    home = os.environ.get("KERAS_HOME")
    if home is None:  # as Keras does
        user = os.path.expanduser("~")
        home = os.path.join(user if os.access(user, os.W_OK) else "/tmp", ".keras")
    try:
        return json.loads(pathlib.Path(home, "keras.json").read_text()).get("backend", "tensorflow")
    except (OSError, ValueError):
        return "tensorflow"


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # imported by hand, or hidden
        return sys.modules[name] is not None
