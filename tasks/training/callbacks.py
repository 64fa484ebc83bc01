"""Callbacks for `fit`: stop if the loss is not finite, and back up and resume the training."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
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

from encoder_zoo.common.configuration import get_argument_names, make_plain_settings
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.model_configuration import GRADIENT_CHECKPOINTING
from encoder_zoo.common.validation import FilePath, PositiveInt, Rule, validate_arguments
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.arrays import gather_array
from encoder_zoo.presets.files import atomic
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
BACKUP_KIND = atomic.FolderKind(
    "a backup", lambda manifest: _is_training_entry(manifest["training"])
)


def _is_callbacks(value: object) -> bool:
    found = (
        [value] if isinstance(value, keras.callbacks.CallbackList) else keras.tree.flatten(value)
    )
    return all(callable(getattr(c, "set_model", None)) and not isinstance(c, type) for c in found)


Callbacks = Annotated[
    Sequence[keras.callbacks.Callback],
    Rule(_is_callbacks, "a list of callbacks, such as keras.callbacks.EarlyStopping()"),
]


if TYPE_CHECKING:

    class History(keras.callbacks.History):
        """`keras.callbacks.History` with type annotations for its values."""

        history: dict[str, list[float]]
        epoch: list[int]
else:
    History = keras.callbacks.History


class StopAtDivergence(keras.callbacks.Callback):
    """Raise an error if the loss becomes NaN or infinite.

    `fit` adds this callback before all other callbacks, so that no callback saves the weights after
    the failed step. It is not added if the callbacks include `keras.callbacks.TerminateOnNaN`.
    After every step, the callback checks the mean loss of the epoch in the logs.

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
        raise _make_nan_loss_error(
            self._epoch, step + 1, self.params, f"the loss is {float(self._bad[step])}"
        )


def _make_nan_loss_error(epoch: int, step: int, params: dict, event: str) -> FloatingPointError:
    """Create the error for a loss that is not finite.

    Args:
        epoch: Integer. Epoch index, starting at 0.
        step: Integer. Step number, starting at 1.
        params: Dict. Callback parameters with the keys "epochs" and "steps".
        event: String. Description of the problem.
    """
    steps = params["steps"]
    step = min(step, steps or step)  # one execution of several steps can exceed the epoch
    return FloatingPointError(
        f"Epoch {epoch + 1}/{params['epochs']}, step {step}/{steps or '?'}: {event}. "
        "The learning rate may be too high. Use a lower learning rate or a longer warmup, or clip "
        "the gradients with your own optimizer (`global_clipnorm=1.0`). In float16, values above "
        '65504 overflow. Use "mixed_bfloat16", or "mixed_float16" with '
        "`compile(auto_scale_loss=True)`. If this is the first step, also check sample weights and "
        "numeric labels for NaN."
    )


@dataclasses.dataclass(frozen=True)
class Position:
    """Epoch and step at which a training starts or resumes.

    Attributes:
        epoch: Integer. Epoch index, starting at 0.
        step: Integer. Number of completed steps in this epoch.
        seed: Integer. Random seed for the example order and for masking.
    """

    epoch: int
    step: int
    seed: int


class Backup:
    """A complete backup on disk.

    Args:
        path: Path of the backup folder.
        manifest: Dict. Contents of the manifest. The caller must have verified the checksums.
    """

    def __init__(self, path: pathlib.Path, manifest: dict):
        self.path = path
        self._manifest = manifest
        training = manifest["training"]
        self.run: dict = training["run"]
        self.position = Position(**training["position"])
        self.window_sizes: list = training.get("window_sizes", [])

    @contextlib.contextmanager
    def _open(self, group: str) -> Iterator[tuple[SafetensorsFile, dict[str, tuple[int, ...]]]]:
        """Open the file with the arrays, and list the shapes in a group, such as "optimizer".

        Raises:
            ValueError: If another run has replaced the backup.
        """
        with OpenFolder(self.path, [MANIFEST, STATE]) as files:
            if read_manifest(files, verify=False) != self._manifest:
                raise ValueError(
                    f"Another run replaced {self.path} while it was being restored. Use a separate "
                    "backup_dir for each run."
                )
            file = SafetensorsFile(files.open_file(STATE))
            shapes = file.shapes.items()
            yield file, {name: shape for name, shape in shapes if name.startswith(f"{group}.")}

    def count(self, group: str) -> int:
        """Return the number of stored variables in a group."""
        with self._open(group) as (_, stored):
            return len(stored)

    def read(self, group: str) -> list[np.ndarray]:
        """Read the stored values of a group of variables from the backup."""
        with self._open(group) as (file, stored):
            return [file.read(f"{group}.{i}") for i in range(len(stored))]

    def restore(self, group: str, variables: list) -> None:
        """Assign the stored values to a group of variables.

        Raises:
            ValueError: If the number of variables, a shape or a dtype differs from the backup.
        """
        now = {f"{group}.{i}": variable for i, variable in enumerate(variables)}
        shapes = {name: tuple(variable.shape) for name, variable in now.items()}
        with self._open(group) as (file, stored):
            for name in sorted({*shapes, *stored}):
                if shapes.get(name) != stored.get(name):
                    raise self._make_run_error(
                        f"variable {name} has the shape {stored.get(name)} in the backup, but "
                        f"{shapes.get(name)} now"
                    )
            for name, variable in now.items():
                saved, own = file.get_dtype(name).name, _get_backup_dtype(variable)
                if saved != own:
                    raise self._make_run_error(
                        f"variable {name} is {saved} in the backup, but {own} now"
                    )
            for name, variable in now.items():
                variable.assign(file.read(name))

    def check_same_run(self, run: dict) -> None:
        """Raise a ValueError if the settings of the backup differ from the settings of this run."""
        stored, run = (
            {name: _remove_module_name(name, value) for name, value in settings.items()}
            for settings in (self.run, run)
        )
        if not any(name.startswith("settings.") for name in stored):  # missing in release 0.4
            run = {n: value for n, value in run.items() if not n.startswith("settings.")}
        differing = [
            f"{name} is {quote(stored.get(name))} in the backup, but {quote(run.get(name))} now"
            for name in dict.fromkeys([*stored, *run])
            if stored.get(name) != run.get(name)
        ]
        if differing:
            raise self._make_run_error("; ".join(differing[:5]))

    def _make_run_error(self, how: str) -> ValueError:
        return ValueError(
            f"The backup in {self.path.parent} belongs to another run: {how}. Use a separate "
            "backup_dir for this run, or delete the folder to train from the beginning."
        )


def _get_backup_dtype(variable) -> str:
    """Return the dtype in which a backup stores a variable."""
    if keras.config.backend() == "torch" and "uint" in variable.dtype:
        # torch only supports some unsigned dtypes.
        return np.asarray(keras.ops.convert_to_numpy(variable)).dtype.name
    return keras.backend.standardize_dtype(variable.dtype)


class BackupFolder:
    """Folder that contains the backups of a run.

    Args:
        path: Path of the folder. The folder does not have to exist.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)

    def check(self) -> None:
        """Raise a ValueError if the path is a file, or if the folder contains a preset."""
        if self.path.exists() and not self.path.is_dir():
            raise invalid("backup_dir", str(self.path), "a folder, not a file")
        atomic.check_folder(self.path)
        for name in (MANIFEST, CONFIG):
            if (self.path / name).exists():
                raise ValueError(
                    f"backup_dir is {str(self.path)!r}, which contains {name}. Pass a new folder "
                    "or a folder that only contains backups."
                )

    def find_newest(self) -> Backup | None:
        """Return the newest complete backup, or None if the folder is empty or missing.

        Raises:
            ValueError: If the folder contains backups, but all of them are incomplete.
        """
        folders = self._list_folders()
        for folder in reversed(folders):
            try:
                return Backup(folder, _check_manifest(folder))
            except (OSError, ValueError) as error:
                logger.warning("A backup is skipped: %s.", str(error).partition(". ")[0])
        if folders:
            raise ValueError(
                f"All {len(folders)} backups in {self.path} are incomplete, for the reasons in the "
                "log. To train from the beginning, delete the folder."
            )
        return None

    def write(
        self, position: Position, arrays: dict[str, np.ndarray], task: str, run: dict, sizes: list
    ) -> pathlib.Path:
        """Write a backup atomically, and return the path of its folder.

        Args:
            position: `Position`. The epoch and step of the backup.
            arrays: Dict mapping names to arrays. Names have the form "group.index", such as
                "model.0".
            task: String. Task name.
            run: Dict. Settings that identify the run.
            sizes: List. The data's `window_sizes`.
        """
        target = self.path / f"epoch-{position.epoch:06d}-step-{position.step:09d}"
        training = {"position": dataclasses.asdict(position), "run": run, "window_sizes": sizes}
        with atomic.replace_folder(target, BACKUP_KIND) as new:
            save_file(arrays, new / STATE)
            write_manifest(new, {"task": task, "training": training})
        return target

    def remove_all_but(self, *kept: pathlib.Path | None) -> None:
        """Delete backups that are not in `kept`, and incomplete backups."""
        for path in self._list_folders():
            if path not in kept:
                atomic.remove_saved_files(path, BACKUP_KIND)
        atomic.remove_temporary_folders(self.path, BACKUPS)

    def remove(self) -> None:
        """Delete all backups. The folder is also deleted if it contains no other files."""
        self.remove_all_but()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _list_folders(self) -> list[pathlib.Path]:
        return sorted(path for path in self.path.glob(BACKUPS) if path.is_dir())


def _check_manifest(folder: pathlib.Path) -> dict:
    """Read a backup's manifest, and verify the checksums of its files."""
    with OpenFolder(folder, [MANIFEST, STATE]) as files:
        manifest = read_manifest(files, verify=True)
    if STATE not in manifest.get("files", ()):
        raise ValueError(f"{folder} is not complete")
    if not _is_training_entry(manifest.get("training")):
        raise ValueError(f"{folder} does not contain a training backup")
    return manifest


def _is_training_entry(training: object) -> bool:
    """Return whether a manifest entry contains a position and the settings of a run."""
    if not isinstance(training, dict) or not isinstance(training.get("run"), dict):
        return False
    position, sizes = training.get("position"), training.get("window_sizes", [])
    names = {field.name for field in dataclasses.fields(Position)}
    if not isinstance(position, dict) or position.keys() != names or not isinstance(sizes, list):
        return False
    return all(type(number) is int and number >= 0 for number in position.values())


def flatten_settings(settings: dict, prefix: str = "") -> dict:
    """Flatten nested settings to `{"outer.inner": value}`, without the names of layers.

    Example:
        >>> flatten_settings({"backbone": {"layers": 2, "name": "bert_3"}})
        {'backbone.layers': 2}
    """
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= flatten_settings(value, f"{prefix}{name}.")
        elif name != "name":
            flat[prefix + name] = json.loads(json.dumps(value, default=lambda v: type(v).__name__))
    return flat


def _remove_module_name(name: str, value: object) -> object:
    """Remove module names of this package from a setting, because they can change between versions.

    Example:
        >>> _remove_module_name("loss.class", "encoder_zoo.tasks.losses.cosent.CoSENT")
        'CoSENT'
    """
    if not (isinstance(value, str) and value.startswith("encoder_zoo.")):
        return value
    return "encoder_zoo" if name.endswith("module") else value.rpartition(".")[2]


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Back up the training, and resume it when the same program runs again after a crash.

    This callback extends `keras.callbacks.BackupAndRestore`. It can also resume in the middle of an
    epoch, at the next step. The resumed run is equal to an uninterrupted run, because the callback
    restores the weights, the optimizer and its schedule, the example order, masking,
    dropout and the running metrics. A backup is written at the end of every epoch and, optionally,
    after a given number of steps. A backup is a folder with checksums. It is written atomically and
    contains no code. The last two backups are kept. Damaged backups are skipped with a warning.

    The state of other callbacks, such as the patience of `EarlyStopping`, is not stored. After
    resuming, the history returned by `fit` starts at the resumed epoch. Pass this callback last, so
    that backups include changes that other callbacks make at the end of an epoch. With several
    workers, only the chief writes backups, and all workers read the same backups.

    Args:
        backup_dir: String or path. Local folder that is not used by another `fit`. With several
            workers, all workers must share this folder.
        save_freq: "epoch" or positive integer. With an integer `n`, a backup is also written after
            every `n` steps. Defaults to "epoch".
        delete_checkpoint: Boolean. Whether to delete the backups when the training is finished.
            Defaults to True.

    Raises:
        ValueError: If the backup belongs to another run, or if `backup_dir` contains unrelated
            files.
        FloatingPointError: If the weights or the loss are not finite when a backup is written.

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

    def find_resume_position(
        self, task: keras.Model, run: dict, start: Position, window_sizes: list
    ) -> Position:
        """Return the position to resume from, or `start` if the folder contains no backup.

        Args:
            task: Task to train.
            run: Dict. Settings that identify this run.
            start: `Position` to start from if there is no backup.
            window_sizes: List of integers. The `window_sizes` of the training data. If there is a
                backup, they are replaced by the values in the backup.
        """
        self._folder.check()
        self._run, self._model, self._window_sizes = flatten_settings(run), task, window_sizes
        self._continued, position = self._folder.find_newest(), start
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
                f"The backup {self._kept} is damaged: its position is epoch {position.epoch} and "
                f"step {position.step}, but the training has {epochs} epochs of {steps} steps. "
                "Delete this folder and call fit again."
            )

    def _check_same_position(self, task: keras.Model, position: Position) -> None:
        numbers = [position.epoch, position.step]
        positions = gather_from_workers(task.distribution.strategy, numbers)
        found = sorted({f"epoch {epoch + 1}, step {step}" for epoch, step in positions})
        if len(found) > 1:
            raise ValueError(
                f"The workers found different backups in {self._folder.path.absolute()}: "
                f"{' / '.join(found)}. Pass a `backup_dir` that all workers share."
            )

    def restore_metrics(self, batches: tf.data.Dataset) -> None:
        """Restore the running metrics if training resumes in the middle of an epoch.

        Args:
            batches: Dataset of training batches. Its first batch is used to build the metrics.
        """
        model = self.model
        if len(model.metrics_variables) < self._continued.count("metrics"):
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
                "encoder_zoo.BackupAndRestore only supports tasks from encoder_zoo. For other "
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
            # The state is restored after Keras has started to read data, because reading changes
            # the state of torch's random generator.
            self._at_first_step = False
            _set_random_state(self._continued.read("random"))
        if self.save_freq != "epoch" and batch - self._saved_step >= self.save_freq:
            self._save(self._epoch, batch)
            self._saved_step = batch

    def on_train_batch_end(self, batch, logs=None):
        """Do nothing, because the Keras method would write its own backups."""

    def on_epoch_end(self, epoch, logs=None):
        self._save(epoch + 1, 0)

    def on_train_end(self, logs=None):
        self._run = None
        if self.delete_checkpoint and _is_chief(self.model):
            self._folder.remove()

    # -- writing -------------------------------------------------------------------------------

    def _save(self, epoch: int, step: int) -> None:
        model = self.model
        # All workers must call this method: metrics are summed over all workers when they are read,
        # and weights can be distributed over several processes.
        arrays = {
            f"{group}.{i}": np.asarray(gather_array(variable), order="C")
            for group, variables in (
                ("model", model.variables),
                ("optimizer", model.optimizer.variables),
                ("metrics", model.metrics_variables),
                ("random", _get_random_state()),
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
        """Raise an error if a weight is not finite. Within an epoch, also check the loss."""
        weights = (array for name, array in arrays.items() if name.startswith("model."))
        finite = all(np.isfinite(array).all() for array in weights)
        if step and finite:
            finite = np.isfinite(float(self.model.get_metrics_result()["loss"]))
        if not finite:
            if step == 0:
                epoch, step = epoch - 1, self.params["steps"]
            raise _make_nan_loss_error(
                epoch, step, self.params, "the weights or the loss are not finite"
            )


def _get_random_state() -> list:
    """Return the states of torch's random generators, or an empty list on other backends.

    On other backends, the random state is stored in the variables of the layers.
    """
    if keras.config.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


def _set_random_state(states: list[np.ndarray]) -> None:
    """Restore the states from `_get_random_state`."""
    if states:
        import torch

        torch.set_rng_state(torch.from_numpy(states[0]))
        if states[1:] and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(states[1]))


def _is_chief(model: keras.Model) -> bool:
    """Return whether this process writes the backups."""
    if keras.config.backend() == "tensorflow":
        return model.distribute_strategy.extended.should_checkpoint
    if keras.config.backend() == "jax":
        import jax

        return jax.process_index() == 0
    return True


class ResumedCallbackList(keras.callbacks.CallbackList):
    """Callback list for a `fit` that resumes in the middle of an epoch.

    Keras counts the steps of the resumed epoch from 0, and runs a full epoch. This list passes the
    original step indices to the callbacks, and ends the epoch at its last step.

    Args:
        callbacks: List of callbacks passed by the user.
        backup: The `BackupAndRestore` callback.
        batches: Dataset of training batches.
        done: Integer. Number of completed steps in the resumed epoch.
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
    """Create the arguments of `keras.Model.fit` to start or resume a training.

    Args:
        task: `TextModel` to train.
        data: `Source` with the training data.
        callbacks: List of callbacks. A `BackupAndRestore` in this list resumes the training.
        verbose: Verbosity, as in Keras.

    Returns:
        Tuple of a dict with the arguments, and the number of steps of the first epoch that were
        completed before.
    """
    epochs, steps = data.plan.epochs, data.steps_per_epoch
    callbacks = keras.tree.flatten(callbacks or [])
    if not any(isinstance(c, keras.callbacks.TerminateOnNaN) for c in callbacks):
        callbacks = [StopAtDivergence(), *callbacks]
    backup = next((c for c in callbacks if isinstance(c, BackupAndRestore)), None)
    seed = _share_seed(task.distribution.strategy, steps, backup is not None)
    position = Position(epochs.start, 0, seed)
    if backup:
        run = {"initial_epoch": epochs.start, "epochs": epochs.stop, "steps_per_epoch": steps}
        run = {**_describe_task(task), "class_weight": data.class_weights, **data.describe(), **run}
        position = backup.find_resume_position(task, run, position, data.window_sizes)
    # Keras reads one more batch after the last epoch.
    done = (position.epoch - epochs.start) * steps + position.step
    batches = data.make_batches(position.seed, done if position.epoch < epochs.stop else 0)
    options = {"epochs": epochs.stop, "verbose": verbose}
    if position.step:
        params = {**options, "steps": steps, "model": task, "add_progbar": verbose != 0}
        callbacks = ResumedCallbackList(callbacks, backup, batches, position.step, **params)
    options |= {"initial_epoch": position.epoch, "steps_per_epoch": steps, "shuffle": False}
    return {"x": batches, "callbacks": callbacks, **options}, position.step


def _share_seed(strategy: tf.distribute.Strategy | None, steps: int, has_backup: bool) -> int:
    """Return the seed of the first worker, and check that all workers have equal arguments."""
    # `keras.utils.set_random_seed` can be used to make the seed reproducible.
    drawn = int(np.random.randint(2**31))
    workers = gather_from_workers(strategy, [drawn, steps, has_backup])
    found = sorted({f"{n} steps{' and backups' if backs else ''}" for _, n, backs in workers})
    if len(found) > 1:
        raise ValueError(
            f"The workers called `fit` with different arguments: {' / '.join(found)}. Expected the "
            "same number of steps per epoch in all workers, and BackupAndRestore in all or none."
        )
    return workers[0][0]


def _describe_task(task: keras.Model) -> dict:
    """Return the settings that must be equal to resume the training of a task, as plain data."""
    preprocessor = task.preprocessor.get_config() if task.preprocessor else {}
    backbone = keras.saving.serialize_keras_object(task.backbone)["config"]
    return {
        "task": type(task).__name__,
        "backend": keras.config.backend(),
        "preprocessor": {k: v for k, v in preprocessor.items() if k != "tokenizer"},
        # Gradient checkpointing does not change the results.
        "backbone": {k: v for k, v in backbone.items() if k != GRADIENT_CHECKPOINTING},
        "optimizer": keras.saving.serialize_keras_object(task.optimizer),
        "loss": make_plain_settings(task.loss),
        "settings": _describe_settings(task, {id(weight) for weight in task.variables}),
    }


def _describe_settings(model: keras.Model, stored: set[int]) -> dict:
    """Return the arguments of a model, and the checksum of a teacher, which is not in the backup.

    Args:
        model: The task to train, or a model in its arguments.
        stored: Set of integers. The `id` of all variables in the backup.
    """
    names = [n for n in get_argument_names(type(model)) if n not in ("backbone", "preprocessor")]
    settings = {name: getattr(model, name, None) for name in names}
    for name, value in settings.items():
        if isinstance(value, keras.Model):
            others = [weight for weight in value.weights if id(weight) not in stored]
            inner = _describe_settings(value, stored)
            inner = {"sha256": _hash_weights(others)} if others else inner
            settings[name] = {"class": type(value).__name__, **inner}
    return settings


def _hash_weights(weights: list) -> str:
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(gather_array(weight).tobytes())
    return digest.hexdigest()
