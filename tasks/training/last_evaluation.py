"""The results of the last `evaluate`, which the model card of a preset shows."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import keras
import numpy as np

from encoder_zoo.common.keras_private import VALIDATION_OF_FIT, HookedModel


class RemembersEvaluation(HookedModel):
    """A `keras.Model` that remembers the results of its last `evaluate`, of the weights it has.

    Weights change in many ways: by `fit`, as the student of a distillation, by adapters, or with a
    backbone that another task trains. So the results are kept with a checksum of the weights.
    """

    _evaluation: tuple[Mapping[str, float], int] | None = None  # results, checksum

    @property
    def last_evaluation(self) -> Mapping[str, float]:
        """Return {name of a metric: value}; empty before `evaluate`, and for other weights."""
        if self._evaluation is None:
            return MappingProxyType({})
        results, checksum = self._evaluation
        return results if checksum == _checksum(self.weights) else MappingProxyType({})

    def _remember(self, results: Mapping[str, float]) -> None:
        # Keras would track a dict.
        self._evaluation = MappingProxyType(dict(results)), _checksum(self.weights)

    def evaluate(self, *args, **kwargs):
        """Evaluate as in Keras; the validations of `fit` are not remembered."""
        results = super().evaluate(*args, **kwargs)
        if not kwargs.get(VALIDATION_OF_FIT):
            self._remember(dict(_numbers(self.get_metrics_result())))
        return results


def _numbers(results: Mapping) -> Iterator[tuple[str, float]]:
    """Yield the numbers in the results of metrics, of which some have several by name."""
    for name, value in results.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif np.ndim(value) == 0:
            yield name, float(value)


def _checksum(weights: list[keras.Variable]) -> int:
    found = 0
    for weight in weights:
        for array in _arrays(weight):
            found = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view("uint8"), found)
    return found


def _arrays(weight: keras.Variable) -> list[np.ndarray]:
    """Return the values of a weight; of one over several processes those that are in this one."""
    if getattr(weight.value, "is_fully_addressable", True):
        return [keras.ops.convert_to_numpy(weight)]
    return [np.asarray(shard.data) for shard in weight.value.addressable_shards]
