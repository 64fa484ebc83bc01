"""Frees models that are no longer used, before the next one is loaded."""

from __future__ import annotations

import gc
import weakref

import keras

# 128 MB in float32: reading them takes about as long as collecting garbage, so that loads of small
# models are not slowed by it, and few are waiting to be freed at any time.
MOST_WEIGHTS = 2**25

_loaded: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def collect_dropped_models() -> None:
    """Collects garbage if the models loaded since the last time have more than `MOST_WEIGHTS`.

    A Keras layer and its own methods refer to each other, so that a model that is no longer used
    stays in memory until Python looks for such cycles. When it does depends on the number of
    objects, not on their size: a process that loads one model after the other held a dozen.
    """
    if sum(model.count_params() for model in list(_loaded)) > MOST_WEIGHTS:
        gc.collect()
        _loaded.clear()


def note_loaded(model: keras.Model) -> None:
    """Counts a model, as long as it is in memory, for `collect_dropped_models`."""
    _loaded.add(model)
