"""The one door from this floor to the one above it.

`presets` knows the encoders, not the other way round; only `from_preset`, `from_keras_hub` and
`save_to_preset`, which belong to the classes here, go through this door, when they are called.
"""

import importlib
from collections.abc import Callable

_HOMES = {
    "load_backbone": "encoder_zoo.presets.loading",
    "load_from_keras_hub": "encoder_zoo.presets.loading",
    "load_tokenizer": "encoder_zoo.presets.loading",
    "save_backbone": "encoder_zoo.presets.saving",
}


def presets(name: str) -> Callable:
    """A function of `presets`.

    Args:
        name: "load_backbone", "load_from_keras_hub", "load_tokenizer" or "save_backbone".
    """
    return getattr(importlib.import_module(_HOMES[name]), name)
