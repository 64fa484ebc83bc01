"""Private Keras names used in this package. No other module may use private Keras names.

- `_direction` tells `EarlyStopping` whether higher or lower metric values are better. Without it,
  users would have to pass `mode`.
- `_maybe_symbolic_build` builds models under a distribution strategy. With masks, or with batches
  of different sizes, the Keras method fails.
- `_purge_model_variables` allows callbacks and other threads to use a model during `fit` on JAX.
- `_jax_state_synced` allows several threads to run Keras loops on JAX at the same time.
- `_value` takes 0.02 ms per step on JAX for 200 variables, compared to 0.9 ms for `value` and
  `assign`. Without `_value`, these public names are used.

Each name is only used if it exists. `tests/common/test_keras_private.py` fails when a Keras release
renames one of them or calls it in another way.
"""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import keras

from encoder_zoo.common.lazy import LazyModule, tf
from encoder_zoo.common.weights_lock import get_weights_lock

jax = LazyModule("jax")
M = TypeVar("M", bound=keras.Model)
# State variables that a Keras step on JAX takes and returns.
WEIGHT_LISTS = ("trainable_variables", "non_trainable_variables")
STATES_OF_JAX = {
    "test": (*WEIGHT_LISTS, "metrics_variables"),
    "train": (*WEIGHT_LISTS, "optimizer_variables", "metrics_variables"),
}


class HigherIsBetter:
    """Mixin for metrics for which higher values are better. Callbacks with `mode="auto"` use it.

    Without this attribute, Keras callbacks such as `EarlyStopping` raise an error after the first
    epoch. Subclasses of a Keras metric that has the attribute do not need this mixin.
    """

    _direction = "up"


def take_direction(metric: keras.metrics.Metric, inner: keras.metrics.Metric) -> None:
    """Copy from an inner metric whether higher or lower values are better."""
    if hasattr(inner, "_direction"):
        metric._direction = inner._direction


def replace_training_functions(cls: type[M]) -> type[M]:
    """Class decorator that makes the training functions of a model usable from many threads.

    On JAX, the Keras trainer removes all weights from the model during training, evaluation and
    prediction, and each step reuses their memory. With this decorator, variables hold the weights
    after every step, and predictions do not reuse their memory. If a Keras release lacks the
    private names used here, its own functions are kept. In this case, threads have to wait until
    `fit` ends before they can predict.

    The class may have three methods:
        step_function(step): Return a function that takes an iterator and runs one step of `fit` or
            `evaluate`. `step` is `train_step` or `test_step`. The function must hold the weights
            lock during each step. Return None to use the Keras function.
        _get_next_execution(): Return how many batches to use in the next call, which is at least 1.
            Keras always uses `steps_per_execution`. For an endless dataset, this would run too many
            steps if it does not divide the number of batches in an epoch.
        forget_stale_functions(): Delete the functions that were created for removed layers, by
        setting them to None.
    """
    call, make_predict_function = cls.__call__, cls.make_predict_function
    if not hasattr(cls, "step_function"):
        cls.step_function = lambda self, step: None
        cls._get_next_execution = lambda self: self.steps_per_execution
    if not hasattr(cls, "forget_stale_functions"):
        cls.forget_stale_functions = lambda self: None
    backend = keras.config.backend()
    own_on_jax = backend == "jax" and hasattr(cls, "_purge_model_variables")

    def make_function(self, kind: str, force: bool) -> None:
        """Create a function for `fit` or `evaluate` that holds the weights lock."""
        self.forget_stale_functions()
        attribute = f"{kind}_function"
        if not force and getattr(self, attribute) is not None:
            return
        step = getattr(self, f"{kind}_step")

        def make() -> Callable:
            ours = getattr(self, attribute)
            getattr(super(cls, self), f"make_{attribute}")(True)
            keras_own = getattr(self, attribute)
            setattr(self, attribute, ours)  # for later executions
            return keras_own

        if own_on_jax:
            function = _make_jax_function(self, step, STATES_OF_JAX[kind])
        elif self.steps_per_execution > 1:
            function = wrap_in_lock(self, kind == "train", _make_execution(self, make))
        else:
            function = self.step_function(step) or wrap_in_lock(self, kind == "train", make())
        setattr(self, attribute, function)

    def make_train_function(self, force: bool = False) -> None:
        """Create the function as in Keras. Other threads cannot read weights meanwhile."""
        make_function(self, "train", force)

    def make_test_function(self, force: bool = False) -> None:
        """Create the function as in Keras. While it runs, no thread can change the weights."""
        make_function(self, "test", force)

    def make_readers_predict_function(self, force: bool = False) -> None:
        """Create the function as in Keras. Other threads cannot change weights while it runs."""
        self.forget_stale_functions()
        if not force and self.predict_function is not None:
            return
        if own_on_jax:
            self.predict_function = _predict_function_on_jax(self)
            return
        if has_ddp_model(self):
            self.predict_function = _predict_function_on_torch(self)
        else:
            make_predict_function(self, force)
        self.predict_function = wrap_in_lock(self, False, self.predict_function)

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        if backend == "tensorflow" and tf.distribute.has_strategy():
            # Replicas run in other threads than the step, which may hold the lock.
            return call(self, *args, **kwargs)
        with get_weights_lock(self).shared():
            return call(self, *args, **kwargs)

    if backend == "tensorflow" and hasattr(cls, "_maybe_symbolic_build"):
        _build_under_strategies(cls)
    if own_on_jax:
        _open_on_jax(cls)
    cls.__call__ = __call__
    cls.make_train_function = make_train_function
    cls.make_test_function = make_test_function
    cls.make_predict_function = make_readers_predict_function
    return cls


def _build_under_strategies(cls: type[keras.Model]) -> None:
    """Build the model from a batch on the first replica of a distribution strategy.

    Keras averages batches over all replicas, which fails for masks and for batches with different
    sizes.
    """
    symbolic_build = cls._maybe_symbolic_build

    def _maybe_symbolic_build(self, iterator=None, data_batch=None) -> None:
        strategy = self.distribute_strategy
        if iterator is not None and strategy.num_replicas_in_sync > 1:
            *_, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(
                lambda values: _drop_batch_size(strategy.experimental_local_results(values)[0]),
                next(batches),
            )
            iterator = None
        symbolic_build(self, iterator, data_batch)

    cls._maybe_symbolic_build = _maybe_symbolic_build


def _drop_batch_size(values: tf.Tensor) -> keras.KerasTensor:
    return keras.KerasTensor((None, *values.shape[1:]), values.dtype.name)


def _open_on_jax(cls: type[keras.Model]) -> None:
    """Keep weights in the model during Keras loops, which may run in several threads."""

    def _purge_model_variables(self, *args, **kwargs) -> None:
        """Keep weights in the model, because other threads read them."""

    def is_synced(self) -> bool:
        """Check whether variables are in sync with the step state in this thread."""
        return threading.get_ident() not in vars(self).setdefault("_unsynced", set())

    def set_synced(self, value: bool) -> None:
        """Store whether variables are in sync, for this thread only. Keras has one flag for all."""
        unsynced = vars(self).setdefault("_unsynced", set())
        (unsynced.discard if value else unsynced.add)(threading.get_ident())

    cls._jax_state_synced = property(is_synced, set_synced)
    cls._purge_model_variables = _purge_model_variables


def _make_execution(model: keras.Model, make: Callable) -> Callable:
    """Create a Keras function that runs `_get_next_execution()` batches."""
    functions = {}

    def function(*arguments):
        whole = model.steps_per_execution
        count = model._get_next_execution()
        if count not in functions:
            functions[count] = make()
        try:
            model.steps_per_execution = count  # Keras reads this when tracing and running
            return functions[count](*arguments)
        finally:
            model.steps_per_execution = whole

    return function


def wrap_in_lock(model: keras.Model, changes: bool, function: Callable) -> Callable:
    """Wrap a function to hold the weights lock of a model while it reads or changes weights."""
    lock = get_weights_lock(model)
    hold = lock.exclusive if changes else lock.shared

    def inside(*args):
        with hold():
            return function(*args)

    return inside


def variable_reader() -> Callable:
    """Return a function that reads the tensor of a variable, without converting its dtype."""
    return _get_accessors()[0]


class _Held:
    """List of variables that JAX steps pass on instead of the variable values.

    Keras would search a plain list for layers after every step. On a GPU, this search takes longer
    than a step on short texts. Collecting the variables from the model takes just as long. This
    object is falsy, so that Keras does not write anything back to the variables.
    """

    def __init__(self, variables: list[keras.Variable]):
        self.variables = variables

    def __bool__(self) -> bool:
        return False


def _select_variables(model: keras.Model, parts: tuple[str, ...]) -> tuple[_Held, ...]:
    """Return the model variables for the given parts of the training state."""
    found = (
        model.optimizer.variables if name == "optimizer_variables" else getattr(model, name)
        for name in parts
    )
    return tuple(map(_Held, found))


def _is_held(given: tuple) -> bool:
    """Check whether a state holds variables. Before the first step, Keras passes their values."""
    return isinstance(given[0], _Held)


def _read_values(held: tuple[_Held, ...]) -> tuple[list, ...]:
    """Return the values of variables, to pass them to JAX functions."""
    read, _ = _get_accessors()
    return tuple(list(map(read, part.variables)) for part in held)


@functools.cache
def _get_accessors() -> tuple[Callable, Callable]:
    """Return two functions that read and write the value of a variable outside any scope."""
    if "_value" in vars(keras.Variable(0.0)):
        return operator.attrgetter("_value"), lambda variable, value: setattr(
            variable, "_value", value
        )
    return operator.attrgetter("value"), keras.Variable.assign


def has_ddp_model(model: keras.Model) -> bool:
    """Check whether Keras trains a single model in all `torch.distributed` processes.

    If so, the trainer stores the shared model in the attribute `ddp_model`.
    """
    return hasattr(model, "ddp_model") and count_torch_processes() > 1


def count_torch_processes() -> int:
    """Return the number of `torch.distributed` processes. On other backends, return 1.

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
    """Return the index of this process in `torch.distributed`, or 0 for a single process."""
    return sys.modules["torch"].distributed.get_rank() if count_torch_processes() > 1 else 0


def gather_from_processes(value: object) -> list:
    """Gather a value from all `torch.distributed` processes, which must all call this function."""
    found = [None] * count_torch_processes()
    sys.modules["torch"].distributed.all_gather_object(found, value)
    return found


def _predict_function_on_torch(model: keras.Model) -> Callable:
    """Create a `predict` function for one of several processes. Each process has all weights.

    The Keras function would wait until all processes call `predict`.
    """
    torch = sys.modules["torch"]

    def function(batches):
        joined = model.ddp_model
        object.__setattr__(model, "ddp_model", None)  # not as a module inside the model
        try:
            with torch.no_grad():
                [batch] = batches
                return model.predict_step(batch)
        finally:
            object.__setattr__(model, "ddp_model", joined)

    return function


def _make_jax_function(model: keras.Model, step: Callable, parts: tuple) -> Callable:
    """Create a function for `fit` or `evaluate` on JAX that takes a state and an iterator.

    It reads the state from variables and writes the new state to them.

    Args:
        model: Compiled model.
        step: `train_step` or `test_step`, a function to call with a state and a batch.
        parts: Tuple of strings. The names of the parts of the training state.
    """
    compiled = step
    if model.jit_compile and not model.run_eagerly:
        shardings = None
        if keras.distribution.distribution() is not None:
            held = _select_variables(model, parts)
            shardings = None, tuple([v.value.sharding for v in part.variables] for part in held)
        compiled = jax.jit(step, donate_argnums=0, out_shardings=shardings)
    trains, write = "optimizer_variables" in parts, _get_accessors()[1]

    def function(given, iterator):
        data = next(iterator)
        held = given if _is_held(given) else _select_variables(model, parts)
        with get_weights_lock(model).exclusive(trains):  # reuses the state's memory
            logs, state = compiled(_read_values(held), data)
            for part, values in zip(held, state, strict=True):
                for variable, value in zip(part.variables, values, strict=True):
                    write(variable, value)
        return logs, held

    return function


def _predict_function_on_jax(model: keras.Model) -> Callable:
    """Create a `predict` function for JAX that leaves the memory of the weights unchanged."""
    step = model.predict_step
    if model.jit_compile and not model.run_eagerly:
        step = jax.jit(step)

    def function(given, iterator):
        data = next(iterator)
        held = given if _is_held(given) else _select_variables(model, WEIGHT_LISTS)
        with get_weights_lock(model).shared():
            return step(_read_values(held), data)[0], held

    return function
