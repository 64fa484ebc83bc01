"""Private names and undocumented behavior of Keras that this package uses.

- `_direction`: Used by `EarlyStopping` to find out if a metric should be maximized or minimized.
  Otherwise, users would need to pass `mode`.
- `_maybe_symbolic_build`: Overridden to build models under a distribution strategy. The Keras
  method raises an error for masks, and for batches of different sizes.
- `_purge_model_variables`: Overridden to use a model in callbacks and other threads during `fit` on
  JAX.
- `_jax_state_synced`: Overridden to run Keras loops in several threads on JAX.
- `_value`: Used instead of `value` and `assign` to save time. For 200 variables on JAX, this takes
  0.02 ms per step instead of 0.9 ms.
- `_trainable_variables`: Used to list the weights for which an optimizer was built. Keras has no
  public name for this list. Without it, `fit` does not check if `trainable` has changed.

If one of the other names is not available in the installed Keras version, the public Keras API is
used instead. Three functions use no private name, but depend on how Keras is implemented:

- `get_wrapped_function` and `get_wrapped_keywords` search the attributes of losses and metrics,
  because the names of these attributes are private.
- `weigh_next_value` requires that Keras updates its mean loss once after each `compute_loss`.

Other modules only use public names, except for `BaseModel`, which sets the three overridden names
to functions of this module. `tasks/training/distribution.py` replaces public methods of optimizers
and distributions. To find out about changes in Keras, run `tests/common/test_keras_private.py`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import threading
from collections.abc import Callable

import keras

from encoder_zoo.common.lazy import LazyModule, tf
from encoder_zoo.common.weights_lock import get_weights_lock

jax = LazyModule("jax")
# Whether training, evaluation and prediction run steps of this module on JAX.
RUNS_JAX_STEPS = keras.config.backend() == "jax" and hasattr(keras.Model, "_purge_model_variables")
BUILDS_FROM_ONE_REPLICA = keras.config.backend() == "tensorflow" and hasattr(
    keras.Model, "_maybe_symbolic_build"
)
# Keras classes that wrap a function as a loss or metric.
WRAPPERS = (*keras.losses.MeanSquaredError.__bases__, keras.metrics.MeanMetricWrapper)
# Names of the variables to pass to each step on JAX.
_WEIGHTS = ("trainable_variables", "non_trainable_variables")
STATES = {
    "predict": _WEIGHTS,
    "test": (*_WEIGHTS, "metrics_variables"),
    "train": (*_WEIGHTS, "optimizer_variables", "metrics_variables"),
}


class HigherIsBetter:
    """Mixin for metrics that callbacks with `mode="auto"` should maximize.

    Without `_direction`, callbacks such as `EarlyStopping` would raise an error at the end of the
    first epoch. Subclasses of a Keras metric with this attribute do not need the mixin.
    """

    _direction = "up"


def copy_metric_direction(metric: keras.metrics.Metric, inner: keras.metrics.Metric) -> None:
    """Copy the direction of `inner`, which tells callbacks to maximize or minimize a metric."""
    if hasattr(inner, "_direction"):
        metric._direction = inner._direction


def get_wrapped_function(wrapper: object) -> Callable | None:
    """Return the function that a Keras loss or metric wraps, or None for other objects.

    Example:
        >>> get_wrapped_function(keras.losses.Huber()) is keras.losses.huber
        True
    """
    held = vars(wrapper).values() if isinstance(wrapper, WRAPPERS) else ()
    return next(
        (f for f in held if inspect.isfunction(f) or isinstance(f, functools.partial)), None
    )


def get_wrapped_keywords(wrapper: object) -> dict:
    """Return the keyword arguments that a Keras loss or metric passes to its function.

    Example:
        >>> get_wrapped_keywords(keras.losses.Huber(delta=2.0))
        {'delta': 2.0}
    """
    held = vars(wrapper).values() if isinstance(wrapper, WRAPPERS) else ()
    return {
        name: value for found in held if isinstance(found, dict) for name, value in found.items()
    }


def weigh_next_value(mean: keras.metrics.Mean, weight: object) -> None:
    """Set the weight of the next value of a mean. If `weight` is None, Keras sets the weight."""
    vars(mean).pop("update_state", None)
    if weight is None:
        return

    def update_state(value, sample_weight=None):
        del vars(mean)["update_state"]
        return mean.update_state(value, sample_weight=weight)

    vars(mean)["update_state"] = update_state


def build_from_one_replica(model: keras.Model, iterator=None, data_batch=None) -> None:
    """Build a model from the batch of the first replica, as `_maybe_symbolic_build` of a model.

    By default, Keras computes the average of the batches for all replicas, which raises an error
    for masks and for batches of different sizes.
    """
    strategy = model.distribute_strategy
    if iterator is not None and strategy.num_replicas_in_sync > 1:
        *_, batches = next(iter(iterator))
        data_batch = keras.tree.map_structure(
            lambda values: _drop_batch_size(strategy.experimental_local_results(values)[0]),
            next(batches),
        )
        iterator = None
    keras.Model._maybe_symbolic_build(model, iterator, data_batch)


def _drop_batch_size(values: tf.Tensor) -> keras.KerasTensor:
    return keras.KerasTensor((None, *values.shape[1:]), values.dtype.name)


def _is_jax_state_synced(model: keras.Model) -> bool:
    return threading.get_ident() not in vars(model).setdefault("_unsynced", set())


def _set_jax_state_synced(model: keras.Model, value: bool) -> None:
    unsynced = vars(model).setdefault("_unsynced", set())
    (unsynced.discard if value else unsynced.add)(threading.get_ident())


# Whether all variables are up to date in this thread. In Keras, all threads share this flag.
jax_state_synced = property(_is_jax_state_synced, _set_jax_state_synced)


def keep_model_variables(model: keras.Model, *args, **kwargs) -> None:
    """Do nothing, so that the model keeps all weights for other threads."""


def make_execution(model: keras.Model, make: Callable) -> Callable:
    """Create a function that runs a variable number of batches. See `_get_next_execution`."""
    functions = {}

    def function(*arguments):
        whole = model.steps_per_execution
        count = model._get_next_execution()
        if count not in functions:
            functions[count] = make()
        try:
            model.steps_per_execution = count  # used by Keras for tracing and execution
            return functions[count](*arguments)
        finally:
            model.steps_per_execution = whole

    return function


def wrap_in_lock(model: keras.Model, changes: bool, function: Callable) -> Callable:
    """Wrap a function so that each call holds the weights lock of a model."""
    lock = get_weights_lock(model)
    hold = lock.exclusive if changes else lock.shared

    def call_inside_lock(*args):
        with hold():
            return function(*args)

    return call_inside_lock


class _VariableContainer:
    """Container of variables that replaces a list of values in the training state.

    This class saves time. After each step, Keras searches lists for layers, which can take longer
    than a step on short texts on a GPU. Getting all variables from the model takes just as long.
    The boolean value is False, so that Keras does not update the variables.
    """

    def __init__(self, variables: list[keras.Variable]):
        self.variables = variables

    def __bool__(self) -> bool:
        return False


def _select_variables(model: keras.Model, parts: tuple[str, ...]) -> tuple[_VariableContainer, ...]:
    """Return the variables in the given parts of the training state, one container per part."""
    found = (
        model.optimizer.variables if name == "optimizer_variables" else getattr(model, name)
        for name in parts
    )
    return tuple(map(_VariableContainer, found))


def _has_variables(given: tuple) -> bool:
    """Return whether the state contains variables. In the first step, Keras passes values."""
    return isinstance(given[0], _VariableContainer)


def _read_values(held: tuple[_VariableContainer, ...]) -> tuple[list, ...]:
    """Return the values of all variables as arguments for a JAX function."""
    read, _ = get_accessors()
    return tuple(list(map(read, part.variables)) for part in held)


@functools.cache
def get_accessors() -> tuple[Callable, Callable]:
    """Return two functions that get and set the value of a variable, ignoring Keras scopes."""
    if "_value" in vars(keras.Variable(0.0)):
        return operator.attrgetter("_value"), lambda variable, value: setattr(
            variable, "_value", value
        )
    return operator.attrgetter("value"), keras.Variable.assign


def list_optimized_weights(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable] | None:
    """Return the weights for which an optimizer was built, or None if they are not available."""
    return getattr(optimizer, "_trainable_variables", None)


def has_ddp_model(model: keras.Model) -> bool:
    """Return whether the model is trained in several `torch.distributed` processes.

    In this case, Keras sets the attribute `ddp_model`.
    """
    return hasattr(model, "ddp_model") and count_torch_processes() > 1


def count_torch_processes() -> int:
    """Return the number of `torch.distributed` processes, or 1 if there is no process group.

    Example:
        >>> count_torch_processes()
        1
    """
    if keras.config.backend() != "torch":
        return 1
    distributed = sys.modules["torch"].distributed
    is_there = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_there else 1


def get_torch_rank() -> int:
    """Return the rank of this process in `torch.distributed`, or 0 for a single process."""
    return sys.modules["torch"].distributed.get_rank() if count_torch_processes() > 1 else 0


def gather_from_processes(value: object) -> list:
    """Return the values that all `torch.distributed` processes pass to this function."""
    found = [None] * count_torch_processes()
    sys.modules["torch"].distributed.all_gather_object(found, value)
    return found


def make_torch_predict_function(model: keras.Model) -> Callable:
    """Create a function for `predict` that runs in a single `torch.distributed` process.

    By default, Keras would wait for a call to `predict` in all other processes.
    """
    torch = sys.modules["torch"]

    def function(batches):
        joined = model.ddp_model
        object.__setattr__(model, "ddp_model", None)  # do not register the value as a module
        try:
            with torch.no_grad():
                [batch] = batches
                return model.predict_step(batch)
        finally:
            object.__setattr__(model, "ddp_model", joined)

    return function


def make_jax_function(model: keras.Model, kind: str) -> Callable:
    """Create a function for `fit`, `evaluate` or `predict` on JAX.

    The arguments of the function are a state and an iterator. In `fit` and `evaluate`, each step
    reuses the memory of the state, so all variables are updated. In `predict`, variables are only
    read.

    Args:
        model: Compiled model.
        kind: String, "train", "test" or "predict".
    """
    step, parts, reuses_memory = getattr(model, f"{kind}_step"), STATES[kind], kind != "predict"
    if model.jit_compile and not model.run_eagerly:
        options = {}
        if reuses_memory:
            options = {"donate_argnums": 0, "out_shardings": _find_shardings(model, parts)}
        step = jax.jit(step, **options)
    write = get_accessors()[1]

    def function(given, iterator):
        data, lock = next(iterator), get_weights_lock(model)
        held = given if _has_variables(given) else _select_variables(model, parts)
        with lock.exclusive(kind == "train") if reuses_memory else lock.shared():
            outputs, state = step(_read_values(held), data)
            for part, values in zip(held, state, strict=True) if reuses_memory else ():
                for variable, value in zip(part.variables, values, strict=True):
                    write(variable, value)
        return outputs, held

    return function


def _find_shardings(model: keras.Model, parts: tuple[str, ...]) -> tuple | None:
    """Return the shardings of the outputs of a step, or None without a distribution."""
    if keras.distribution.distribution() is None:
        return None
    held = _select_variables(model, parts)
    return None, tuple([v.value.sharding for v in part.variables] for part in held)
