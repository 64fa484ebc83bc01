"""Callbacks for `fit`: stop when the loss is not finite, and back up and resume the training."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import keras
import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.configuration import plain_settings
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.model_configuration import GRADIENT_CHECKPOINTING
from encoder_zoo.common.validation import FilePath, PositiveInt, Rule, validate_arguments
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.arrays import whole_array
from encoder_zoo.presets.files.atomic import (
    Kind,
    check_folder,
    remove_temporary,
    remove_written,
    replacing,
)
from encoder_zoo.presets.files.manifest import read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.preset_files import CONFIG, MANIFEST
from encoder_zoo.tasks.training.distribution import gather_from_workers

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import Source

logger = logging.getLogger("encoder_zoo")

STATE = "state.safetensors"
BACKUPS = "epoch-*-step-*"
BACKUP_KIND = Kind("a backup", lambda manifest: _matches_training(manifest["training"]))


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
        raise _nan_loss_error(
            self._epoch, step + 1, self.params, f"the loss is {float(self._bad[step])}"
        )


def _nan_loss_error(epoch: int, step: int, params: dict, event: str) -> FloatingPointError:
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
        "The learning rate may be too high. Lower it, use a longer warmup, or clip gradients with "
        "an optimizer of your own (`global_clipnorm=1.0`). In float16, values above 65504 "
        'overflow: use "mixed_bfloat16", or `compile(auto_scale_loss=True)` with '
        '"mixed_float16". In the first step, also check sample weights and numeric labels for NaN.'
    )


@dataclasses.dataclass(frozen=True)
class Position:
    """Epoch and step to start or resume training from.

    Attributes:
        epoch: Integer. Epoch index, starting at 0.
        step: Integer. Number of steps that are already completed in this epoch.
        seed: Integer. Random seed used for the example order and for masking.
    """

    epoch: int
    step: int
    seed: int


class Backup:
    """A complete backup on disk.

    Args:
        path: The path to the backup folder.
        manifest: Dict. Manifest contents, after its checksums were verified.
    """

    def __init__(self, path: pathlib.Path, manifest: dict):
        self.path = path
        self._manifest = manifest
        training = manifest["training"]
        self.run: dict = training["run"]
        self.position = Position(**training["position"])
        self.window_sizes: list = training.get("window_sizes", [])

    @contextlib.contextmanager
    def arrays(self) -> Iterator[SafetensorsFile]:
        """Open the file with the arrays, and check that it still matches the manifest."""
        with OpenFolder(self.path, [MANIFEST, STATE]) as files:
            if read_manifest(files, verify=False) != self._manifest:
                raise ValueError(
                    f"Another run replaced {self.path} while it was being restored. Use a separate "
                    "backup_dir for each run."
                )
            yield SafetensorsFile(files.file(STATE))

    def shapes(self, group: str) -> dict[str, tuple[int, ...]]:
        """Return a dict with the names and shapes for a group of variables."""
        with self.arrays() as file:
            shapes = file.shapes
        return {name: shape for name, shape in shapes.items() if name.startswith(f"{group}.")}

    def read(self, group: str) -> list[np.ndarray]:
        """Read the values to restore for a group of variables."""
        names = self.shapes(group)
        with self.arrays() as file:
            return [file.read(f"{group}.{i}") for i in range(len(names))]

    def restore(self, group: str, variables: list) -> None:
        """Assign the stored values to a group of variables.

        Raises:
            ValueError: If the stored variables, shapes or dtypes do not match.
        """
        now = {f"{group}.{i}": variable for i, variable in enumerate(variables)}
        shapes = {name: tuple(variable.shape) for name, variable in now.items()}
        stored = self.shapes(group)
        for name in sorted({*shapes, *stored}):
            if shapes.get(name) != stored.get(name):
                raise self._other_run(
                    f"variable {name} has the shape {stored.get(name)} in the backup, "
                    f"{shapes.get(name)} now"
                )
        with self.arrays() as file:
            for name, variable in now.items():
                saved, own = file.dtype(name).name, _dtype_in_backups(variable)
                if saved != own:
                    raise self._other_run(f"variable {name} is {saved} in the backup, {own} now")
            for name, variable in now.items():
                variable.assign(file.read(name))

    def check_same_run(self, run: dict) -> None:
        """Raise a ValueError that lists the differences if the backup belongs to another run."""
        stored, run = (
            {name: _remove_home(name, value) for name, value in settings.items()}
            for settings in (self.run, run)
        )
        differing = [
            f"{name} is {quote(stored.get(name))} in the backup, {quote(run.get(name))} now"
            for name in dict.fromkeys([*stored, *run])
            if stored.get(name) != run.get(name)
        ]
        if differing:
            raise self._other_run("; ".join(differing[:5]))

    def _other_run(self, how: str) -> ValueError:
        return ValueError(
            f"The backup in {self.path.parent} belongs to another run: {how}. Use a separate "
            "backup_dir for this run, or delete the folder to train from the beginning."
        )


def _dtype_in_backups(variable) -> str:
    """Return the dtype used to store a variable in a backup."""
    if keras.config.backend() == "torch" and "uint" in variable.dtype:
        # torch only supports some unsigned dtypes.
        return np.asarray(keras.ops.convert_to_numpy(variable)).dtype.name
    return keras.backend.standardize_dtype(variable.dtype)


class BackupFolder:
    """Folder to write the run's backups to.

    Args:
        path: The path to the folder. This folder does not have to exist.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)

    def check(self) -> None:
        """Raise a ValueError if the folder contains other files, such as a preset."""
        if self.path.exists() and not self.path.is_dir():
            raise invalid("backup_dir", str(self.path), "a folder, not a file")
        check_folder(self.path)
        for name in (MANIFEST, CONFIG):
            if (self.path / name).exists():
                raise invalid(
                    "backup_dir",
                    str(self.path),
                    f"a new folder or a folder that only contains backups. It contains {name}",
                )

    def newest(self) -> Backup | None:
        """Return the newest complete backup, or None for an empty or missing folder.

        Raises:
            ValueError: If there are backups in the folder, but all of them are incomplete.
        """
        folders = self._folders()
        for folder in reversed(folders):
            try:
                return Backup(folder, _check_manifest(folder))
            except (OSError, ValueError) as error:
                logger.warning("A backup is skipped: %s.", str(error).partition(". ")[0])
        if folders:
            raise ValueError(
                f"None of the {len(folders)} backups in {self.path} is complete. See the log for "
                "the reasons, or delete the folder to train from the beginning."
            )
        return None

    def write(
        self, position: Position, arrays: dict[str, np.ndarray], task: str, run: dict, sizes: list
    ) -> pathlib.Path:
        """Write a backup atomically and return its folder.

        Args:
            position: Training position to store.
            arrays: A dict of arrays to store. Each name consists of a group and an index.
            task: String. Task name.
            run: Dict. Settings used to identify the run.
            sizes: List. The data's `window_sizes`.
        """
        target = self.path / f"epoch-{position.epoch:06d}-step-{position.step:09d}"
        training = {"position": dataclasses.asdict(position), "run": run, "window_sizes": sizes}
        with replacing(target, BACKUP_KIND) as new:
            save_file(arrays, new / STATE)
            write_manifest(new, {"task": task, "training": training})
        return target

    def remove_all_but(self, *kept: pathlib.Path | None) -> None:
        """Delete all other backups and incomplete files. User files will not be deleted."""
        for path in self._folders():
            if path not in kept:
                remove_written(path, BACKUP_KIND)
        remove_temporary(self.path, BACKUPS)

    def remove(self) -> None:
        """Delete all backups, and also the folder when it is empty afterwards."""
        self.remove_all_but()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _folders(self) -> list[pathlib.Path]:
        return sorted(path for path in self.path.glob(BACKUPS) if path.is_dir())


def _check_manifest(folder: pathlib.Path) -> dict:
    """Read the backup manifest and verify the checksums of its files."""
    with OpenFolder(folder, [MANIFEST, STATE]) as files:
        manifest = read_manifest(files, verify=True)
    if STATE not in manifest.get("files", ()):
        raise ValueError(f"{folder} is not complete")
    if not _matches_training(manifest.get("training")):
        raise ValueError(f"{folder} does not contain a training backup")
    return manifest


def _matches_training(training: object) -> bool:
    """Return whether a manifest entry contains the position and the run's settings."""
    if not isinstance(training, dict) or not isinstance(training.get("run"), dict):
        return False
    position, sizes = training.get("position"), training.get("window_sizes", [])
    names = {field.name for field in dataclasses.fields(Position)}
    if not isinstance(position, dict) or position.keys() != names or not isinstance(sizes, list):
        return False
    return all(type(number) is int and number >= 0 for number in position.values())


def flat_settings(settings: dict, prefix: str = "") -> dict:
    """Flatten nested settings to `{"outer.inner": value}`, without automatic layer names.

    Example:
        >>> flat_settings({"backbone": {"layers": 2, "name": "bert_3"}})
        {'backbone.layers': 2}
    """
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= flat_settings(value, f"{prefix}{name}.")
        elif name != "name":
            flat[prefix + name] = json.loads(json.dumps(value, default=lambda v: type(v).__name__))
    return flat


def _remove_home(name: str, value: object) -> object:
    """Return a setting without the modules of this package, which can change between versions.

    Example:
        >>> _remove_home("loss.class", "encoder_zoo.tasks.losses.cosent.CoSENT")
        'CoSENT'
    """
    if not (isinstance(value, str) and value.startswith("encoder_zoo.")):
        return value
    return "encoder_zoo" if name.endswith("module") else value.rpartition(".")[2]


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Back up the training, and resume it when the same program runs again after a crash.

    This callback extends `keras.callbacks.BackupAndRestore`. It can resume in the middle of an
    epoch, at exactly the next step. The resumed run will be equal to an uninterrupted run, because
    the weights, the optimizer and its schedule, the example order, masking, dropout and the running
    metrics are all restored. A backup is written at the end of every epoch and, optionally, after a
    given number of steps. Each backup is a folder with checksums. It is written atomically and
    contains no code. The last two backups will be kept. Damaged backups are skipped with a warning.

    The state of other callbacks, such as the patience of `EarlyStopping`, will not be stored. After
    resuming, the history returned by `fit` starts at the resumed epoch. This callback should be
    passed last, so that backups also include changes made by other callbacks at the end of an
    epoch. With several workers, only the chief writes backups, and all workers read them.

    Args:
        backup_dir: The path to a local folder to be used only by this `fit`. With several workers,
            all of them need access to the same folder.
        save_freq: "epoch" or positive integer. With an integer, a backup will also be written each
            time this number of steps is completed. Defaults to "epoch".
        delete_checkpoint: Boolean. Whether to delete the backups when the training is finished.
            Defaults to True.

    Raises:
        ValueError: If the backup belongs to another run, or if `backup_dir` contains unrelated
            files.
        FloatingPointError: If the weights or the loss are not finite when a backup is about to be
            written.

    Example:
        >>> import tempfile
        >>> import encoder_zoo as ez
        >>> classifier = ez.Classifier.from_preset("bert_nano_en_uncased", num_classes=2)
        >>> backup = ez.BackupAndRestore(tempfile.mkdtemp(), save_freq=100)
        >>> history = classifier.fit(["good", "bad"], [1, 0], callbacks=[backup], verbose=0)
        >>> len(history.history["loss"])
        1
    """

    sets_learning_rate = False
    # Keras may call the batch methods in threads. Backups are written between steps.
    async_safe = True

    @validate_arguments
    def __init__(
        self,
        backup_dir: FilePath,
        save_freq: PositiveInt | Literal["epoch"] = "epoch",
        delete_checkpoint: bool = True,
    ):
        super().__init__(backup_dir, save_freq=save_freq, delete_checkpoint=delete_checkpoint)
        self._folder = BackupFolder(backup_dir)
        self._run = None

    # -- called by `Task.fit` ------------------------------------------------------------------

    def resume_position(
        self, task: keras.Model, run: dict, start: Position, window_sizes: list
    ) -> Position:
        """Return the position to resume from, or `start` when there is no complete backup.

        Args:
            task: A task to train.
            run: Dict. Settings used to identify this run.
            start: Position to start from when there is no backup.
            window_sizes: List. The data's `window_sizes`, which will be filled from the backup.
        """
        self._folder.check()
        self._run, self._model, self._window_sizes = flat_settings(run), task, window_sizes
        self._continued, position = self._folder.newest(), start
        self._kept = self._continued and self._continued.path
        self._at_first_step = self._continued is not None
        if self._continued:
            self._continued.check_same_run(self._run)
            position = self._continued.position
            self._check_position(position, run, start)
            window_sizes[:] = self._continued.window_sizes
            logger.info("Training continues from %s.", self._kept)
        self._check_same_position(task, position)
        self._position = position
        return position

    def _check_position(self, position: Position, run: dict, start: Position) -> None:
        """Raise a ValueError if the position is not part of this run."""
        epochs, steps = run["epochs"], run["steps_per_epoch"]
        begun = start.epoch <= position.epoch < epochs and position.step < steps
        if not begun and (position.epoch, position.step) != (epochs, 0):
            raise ValueError(
                f"The backup {self._kept} is damaged: it is at epoch {position.epoch} and step "
                f"{position.step} of a training with {epochs} epochs of {steps} steps. Delete this "
                "folder and call fit again."
            )

    def _check_same_position(self, task: keras.Model, position: Position) -> None:
        numbers = [position.epoch, position.step]
        positions = gather_from_workers(task.distribution.strategy, numbers)
        found = sorted({f"epoch {epoch + 1}, step {step}" for epoch, step in positions})
        if len(found) > 1:
            raise invalid(
                "backup_dir",
                str(self._folder.path.absolute()),
                "a folder that all workers share. The workers found different backups, of "
                f"{' and of '.join(found)}",
            )

    def restore_metrics(self, batches: tf.data.Dataset) -> None:
        """Restore the running metrics when training resumes in the middle of an epoch.

        Args:
            batches: A dataset of training batches. The first batch will be used to build the
                metrics.
        """
        model = self.model
        if len(model.metrics_variables) < len(self._continued.shapes("metrics")):
            # The TensorFlow trainer of Keras only builds the metrics in its first step.
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(next(iter(batches)))
            y_pred = model(x, training=False)
            model.compute_loss(x, y, y_pred, sample_weight, training=False)
            model.compute_metrics(x, y, y_pred, sample_weight)
            model.reset_metrics()
        if model.distribution.strategy:
            model.distribution.strategy.run(self._restore_replica_metrics)
        else:
            self._continued.restore("metrics", model.metrics_variables)

    def _restore_replica_metrics(self) -> None:
        # The metrics are summed over all replicas, so the first replica gets the whole state.
        if tf.distribute.get_replica_context().replica_id_in_sync_group == 0:
            self._continued.restore("metrics", self.model.metrics_variables)

    # -- called by Keras -----------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        if self._run is None:
            raise ValueError(
                "encoder_zoo.BackupAndRestore only supports the tasks of encoder_zoo. For other "
                "models, use keras.callbacks.BackupAndRestore."
            )
        if self._continued:
            model = self.model
            self._continued.restore("model", model.variables)
            self._continued.restore("optimizer", model.optimizer.variables)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._saved_step = self._position.step if epoch == self._position.epoch else 0

    def on_train_batch_begin(self, batch, logs=None):
        if self._at_first_step:
            # Restore the state only now, because Keras uses torch's generator when it starts to
            # read data.
            self._at_first_step = False
            _set_random_state(self._continued.read("random"))
        if self.save_freq != "epoch" and batch - self._saved_step >= self.save_freq:
            self._save(self._epoch, batch)
            self._saved_step = batch

    def on_train_batch_end(self, batch, logs=None):
        """Override the Keras method, which would write its own backups."""

    def on_epoch_end(self, epoch, logs=None):
        self._save(epoch + 1, 0)

    def on_train_end(self, logs=None):
        self._run = None
        if self.delete_checkpoint and _is_chief(self.model):
            self._folder.remove()

    # -- writing -------------------------------------------------------------------------------

    def _save(self, epoch: int, step: int) -> None:
        model = self.model
        # Every worker has to take part, because metrics are summed over all workers when they are
        # read, and weights can be distributed over several processes.
        arrays = {
            f"{group}.{i}": np.asarray(whole_array(variable), order="C")
            for group, variables in (
                ("model", model.variables),
                ("optimizer", model.optimizer.variables),
                ("metrics", model.metrics_variables),
                ("random", _random_state()),
            )
            for i, variable in enumerate(variables)
        }
        self._check_finite(arrays, epoch, step)
        if not _is_chief(model):
            return
        position = Position(epoch, step, self._position.seed)
        new = self._folder.write(position, arrays, model.record.name, self._run, self._window_sizes)
        self._folder.remove_all_but(new, self._kept)
        self._kept = new

    def _check_finite(self, arrays: dict[str, np.ndarray], epoch: int, step: int) -> None:
        """Raise an error for weights that are not finite, or for such a loss within an epoch."""
        weights = (array for name, array in arrays.items() if name.startswith("model."))
        finite = all(np.isfinite(array).all() for array in weights)
        if step and finite:
            finite = np.isfinite(float(self.model.get_metrics_result()["loss"]))
        if not finite:
            if step == 0:
                epoch, step = epoch - 1, self.params["steps"]
            raise _nan_loss_error(
                epoch, step, self.params, "the weights or the loss are not finite after it"
            )


def _random_state() -> list:
    """Return the torch generator states. On other backends, models have their own state."""
    if keras.config.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


def _set_random_state(states: list[np.ndarray]) -> None:
    """Restore the states returned by `_random_state`."""
    if states:
        import torch

        torch.set_rng_state(torch.from_numpy(states[0]))
        if states[1:] and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(states[1]))


def _is_chief(model: keras.Model) -> bool:
    """Return whether this process is used to write the backups."""
    if keras.config.backend() == "tensorflow":
        return model.distribute_strategy.extended.should_checkpoint
    if keras.config.backend() == "jax":
        import jax

        return jax.process_index() == 0
    return True


class RestOfEpoch(keras.callbacks.CallbackList):
    """List of callbacks for a `fit` to be resumed in the middle of an epoch.

    Keras counts the steps in the resumed epoch from 0 and runs a full epoch. This list passes the
    original step indices to the callbacks and ends the epoch at its last step.

    Args:
        callbacks: A list of callbacks passed by the user.
        backup: `BackupAndRestore` callback to resume the training from.
        batches: A dataset of training batches.
        done: Integer. Number of steps already completed in the first epoch.
        **params: Keyword arguments for `keras.callbacks.CallbackList`.
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
        super().on_epoch_end(epoch, logs)


def resume(task: keras.Model, data: Source, callbacks: list | None, verbose: int | str) -> tuple:
    """Return the arguments for Keras's `fit` to start or resume a training.

    Args:
        task: `TextModel` to train.
        data: `Source` with the training data.
        callbacks: A list of callbacks. A `BackupAndRestore` in this list will be used to resume the
            training.
        verbose: Verbosity, as in Keras.

    Returns:
        Dict of the arguments, and the number of steps already completed in the first epoch.
    """
    epochs, steps = data.plan.epochs, data.steps_per_epoch
    callbacks = keras.tree.flatten(callbacks or [])
    if not any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        callbacks = [StopAtDivergence(), *callbacks]
    backup = next((c for c in callbacks if isinstance(c, BackupAndRestore)), None)
    seed = _common_seed(task.distribution.strategy, steps, backup is not None)
    position = Position(epochs.start, 0, seed)
    if backup:
        run = {"initial_epoch": epochs.start, "epochs": epochs.stop, "steps_per_epoch": steps}
        run = {**_describe_task(task), "class_weight": data.class_weights, **data.describe(), **run}
        position = backup.resume_position(task, run, position, data.window_sizes)
    # Keras also reads a batch after the last epoch.
    done = (position.epoch - epochs.start) * steps + position.step
    batches = data.batches(position.seed, done if position.epoch < epochs.stop else 0)
    options = {"epochs": epochs.stop, "verbose": verbose}
    if position.step:
        params = {**options, "steps": steps, "model": task, "add_progbar": verbose != 0}
        callbacks = RestOfEpoch(callbacks, backup, batches, position.step, **params)
    options |= {"initial_epoch": position.epoch, "steps_per_epoch": steps, "shuffle": False}
    return {"x": batches, "callbacks": callbacks, **options}, position.step


def _common_seed(strategy: tf.distribute.Strategy | None, steps: int, has_backup: bool) -> int:
    """Return the first worker's random seed, and check that all workers train alike."""
    # `keras.utils.set_random_seed` can be used to make the seed reproducible.
    drawn = int(np.random.randint(2**31))
    workers = gather_from_workers(strategy, [drawn, steps, has_backup])
    found = sorted({f"{n} steps{' and backups' if backs else ''}" for _, n, backs in workers})
    if len(found) > 1:
        raise ValueError(
            f"The workers call `fit` with different arguments: {' / '.join(found)}. Expected the "
            "same number of steps per epoch, and the same use of BackupAndRestore in all workers."
        )
    return workers[0][0]


def _describe_task(task: keras.Model) -> dict:
    """Return the settings that must be equal to resume a training, as plain data."""
    preprocessor = task.preprocessor.get_config() if task.preprocessor else {}
    backbone = keras.saving.serialize_keras_object(task.backbone)["config"]
    return {
        "task": type(task).__name__,
        "backend": keras.config.backend(),
        "preprocessor": {k: v for k, v in preprocessor.items() if k != "tokenizer"},
        # Gradient checkpointing does not change the results.
        "backbone": {k: v for k, v in backbone.items() if k != GRADIENT_CHECKPOINTING},
        "optimizer": keras.saving.serialize_keras_object(task.optimizer),
        "loss": plain_settings(task.loss),
    }
