"""Modules that are imported at first use.

TensorFlow, without which models work on prepared ids; and the presets, a layer above backbones and
tokenizers, whose `from_preset`, `save_to_preset` and `push_to_hub` call them.
"""

import importlib
import types
from typing import TYPE_CHECKING, Any

NO_TENSORFLOW = (
    "Raw text is preprocessed by TensorFlow, which is not installed: `pip install tensorflow`, or "
    "pass prepared token ids."
)


class LazyModule(types.ModuleType):
    """Imports a module when one of its attributes is first used.

    Args:
        name: of the module.
        missing: error message if it is not installed; None for Python's own.

    Example:
        >>> LazyModule("math").floor(2.5)
        2
    """

    def __init__(self, name: str, missing: str | None = None):
        super().__init__(name)
        self._missing = missing

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module(self.__name__)
        except ImportError as error:
            if self._missing is None:
                raise
            raise ImportError(self._missing) from error
        return getattr(module, name)


loading = LazyModule("encoder_zoo.presets.loading")
saving = LazyModule("encoder_zoo.presets.saving")
pushing = LazyModule("encoder_zoo.presets.pushing")
if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = LazyModule("tensorflow", NO_TENSORFLOW)
