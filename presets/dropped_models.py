"""Frees unused models before the next one is loaded."""

from __future__ import annotations

import gc
import weakref

import keras

# 128 MB in float32, which take about as long to read as collecting garbage.
MAX_WEIGHTS = 2**25

_loaded: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def collect_dropped_models() -> None:
    """Collect garbage if the models loaded since the last call have more than `MAX_WEIGHTS`.

    Keras layers are in reference cycles, so that an unused model stays in memory until Python
    collects garbage. Python does so by the number of objects, not by their size: a process that
    loads one model after the other would keep a dozen.
    """
    if sum(model.count_params() for model in list(_loaded)) > MAX_WEIGHTS:
        gc.collect()
        _loaded.clear()


def note_loaded(model: keras.Model) -> None:
    """Register a loaded model for `collect_dropped_models`, by a weak reference."""
    _loaded.add(model)
