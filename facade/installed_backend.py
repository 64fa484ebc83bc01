"""Choose the Keras backend if TensorFlow, the default backend, is not installed."""

import importlib.util
import logging
import os
import sys

from encoder_zoo.common.backend import get_keras_file, read_backend

BACKEND_NAMES = ("tensorflow", "jax", "torch")
KERAS_BACKENDS = (*BACKEND_NAMES, "numpy", "openvino")

logger = logging.getLogger(__name__)


def choose_installed_backend() -> None:
    """Set KERAS_BACKEND to an installed backend, if TensorFlow is not installed.

    The backend in KERAS_BACKEND or keras.json is kept. There is one exception: if keras.json
    contains "tensorflow", but TensorFlow is not installed, the file is ignored, because Keras
    writes this default on first import. If Keras is already imported, this function does nothing.

    Raises:
        ImportError: If no backend is installed, or if the selected backend is missing.
    """
    if "keras" in sys.modules or not _is_installed("keras"):
        return  # `open_export` can be used without Keras
    file = get_keras_file()
    variable, in_file = os.environ.get("KERAS_BACKEND"), read_backend(file)
    backend = variable or in_file
    if backend in KERAS_BACKENDS and _is_installed(backend):
        return
    installed = [name for name in BACKEND_NAMES if _is_installed(name)]
    if not installed:
        raise ImportError(
            "No Keras backend is installed. Install one of them: `pip install tensorflow`, `pip "
            "install jax` or `pip install torch`."
        )
    if variable or in_file != "tensorflow":
        where = "the variable KERAS_BACKEND" if variable else f"the file {file}"
        install = f", or `pip install {backend}`" if backend in KERAS_BACKENDS else ""
        raise ImportError(
            f"The Keras backend is {backend!r} according to {where}, but it is not installed. Set "
            f"KERAS_BACKEND={installed[0]} before Python starts{install}. Installed: "
            f"{', '.join(installed)}."
        )
    os.environ["KERAS_BACKEND"] = installed[0]
    logger.info(
        "Using the Keras backend %s, because KERAS_BACKEND is not set and TensorFlow is not "
        "installed.",
        installed[0],
    )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # imported without a spec, or None in `sys.modules`
        return sys.modules[name] is not None
