"""Register public classes with Keras without importing them, so that `.keras` files can be loaded.

For each class, a `ClassPlaceholder` is registered first. The class itself is registered when its
module is imported.
"""

import importlib
from collections.abc import Mapping

from encoder_zoo.common.serializable import call_after_keras_import


def register_with_keras(homes: Mapping[str, str]) -> None:
    """Register all public classes with Keras as soon as Keras is imported.

    Private classes are registered when the module of a public class imports them. Module names in
    a Keras file are ignored.

    Args:
        homes: Dict mapping public names to modules.
    """

    def register() -> None:
        import keras

        registered = keras.saving.get_custom_objects()
        for name, module in homes.items():
            registered.setdefault(f"encoder_zoo>{name}", ClassPlaceholder(module, name))

    call_after_keras_import(register)


class ClassPlaceholder:
    """Placeholder in the Keras registry for a class that is imported on first use.

    Raises:
        TypeError: If the object is not a class for Keras files.

    Example:
        >>> ClassPlaceholder("encoder_zoo.encoders.tokenizers.wordpiece", "BertTokenizer").__name__
        'BertTokenizer'
    """

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def __getattr__(self, attribute: str) -> object:
        import keras

        importlib.import_module(self._module)  # this registers the class
        cls = keras.saving.get_custom_objects().get(f"encoder_zoo>{self._name}")
        if cls is None or isinstance(cls, ClassPlaceholder):
            raise TypeError(
                f"Could not locate class {self._name!r}. Keras files cannot contain this class."
            )
        return getattr(cls, attribute)

    def __repr__(self) -> str:
        return f"<{self._module}.{self._name}, to be imported>"
