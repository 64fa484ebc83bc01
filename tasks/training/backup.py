"""The callback that backs up a training, its folder, and a `fit` that continues after a crash."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import keras
import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.common.wording import invalid, shown
from encoder_zoo.encoders.arrays import whole_array
from encoder_zoo.presets.files.atomic import (
    Kind,
    checked_folder,
    remove_temporary,
    remove_written,
    replacing,
)
from encoder_zoo.presets.files.manifest import read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.formats.preset_files import CONFIG, MANIFEST
from encoder_zoo.tasks.training.callbacks import nan_loss_error, stopping_at_divergence
from encoder_zoo.tasks.training.distribution import of_all_workers

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import Source

logger = logging.getLogger("encoder_zoo")

STATE = "state.safetensors"
BACKUPS = "epoch-*-step-*"
KIND = Kind("a backup", lambda manifest: _is_of_training(manifest["training"]))


@dataclasses.dataclass(frozen=True)
class Position:
    """The epoch and step that a training has reached.

    Attributes:
        epoch: number of the epoch, from 0.
        step: how many steps of it are done.
        seed: of the order of the examples and of masking.
    """

    epoch: int
    step: int
    seed: int


class Backup:
    """A complete backup.

    Args:
        path: its folder.
        manifest: read from it, with the checksums verified.
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
        """Open the arrays, which must still be those of the manifest."""
        with OpenFolder(self.path, [MANIFEST, STATE]) as files:
            if read_manifest(files, verify=False) != self._manifest:
                raise ValueError(
                    f"{self.path} was replaced by another run while training continued from it. "
                    "Give each run a backup_dir of its own."
                )
            yield SafetensorsFile(files.file(STATE))

    def shapes(self, group: str) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of a group of variables."""
        with self.arrays() as file:
            shapes = file.shapes
        return {name: shape for name, shape in shapes.items() if name.startswith(f"{group}.")}

    def read(self, group: str) -> list[np.ndarray]:
        """Return a group of variables."""
        names = self.shapes(group)
        with self.arrays() as file:
            return [file.read(f"{group}.{i}") for i in range(len(names))]

    def restore(self, group: str, variables: list) -> None:
        """Assign a group of variables.

        Raises:
            ValueError: If the backup has other variables, shapes or dtypes.
        """
        now = {f"{group}.{i}": variable for i, variable in enumerate(variables)}
        shapes = {name: tuple(variable.shape) for name, variable in now.items()}
        stored = self.shapes(group)
        for name in sorted({*shapes, *stored}):
            if shapes.get(name) != stored.get(name):
                raise self._other_run(
                    f"variable {name} has the shape {stored.get(name)} there, "
                    f"{shapes.get(name)} now"
                )
        with self.arrays() as file:
            for name, variable in now.items():
                saved, own = file.dtype(name).name, _dtype_in_backups(variable)
                if saved != own:
                    raise self._other_run(f"variable {name} is {saved} there, {own} now")
            for name, variable in now.items():
                variable.assign(file.read(name))

    def check_same_run(self, run: dict) -> None:
        """Raise a ValueError that names what differs if the backup is of another run."""
        differing = [
            f"{name} is {shown(self.run.get(name))} there, {shown(run.get(name))} now"
            for name in dict.fromkeys([*self.run, *run])
            if self.run.get(name) != run.get(name)
        ]
        if differing:
            raise self._other_run("; ".join(differing[:5]))

    def _other_run(self, how: str) -> ValueError:
        return ValueError(
            f"The backup in {self.path.parent} belongs to another run: {how}. Give this run a "
            "backup_dir of its own, or delete that folder to train from the beginning."
        )


def _dtype_in_backups(variable) -> str:
    """Return the dtype of the array that `BackupAndRestore` writes of a variable."""
    if keras.config.backend() == "torch" and "uint" in variable.dtype:
        return np.asarray(keras.ops.convert_to_numpy(variable)).dtype.name  # torch has only some
    return keras.backend.standardize_dtype(variable.dtype)


class BackupFolder:
    """The folder of a run's backups.

    Args:
        path: of the folder, which need not exist.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = pathlib.Path(path)

    def check(self) -> None:
        """Raise a ValueError if the folder holds something else, such as a preset."""
        if self.path.exists() and not self.path.is_dir():
            raise invalid("backup_dir", str(self.path), "a folder, not a file")
        checked_folder(self.path)
        for name in (MANIFEST, CONFIG):
            if (self.path / name).exists():
                raise invalid(
                    "backup_dir",
                    str(self.path),
                    f"a new folder, or one of backups alone: this one holds {name}",
                )

    def newest(self) -> Backup | None:
        """Return the newest complete backup, or None if there is no backup.

        Raises:
            ValueError: If there are backups, but none is complete.
        """
        folders = self._folders()
        for folder in reversed(folders):
            try:
                return Backup(folder, _checked_manifest(folder))
            except (OSError, ValueError) as error:
                logger.warning("A backup is skipped: %s.", str(error).partition(". ")[0])
        if folders:
            raise ValueError(
                f"None of the {len(folders)} backups in {self.path} is complete, see the log. "
                "Delete the folder to train from the beginning."
            )
        return None

    def write(
        self, position: Position, arrays: dict[str, np.ndarray], task: str, run: dict, sizes: list
    ) -> pathlib.Path:
        """Write a backup atomically, and return its folder.

        Args:
            position: that training has reached.
            arrays: variables by group and number.
            task: name of the task.
            run: see `BackupAndRestore.begin`.
            sizes: the `window_sizes` of the data.
        """
        target = self.path / f"epoch-{position.epoch:06d}-step-{position.step:09d}"
        training = {"position": dataclasses.asdict(position), "run": run, "window_sizes": sizes}
        with replacing(target, KIND) as new:
            save_file(arrays, new / STATE)
            write_manifest(new, {"task": task, "training": training})
        return target

    def remove_all_but(self, *kept: pathlib.Path | None) -> None:
        """Remove backups, and the files of an interrupted write; files of the user stay."""
        for path in self._folders():
            if path not in kept:
                remove_written(path, KIND)
        remove_temporary(self.path, BACKUPS)

    def remove(self) -> None:
        """Remove all backups, and the folder if nothing else is in it."""
        self.remove_all_but()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def _folders(self) -> list[pathlib.Path]:
        return sorted(path for path in self.path.glob(BACKUPS) if path.is_dir())


def _checked_manifest(folder: pathlib.Path) -> dict:
    """Return the manifest of a backup whose files have their checksums."""
    with OpenFolder(folder, [MANIFEST, STATE]) as files:
        manifest = read_manifest(files, verify=True)
    if STATE not in manifest.get("files", ()):
        raise ValueError(f"{folder} is not complete")
    if not _is_of_training(manifest.get("training")):
        raise ValueError(f"{folder} holds no backup of a training")
    return manifest


def _is_of_training(training: object) -> bool:
    """Return whether a manifest holds the position of a training, and its run."""
    if not isinstance(training, dict) or not isinstance(training.get("run"), dict):
        return False
    position, sizes = training.get("position"), training.get("window_sizes", [])
    names = {field.name for field in dataclasses.fields(Position)}
    if not isinstance(position, dict) or position.keys() != names or not isinstance(sizes, list):
        return False
    return all(type(number) is int and number >= 0 for number in position.values())


def flat_settings(settings: dict, prefix: str = "") -> dict:
    """Return nested settings as `{"outer.inner": value}`, without Keras's numbered names.

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


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Back up training, so that the same command, run again after a crash, continues it.

    As `keras.callbacks.BackupAndRestore`, and more: training continues in the middle of an epoch
    with the very step that came next, and runs as if nothing had happened: weights, optimizer and
    its schedule, order of the examples, masking, dropout and the running metrics are those of an
    uninterrupted run. A backup is written at the end of every epoch and, on request, every so many
    steps. Each is a folder that is written atomically, holds checksums, and is plain data; the last
    two are kept. A damaged one is skipped, with a line in the log.

    The state of other callbacks (the patience of `EarlyStopping`) is not in a backup, and the
    history that `fit` returns begins with the epoch it continues. Put the callback last, so that
    changes that the others make at an epoch's end are in the backup. Of several workers the chief
    alone writes, and all read.

    Args:
        backup_dir: a local folder, of this `fit` alone; with several workers one that all share.
        save_freq: "epoch", or every so many steps of an epoch as well.
        delete_checkpoint: whether to remove the backups when training is finished.

    Raises:
        ValueError: If the backup belongs to another run, or `backup_dir` holds something else.
        FloatingPointError: If the weights or the loss are not finite when a backup is due.

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
    # Keras may log the steps from threads: the backups are written between them.
    async_safe = True

    @validate_arguments
    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
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
        """Return the position of the newest complete backup, or else `start`.

        Args:
            task: to be trained.
            run: settings that identify this run, plain data.
            start: the position of a run without a backup.
            window_sizes: of the data, see `TrainingData`; those of a backup are put into it.
        """
        self._folder.check()
        self._run, self._model, self._window_sizes = flat_settings(run), task, window_sizes
        self._continued, position = self._folder.newest(), start
        self._kept = self._continued and self._continued.path
        self._at_first_step = self._continued is not None
        if self._continued:
            self._continued.check_same_run(self._run)
            position = self._continued.position
            self._check_within(position, run, start)
            window_sizes[:] = self._continued.window_sizes
            logger.info("Training continues from %s.", self._kept)
        self._check_same_position(task, position)
        self._position = position
        return position

    def _check_within(self, position: Position, run: dict, start: Position) -> None:
        """Raise a ValueError for a position that this run, whose settings are the same, has not."""
        epochs, steps = run["epochs"], run["steps_per_epoch"]
        begun = start.epoch <= position.epoch < epochs and position.step < steps
        if not begun and (position.epoch, position.step) != (epochs, 0):
            raise ValueError(
                f"The backup {self._kept} is damaged: it is at epoch {position.epoch} and step "
                f"{position.step} of a training of {epochs} epochs of {steps} steps. Delete that "
                "folder, and call fit again."
            )

    def _check_same_position(self, task: keras.Model, position: Position) -> None:
        numbers = [position.epoch, position.step]
        positions = of_all_workers(task.distribution.strategy, numbers)
        found = sorted({f"epoch {epoch + 1}, step {step}" for epoch, step in positions})
        if len(found) > 1:
            raise invalid(
                "backup_dir",
                str(self._folder.path.absolute()),
                "a folder that all workers share: they found different backups, of "
                f"{' and of '.join(found)}",
            )

    def restore_metrics(self, batches: tf.data.Dataset) -> None:
        """Restore the running metrics in the middle of an epoch.

        Args:
            batches: of the training; the metrics are built for the first.
        """
        model = self.model
        if len(model.metrics_variables) < len(self._continued.shapes("metrics")):
            # Keras's trainer for TensorFlow builds them in its first step only.
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(next(iter(batches)))
            y_pred = model(x, training=False)
            model.compute_loss(x, y, y_pred, sample_weight, training=False)
            model.compute_metrics(x, y, y_pred, sample_weight)
            model.reset_metrics()
        if model.distribution.strategy:
            model.distribution.strategy.run(self._restore_metrics_of_replica)
        else:
            self._continued.restore("metrics", model.metrics_variables)

    def _restore_metrics_of_replica(self) -> None:
        # The replicas' metrics are added up: the first gets them all.
        if tf.distribute.get_replica_context().replica_id_in_sync_group == 0:
            self._continued.restore("metrics", self.model.metrics_variables)

    # -- called by Keras -----------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        if self._run is None:
            raise ValueError(
                "encoder_zoo.BackupAndRestore works in the `fit` of encoder_zoo's tasks. "
                "For other models there is keras.callbacks.BackupAndRestore."
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
            # Not before: torch's generator is drawn from when Keras begins to read the data.
            self._at_first_step = False
            _set_random_state(self._continued.read("random"))
        if self.save_freq != "epoch" and batch - self._saved_step >= self.save_freq:
            self._save(self._epoch, batch)
            self._saved_step = batch

    def on_train_batch_end(self, batch, logs=None):
        """Do nothing: Keras's own backups would be written here."""

    def on_epoch_end(self, epoch, logs=None):
        self._save(epoch + 1, 0)

    def on_train_end(self, logs=None):
        self._run = None
        if self.delete_checkpoint and _is_chief(self.model):
            self._folder.remove()

    # -- writing -------------------------------------------------------------------------------

    def _save(self, epoch: int, step: int) -> None:
        model = self.model
        # Every worker takes part: metrics are summed over all of them when they are read, and of
        # weights over several processes each has a part.
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
        """Raise an error if the weights, or in the middle of an epoch the loss, are not finite."""
        weights = (array for name, array in arrays.items() if name.startswith("model."))
        finite = all(np.isfinite(array).all() for array in weights)
        if step and finite:
            finite = np.isfinite(float(self.model.get_metrics_result()["loss"]))
        if not finite:
            if step == 0:
                epoch, step = epoch - 1, self.params["steps"]
            raise nan_loss_error(
                epoch, step, self.params, "the weights or the loss are not finite after it"
            )


def _random_state() -> list:
    """Return the states of torch's generators; on other backends the model has its own."""
    if keras.config.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


def _set_random_state(states: list[np.ndarray]) -> None:
    """Set torch's generators, from `_random_state`."""
    if states:
        import torch

        torch.set_rng_state(torch.from_numpy(states[0]))
        if states[1:] and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(states[1]))


def _is_chief(model: keras.Model) -> bool:
    """Return whether this process writes: of several workers one does."""
    if keras.config.backend() == "tensorflow":
        return model.distribute_strategy.extended.should_checkpoint
    if keras.config.backend() == "jax":
        import jax

        return jax.process_index() == 0
    return True


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
        super().on_epoch_end(epoch, logs)


def resume(task: keras.Model, data: Source, callbacks: list, verbose: int | str) -> tuple:
    """Return the arguments of Keras's `fit`, from where a backup left the training.

    Args:
        task: `TextModel` to be trained.
        data: `Source` to train on.
        callbacks: List of callbacks, perhaps with a `BackupAndRestore`.
        verbose: Verbosity, as in Keras.

    Returns:
        Dict of the arguments, and the number of steps of the first epoch that are done.
    """
    epochs, steps = data.plan.epochs, data.steps_per_epoch
    callbacks = stopping_at_divergence(callbacks)
    backup = next((c for c in callbacks if isinstance(c, BackupAndRestore)), None)
    seed = _common_seed(task.distribution.strategy, steps, backup is not None)
    position = Position(epochs.start, 0, seed)
    if backup:
        run = {"initial_epoch": epochs.start, "epochs": epochs.stop, "steps_per_epoch": steps}
        run = {**_describe_task(task), "class_weight": data.class_weights, **data.describe(), **run}
        position = backup.resume_position(task, run, position, data.window_sizes)
    # After the last epoch Keras still reads a batch.
    done = (position.epoch - epochs.start) * steps + position.step
    batches = data.batches(position.seed, done if position.epoch < epochs.stop else 0)
    options = {"epochs": epochs.stop, "verbose": verbose}
    if position.step:
        params = {**options, "steps": steps, "model": task, "add_progbar": verbose != 0}
        callbacks = RestOfEpoch(callbacks, backup, batches, position.step, **params)
    options |= {"initial_epoch": position.epoch, "steps_per_epoch": steps, "shuffle": False}
    return {"x": batches, "callbacks": callbacks, **options}, position.step


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
