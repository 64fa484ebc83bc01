"""Arguments that every model has from Keras."""

from typing import Any, TypedDict


class LayerArguments(TypedDict, total=False):
    """Keyword arguments of `keras.layers.Layer`, for `**kwargs: Unpack[LayerArguments]`."""

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool
    activity_regularizer: Any
