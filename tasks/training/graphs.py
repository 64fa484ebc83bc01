"""Cache for the TensorFlow graphs and compiled programs used by a task."""

from __future__ import annotations

import functools
import hashlib
import os
import pathlib
import platform
from collections.abc import Callable, Mapping

import keras
from keras import ops

from encoder_zoo.common.lazy import tf
from encoder_zoo.common.tensorflow_private import graphs_as_traced
from encoder_zoo.common.trace import tracing
from encoder_zoo.encoders.kernels import long_attention
from encoder_zoo.tasks.preprocessing.batch_shapes import REAL_ROWS

# Programs that are compiled faster than this will not be stored.
MIN_SECONDS = 0.1


@functools.cache
def enable_compilation_cache() -> pathlib.Path | None:
    """Make JAX store compiled programs in the user's cache folder.

    Set `JAX_COMPILATION_CACHE_DIR` to use another folder, or `JAX_ENABLE_COMPILATION_CACHE=false`
    to disable the cache. There is a separate folder for every kind of processor, because the
    instructions can differ.

    Returns:
        Path to the folder, or None when JAX is not the backend or when the cache is disabled.
    """
    if keras.config.backend() != "jax":
        return None
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if not jax.config.jax_enable_compilation_cache:
        return None
    if jax.config.jax_compilation_cache_dir:
        return pathlib.Path(jax.config.jax_compilation_cache_dir)
    home = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = home / "encoder_zoo" / "jax" / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # the home folder is not writable
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    compilation_cache.reset_cache()  # JAX only checks once whether a cache exists
    return folder


def _processor() -> str:
    """Return a name for this processor and its instruction set."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        names = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        names = [platform.processor()]
    digest = hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"


def real_rows(x):
    """Return a boolean mask (B,) to select real examples, or None if all rows are real."""
    return x.get(REAL_ROWS) if isinstance(x, Mapping) else None


def without(x, name: str):
    """Return inputs without the input with this name.

    Example:
        >>> without({"token_ids": 1, "real_rows": 2}, REAL_ROWS)
        {'token_ids': 1}
    """
    if not isinstance(x, Mapping) or name not in x:
        return x
    return {other: values for other, values in x.items() if other != name}


def is_long(inputs) -> bool:
    """Return whether attention is computed in parts for long examples with shape (B, L)."""
    shapes = [examples.shape for examples in keras.tree.flatten(inputs)]
    return any(len(shape) > 1 and shape[-1] > long_attention.SHORT for shape in shapes)


def of_texts(long: bool | None, function: Callable) -> Callable:
    """Return a function to be traced only for long or only for short examples.

    When `long` is None, this function will be traced for both.
    """

    def traced(argument):
        with tracing(is_long=long, blocks={}):
            return function(argument)

    return traced


def weights_of_metrics(real, y_pred, sample_weight):
    """Return sample weights that are 0 for rows used to pad the batch.

    Args:
        real: Boolean mask of shape (B,).
        y_pred: The outputs with shape (B, ...), or (B * M, C) with M tokens in each row.
        sample_weight: Optional weights with shape (B, ...) or (B * M,).
    """
    y_pred = ops.convert_to_tensor(y_pred)
    real = ops.cast(real, "float32")
    rows, count = ops.shape(real)[0], ops.shape(y_pred)[0]
    real = ops.reshape(ops.broadcast_to(real[:, None], (rows, count // rows)), (-1,))
    rank = len(y_pred.shape) - 1 if sample_weight is None else len(sample_weight.shape)
    real = ops.reshape(real, (-1, *[1] * (rank - 1)))
    return real if sample_weight is None else real * ops.cast(sample_weight, "float32")


class GraphCache:
    """Cache for a task's graphs and batch shapes.

    Attributes:
        lengths: Optional tuple with the lengths to pad batches to when every shape is compiled.
        packings: A dict from batch sizes to lists of (length, numbers of packed sequences).
        reported: A set with the messages that have already been logged.
    """

    def __init__(self):
        self._graphs = {}
        self.lengths: tuple[int, ...] | None = None
        self.packings: dict[int, list[tuple]] = {}
        self.reported: set[str] = set()

    def get(self, key, make: Callable):
        """Return the graph for a hashable key. If it is missing, call `make` to create it."""
        if key not in self._graphs:
            self._graphs[key] = make()
        return self._graphs[key]

    def forget(self) -> None:
        """Delete all graphs, for example after the backbone layers have changed."""
        self._graphs.clear()


def step_function(step: Callable, hold: Callable, trains: bool) -> Callable:
    """Return a function of an iterator to run a `fit` or `evaluate` step in one graph.

    By default, Keras uses a graph to read the batch from the iterator and to call another graph.
    TensorFlow would then have to trace and optimize both graphs.

    Args:
        step: `train_step` or `test_step` from a model.
        hold: A function to create the context for running steps.
        trains: Boolean. Whether the weights are changed in this step.
    """
    graphs = {long: tf.function(of_texts(long, step), autograph=False) for long in (False, True)}
    # On a CPU, it takes time to optimize the graph for a training step without making it faster. In
    # the graph for an evaluation step, TensorFlow can merge operations.
    as_traced = trains and not tf.config.list_logical_devices("GPU")

    def function(iterator):
        batch = next(iterator)
        long = is_long(keras.utils.unpack_x_y_sample_weight(batch)[0])
        graph = graphs[long]
        in_graphs = not tf.config.functions_run_eagerly()
        if in_graphs and isinstance(iterator, tf.data.Iterator):
            # The concrete function is reused for all batches that match its signature.
            graph.get_concrete_function(iterator.element_spec)
        with hold(), graphs_as_traced(as_traced and not long):
            return graph(batch)

    return function
