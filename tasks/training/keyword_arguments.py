"""Types of the keyword arguments of `compile`, `evaluate` and `predict`, and of the history.

`**options: Unpack[CompileOptions]` has editors complete their names, and underline others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

import keras

if TYPE_CHECKING:

    class History(keras.callbacks.History):
        """Keras's history, with the types of its values, which Keras does not give."""

        history: dict[str, list[float]]
        epoch: list[int]
else:
    History = keras.callbacks.History


class CompileOptions(TypedDict, total=False):
    """Keyword arguments of `TextModel.compile` after `metrics`."""

    weighted_metrics: object
    jit_compile: bool | Literal["auto"] | None
    learning_rate: float | None
    gradient_accumulation_steps: int | None
    weight_decay: float | None
    warmup: float | None
    layer_decay: float | None
    frozen_layers: int | None
    loss_weights: object
    run_eagerly: bool | None
    steps_per_execution: int | None
    auto_scale_loss: bool | None


class PredictOptions(TypedDict, total=False):
    """Keyword arguments of `TextModel.predict` after `batch_size`."""

    verbose: Literal[0, 1, 2, "auto"]
    steps: int | None
    callbacks: Sequence[keras.callbacks.Callback] | None


class EvaluateOptions(PredictOptions, total=False):
    """Keyword arguments of `TextModel.evaluate` after `batch_size`, but for `return_dict`."""

    sample_weight: object
