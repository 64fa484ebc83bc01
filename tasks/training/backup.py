"""Backups of a training: written whole or not at all, checked before they are used."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import keras
import numpy as np
from safetensors.numpy import save_file

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.presets.files.atomic import replacing
from encoder_zoo.presets.files.manifest import read_manifest, write_manifest
from encoder_zoo.presets.files.open_folder import OpenFolder
from encoder_zoo.presets.files.safetensors_file import SafetensorsFile
from encoder_zoo.presets.preset_files import CONFIG, MANIFEST
from encoder_zoo.tasks.training.distribution import of_all_workers, strategy_of
from encoder_zoo.tasks.training.divergence import divergence

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")

STATE = "state.safetensors"
BACKUPS = "epoch-*-step-*"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where training stands.

    Attributes:
        epoch: number of the epoch, from 0.
        step: how many steps of it are done.
        seed: of the order of the examples and of masking.
    """

    epoch: int
    step: int
    seed: int


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Backs training up, so that the same command, run again after a crash, continues it.

    As `keras.callbacks.BackupAndRestore`, and more: training continues in the middle of an epoch
    with the very step that came next, and runs as if nothing had happened: weights, optimizer and
    its schedule, order of the examples, masking, dropout and the running metrics are those of an
    uninterrupted run. A backup is written at the end of every epoch and, on request, every so many
    steps. Each is a folder that appears whole or not at all, holds checksums, and is plain data;
    the last two are kept. One that is damaged is passed over, with a line in the log.

    What other callbacks know (the patience of `EarlyStopping`) is not in a backup, and the history
    that `fit` returns begins with the epoch it continues. Put the callback last, so that what the
    others change at an epoch's end is in the backup. Of several workers the chief alone writes, and
    all read.

    Args:
        backup_dir: a local folder, of this `fit` alone; with several workers one that all share.
        save_freq: "epoch", or every so many steps of an epoch as well.
        delete_checkpoint: whether to remove the backups when training is finished.

    Raises:
        ValueError: "The backup in ... belongs to another run: batch_size is 32 there, 16 now. ..."
        FloatingPointError: instead of a backup of weights that are not finite.

    Example:
        >>> import tempfile
        >>> import encoder_zoo as ez
        >>> classifier = ez.Classifier.from_preset("bert_nano_en_uncased", num_classes=2)
        >>> backup = ez.BackupAndRestore(tempfile.mkdtemp(), save_freq=100)
        >>> history = classifier.fit(["good", "bad"], [1, 0], callbacks=[backup], verbose=0)
        >>> len(history.history["loss"])
        1
    """

    # Keras may log the steps from threads: the backups are written between them.
    async_safe = True

    @validate_arguments
    def __init__(
        self,
        backup_dir: str | os.PathLike,
        save_freq: PositiveInt | Literal["epoch"] = "epoch",
        delete_checkpoint: bool = True,
    ):
        super().__init__(backup_dir, save_freq=save_freq, delete_checkpoint=delete_checkpoint)
        self.folder = pathlib.Path(backup_dir)
        self._run = None

    # -- what `Task.fit` calls -----------------------------------------------------------------

    def begin(self, task: Task, run: dict, start: Place, memory: list) -> Place:
        """Where training begins: the place of the newest whole backup, or else `start`.

        Args:
            task: to be trained.
            run: what makes this run the one that was backed up, plain data.
            start: the place of a run without a backup.
            memory: of the data, see `Stream`; it takes over what a backup has of it.
        """
        self._check_folder()
        self._run, self._model, self._memory = _flat(run), task, memory
        self._continued, place = self._newest_whole(), start
        self._kept = self._continued
        self._at_first_step = self._continued is not None
        if self._continued:
            training = self._manifest["training"]
            self._check_same_run(training["run"])
            place = Place(**training["place"])
            memory[:] = training.get("memory", [])
            logger.info("Training continues from %s.", self._continued)
        self._check_same_place(task, place)
        self._place = place
        return place

    def restore_metrics(self, batches: tf.data.Dataset) -> None:
        """Brings the running metrics to where they were in the middle of the epoch.

        Args:
            batches: of the training; the metrics are built for the first.
        """
        model = self.model
        if len(model.metrics_variables) < len(self._stored("metrics")):
            # Keras's trainer for TensorFlow builds them in its first step only.
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(next(iter(batches)))
            y_pred = model(x, training=False)
            model.compute_loss(x, y, y_pred, sample_weight, training=False)
            model.compute_metrics(x, y, y_pred, sample_weight)
            model.reset_metrics()
        if strategy_of(model):
            strategy_of(model).run(self._restore_metrics_of_replica)
        else:
            self._restore("metrics", model.metrics_variables)

    def _restore_metrics_of_replica(self) -> None:
        # The replicas' metrics are added up: the first gets them all.
        if tf.distribute.get_replica_context().replica_id_in_sync_group == 0:
            self._restore("metrics", self.model.metrics_variables)

    # -- what Keras calls ----------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        if self._run is None:
            raise ValueError(
                "encoder_zoo.BackupAndRestore works in the `fit` of encoder_zoo's tasks. "
                "For other models there is keras.callbacks.BackupAndRestore."
            )
        if self._continued:
            model = self.model
            self._restore("model", model.variables)
            self._restore("optimizer", model.optimizer.variables)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._saved_step = self._place.step if epoch == self._place.epoch else 0

    def on_train_batch_begin(self, batch, logs=None):
        if self._at_first_step:
            # Not before: torch's generator is drawn from when Keras begins to read the data.
            self._at_first_step = False
            with self._state() as file:
                names = [name for name in file.shapes if name.startswith("random.")]
                _set_random_state([file.read(name) for name in names])
        if self.save_freq != "epoch" and batch - self._saved_step >= self.save_freq:
            self._save(self._epoch, batch)
            self._saved_step = batch

    def on_train_batch_end(self, batch, logs=None):
        """Nothing: Keras's own backups would be written here."""

    def on_epoch_end(self, epoch, logs=None):
        self._save(epoch + 1, 0)

    def on_train_end(self, logs=None):
        self._run = None
        if self.delete_checkpoint and _is_chief(self.model):
            self._remove_all_but()
            if self.folder.is_dir() and not any(self.folder.iterdir()):
                self.folder.rmdir()

    # -- writing -------------------------------------------------------------------------------

    def _save(self, epoch: int, step: int) -> None:
        model = self.model
        # Every worker takes part: metrics are summed over all of them when they are read.
        arrays = {
            f"{group}.{i}": np.asarray(keras.ops.convert_to_numpy(variable), order="C")
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
        target = self.folder / f"epoch-{epoch:06d}-step-{step:09d}"
        training = {
            "place": dataclasses.asdict(Place(epoch, step, self._place.seed)),
            "run": self._run,
            "memory": list(self._memory),
        }
        with replacing(target) as new:
            save_file(arrays, new / STATE)
            write_manifest(new, {"task": model.task_name, "training": training})
        self._remove_all_but(target, self._kept)
        self._kept = target

    def _check_finite(self, arrays: dict[str, np.ndarray], epoch: int, step: int) -> None:
        """Raises an error if the weights, or in the middle of an epoch the loss, are not finite."""
        weights = (array for name, array in arrays.items() if name.startswith("model."))
        finite = all(np.isfinite(array).all() for array in weights)
        if step and finite:
            finite = np.isfinite(float(self.model.get_metrics_result()["loss"]))
        if not finite:
            if step == 0:
                epoch, step = epoch - 1, self.params["steps"]
            raise divergence(
                epoch, step, self.params, "the weights or the loss are not finite after it"
            )

    def _remove_all_but(self, *kept: pathlib.Path) -> None:
        for path in [*self._backups(), *self.folder.glob(f".{BACKUPS}.saving-*")]:
            if path not in kept:
                shutil.rmtree(path)

    # -- reading -------------------------------------------------------------------------------

    def _check_folder(self) -> None:
        """Refuses a folder that holds something else, such as a preset."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"backup_dir={str(self.folder)!r} is a file. Expected a folder.")
        for name in (MANIFEST, CONFIG):
            if (self.folder / name).exists():
                raise ValueError(
                    f"backup_dir={str(self.folder)!r} holds {name}: it is a preset, or a backup "
                    "by itself. Expected a folder for backups alone, or one where none is yet."
                )

    def _backups(self) -> list[pathlib.Path]:
        return sorted(path for path in self.folder.glob(BACKUPS) if path.is_dir())

    def _newest_whole(self) -> pathlib.Path | None:
        backups = self._backups()
        for folder in reversed(backups):
            try:
                with OpenFolder(folder, [MANIFEST, STATE]) as files:
                    self._manifest = read_manifest(files, verify=True)
                if STATE not in self._manifest.get("files", ()):
                    raise ValueError(f"{folder} is not whole")
                if not _is_of_training(self._manifest.get("training")):
                    raise ValueError(f"{folder} holds no backup of a training")
                return folder
            except (OSError, ValueError) as error:
                logger.warning("A backup is passed over: %s.", str(error).partition(". ")[0])
        if backups:
            raise ValueError(
                f"None of the {len(backups)} backups in {self.folder} is whole; the log says what "
                "is wrong with each. Delete the folder to train from the beginning."
            )
        return None

    def _check_same_place(self, task: Task, place: Place) -> None:
        places = of_all_workers(strategy_of(task), [place.epoch, place.step])
        found = sorted({f"epoch {epoch + 1}, step {step}" for epoch, step in places})
        if len(found) > 1:
            raise ValueError(
                f"The workers of this training found different backups, of {' and of '.join(found)}"
                ". backup_dir must be a folder that all workers share. Here it is "
                f"{self.folder.absolute()}."
            )

    def _check_same_run(self, stored: dict) -> None:
        differing = [
            f"{name} is {_short(stored.get(name))} there, {_short(self._run.get(name))} now"
            for name in dict.fromkeys([*stored, *self._run])
            if stored.get(name) != self._run.get(name)
        ]
        if differing:
            raise self._other_run("; ".join(differing[:5]))

    def _other_run(self, how: str) -> ValueError:
        return ValueError(
            f"The backup in {self.folder} belongs to another run: {how}. Give this run a "
            "backup_dir of its own, or delete that folder to train from the beginning."
        )

    @contextlib.contextmanager
    def _state(self) -> Iterator[SafetensorsFile]:
        """Opens the arrays of the backup, which must still be the one that was chosen."""
        with OpenFolder(self._continued, [MANIFEST, STATE]) as files:
            if read_manifest(files, verify=False) != self._manifest:
                raise ValueError(
                    f"{self._continued} was replaced while the training was continued from it: "
                    "another run has the same backup_dir. Give each run a backup_dir of its own."
                )
            yield SafetensorsFile(files.file(STATE))

    def _stored(self, group: str) -> dict[str, tuple[int, ...]]:
        """Names and shapes of a group of variables in the backup."""
        with self._state() as file:
            shapes = file.shapes
        return {name: shape for name, shape in shapes.items() if name.startswith(f"{group}.")}

    def _restore(self, group: str, variables: list) -> None:
        shapes = {f"{group}.{i}": tuple(v.shape) for i, v in enumerate(variables)}
        stored = self._stored(group)
        for name in sorted({*shapes, *stored}):
            if shapes.get(name) != stored.get(name):
                raise self._other_run(
                    f"variable {name} has the shape {stored.get(name)} there, "
                    f"{shapes.get(name)} now"
                )
        with self._state() as file:
            for i, variable in enumerate(variables):
                variable.assign(file.read(f"{group}.{i}"))


def _is_of_training(training: object) -> bool:
    """Return whether a manifest says where a training stands, and of which run."""
    if not isinstance(training, dict) or not isinstance(training.get("run"), dict):
        return False
    place, memory = training.get("place"), training.get("memory", [])
    names = {field.name for field in dataclasses.fields(Place)}
    if not isinstance(place, dict) or place.keys() != names or not isinstance(memory, list):
        return False
    return all(type(number) is int and number >= 0 for number in place.values())


def _flat(settings: dict, prefix: str = "") -> dict:
    """Nested settings as `{"outer.inner": value}`, without the names Keras numbers objects by."""
    flat = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif name != "name":
            flat[prefix + name] = json.loads(json.dumps(value, default=lambda v: type(v).__name__))
    return flat


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _random_state() -> list:
    """The generators that torch's dropout draws from; on other backends the model has its own."""
    if keras.config.backend() != "torch":
        return []
    import torch

    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if torch.cuda.is_available() else states


def _set_random_state(states: list[np.ndarray]) -> None:
    """Sets torch's generators, from `_random_state`."""
    if states:
        import torch

        torch.set_rng_state(torch.from_numpy(states[0]))
        if states[1:] and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(states[1]))


def _is_chief(model: keras.Model) -> bool:
    """Whether this process writes: of several workers one does."""
    if keras.config.backend() == "tensorflow":
        return model.distribute_strategy.extended.should_checkpoint
    if keras.config.backend() == "jax":
        import jax

        return jax.process_index() == 0
    return True
