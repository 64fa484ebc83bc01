"""Callbacks for `fit`, its history, and a callback to stop when the loss is not finite."""

from __future__ import annotations

import math
import threading
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
        """Keras's history with type annotations for its values."""

        history: dict[str, list[float]]
        epoch: list[int]
else:
    History = keras.callbacks.History


class StopAtDivergence(keras.callbacks.Callback):
    """Raise an error when the loss becomes NaN or infinite.

    `fit` adds this callback before all given callbacks, so that the result from the failed step
    will not be saved. It reads the mean loss over the epoch, which is logged by Keras after every
    step.

    Raises:
        FloatingPointError: If the loss is not finite. The message contains the epoch and the step.

    Example:
        >>> stop = StopAtDivergence()
        >>> stop.set_params({"epochs": 3, "steps": 100})
        >>> stop.on_epoch_begin(1)
        >>> stop.on_train_batch_begin(16)
        >>> stop.on_train_batch_end(16, {"loss": float("nan")})
        Traceback (most recent call last):
            ...
        FloatingPointError: Epoch 2/3, step 17/100: the loss is nan. ...
    """

    # Keras may call `on_train_batch_end` in threads and in any order, without blocking the steps.
    async_safe = True

    def __init__(self):
        super().__init__()
        self._reported = threading.Condition()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._running, self._bad = epoch, 0, {}

    def on_train_batch_begin(self, batch, logs=None):
        self._raise_if_bad()
        with self._reported:
            self._running += 1

    def on_train_batch_end(self, batch, logs=None):
        loss = (logs or {}).get("loss", 0.0)
        with self._reported:
            self._running -= 1
            if not math.isfinite(loss):
                self._bad[batch] = loss
            self._reported.notify_all()
            last = self._running == 0
        if last:
            self._raise_if_bad()

    def on_test_begin(self, logs=None):
        self._raise_if_bad()

    def on_epoch_end(self, epoch, logs=None):
        self._raise_if_bad()

    def _raise_if_bad(self) -> None:
        if not getattr(self, "_bad", None):
            return
        with self._reported:
            self._reported.wait_for(lambda: self._running == 0)
            step = min(self._bad)
        raise nan_loss_error(
            self._epoch, step + 1, self.params, f"the loss is {float(self._bad[step])}"
        )


def stopping_at_divergence(callbacks: list | None) -> list:
    """Put a `StopAtDivergence` before the callbacks, unless there is a `TerminateOnNaN`."""
    callbacks = keras.tree.flatten(callbacks or [])
    if any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        return callbacks
    return [StopAtDivergence(), *callbacks]


def nan_loss_error(epoch: int, step: int, params: dict, event: str) -> FloatingPointError:
    """Create the error to raise for a loss that is not finite.

    Args:
        epoch: Integer. Epoch index, starting at 0.
        step: Integer. Step number, starting at 1.
        params: Dict. Callback parameters with the keys "epochs" and "steps".
        event: String. Problem description.
    """
    steps = params["steps"]
    step = min(step, steps or step)  # several steps in one execution can exceed the epoch
    return FloatingPointError(
        f"Epoch {epoch + 1}/{params['epochs']}, step {step}/{steps or '?'}: {event}. "
        "The learning rate may be too high: lower it, or give its schedule a longer warmup. "
        "An optimizer of your own can clip gradients (`global_clipnorm=1.0`). Under "
        '"mixed_float16" numbers beyond 65504 overflow: Keras scales the loss only where '
        '`compile` may wrap the optimizer (`auto_scale_loss=True`); "mixed_bfloat16" needs no '
        "scaling. If it is the first step, look for NaN in sample weights and in number labels."
    )
