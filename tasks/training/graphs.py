"""TensorFlow graphs of a task, kept from call to call as long as they are valid."""

from __future__ import annotations

import functools
import hashlib
import inspect
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
from encoder_zoo.tasks.training.logit_metrics import KINDS
from encoder_zoo.tasks.training.loss_inputs import computes_rows

# Compiled faster, a program is not worth a file.
MIN_SECONDS = 0.1


@functools.cache
def enable_compilation_cache() -> pathlib.Path | None:
    """Have JAX keep compiled programs in the user's cache, unless its settings say otherwise.

    `JAX_COMPILATION_CACHE_DIR` names another folder, `JAX_ENABLE_COMPILATION_CACHE=false` keeps
    nothing. Programs of other processors, whose instructions may differ, are in another folder.

    Returns:
        The folder; None where JAX is not the backend, or programs are not kept.
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
    except OSError:  # a home that cannot be written to
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_SECONDS)
    compilation_cache.reset_cache()  # JAX looks once whether there is one
    return folder


def _processor() -> str:
    """Return a name of this processor and its instructions."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
        names = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    except OSError:
        names = [platform.processor()]
    digest = hashlib.sha256("\n".join(sorted(set(names))).encode()).hexdigest()
    return f"{platform.machine()}-{digest[:12]}"


KERAS_FUNCTIONS = {
    function
    for functions in (keras.losses, keras.metrics)
    for function in vars(functions).values()
    if inspect.isfunction(function)
}
# Keras's metrics that compare the rows of a batch.
OF_WHOLE_BATCHES = (keras.metrics.PearsonCorrelation, keras.metrics.ConcordanceCorrelation)


def can_be_filled(loss, metrics: list) -> bool:
    """Return whether rows that only fill a batch can be left out of a loss and metrics."""
    return computes_rows(loss) and all(map(_takes_weights, metrics))


def _takes_weights(metric) -> bool:
    if isinstance(metric, str):
        return True  # Keras's by name
    metric = getattr(metric, "metric", metric)  # inside `OfLogits`
    if not isinstance(metric, keras.metrics.Metric):
        return metric in KERAS_FUNCTIONS
    if type(metric) in KINDS:
        return not isinstance(metric, OF_WHOLE_BATCHES)
    return getattr(type(metric).update_state, "leaves_out_rows", False)


def real_rows(x):
    """Return which rows of a batch are examples, (B,) bool; None if all are."""
    return x.get(REAL_ROWS) if isinstance(x, Mapping) else None


def without(x, name: str):
    """Return inputs without one of them.

    Example:
        >>> without({"token_ids": 1, "real_rows": 2}, REAL_ROWS)
        {'token_ids': 1}
    """
    if not isinstance(x, Mapping) or name not in x:
        return x
    return {other: values for other, values in x.items() if other != name}


def is_long(inputs) -> bool:
    """Return whether attention goes part by part through examples (B, L), in any structure."""
    shapes = [examples.shape for examples in keras.tree.flatten(inputs)]
    return any(len(shape) > 1 and shape[-1] > long_attention.SHORT for shape in shapes)


def of_texts(long: bool | None, function: Callable) -> Callable:
    """Return a function of one argument traced for long examples alone, or short; None is both."""

    def traced(argument):
        with tracing(is_long=long, blocks={}):
            return function(argument)

    return traced


def weights_of_metrics(real, y_pred, sample_weight):
    """Return sample weights that are 0 in rows that do not count.

    Args:
        real: (B,) bool.
        y_pred: outputs (B, ...), or (B * M, C) of M tokens in each row.
        sample_weight: (B, ...), (B * M,) or None.
    """
    y_pred = ops.convert_to_tensor(y_pred)
    real = ops.cast(real, "float32")
    rows, count = ops.shape(real)[0], ops.shape(y_pred)[0]
    real = ops.reshape(ops.broadcast_to(real[:, None], (rows, count // rows)), (-1,))
    rank = len(y_pred.shape) - 1 if sample_weight is None else len(sample_weight.shape)
    real = ops.reshape(real, (-1, *[1] * (rank - 1)))
    return real if sample_weight is None else real * ops.cast(sample_weight, "float32")


class GraphCache:
    """Keeps what a task has traced and compiled from call to call.

    Attributes:
        lengths: Tuple of the lengths that batches are padded to if every shape is compiled, or
            None.
        packings: Dict of batch sizes to lists of (length, numbers of packed sequences).
        reported: Set of the lines that were logged.
    """

    def __init__(self):
        self._graphs = {}
        self.lengths: tuple[int, ...] | None = None
        self.packings: dict[int, list[tuple]] = {}
        self.reported: set[str] = set()

    def get(self, key, make: Callable):
        """Return the graph of a hashable key, made by a function without arguments."""
        if key not in self._graphs:
            self._graphs[key] = make()
        return self._graphs[key]

    def forget(self) -> None:
        """Forget all graphs, as after a change of the backbone's layers."""
        self._graphs.clear()


def step_function(step: Callable, hold: Callable, trains: bool) -> Callable:
    """Return the function of an iterator that runs a step of `fit` or `evaluate` in one graph.

    Keras's own is a graph that takes the batch from the iterator and calls another graph.
    TensorFlow traces and optimizes both.

    Args:
        step: `train_step` or `test_step` of a model.
        hold: Function that returns the context in which steps run.
        trains: Boolean. Whether the step changes the weights.
    """
    graphs = {long: tf.function(of_texts(long, step), autograph=False) for long in (False, True)}
    # With gradients written out, a step of `fit` runs on a CPU as fast as its graph is traced;
    # one of `evaluate` has operations that TensorFlow merges.
    as_traced = trains and not tf.config.list_logical_devices("GPU")

    def function(iterator):
        batch = next(iterator)
        long = is_long(keras.utils.unpack_x_y_sample_weight(batch)[0])
        graph = graphs[long]
        in_graphs = not tf.config.functions_run_eagerly()
        if in_graphs and isinstance(iterator, tf.data.Iterator):
            # Found, once it is there, for every batch that it fits.
            graph.get_concrete_function(iterator.element_spec)
        with hold(), graphs_as_traced(as_traced and not long):
            return graph(batch)

    return function
