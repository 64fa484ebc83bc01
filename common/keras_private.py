"""Private names of Keras that this package uses; nothing else in it may name one.

- `_direction` tells `EarlyStopping` which values of a metric are better. Without it users have to
  say so by `mode`.
- `_maybe_symbolic_build` builds under a strategy, from masks and parts of unequal size, for which
  Keras fails.
- `_purge_model_variables` lets other threads, and callbacks, ask a model during `fit` on JAX.
- `_jax_state_synced` lets several threads be in loops of Keras on JAX at once.
- `_value` takes 0.02 ms a step on JAX for 200 variables, where `value` and `assign` take 0.9 ms.
  They are used where there is none.

Each is looked for before it is used. `tests/common/test_keras_private.py` fails where a release of
Keras renames one, or calls it in another way.
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
from encoder_zoo.common.weights_lock import weights_lock

jax = LazyModule("jax")
M = TypeVar("M", bound=keras.Model)
# The parts of a model's state that a step of Keras's on JAX takes and returns.
WEIGHTS = ("trainable_variables", "non_trainable_variables")
STATES_OF_JAX = {
    "test": (*WEIGHTS, "metrics_variables"),
    "train": (*WEIGHTS, "optimizer_variables", "metrics_variables"),
}


class HigherIsBetter:
    """Mixin of metrics of which a higher value is better, for callbacks with `mode="auto"`.

    Keras's `EarlyStopping` and the like raise an error after the first epoch for a metric that
    does not say so. Metrics derived from one of Keras's that does have it already.
    """

    _direction = "up"


def take_direction(metric: keras.metrics.Metric, inner: keras.metrics.Metric) -> None:
    """Have callbacks monitor a metric as the one inside it: a higher or a lower value is better."""
    if hasattr(inner, "_direction"):
        metric._direction = inner._direction


def opens_training(cls: type[M]) -> type[M]:
    """Open Keras's training functions to a class of models, and make them usable from many threads.

    A class decorator. Keras's trainer for JAX takes the weights out of the model while it trains,
    evaluates and predicts, and has the step reuse their memory. Here the variables hold the weights
    after every step, and a prediction leaves their memory alone. A Keras without the private parts
    that this needs trains with functions of its own; threads that answer must then wait for `fit`.

    The class may have three methods:
        step_function(step): returns the function of an iterator that runs a step of `fit` or
            `evaluate`, `train_step` or `test_step`, and holds the lock of the weights in each; None
            is Keras's own.
        _next_execution(): returns how many batches the next call of a step's function takes, from
            1 on. Keras's is `steps_per_execution`, with which an epoch of an endless dataset, whose
            batches that does not divide, takes too many.
        forget_stale_functions(): sets functions of layers that the model no longer has to None.
    """
    call, make_predict_function = cls.__call__, cls.make_predict_function
    if not hasattr(cls, "step_function"):
        cls.step_function = lambda self, step: None
        cls._next_execution = lambda self: self.steps_per_execution
    if not hasattr(cls, "forget_stale_functions"):
        cls.forget_stale_functions = lambda self: None
    backend = keras.config.backend()
    own_on_jax = backend == "jax" and hasattr(cls, "_purge_model_variables")

    def make_function(self, kind: str, force: bool) -> None:
        """Make the function of `fit` or `evaluate`, which holds the lock of the weights."""
        self.forget_stale_functions()
        attribute = f"{kind}_function"
        if not force and getattr(self, attribute) is not None:
            return
        step = getattr(self, f"{kind}_step")

        def make() -> Callable:
            ours = getattr(self, attribute)
            getattr(super(cls, self), f"make_{attribute}")(True)
            keras_own = getattr(self, attribute)
            setattr(self, attribute, ours)  # for the executions that follow
            return keras_own

        if own_on_jax:
            function = _function_on_jax(self, step, STATES_OF_JAX[kind])
        elif self.steps_per_execution > 1:
            function = holding(self, kind == "train", _executing(self, make))
        else:
            function = self.step_function(step) or holding(self, kind == "train", make())
        setattr(self, attribute, function)

    def make_train_function(self, force: bool = False) -> None:
        """Make the function as in Keras; weights change while no other thread reads them."""
        make_function(self, "train", force)

    def make_test_function(self, force: bool = False) -> None:
        """Make the function as in Keras; weights stay as they are while it runs."""
        make_function(self, "test", force)

    def make_readers_predict_function(self, force: bool = False) -> None:
        """Make the function as in Keras; no other thread changes weights while it runs."""
        self.forget_stale_functions()
        if not force and self.predict_function is not None:
            return
        if own_on_jax:
            self.predict_function = _predict_function_on_jax(self)
            return
        if joins_processes(self):
            self.predict_function = _predict_function_on_torch(self)
        else:
            make_predict_function(self, force)
        self.predict_function = holding(self, False, self.predict_function)

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        if backend == "tensorflow" and tf.distribute.has_strategy():
            # Replicas are other threads than that of the step, which may hold it.
            return call(self, *args, **kwargs)
        with weights_lock(self).shared():
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
    """Build under a strategy from a batch of the first replica.

    Keras takes the mean of a batch over the replicas, which fails for masks and for parts of
    different size.
    """
    symbolic_build = cls._maybe_symbolic_build

    def _maybe_symbolic_build(self, iterator=None, data_batch=None) -> None:
        strategy = self.distribute_strategy
        if iterator is not None and strategy.num_replicas_in_sync > 1:
            *_, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(
                lambda values: _any_rows(strategy.experimental_local_results(values)[0]),
                next(batches),
            )
            iterator = None
        symbolic_build(self, iterator, data_batch)

    cls._maybe_symbolic_build = _maybe_symbolic_build


def _any_rows(values: tf.Tensor) -> keras.KerasTensor:
    return keras.KerasTensor((None, *values.shape[1:]), values.dtype.name)


def _open_on_jax(cls: type[keras.Model]) -> None:
    """Leave the weights in the model while Keras's loops run, in one thread or in several."""

    def _purge_model_variables(self, *args, **kwargs) -> None:
        """Leave the weights in the model, unlike Keras on JAX: other threads read them."""

    def is_synced(self) -> bool:
        """Return whether this thread's loop still has to take the state of its steps."""
        return threading.get_ident() not in vars(self).setdefault("_unsynced", set())

    def set_synced(self, value: bool) -> None:
        """Note for this thread alone what Keras notes for all."""
        unsynced = vars(self).setdefault("_unsynced", set())
        (unsynced.discard if value else unsynced.add)(threading.get_ident())

    cls._jax_state_synced = property(is_synced, set_synced)
    cls._purge_model_variables = _purge_model_variables


def _executing(model: keras.Model, make: Callable) -> Callable:
    """Return Keras's function of several batches, with as many as `_next_execution` says."""
    functions = {}

    def function(*arguments):
        whole = model.steps_per_execution
        count = model._next_execution()
        if count not in functions:
            functions[count] = make()
        try:
            model.steps_per_execution = count  # Keras reads it when it traces and runs
            return functions[count](*arguments)
        finally:
            model.steps_per_execution = whole

    return function


def holding(model: keras.Model, changes: bool, function: Callable) -> Callable:
    """Return a function that holds the lock of a model's weights, to change or to read them."""
    lock = weights_lock(model)
    hold = lock.exclusive if changes else lock.shared

    def inside(*args):
        with hold():
            return function(*args)

    return inside


class _Held:
    """Variables in the place of their values, as a part of the state that steps hand on.

    A list of them Keras would look through after every step, for layers; it takes longer than a
    step of short texts on a GPU, as does looking for the variables in the model. Keras has nothing
    to put back into the variables: a part of the state counts as empty.
    """

    def __init__(self, variables: list[keras.Variable]):
        self.variables = variables

    def __bool__(self) -> bool:
        return False


def _held_variables(model: keras.Model, parts: tuple[str, ...]) -> tuple[_Held, ...]:
    """Return the variables of the parts of a state."""
    found = (
        model.optimizer.variables if name == "optimizer_variables" else getattr(model, name)
        for name in parts
    )
    return tuple(map(_Held, found))


def _is_held(given: tuple) -> bool:
    """Return whether a state is what a step returned; at first Keras gives the values."""
    return isinstance(given[0], _Held)


def _values_of(held: tuple[_Held, ...]) -> tuple[list, ...]:
    """Return the state that JAX's functions take."""
    read, _ = _access()
    return tuple(list(map(read, part.variables)) for part in held)


@functools.cache
def _access() -> tuple[Callable, Callable]:
    """Return the functions that read and write the value of a variable, outside of all scopes."""
    if "_value" in vars(keras.Variable(0.0)):
        return operator.attrgetter("_value"), lambda variable, value: setattr(
            variable, "_value", value
        )
    return operator.attrgetter("value"), keras.Variable.assign


def joins_processes(model: keras.Model) -> bool:
    """Return whether Keras trains one model in all processes of `torch.distributed`.

    Its trainer has then an attribute for the model that they share, `ddp_model`.
    """
    return hasattr(model, "ddp_model") and torch_processes() > 1


def torch_processes() -> int:
    """Return the number of processes of `torch.distributed`, 1 on other backends.

    Example:
        >>> torch_processes()
        1
    """
    if keras.config.backend() != "torch":
        return 1
    distributed = sys.modules["torch"].distributed
    is_there = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_there else 1


def torch_process() -> int:
    """Return the number of this process among those of `torch.distributed`, from 0 on."""
    return sys.modules["torch"].distributed.get_rank() if torch_processes() > 1 else 0


def gather_from_processes(value: object) -> list:
    """Return the values of all processes of `torch.distributed`, each of which must call this."""
    found = [None] * torch_processes()
    sys.modules["torch"].distributed.all_gather_object(found, value)
    return found


def _predict_function_on_torch(model: keras.Model) -> Callable:
    """Return the function of `predict` in one of several processes, each of which has all weights.

    Keras's own would join the processes, and wait until all others predict, too.
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


def _function_on_jax(model: keras.Model, step: Callable, parts: tuple) -> Callable:
    """Return the function of `fit` or `evaluate` on JAX, of Keras's state and an iterator.

    It takes the state from the variables, and puts the new one into them.

    Args:
        model: compiled.
        step: `train_step` or `test_step`, of a state and a batch.
        parts: names of the parts of the state.
    """
    compiled = step
    if model.jit_compile and not model.run_eagerly:
        shardings = None
        if keras.distribution.distribution() is not None:
            held = _held_variables(model, parts)
            shardings = None, tuple([v.value.sharding for v in part.variables] for part in held)
        compiled = jax.jit(step, donate_argnums=0, out_shardings=shardings)
    trains, write = "optimizer_variables" in parts, _access()[1]

    def function(given, iterator):
        data = next(iterator)
        held = given if _is_held(given) else _held_variables(model, parts)
        with weights_lock(model).exclusive(trains):  # the memory of the state is used again
            logs, state = compiled(_values_of(held), data)
            for part, values in zip(held, state, strict=True):
                for variable, value in zip(part.variables, values, strict=True):
                    write(variable, value)
        return logs, held

    return function


def _predict_function_on_jax(model: keras.Model) -> Callable:
    """Return the function of `predict` on JAX; Keras's own reuses the memory of the weights."""
    step = model.predict_step
    if model.jit_compile and not model.run_eagerly:
        step = jax.jit(step)

    def function(given, iterator):
        data = next(iterator)
        held = given if _is_held(given) else _held_variables(model, WEIGHTS)
        with weights_lock(model).shared():
            return step(_values_of(held), data)[0], held

    return function
