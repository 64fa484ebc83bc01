"""The callback that backs up a training and continues it after a crash."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Literal

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.encoders.sharding import whole_array
from encoder_zoo.tasks.training.backup_folder import BackupFolder, Position, flat_settings
from encoder_zoo.tasks.training.distribution import of_all_workers
from encoder_zoo.tasks.training.divergence import nan_loss_error

if TYPE_CHECKING:
    from encoder_zoo.tasks.base.task import Task

logger = logging.getLogger("encoder_zoo")


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
        backup_dir: str | os.PathLike[str],
        save_freq: PositiveInt | Literal["epoch"] = "epoch",
        delete_checkpoint: bool = True,
    ):
        super().__init__(backup_dir, save_freq=save_freq, delete_checkpoint=delete_checkpoint)
        self._folder = BackupFolder(backup_dir)
        self._run = None

    # -- called by `Task.fit` ------------------------------------------------------------------

    def resume_position(
        self, task: Task, run: dict, start: Position, window_sizes: list
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
            window_sizes[:] = self._continued.window_sizes
            logger.info("Training continues from %s.", self._kept)
        self._check_same_position(task, position)
        self._position = position
        return position

    def _check_same_position(self, task: Task, position: Position) -> None:
        numbers = [position.epoch, position.step]
        positions = of_all_workers(task.distribution.strategy, numbers)
        found = sorted({f"epoch {epoch + 1}, step {step}" for epoch, step in positions})
        if len(found) > 1:
            raise ValueError(
                f"The workers of this training found different backups, of {' and of '.join(found)}"
                ". backup_dir must be a folder that all workers share. Here it is "
                f"{self._folder.path.absolute()}."
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
        new = self._folder.write(position, arrays, model.task_name, self._run, self._window_sizes)
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
