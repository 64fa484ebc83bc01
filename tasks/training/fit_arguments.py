"""Types of `fit`'s arguments and of what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import keras

from encoder_zoo.common.validation import Rule


def _are_callbacks(value: object) -> bool:
    found = (
        [value] if isinstance(value, keras.callbacks.CallbackList) else keras.tree.flatten(value)
    )
    return all(callable(getattr(c, "set_model", None)) and not isinstance(c, type) for c in found)


Callbacks = Annotated[
    Sequence[keras.callbacks.Callback],
    Rule(_are_callbacks, "a list of callbacks, such as keras.callbacks.EarlyStopping()"),
]


if TYPE_CHECKING:

    class History(keras.callbacks.History):
        """Keras's history, with the types of its values, which Keras does not give."""

        history: dict[str, list[float]]
        epoch: list[int]
else:
    History = keras.callbacks.History
