"""The results of the last `evaluate`, which the model card of a preset shows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from encoder_zoo.common.keras_private import VALIDATION_OF_FIT, HookedModel


class RemembersEvaluation(HookedModel):
    """A `keras.Model` that remembers the results of its last `evaluate`.

    Attributes:
        last_evaluation: {name of a metric: value}; empty before `evaluate`, and after `fit`.
    """

    last_evaluation: Mapping[str, float] = MappingProxyType({})

    def evaluate(self, *args, **kwargs):
        """Evaluate as in Keras; the validations of `fit` are not remembered."""
        results = super().evaluate(*args, **kwargs)
        if not kwargs.get(VALIDATION_OF_FIT):
            values = self.get_metrics_result().items()
            numbers = {name: float(value) for name, value in values if np.ndim(value) == 0}
            self.last_evaluation = MappingProxyType(numbers)  # Keras would track a dict
        return results

    def fit(self, *args, **kwargs):
        """Train as in Keras, and forget the results of the weights before."""
        self.last_evaluation = MappingProxyType({})
        return super().fit(*args, **kwargs)
