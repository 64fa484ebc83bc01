"""encoder_zoo: encoder-only transformers for Keras 3, from raw text to predictions.

All public names are listed in `__init__.pyi` and imported on first use, so `import encoder_zoo`
does not import Keras or TensorFlow. Classes are registered with Keras, so `.keras` files can be
loaded.

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
        from encoder_zoo.unknown_names import explain_unknown_name

        # Python adds another suggestion to the message, unless `name` is passed without `obj`.
        raise AttributeError(explain_unknown_name(name, __all__), name=name)
    globals()[name] = value = load(HOMES[public], public)
    return value


def __dir__() -> list[str]:
    return __all__
