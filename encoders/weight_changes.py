"""Counting of the changes of weights, so that what was made of older ones notices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from encoder_zoo.common.keras_private import layers_in


class CountsWeightChanges:
    """Mixin of backbones and tasks, before `keras.Model`.

    A backbone has the count, since tasks share it: `weights_version`, which grows when a task on it
    is trained, or when it or such a task gets other weights.
    """

    def _count_weight_change(self) -> None:
        """Tell the backbones in this model that weights may have changed."""
        for layer in layers_in(self):
            if hasattr(layer, "weights_version"):
                layer.weights_version += 1

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Set the weights from arrays, as `keras.Model.set_weights`."""
        super().set_weights(weights)
        self._count_weight_change()

    def load_weights(self, filepath, *args: Any, **kwargs: Any) -> None:
        """Load weights from a file, as `keras.Model.load_weights`."""
        super().load_weights(filepath, *args, **kwargs)
        self._count_weight_change()
