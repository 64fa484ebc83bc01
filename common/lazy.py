"""TensorFlow, imported when it is first used: models on prepared ids work without it."""

import importlib
import types
from typing import TYPE_CHECKING

NO_TENSORFLOW = (
    "Raw text is preprocessed by TensorFlow, which is not installed: `pip install tensorflow`, or "
    "pass prepared token ids."
)


class _Lazy(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        try:
            module = importlib.import_module(self.__name__)
        except ImportError as error:
            raise ImportError(NO_TENSORFLOW) from error
        return getattr(module, name)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _Lazy("tensorflow")
