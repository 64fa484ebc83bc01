"""Train on several devices or machines with `tf.distribute` or `keras.distribution`.

If a model is built in a strategy's scope, its training gives the same results as on one device.
Every replica computes a part of the batch, and the loss and the gradients are computed for the
whole batch. In several cases, Keras 3.15 behaves differently. The code that corrects such a case
describes the difference in a comment or docstring.

With `keras.distribution` on JAX, a batch is one array that is distributed over all devices. Each
process provides a part of this array.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterable

import keras
import numpy as np

from encoder_zoo.common.keras_private import (
    count_torch_processes,
    gather_from_processes,
    has_ddp_model,
)
from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.common.tensorflow_private import set_unique_group_keys

logger = logging.getLogger(__name__)


def get_process_shard() -> tuple[int, int]:
    """Return the index of the batch part that this JAX process computes, and the number of parts.

    Example:
        >>> get_process_shard()
        (0, 1)
    """
    distribution = keras.distribution.distribution()
    if distribution is None or distribution.num_processes == 1 or keras.config.backend() != "jax":
        return 0, 1
    count = min(distribution.num_processes, distribution.num_model_replicas)
    return distribution.data_shard_id, count


def select_process_part(dataset):
    """Select the part of every batch that belongs to this JAX process."""
    number, count = get_process_shard()
    if dataset is None or count == 1:
        return dataset

    def select_part(*batch):
        return select_batch_part(batch if batch[1:] else batch[0], number, count)

    return dataset.map(select_part)


@contextlib.contextmanager
def disable_sharding():
    """Context manager that disables automatic dataset sharding in `keras.distribution`."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        yield
        return
    before, distribution.auto_shard_dataset = distribution.auto_shard_dataset, False
    try:
        yield
    finally:
        distribution.auto_shard_dataset = before


@contextlib.contextmanager
def compute_whole_batches():
    """Context manager in which every JAX process computes whole batches and has all outputs."""
    distribution = keras.distribution.distribution()
    if get_process_shard()[1] == 1:
        yield
        return

    def replicate(shape):
        return keras.distribution.TensorLayout([None] * len(shape), distribution.device_mesh)

    distribution.get_data_layout = replicate
    try:
        yield
    finally:
        del distribution.get_data_layout


def select_batch_part(batch, number, count: int):
    """Select the rows of one replica. The sizes of the parts differ by at most one row.

    Example:
        >>> import numpy as np
        >>> [select_batch_part(np.array([1, 2, 3]), i, 2).tolist() for i in range(2)]
        [[1], [2, 3]]
    """

    def select_rows(rows):
        size = len(rows) if not xp.is_symbolic_tensor(rows) else xp.shape(rows, xp.int64)[0]
        return rows[size * number // count : size * (number + 1) // count]

    return keras.tree.map_structure(select_rows, batch)


def skip_overflow(optimizer: keras.optimizers.LossScaleOptimizer) -> None:
    """Make an optimizer skip a step on all replicas if a gradient on any replica is not finite.

    Keras only checks the first replica, before gradients are summed (loss_scale_optimizer.py).
    """
    check = optimizer.check_finite

    def check_everywhere(grads: list):
        bad = xp.cast(xp.logical_not(check(grads)), xp.float32)
        return tf.distribute.get_replica_context().all_reduce("SUM", bad) == 0

    optimizer.check_finite = check_everywhere


def clip_summed_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Make an optimizer clip the gradient of the whole batch.

    Keras clips the gradients of every replica before they are summed
    (optimizers/base_optimizer.py). It also computes the norm of an embedding gradient before the
    rows of equal tokens are summed. The norm would then depend on how the batch is divided.
    """
    limits = optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue
    if not any(limits) or "apply" in vars(optimizer):
        return
    apply = optimizer.apply

    def apply_clipped(grads, trainable_variables=None):
        pairs = [(i, xp.convert_to_tensor(g)) for i, g in enumerate(grads) if g is not None]
        numbers, given = zip(*pairs, strict=True)
        count = tf.distribute.get_replica_context().num_replicas_in_sync
        if count > 1:
            whole = tf.distribute.get_replica_context().all_reduce("SUM", list(given))
            # Keras sums the gradients over the replicas.
            given = [grad / count for grad in _clip_gradients(whole, *limits)]
        found = dict(zip(numbers, given, strict=True))
        return apply([found.get(i) for i in range(len(grads))], trainable_variables)

    optimizer.apply = apply_clipped


def _clip_gradients(
    gradients: list, norm: float | None, global_norm: float | None, value: float | None
):
    if norm:
        return [tf.clip_by_norm(gradient, norm) for gradient in gradients]
    if global_norm:
        return tf.clip_by_global_norm(gradients, global_norm)[0]
    return [tf.clip_by_value(gradient, -value, value) for gradient in gradients]


MAX_COUNTING_SECONDS = 20  # seconds after which counting the batches of a dataset is stopped
COMPILED_BATCH_SIZES = (1, 8, 32)  # batch sizes for inference if every shape is compiled


class Distribution:
    """Adapts the training of a model to its `tf.distribute.Strategy`.

    Without a strategy, and on other backends, the methods do not change the behavior of Keras.

    Args:
        strategy: Optional strategy. The model was built in its scope.

    Raises:
        ValueError: If `strategy` is a ParameterServerStrategy, or if this backend does not support
            the distribution.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None):
        check_backend_distributes()
        if type(strategy).__name__.startswith("ParameterServerStrategy"):
            raise ValueError(
                "Keras 3 does not support ParameterServerStrategy. Build the task in the scope of "
                "a MirroredStrategy or a MultiWorkerMirroredStrategy."
            )
        self.strategy = strategy
        if type(strategy).__name__ == "MirroredStrategy":
            set_unique_group_keys(strategy)

    def scope(self) -> contextlib.AbstractContextManager:
        """Return the strategy's scope, in which variables must be created."""
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    @contextlib.contextmanager
    def running(self):
        """Context manager in which Keras does not divide batches again.

        Errors about lost workers, unused weights, or batches that cannot be divided are replaced by
        errors that say what to do.
        """
        try:
            with disable_sharding():
                yield
        except Exception as error:
            if type(error).__name__ == "IndivisibleError":
                devices = count_data_parallel_devices()
                raise ValueError(
                    f"keras.distribution cannot split a batch over {devices} devices: {error}. "
                    f"Use a batch size that is a multiple of {devices}. For a dataset, drop the "
                    "last batch with batch(size, drop_remainder=True)."
                ) from error
            if count_torch_processes() > 1 and "not used in producing loss" in str(error):
                raise ValueError(
                    "The loss does not depend on all trainable weights, but the processes of "
                    "torch.distributed wait for all gradients. Freeze the layers that the task "
                    "does not use, for example with task.backbone.pooler.trainable = False, and "
                    "compile again."
                ) from error
            if not self._is_lost_worker(error):
                raise
            raise RuntimeError(
                "Another worker was killed or lost its connection. Check its log and restart all "
                "workers. With a BackupAndRestore callback, fit continues from the last backup."
            ) from error

    def _is_lost_worker(self, error: Exception) -> bool:
        """Return whether an error is caused by a lost connection to another process."""
        if get_process_shard()[1] > 1:
            return type(error).__name__ == "JaxRuntimeError" and "Connection" in str(error)
        if not is_multi_worker(self.strategy):  # on other backends, TensorFlow may not be installed
            return False
        return isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError))

    def adapt_optimizer(self, model: keras.Model) -> None:
        """Adapt the optimizer of a compiled model to several replicas.

        Raises:
            ValueError: If a Keras optimizer accumulates gradients under `tf.distribute`.
        """
        if keras.config.backend() != "tensorflow":
            return
        optimizer = model.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            skip_overflow(optimizer)
            optimizer = optimizer.inner_optimizer
        if not getattr(optimizer, "sums_over_replicas", False):
            if self.strategy and optimizer.gradient_accumulation_steps:
                # Keras accumulates gradients in a conditional branch, where TensorFlow cannot sum
                # over replicas (optimizers/base_optimizer.py).
                raise ValueError(
                    "Keras optimizers do not support gradient_accumulation_steps under "
                    "tf.distribute. Use compile(gradient_accumulation_steps=...) with "
                    "optimizer='auto'."
                )
            clip_summed_gradients(optimizer)

    def check_devices(self, model: keras.Model) -> None:
        """Raise a ValueError for a model that was built before `keras.distribution` was set.

        The weights and the optimizer state would be on different devices, so the model could not
        be trained.
        """
        check_backend_distributes()
        distribution = keras.distribution.distribution()
        if distribution is None or keras.config.backend() != "jax":
            return
        devices = set(distribution.device_mesh.backend_mesh.devices.flat)
        if model.variables[0].value.sharding.device_set != devices:
            raise ValueError(
                f"This {type(model).__name__} was built before the distribution was set, so its "
                f"weights are not on the {len(devices)} devices. Build or load it again after "
                "keras.distribution.set_distribution, or call "
                "keras.distribution.set_distribution(None)."
            )

    def check_equal_batches(self, model: keras.Model, *sources) -> None:
        """Raise a ValueError if `torch.distributed` processes have different numbers of batches.

        Args:
            model: Model to train or evaluate. In metrics that store examples, all processes
                reserve the same amount of memory.
            *sources: `Source` objects for training, validation or evaluation, or None.

        Raises:
            ValueError: If the processes have different numbers of batches. A process with more
                batches would wait forever.
        """
        if not has_ddp_model(model):
            return
        metrics = model.task_metrics.exact
        mine = [f"{len(s.plan.epochs)} x {s.steps_per_epoch}" for s in sources if s is not None]
        found = gather_from_processes((mine, [metric.capacity for metric in metrics]))
        if any(batches != mine for batches, _ in found):
            listed = ", ".join(f"{batches} in process {i}" for i, (batches, _) in enumerate(found))
            raise ValueError(
                "All torch.distributed processes must run the same number of batches, because they "
                f"wait for each other. Received epochs x batches: {listed}. Pass the same number "
                "of rows in every process."
            )
        rooms = zip(*(capacities for _, capacities in found), strict=True)
        grown = [metric.reserve(max(room)) for metric, room in zip(metrics, rooms, strict=True)]
        if any(grown):
            model.train_function = model.test_function = None

    def report_processes(self, model: keras.Model) -> None:
        """Log a warning for several `torch.distributed` processes: whether they train one model."""
        count = count_torch_processes()
        if count > 1 and has_ddp_model(model):
            logger.warning(
                "Keras trains and evaluates one model in the %s processes of torch.distributed. "
                "Call fit in every process with the same number of batches and different data, "
                "because the processes wait for each other. Predictions do not use the other "
                "processes.",
                count,
            )
        elif count > 1:
            logger.warning(
                "fit only trains in this process. Each of the %s processes of torch.distributed "
                "has its own weights. To train a common model, use "
                "torch.nn.parallel.DistributedDataParallel in a custom training loop.",
                count,
            )

    # -- data ----------------------------------------------------------------------------------

    def divide_dataset(self, dataset, steps: int | None) -> tuple:
        """Divide every batch of a dataset. Return the divided dataset and the number of batches.

        Args:
            dataset: Dataset of batches. Any other object is returned unchanged.
            steps: Optional integer. Number of batches. If None, the batches are counted if the
                model has a strategy.
        """
        if self.strategy is None:
            return select_process_part(dataset), steps
        if not isinstance(dataset, tf.data.Dataset):
            return dataset, steps
        steps = steps or count_batches(dataset)
        parts = functools.partial(split_batches, dataset.repeat())
        return self.strategy.distribute_datasets_from_function(parts), steps

    def predict_on_batch(self, predict: Callable, x):
        """Call `predict(x)` for a batch of any size, divided over all replicas or devices."""
        if self.strategy:
            # Keras would pass the whole batch to every replica, and return its outputs several
            # times.
            x = self.strategy.experimental_distribute_values_from_function(
                functools.partial(self._select_replica_part, x)
            )
        if keras.config.backend() != "jax":
            return predict(x)
        count = len(keras.tree.flatten(x)[0])
        rows = next((n for n in COMPILED_BATCH_SIZES if n >= count), COMPILED_BATCH_SIZES[-1])
        padded = pad_indices(count, round_up(rows, count_data_parallel_devices()))
        with compute_whole_batches():
            outputs = predict(keras.tree.map_structure(lambda values: values[padded], x))
        return keras.tree.map_structure(lambda output: output[:count], outputs)

    def _select_replica_part(self, batch, context):
        extended, count = self.strategy.extended, context.num_replicas_in_sync
        on_tpu = hasattr(extended, "num_hosts")
        workers = extended.num_hosts if on_tpu else count // len(extended.worker_devices)
        worker, replica = divmod(context.replica_id_in_sync_group, count // workers)
        return select_batch_part(batch, replica * workers + worker, count)

    # -- inside a step -------------------------------------------------------------------------

    def is_in_replica(self) -> bool:
        """Return True inside the replica context of a `tf.distribute` strategy."""
        # TensorFlow also reports a replica context outside all scopes.
        return (
            self.strategy is not None
            and tf.distribute.has_strategy()
            and not tf.distribute.in_cross_replica_context()
        )

    def compute_batch_metrics(self, variables: list, result: Callable[[], dict]) -> dict:
        """Compute the results of metrics from variables that are summed over the replicas."""
        if not self.is_in_replica():
            return result()
        # Keras would average the results of the replicas.
        values = [xp.identity(v.value) for v in variables]  # on the device of the replica
        sums = tf.distribute.get_replica_context().all_reduce("SUM", values)
        with keras.StatelessScope(state_mapping=list(zip(variables, sums, strict=True))):
            results = result()
        # With several workers, Keras averages results over axis 0, so scalars need an axis.
        if is_multi_worker(self.strategy):
            results = keras.tree.map_structure(lambda value: value[None], results)
        return results


def gather_from_workers(
    strategy: tf.distribute.Strategy | None, numbers: list[int]
) -> list[list[int]]:
    """Gather the integers of all workers, in order. On TensorFlow, each replica adds one row."""
    if get_process_shard()[1] > 1:
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(np.array(numbers)).tolist()
    if not is_multi_worker(strategy):
        return [numbers]
    mine = strategy.run(tf.function(lambda: xp.constant([numbers], xp.int64)))
    return strategy.gather(mine, axis=0).numpy().tolist()


def check_divisible(examples: dict, batch_size: int) -> None:
    """Raise a ValueError if Keras on JAX cannot split all batches over the devices."""
    devices, count = count_data_parallel_devices(), examples["token_ids"].shape[0]
    if batch_size % devices or count % batch_size % devices:
        fitting = round_up(batch_size, devices)
        rest = count % fitting % devices
        todo = f"Remove {rest} rows" if rest < count else f"Pass at least {devices} rows"
        raise ValueError(
            f"keras.distribution cannot split {count} rows in batches of {batch_size} over "
            f"{devices} devices. {todo}, and use batch_size={fitting}."
        )


def supports_distribution() -> bool:
    """Return whether `keras.distribution` can be used on this backend.

    On TensorFlow, Keras lists devices but ignores distributions.
    """
    backend = keras.config.backend()
    if backend == "torch":
        try:
            keras.distribution.list_devices()
        except AttributeError:  # Keras does not support distributions on this backend
            return False
    return backend in ("jax", "torch")


def get_strategy() -> tf.distribute.Strategy | None:
    """Return the current `tf.distribute` strategy, or None.

    Example:
        >>> get_strategy() is None
        True
    """
    if keras.config.backend() != "tensorflow" or not tf.distribute.has_strategy():
        return None
    return tf.distribute.get_strategy()


def check_backend_distributes() -> None:
    """Raise a ValueError if the backend does not support the current distribution."""
    backend, tensorflow = keras.config.backend(), sys.modules.get("tensorflow")
    distribution = keras.distribution.distribution()
    if backend == "torch" and isinstance(distribution, keras.distribution.ModelParallel):
        raise ValueError(
            "keras.distribution.ModelParallel is too slow for the attention of tasks on PyTorch. "
            "Start the process with KERAS_BACKEND=jax, or use DataParallel."
        )
    if distribution is not None and not supports_distribution():
        asked, needed = "keras.distribution", "jax"
        undo = "call keras.distribution.set_distribution(None)"
    elif backend != "tensorflow" and tensorflow and tensorflow.distribute.has_strategy():
        asked, needed, undo = "tf.distribute", "tensorflow", "leave its scope"
    else:
        return
    raise ValueError(
        f"{asked} requires the backend {needed!r}. On {backend!r}, only one device would be used. "
        f"Start the process with KERAS_BACKEND={needed}, or {undo}."
    )


def is_multi_worker(strategy: tf.distribute.Strategy | None) -> bool:
    """Return whether the strategy uses several processes."""
    return (
        strategy is not None
        and isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and bool(strategy.cluster_resolver.cluster_spec().as_dict())
    )


def get_worker(strategy: tf.distribute.Strategy | None) -> tuple[int, int]:
    """Return the index of this process among a strategy's workers, and the number of workers.

    Example:
        >>> get_worker(None)
        (0, 1)
    """
    if not is_multi_worker(strategy):
        return 0, 1
    resolver = strategy.cluster_resolver
    cluster = resolver.cluster_spec().as_dict()
    workers = [(kind, i) for kind in ("chief", "worker") for i in range(len(cluster.get(kind, ())))]
    return workers.index((resolver.task_type, resolver.task_id)), len(workers)


def count_data_parallel_devices() -> int:
    """Return the number of devices over which `keras.distribution` splits a batch on JAX.

    On other backends, return 1. On PyTorch, each process has one device.
    """
    distribution = keras.distribution.distribution()
    if distribution is None or keras.config.backend() != "jax":
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]


def round_up(count: int, multiple: int) -> int:
    """Round a count up to a multiple of `multiple`.

    Example:
        >>> round_up(3, 2), round_up(4, 2)
        (4, 4)
    """
    return -(-count // multiple) * multiple


def pad_indices(count: int, multiple: int) -> np.ndarray:
    """Return the indices 0 to `count - 1`, padded with the last index to a multiple of `multiple`.

    Example:
        >>> pad_indices(3, 2).tolist()
        [0, 1, 2, 2]
    """
    return np.minimum(np.arange(round_up(count, multiple)), count - 1)


def count_batches(dataset: tf.data.Dataset) -> int:
    """Return the number of batches in a dataset. If necessary, read the dataset once to count them.

    Raises:
        ValueError: If `dataset` is infinite.
    """
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The dataset is infinite. Pass `steps_per_epoch`.")
    if count == tf.data.UNKNOWN_CARDINALITY:
        ones = dataset.map(lambda *_: 1).batch(64)
        count = count_to_end((len(part) for part in ones), "The dataset")
    return count


def count_to_end(sizes: Iterable[int], source: str) -> int:
    """Sum the sizes in an iterable, which may be infinite.

    Args:
        sizes: Iterable of integers.
        source: String. Description of the data for the error message.

    Raises:
        ValueError: If the iterable has not ended after 20 seconds.

    Example:
        >>> count_to_end([64, 64, 3], "The dataset")
        131
    """
    count, start = 0, time.monotonic()
    for size in sizes:
        count += size
        if time.monotonic() - start > MAX_COUNTING_SECONDS:
            raise ValueError(
                f"{source} has not ended after {MAX_COUNTING_SECONDS} seconds and {count} "
                "elements. Pass the number of batches: steps_per_epoch=... or "
                "validation_steps=... to fit, or steps=... to evaluate."
            )
    return count


def split_batches(dataset: tf.data.Dataset, context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Divide every batch into one part per replica, and return the parts of one worker.

    By default, `tf.distribute` would rebatch the dataset to equal sizes, and mix batches that are
    padded to different lengths. Every worker reads the whole dataset, so all workers must read it
    in the same order. For this reason, `shuffle` needs a seed, and all workers must call
    `keras.utils.set_random_seed` with the same value, which TensorFlow combines with this seed.
    With the auto-shard policy OFF, every worker has its own examples. They are only divided among
    the replicas of this worker.

    Args:
        dataset: Dataset of batches. It must be infinite, so that the replicas do not have to agree
            on its end.
        context: `InputContext` of the worker.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    workers, worker = context.num_input_pipelines, context.input_pipeline_id
    count = context.num_replicas_in_sync
    if policy == tf.data.experimental.AutoShardPolicy.OFF:
        workers, worker, count = 1, 0, count // workers

    def iterate_parts(*batch):
        # Keras concatenates the predictions of replicas in this order.
        numbers = tf.data.Dataset.range(worker, count, workers)
        return numbers.map(lambda number: select_batch_part(batch, number, count))

    return dataset.flat_map(iterate_parts).prefetch(tf.data.AUTOTUNE)
