"""Training on several devices or machines through `tf.distribute`.

A model that is built in a strategy's scope learns from a batch what one device would learn: every
replica gets its part of the batch, loss and gradients are those of the whole. Keras 3.15 falls
short of that in seven places, each named where it is mended; what it mends itself can go.
"""

from __future__ import annotations

import contextlib
import functools

import keras
import numpy as np

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.validation import PositiveInt, validate_arguments
from encoder_zoo.tasks.training.recipe import FusedAdamW
from encoder_zoo.tasks.training.replicas import (
    check_loss,
    check_no_accumulation,
    clip_the_sum,
    global_loss,
    overflow_anywhere,
)


def in_scope(method):
    """Decorator: runs a method of a `Distributed` model in the scope of its strategy."""

    @functools.wraps(method)
    def run(self, *args, **kwargs):
        strategy = strategy_of(self)
        with strategy.scope() if strategy else contextlib.nullcontext():
            return method(self, *args, **kwargs)

    return run


def strategy_of(model: keras.Model) -> tf.distribute.Strategy | None:
    """The strategy in whose scope a model was built, or None."""
    # Only Keras's trainer for TensorFlow has it.
    return getattr(model, "_distribute_strategy", None)


def of_all_workers(strategy: tf.distribute.Strategy | None, numbers: list[int]) -> list[list[int]]:
    """What the workers call it with, once for each of their replicas; the first one's first."""
    if not is_multi_worker(strategy):
        return [numbers]
    mine = strategy.run(tf.function(lambda: tf.constant([numbers], tf.int64)))
    return strategy.gather(mine, axis=0).numpy().tolist()


def check_divisible(rows: dict, batch_size: int) -> dict:
    """The rows, if every batch of them is: Keras on JAX does not split 3 rows over 2 devices.

    Raises:
        ValueError: "keras.distribution splits every batch over 2 devices, ..."
    """
    devices, count = data_parallel_devices(), rows["token_ids"].shape[0]
    if batch_size % devices or count % batch_size % devices:
        raise ValueError(
            f"keras.distribution splits every batch over {devices} devices, so each, also the "
            f"last, must hold a multiple of {devices} rows. Received: {count} rows in batches "
            f"of {batch_size}. Leave out {count % batch_size % devices}, or change batch_size."
        )
    return rows


@contextlib.contextmanager
def lost_workers_named(strategy: tf.distribute.Strategy | None):
    """An error that says what to do, where TensorFlow's speaks of an aborted operation."""
    try:
        yield
    except Exception as error:
        if not is_multi_worker(strategy) or not isinstance(
            error, (tf.errors.UnavailableError, tf.errors.AbortedError)
        ):
            raise
        raise RuntimeError(
            "Another worker of this training has gone, was killed or lost its connection: "
            "look at its log. A strategy cannot go on with fewer. Start all workers again; "
            "with a backup callback, fit continues at the last backup."
        ) from error


class Distributed:
    """Mixin, before `keras.Model`: learning and predicting under a `tf.distribute.Strategy`.

    Without a strategy, and on other backends, everything is as Keras has it.
    """

    # -- what Keras calls ----------------------------------------------------------------------

    @in_scope
    def compile(self, *args, **kwargs) -> None:
        super().compile(*args, **kwargs)
        if strategy_of(self):
            check_loss(self.loss)
        if keras.config.backend() == "tensorflow":
            optimizer = self.optimizer
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                overflow_anywhere(optimizer)
                optimizer = optimizer.inner_optimizer
            if not isinstance(optimizer, FusedAdamW):
                if strategy_of(self):
                    check_no_accumulation(optimizer)
                clip_the_sum(optimizer)

    @validate_arguments
    def fit(
        self,
        x=None,
        y=None,
        *,
        steps_per_epoch: PositiveInt | None = None,
        validation_data=None,
        validation_steps: PositiveInt | None = None,
        **kwargs,
    ):
        self._check_arguments(x, **kwargs)
        x, steps_per_epoch = self._in_parts(x, steps_per_epoch)
        validation_data, validation_steps = self._in_parts(validation_data, validation_steps)
        with lost_workers_named(strategy_of(self)):
            return super().fit(
                x,
                y,
                steps_per_epoch=steps_per_epoch,
                validation_data=validation_data,
                validation_steps=validation_steps,
                **kwargs,
            )

    def evaluate(self, x=None, *args, steps: int | None = None, **kwargs):
        x, steps = self._in_parts(x, steps)
        with lost_workers_named(strategy_of(self)):
            return super().evaluate(x, *args, steps=steps, **kwargs)

    def predict(self, x, *args, steps: int | None = None, **kwargs):
        x, steps = self._in_parts(x, steps)
        with lost_workers_named(strategy_of(self)):
            return super().predict(x, *args, steps=steps, **kwargs)

    def predict_on_batch(self, x):
        if strategy_of(self):
            # Keras gives the whole batch to every replica, and returns it as often.
            x = strategy_of(self).experimental_distribute_values_from_function(
                functools.partial(self._part_of_replica, x)
            )
        devices = data_parallel_devices()
        if devices == 1:
            return super().predict_on_batch(x)
        count = len(keras.tree.flatten(x)[0])
        x = keras.tree.map_structure(lambda values: values[filled(count, devices)], x)
        return keras.tree.map_structure(lambda o: o[:count], super().predict_on_batch(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if not self._in_replica():
            return loss
        return global_loss(self.loss, loss, self.losses, y_pred, sample_weight)

    def get_metrics_result(self) -> dict:
        if not self._in_replica():
            return super().get_metrics_result()
        # Keras would take the mean of the replicas' own results.
        variables = self.metrics_variables
        values = [tf.identity(v.value) for v in variables]  # on the replica's device
        sums = tf.distribute.get_replica_context().all_reduce("SUM", values)
        with keras.StatelessScope(state_mapping=list(zip(variables, sums, strict=True))):
            results = super().get_metrics_result()
        # Of several workers' results Keras takes the mean over axis 0, which a scalar has not.
        if is_multi_worker(strategy_of(self)):
            results = keras.tree.map_structure(lambda value: value[None], results)
        return results

    def _maybe_symbolic_build(self, iterator=None, data_batch=None) -> None:
        if strategy_of(self) and iterator is not None:
            # Keras takes the mean of a batch over the replicas, which fails for masks and for
            # parts of different size. Shapes and types are all that it needs.
            spec = iterator._distributed_dataset.element_spec
            data_batch = keras.tree.map_structure(
                lambda s: tf.nest.flatten(s, expand_composites=True)[0], spec
            )
        super()._maybe_symbolic_build(data_batch=data_batch)

    # ------------------------------------------------------------------------------------------

    def _in_replica(self) -> bool:
        # Outside of every scope TensorFlow speaks of a replica context as well.
        return (
            strategy_of(self) is not None
            and tf.distribute.has_strategy()
            and not tf.distribute.in_cross_replica_context()
        )

    def _check_arguments(self, x, shuffle: bool = True, **others) -> None:
        if is_multi_worker(strategy_of(self)) and isinstance(x, dict) and shuffle:
            raise ValueError(
                "Keras shuffles prepared inputs in every worker on its own, so that examples would "
                "be lost and others seen twice. Pass shuffle=False, or a tf.data.Dataset, whose "
                "shuffle has a seed."
            )

    def _in_parts(self, dataset, steps: int | None) -> tuple:
        """A dataset of batches as one of their parts, and how many batches it has."""
        if strategy_of(self) is None or not isinstance(dataset, tf.data.Dataset):
            return dataset, steps
        steps = steps or count_batches(dataset)
        parts = functools.partial(parts_of_batches, dataset.repeat())
        return strategy_of(self).distribute_datasets_from_function(parts), steps

    def _part_of_replica(self, batch, context):
        extended, count = strategy_of(self).extended, context.num_replicas_in_sync
        on_tpu = hasattr(extended, "num_hosts")
        workers = extended.num_hosts if on_tpu else count // len(extended.worker_devices)
        worker, replica = divmod(context.replica_id_in_sync_group, count // workers)
        return part_of_batch(batch, replica * workers + worker, count)


def is_multi_worker(strategy: tf.distribute.Strategy | None) -> bool:
    """Whether the strategy has several processes that each run the program."""
    return (
        strategy is not None
        and isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and bool(strategy.cluster_resolver.cluster_spec().as_dict())
    )


def worker_of(strategy: tf.distribute.Strategy | None) -> tuple[int, int]:
    """Number of this process among the strategy's workers, and how many there are.

    Example:
        >>> worker_of(None)
        (0, 1)
    """
    if not is_multi_worker(strategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec().as_dict()
    workers = [(kind, i) for kind in ("chief", "worker") for i in range(len(cluster.get(kind, ())))]
    return workers.index((resolver.task_type, resolver.task_id)), len(workers)


def data_parallel_devices() -> int:
    """Over how many devices `keras.distribution`, which only JAX has, splits a batch."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]


def filled(count: int, multiple: int) -> np.ndarray:
    """Numbers of rows, the last repeated up to the next multiple.

    Example:
        >>> filled(3, 2).tolist()
        [0, 1, 2, 2]
    """
    return np.minimum(np.arange(-(-count // multiple) * multiple), count - 1)


def count_batches(dataset: tf.data.Dataset) -> int:
    """Number of batches; counted in one pass where the dataset does not know.

    Raises:
        ValueError: for an endless dataset.
    """
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The dataset is endless. Pass `steps_per_epoch`.")
    if count == tf.data.UNKNOWN_CARDINALITY:
        count = int(dataset.reduce(np.int64(0), lambda n, *_: n + 1))
    return count


def parts_of_batches(
    dataset: tf.data.Dataset, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    """The parts of every batch that the replicas of one worker take, one after the other.

    `tf.distribute` would cut the dataset into batches of equal size, across the borders of batches
    that are padded to different lengths. Every worker reads the whole dataset, so all must read it
    in the same order: a `shuffle` needs a seed, and all workers the same
    `keras.utils.set_random_seed`, which TensorFlow mixes in. A worker whose dataset holds its own
    examples, with the auto-shard policy OFF, divides its batches among its own replicas only.

    Args:
        dataset: of batches, endless: then the replicas need not tell each other when it ends.
        context: of the worker.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    workers, worker = context.num_input_pipelines, context.input_pipeline_id
    count = context.num_replicas_in_sync
    if policy == tf.data.experimental.AutoShardPolicy.OFF:
        workers, worker, count = 1, 0, count // workers

    def parts(*batch):
        # In the order in which Keras puts the replicas' predictions together.
        numbers = tf.data.Dataset.range(worker, count, workers)
        return numbers.map(lambda number: part_of_batch(batch, number, count))

    return dataset.flat_map(parts).prefetch(tf.data.AUTOTUNE)


def part_of_batch(batch, number, count: int):
    """The rows of one of `count` replicas: equally many, give or take one, or none.

    Example:
        >>> [part_of_batch(np.array([1, 2, 3]), i, 2).tolist() for i in range(2)]
        [[1], [2, 3]]
    """

    def part(rows):
        size = len(rows) if not tf.is_symbolic_tensor(rows) else tf.shape(rows, tf.int64)[0]
        return rows[size * number // count : size * (number + 1) // count]

    return keras.tree.map_structure(part, batch)
