"""Register public classes with Keras without importing them, so that it can load `.keras` files.

Classes register themselves when importing their modules. Until then, a `StandIn` is registered
instead.
"""

import importlib
from collections.abc import Mapping

from encoder_zoo.common.serializable import call_after_keras


def register_with_keras(homes: Mapping[str, str]) -> None:
    """Register public names with Keras, now or when Keras is imported.

    Other classes register themselves when imported by a public class. Modules named in a file are
    never imported.

    Args:
        homes: Dict {name: module that contains it}.
    """

    def register() -> None:
        import keras

        registered = keras.saving.get_custom_objects()
        for name, module in homes.items():
            registered.setdefault(f"encoder_zoo>{name}", StandIn(module, name))

    call_after_keras(register)


class StandIn:
    """Represents a class in the Keras registry and imports it on first use.

    Raises:
        TypeError: If Keras files cannot contain this name.

    Example:
        >>> StandIn("encoder_zoo.encoders.tokenizers.wordpiece", "BertTokenizer").__name__
        'BertTokenizer'
    """

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def __getattr__(self, attribute: str) -> object:
        import keras

        importlib.import_module(self._module)  # registers the class instead of this object
        cls = keras.saving.get_custom_objects().get(f"encoder_zoo>{self._name}")
        if cls is None or isinstance(cls, StandIn):
            raise TypeError(
                f"Could not locate class {self._name!r}, because Keras files cannot contain it."
            )
        return getattr(cls, attribute)

    def __repr__(self) -> str:
        return f"<{self._module}.{self._name}, to be imported>"
