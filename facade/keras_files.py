"""Register public classes with Keras without importing them, so that it can load `.keras` files.

Classes register themselves when their modules are imported. Until then, a `StandIn` is registered
for each class.
"""

import importlib
from collections.abc import Mapping

from encoder_zoo.common.serializable import call_after_keras


def register_with_keras(homes: Mapping[str, str]) -> None:
    """Register all public classes with Keras, now or when Keras is imported.

    Classes that are not public are registered when a public class imports them. Modules named in a
    Keras file are never imported.

    Args:
        homes: Dict {public name: module that contains it}.
    """

    def register() -> None:
        import keras

        registered = keras.saving.get_custom_objects()
        for name, module in homes.items():
            registered.setdefault(f"encoder_zoo>{name}", StandIn(module, name))

    call_after_keras(register)


class StandIn:
    """Placeholder for a class in the Keras registry, which imports the class on first use.

    Raises:
        TypeError: If this name cannot occur in Keras files.

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
                f"Could not locate class {self._name!r}, because it cannot be saved in Keras files."
            )
        return getattr(cls, attribute)

    def __repr__(self) -> str:
        return f"<{self._module}.{self._name}, to be imported>"
