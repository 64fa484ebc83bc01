"""The results of the last `evaluate`, which the model card of a preset shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
            numbers = dict(_numbers(self.get_metrics_result()))
            self.last_evaluation = MappingProxyType(numbers)  # Keras would track a dict
        return results

    def fit(self, *args, **kwargs):
        """Train as in Keras, and forget the results of the weights before."""
        self.last_evaluation = MappingProxyType({})
        return super().fit(*args, **kwargs)


def _numbers(results: Mapping) -> Iterator[tuple[str, float]]:
    """Yield the numbers in the results of metrics, of which some have several by name."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif np.ndim(value) == 0:
            yield name, float(value)
