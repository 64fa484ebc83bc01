"""encoder_zoo: encoder-only transformers for Keras 3, from raw text to predictions.

All public names are imported on first use, so `import encoder_zoo` does not import Keras or
TensorFlow. After this import, Keras can load files that contain classes from this package. Names
are listed in `__init__.pyi`.

Example:
    >>> import encoder_zoo as ez
    >>> ez.Classifier is ez.SequenceClassifier
    True
"""

from encoder_zoo.common.version import __version__ as __version__
from encoder_zoo.installed_backend import choose_installed_backend
from encoder_zoo.keras_files import register_with_keras
from encoder_zoo.names import ALIASES, HOMES, load

__all__ = sorted([*HOMES, *ALIASES])

choose_installed_backend()
register_with_keras(HOMES)


def __getattr__(name: str) -> object:
    public = ALIASES.get(name, name)
    if public not in HOMES:
        from encoder_zoo.unknown_names import explain

        # If only the name is set and not the module, Python does not add its own suggestion.
        raise AttributeError(explain(name, __all__), name=name)
    globals()[name] = value = load(HOMES[public], public)
    return value


def __dir__() -> list[str]:
    return __all__
