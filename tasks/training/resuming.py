"""A `fit` that continues where a backup left the training."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.tasks.preprocessing.array_batches import ArrayBatches
from encoder_zoo.tasks.training.backup import BackupAndRestore, Position
from encoder_zoo.tasks.training.distribution import of_all_workers

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import TrainingData


class RestOfEpoch(keras.callbacks.CallbackList):
    """The callbacks of a `fit` whose first epoch begins in its middle.

    Keras numbers that epoch's steps from 0 and runs a whole epoch of them. Here the callbacks get
    the steps' own numbers, and the epoch ends at its last step.

    Args:
        callbacks: of the user.
        backup: the one among them that training continues from.
        batches: that Keras trains on.
        done: steps of the first epoch that are done.
        **params: those of `keras.callbacks.CallbackList`.
    """

    def __init__(
        self,
        callbacks: list,
        backup: BackupAndRestore,
        batches: tf.data.Dataset,
        done: int,
        **params,
    ):
        super().__init__(callbacks, add_history=True, **params)
        self._backup = backup
        self._batches = batches
        self._done = done
        self._stop_wanted = False

    def on_epoch_begin(self, epoch, logs=None):
        if self._done:
            self._backup.restore_metrics(self._batches)
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch + self._done, logs)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch + self._done, logs)
        if self._done and batch + self._done + 1 >= self.params["steps"]:
            self._stop_wanted = self.model.stop_training
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self._done:
            self.model.stop_training = self._stop_wanted
            self._done = 0
            if isinstance(self._batches, ArrayBatches):
                self._batches.end_epoch()
        super().on_epoch_end(epoch, logs)


def resuming_fit_arguments(data: TrainingData, callbacks: list, verbose: int | str) -> dict:
    """Return the arguments of Keras's `fit`, from where a backup left the training.

    Args:
        data: to train on.
        callbacks: perhaps with a `BackupAndRestore`.
        verbose: as in Keras.

    """
    task, epochs, steps = data.task, data.plan.epochs, data.steps_per_epoch
    backup = _backup_among(callbacks)
    seed = _common_seed(task.distribution.strategy, steps, backup is not None)
    position = Position(epochs.start, 0, seed)
    if backup:
        run = {"initial_epoch": epochs.start, "epochs": epochs.stop, "steps_per_epoch": steps}
        run = {**_describe_task(task), "class_weight": data.class_weights, **data.describe(), **run}
        position = backup.resume_position(task, run, position, data.window_sizes)
    data.done = position.step
    # After the last epoch Keras still reads a batch.
    done = (position.epoch - epochs.start) * steps + position.step
    batches = data.batches(position.seed, done if position.epoch < epochs.stop else 0)
    options = {"epochs": epochs.stop, "verbose": verbose}
    if position.step:
        params = {**options, "steps": steps, "model": task, "add_progbar": verbose != 0}
        callbacks = RestOfEpoch(callbacks, backup, batches, position.step, **params)
    options |= {"initial_epoch": position.epoch, "steps_per_epoch": steps, "shuffle": False}
    return {"x": batches, "callbacks": callbacks, **options}


def _common_seed(strategy: tf.distribute.Strategy | None, steps: int, has_backup: bool) -> int:
    """Return the first worker's random seed, after a check that all workers train alike."""
    # `keras.utils.set_random_seed` makes it repeatable.
    drawn = int(np.random.randint(2**31))
    workers = of_all_workers(strategy, [drawn, steps, has_backup])
    found = sorted({f"{n} steps{' and backups' if backs else ''}" for _, n, backs in workers})
    if len(found) > 1:
        raise ValueError(
            f"The workers call `fit` differently: {' / '.join(found)}. Expected as many steps in "
            "an epoch, and BackupAndRestore in all of them or none."
        )
    return workers[0][0]


def check_no_backup(callbacks: list) -> None:
    """Raise a ValueError if arrays of prepared inputs are to be backed up."""
    if _backup_among(callbacks):
        raise ValueError(
            "BackupAndRestore cannot repeat the order in which Keras shuffles arrays of prepared "
            "inputs. Pass texts, or tf.data.Dataset.from_tensor_slices((x, y)).shuffle(...)"
            ".batch(32), shuffled with a seed and `reshuffle_each_iteration=False`."
        )


def _backup_among(callbacks: list) -> BackupAndRestore | None:
    return next((c for c in callbacks if isinstance(c, BackupAndRestore)), None)


def _describe_task(task: keras.Model) -> dict:
    """Return the settings that must be the same for a training to continue, as plain data."""
    preprocessor = task.preprocessor.get_config() if task.preprocessor else {}
    return {
        "task": type(task).__name__,
        "backend": keras.config.backend(),
        "preprocessor": {k: v for k, v in preprocessor.items() if k != "tokenizer"},
        "backbone": keras.saving.serialize_keras_object(task.backbone)["config"],
        "optimizer": keras.saving.serialize_keras_object(task.optimizer),
        "loss": plain_settings(task.loss),
    }


def plain_settings(value):
    """Return the settings of a loss, or of a part of one, as plain data; functions by name.

    Keras serializes no lambda without a warning, and leaves out what the `get_config` of a user's
    own loss does.

    Example:
        >>> import operator
        >>> plain_settings(functools.partial(operator.mul, 2))
        {'function': '_operator.mul', 'arguments': [2], 'keywords': {}}
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic) or keras.ops.is_tensor(value):
        return keras.ops.convert_to_numpy(value).tolist()
    if isinstance(value, Mapping):
        return {str(name): plain_settings(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_settings(inner) for inner in value]
    if isinstance(value, functools.partial):
        parts = value.func, value.args, value.keywords
        return dict(
            zip(("function", "arguments", "keywords"), map(plain_settings, parts), strict=True)
        )
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    settings = vars(value) if isinstance(value, keras.losses.Loss) else {}
    return {"class": plain_settings(type(value)), **plain_settings(settings)}


def checksum_of_examples(examples: dict) -> dict:
    """Return the number of encoded examples, and the checksum of them all."""
    digest = hashlib.sha256()
    for name in sorted(examples):
        for part in _arrays(examples[name]):
            digest.update(f"{part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part))
    return {"examples": int(examples["token_ids"].shape[0]), "sha256": digest.hexdigest()}


def _arrays(values) -> list[np.ndarray]:
    """Return the arrays of a tensor, or of a ragged one."""
    if hasattr(values, "row_splits"):
        return [*_arrays(values.values), np.asarray(values.row_splits)]
    return [np.asarray(values)]
