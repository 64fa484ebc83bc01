"""Registers the public classes with Keras without importing them, so that `.keras` files open.

Classes register themselves when their modules are imported; before, a `StandIn` is registered.
"""

import importlib
from collections.abc import Mapping

from encoder_zoo.common.serializable import call_after_keras


def register_with_keras(homes: Mapping[str, str]) -> None:
    """Register the public names with Keras, now or when Keras is imported.

    Other classes register themselves when a public class imports them. Modules that a file names
    are never imported.

    Args:
        homes: {name: module that it is in}.
    """

    def register() -> None:
        import keras

        registered = keras.saving.get_custom_objects()
        for name, module in homes.items():
            registered.setdefault(f"encoder_zoo>{name}", StandIn(module, name))

    call_after_keras(register)


class StandIn:
    """Represents a class in Keras's registry, and imports it at first use.

    Raises:
        TypeError: If the name is not that of a class in Keras files.

    Example:
        >>> StandIn("encoder_zoo.encoders.tokenizers.wordpiece", "BertTokenizer").__name__
        'BertTokenizer'
    """

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def __getattr__(self, attribute: str) -> object:
        import keras

        importlib.import_module(self._module)  # registers the class in place of this object
        cls = keras.saving.get_custom_objects().get(f"encoder_zoo>{self._name}")
        if cls is None or isinstance(cls, StandIn):
            raise TypeError(f"Could not locate class {self._name!r}: Keras files do not hold it.")
        return getattr(cls, attribute)

    def __repr__(self) -> str:
        return f"<{self._module}.{self._name}, to be imported>"
