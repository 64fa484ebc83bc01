"""Private names of Keras that this package uses, each with the reason why.

Nothing else in the package may name them. `tests/common/test_keras_private.py` fails where a
release of Keras renames one, or calls it in another way.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TypedDict, TypeVar

import keras

from encoder_zoo.common.lazy import LazyModule, array_ops, tf
from encoder_zoo.common.weights_lock import weights_lock

jax = LazyModule("jax")
M = TypeVar("M", bound=keras.Model)
# The parts of a model's state that a step of Keras's on JAX takes and returns.
WEIGHTS = ("trainable_variables", "non_trainable_variables")
STATES_OF_JAX = {
    "test": (*WEIGHTS, "metrics_variables"),
    "train": (*WEIGHTS, "optimizer_variables", "metrics_variables"),
}
NEEDED_ON_JAX = ("_purge_model_variables", "_get_jax_state")  # of Keras's trainer

# Keras calls `evaluate` with this argument for the validation inside `fit`, on data that `fit` was
# given: they are checked and preprocessed already.
VALIDATION_OF_FIT = "_use_cached_eval_dataset"


class ValidationOfFit(TypedDict, total=False):
    """The keyword argument `VALIDATION_OF_FIT` of `evaluate`."""

    _use_cached_eval_dataset: bool


def strategy_of(model: keras.Model) -> tf.distribute.Strategy | None:
    """Return the strategy in whose scope a model was built, or None.

    The public `distribute_strategy` is TensorFlow's default strategy where there was no scope, and
    only Keras's trainer for TensorFlow has either.
    """
    return getattr(model, "_distribute_strategy", None)


def adapter_that_calls() -> object:
    """Return Keras's adapter of a `PyDataset`, in a method of the dataset that it calls.

    Nothing leads from the data to it, and only it can be told that an epoch has ended early.
    """
    return sys._getframe(2).f_locals["self"]


DEFLATED = 1032  # bytes that one byte of a zip archive can stand for, at most


_TRAINED: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_GONE: list[None] = []  # one entry for each trained model that is gone; threads may append
GONE_AT_ONCE = 6


def drop_kernels_of_models_gone(model: keras.Model) -> None:
    """Have TensorFlow drop the kernels of trained models that are gone, some models at a time.

    It keeps those of each graph that has run, 3 MB of a small model, as long as the process lives,
    and can drop only all of them; those that are in use are made again when they run next.

    Args:
        model: that is trained next.
    """
    if keras.config.backend() != "tensorflow":
        return
    if len(_GONE) >= GONE_AT_ONCE:
        _GONE.clear()
        # As in `keras.utils.clear_session`, which forgets more.
        from tensorflow.python.eager import context

        context.context().clear_kernel_cache()
    if model not in _TRAINED:
        _TRAINED.add(model)
        weakref.finalize(model, _GONE.append, None).atexit = False


@contextlib.contextmanager
def graphs_as_traced(applies: bool) -> Iterator[None]:
    """Have TensorFlow run the graphs that are called inside as they are, not rewritten before.

    Rewriting (Grappler) takes half a second of a small model. A graph must be called alike each
    time, else TensorFlow prepares it again; the public option is that of the whole process.

    Args:
        applies: whether to do so.
    """
    if not applies:
        yield
        return
    from tensorflow.python.eager import context

    now = context.context()
    before = now.function_call_options
    config = _not_rewriting(before.config_proto_serialized)
    now.function_call_options = context.FunctionCallOptions(before.executor_type, config)
    try:
        yield
    finally:
        now.function_call_options = before


@functools.lru_cache(maxsize=8)
def _not_rewriting(config: bytes) -> tf.compat.v1.ConfigProto:
    changed = tf.compat.v1.ConfigProto.FromString(config)
    changed.graph_options.rewrite_options.disable_meta_optimizer = True
    return changed


def notes_shared_objects() -> bool:
    """Return whether Keras is saving a model, and so notes objects that occur in it twice.

    It finds them only where configurations hold the objects themselves.
    """
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("shared_objects/id_to_config_map") is not None


def weight_bytes_of_opened_file() -> int | None:
    """Return the size of the weights in the `.keras` file that Keras is opening; None if none is.

    Keras builds a model before it looks at its weights, and tells the model nothing of the file.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_load_model_from_fileobj":
        frame = frame.f_back
    if frame is None:
        return None
    members = frame.f_locals["zf"].infolist()
    return sum(
        min(member.file_size, DEFLATED * member.compress_size)
        for member in members
        if member.filename.startswith("model.weights.")
    )


def layers_in(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return a layer and all layers inside it, in order; the public `layers` has one level only.

    Example:
        >>> [layer.name for layer in layers_in(keras.layers.Dropout(0.1, name="dropout"))]
        ['dropout']
    """
    return list(layer._flatten_layers())


def innermost_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers inside a layer that have no layers themselves."""
    return [inner for inner in layers_in(layer)[1:] if len(layers_in(inner)) == 1]


def own_trainable_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return a layer's trainable weights without those of the layers inside it."""
    return layer._trainable_variables


def wrapped_function(wrapper) -> tuple[Callable, dict] | None:
    """Return the function of a loss or metric of Keras's, and its keyword arguments.

    Args:
        wrapper: anything; None is returned for what wraps no function.
    """
    if isinstance(wrapper, keras.losses.Loss) and hasattr(wrapper, "_fn_kwargs"):
        return wrapper.fn, wrapper._fn_kwargs
    if isinstance(wrapper, keras.metrics.MeanMetricWrapper):
        return wrapper._fn, wrapper._fn_kwargs
    return None


def separate_collectives(strategy: tf.distribute.MirroredStrategy) -> None:
    """Give a strategy group keys of its own for TensorFlow's collectives.

    TensorFlow numbers the collectives of every strategy from the same start and remembers the shape
    of each number, so that a second strategy on the same devices fails with "Shape mismatch in the
    collective instance" as soon as its gradients have other shapes. Plain Keras fails in that way.

    Args:
        strategy: in whose scope a model is built.
    """
    extended = strategy.extended
    if strategy in _SEPARATED or not hasattr(extended, "_make_collective_ops_with_fallbacks"):
        return
    _SEPARATED.add(strategy)
    extended._collective_key_base = next(_KEY_BASES)
    collectives = extended._make_collective_ops_with_fallbacks()
    if extended._cross_device_ops is extended._collective_ops:
        extended._cross_device_ops = collectives
    extended._collective_ops = collectives


_SEPARATED: weakref.WeakSet = weakref.WeakSet()  # strategies
_KEY_BASES = itertools.count(1_000, 100)


def own_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return a layer's weights without those of the layers inside it, frozen ones included."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def attributes_of(layer: keras.layers.Layer) -> dict[str, object]:
    """Return the public attributes of a layer's instance, also the layers that PyTorch holds.

    Example:
        >>> block = keras.layers.Layer()
        >>> block.output_dense = keras.layers.Dense(2, name="bias")
        >>> attributes_of(block)["output_dense"].units
        2
    """
    found = {**vars(layer), **vars(layer).get("_modules", {})}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def frozen_kernel(dense: keras.layers.Dense) -> keras.Variable:
    """Return the kernel of a dense layer with LoRA; the public `kernel` has the updates added."""
    return dense._kernel


def remove_lora(layer: keras.layers.Layer) -> None:
    """Remove the low-rank update of a layer, which Keras cannot. The kernel is unchanged.

    Example:
        >>> dense = keras.layers.Dense(2)
        >>> dense.build((None, 3))
        >>> dense.enable_lora(1)
        >>> remove_lora(dense)
        >>> [weight.name for weight in dense.weights]
        ['kernel', 'bias']
    """
    for name, value in list(vars(layer).items()):
        if name.startswith("lora_") and isinstance(value, keras.Variable):
            layer._untrack_variable(value)
            super(keras.layers.Layer, layer).__delattr__(name)  # Keras's own collects garbage
    layer.lora_enabled, layer.lora_rank, layer.lora_alpha = False, None, None


def compiled_parts(model: keras.Model) -> list:
    """Return the containers of loss and metrics that `compile` makes, to build them early.

    Variables that appear in the first trace of a step have TensorFlow trace it again.
    """
    return [p for p in (model._compile_loss, model._compile_metrics) if p is not None]


def compiled_metrics(model: keras.Model) -> list:
    """Return the metrics given to `compile`, without and with sample weights: objects or names."""
    compiled = model._compile_metrics
    if compiled is None:
        return []
    given = (compiled._user_metrics, compiled._user_weighted_metrics)
    return [metric for metric in keras.tree.flatten(given) if metric is not None]


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


def drop_variable(metric: keras.metrics.Metric, variable: keras.Variable) -> None:
    """Have a metric forget a variable, for which it makes one of another shape."""
    metric._tracker.untrack(variable)


def update_compiled_metrics(model: keras.Model, y, y_pred, weights, weights_of_all) -> None:
    """Update the metrics of one output, those that take no sample weights with weights as well.

    Args:
        model: compiled, with one output.
        y: labels.
        y_pred: outputs.
        weights: of the metrics that take sample weights.
        weights_of_all: of the others.
    """
    compiled = model._compile_metrics
    if compiled is None:
        return
    if not compiled.built:
        compiled.build(y, y_pred)
    pairs = (compiled._flat_metrics, weights_of_all), (compiled._flat_weighted_metrics, weights)
    for metrics, given in pairs:
        for metric in filter(None, metrics):
            metric.update_state(y, y_pred, given)


def weigh_next_loss(model: keras.Model, size) -> None:
    """Have the mean loss of an epoch weigh the next batch by the size of its loss.

    Keras weighs it by the rows of the inputs, also those that only fill the batch. The mean over
    tokens would then depend on how the examples are divided into batches.

    Args:
        model: compiled.
        size: what the loss of the batch was divided by; None: Keras's weight.
    """
    tracker = model._loss_tracker
    vars(tracker).pop("update_state", None)
    if size is None or tracker is None:
        return

    def update_state(loss, sample_weight=None):
        del vars(tracker)["update_state"]
        return tracker.update_state(loss, sample_weight=size)

    vars(tracker)["update_state"] = update_state


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
    own_on_jax = backend == "jax" and all(hasattr(cls, name) for name in NEEDED_ON_JAX)

    def make_function(self, kind: str, force: bool) -> None:
        """Make the function of `fit` or `evaluate`, which holds the lock of the weights."""
        self.forget_stale_functions()
        attribute = f"{kind}_function"
        if not force and getattr(self, attribute) is not None:
            return
        step = getattr(self, f"{kind}_step")

        def make() -> Callable:
            getattr(super(cls, self), f"make_{attribute}")(True)
            return getattr(self, attribute)

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
        if joins_processes(self) and not _weights_are_spread():
            self.predict_function = _predict_function_on_torch(self)
        else:
            make_predict_function(self, force)
        self.predict_function = holding(self, False, self.predict_function)

    @functools.wraps(call)
    def __call__(self, *args, **kwargs):
        if strategy_of(self):  # replicas are other threads than that of the step, which may hold it
            return call(self, *args, **kwargs)
        with weights_lock(self).shared():
            return call(self, *args, **kwargs)

    if backend == "tensorflow":
        _open_on_tensorflow(cls)
    if own_on_jax:
        _open_on_jax(cls)
    cls.__call__ = __call__
    cls.make_train_function = make_train_function
    cls.make_test_function = make_test_function
    cls.make_predict_function = make_readers_predict_function
    return cls


def _open_on_tensorflow(cls: type[keras.Model]) -> None:
    """Replace what Keras does when it builds under a strategy, and when it saves a SavedModel."""

    def _maybe_symbolic_build(self, iterator=None, data_batch=None) -> None:
        """Build under a strategy from the shapes and dtypes of the first replica's batches.

        Keras takes the mean of a batch over the replicas, which fails for masks and for parts of
        different size.
        """
        parts = getattr(iterator, "_distributed_dataset", None)
        if parts is not None and strategy_of(self):
            data_batch = keras.tree.map_structure(
                lambda spec: array_ops.nest.flatten(spec, expand_composites=True)[0],
                parts.element_spec,
            )
            super(cls, self)._maybe_symbolic_build(data_batch=data_batch)
            return
        super(cls, self)._maybe_symbolic_build(iterator, data_batch)

    if hasattr(cls, "_maybe_symbolic_build"):
        cls._maybe_symbolic_build = _maybe_symbolic_build
    if hasattr(cls, "_convert_tracked_collections"):
        cls._trackable_children = _trackable_children


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


def _trackable_children(self, save_type: str = "checkpoint", **kwargs) -> dict:
    """Return what a SavedModel holds, as Keras does on TensorFlow.

    Keras sets the functions of its loops to None meanwhile, so that they are left out; other
    threads call them then. Those of `opens_training` are no `tf.function`s, which alone are held.
    """
    layer = next(one for one in type(self).__mro__ if one.__name__ == "TFLayer")
    children = super(layer, self)._trackable_children(save_type, **kwargs)
    if save_type == "savedmodel":
        self._convert_tracked_collections(children)
    return children


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
    return tuple([variable._value for variable in part.variables] for part in held)


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


def spreads_models() -> bool:
    """Return whether `keras.distribution` works on this backend, which only its devices tell.

    Keras's backend for TensorFlow lists devices, and leaves a distribution aside.
    """
    backend = keras.config.backend()
    if backend == "torch":
        try:
            keras.distribution.list_devices()
        except AttributeError:  # Keras has no such part for this backend
            return False
    return backend in ("jax", "torch")


def _weights_are_spread() -> bool:
    return isinstance(keras.distribution.distribution(), keras.distribution.ModelParallel)


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

    It takes the state from the variables, and puts the new one into them. The public `value` and
    `assign` take 0.9 ms a step for 200 variables; `_value` takes 0.02 ms.

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
    trains = "optimizer_variables" in parts

    def function(given, iterator):
        data = next(iterator)
        held = given if _is_held(given) else _held_variables(model, parts)
        with weights_lock(model).exclusive(trains):  # the memory of the state is used again
            logs, state = compiled(_values_of(held), data)
            for part, values in zip(held, state, strict=True):
                for variable, value in zip(part.variables, values, strict=True):
                    variable._value = value
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


class HookedAdamW(keras.optimizers.AdamW):
    """`keras.optimizers.AdamW` with its state and its steps open to subclasses.

    Example:
        >>> optimizer, weight = HookedAdamW(0.1), keras.Variable([1.0], name="kernel")
        >>> optimizer.build([weight])
        >>> [float(moment[0]) for moment in optimizer.moments_of(weight)], optimizer.decays(weight)
        ([0.0, 0.0], True)
    """

    @property
    def schedule(self):
        """The learning rate as given; `learning_rate` is its value at the present step."""
        return self._learning_rate

    def track(self, variable: keras.Variable) -> None:
        """Make a variable one of the optimizer's."""
        self._track_variable(variable)

    def decays(self, variable: keras.Variable) -> bool:
        """Return whether weight decay is for this weight."""
        return self._use_weight_decay(variable)

    def moments_of(self, variable: keras.Variable) -> tuple[keras.Variable, keras.Variable]:
        """Return the running means of a weight's gradients and of their squares."""
        index = self.index_of(variable)
        return self._momentums[index], self._velocities[index]

    def index_of(self, variable: keras.Variable) -> int:
        """Return the index of a weight among those that the optimizer was built for."""
        return self._get_variable_index(variable)

    def sum_of(self, variable: keras.Variable) -> keras.Variable:
        """Return the sum of a weight's gradients since the last accumulated step."""
        return self._accumulated_gradients[self.index_of(variable)]

    def add_gradients(self, gradients: list, sums: list) -> None:
        """Add gradients to the sums of an accumulated step."""
        self._backend_increment_gradient_accumulators(gradients, sums)

    @property
    def batches(self) -> keras.Variable:
        """The number of batches; `iterations` counts accumulated steps."""
        return self._iterations

    def merge_call(self, function: Callable, *args) -> None:
        """Call `function(strategy, *args)` once for all replicas, on TensorFlow."""
        tf.__internal__.distribute.interim.maybe_merge_call(
            function, self._distribution_strategy, *args
        )

    def update(self, gradients: list, variables: list, learning_rate) -> None:
        """Update weights by gradients that are clipped already."""
        super()._backend_update_step(gradients, variables, learning_rate)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.update(grads, trainable_variables, learning_rate)

    def clip_and_update(self, gradients: list, variables: list) -> None:
        """Clip gradients, accumulate them, and update weights."""
        super()._backend_apply_gradients(gradients, variables)

    def _backend_apply_gradients(self, grads, trainable_variables):
        self.clip_and_update(grads, trainable_variables)

    def decay(self, variables: list) -> None:
        """Decay weights."""
        super()._apply_weight_decay(variables)

    def _apply_weight_decay(self, variables):
        self.decay(variables)

    def step(self, gradients: list, variables: list) -> None:
        """Clip gradients, decay weights and update them, at once."""
        gradients = self._clip_gradients(gradients)
        self.decay(variables)
        self.update(gradients, variables, self.learning_rate)


def learning_rate_at(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """Return the learning rate of a step; the public `learning_rate` is that of the present step.

    Example:
        >>> learning_rate_at(keras.optimizers.SGD(0.5), 3)
        0.5
    """
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(step)
    elif callable(rate):
        rate = rate()
    return float(keras.ops.convert_to_numpy(rate))


def clip_summed_gradients(optimizer: keras.optimizers.Optimizer) -> None:
    """Have an optimizer clip the gradient of the whole batch.

    Keras clips the gradients of every replica and sums then (optimizers/base_optimizer.py), and it
    takes the norm of an embedding's gradient before the rows of equal tokens are added up, which
    depends on how a batch is divided.
    """
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    if not clips or "_clip_gradients" in vars(optimizer):
        return
    clip, add = optimizer._clip_gradients, optimizer._all_reduce_sum_gradients

    def clip_sum(grads: list) -> list:
        sums = [grad for grad, _ in add([(grad, None) for grad in grads])]
        return clip([grad if grad is None else array_ops.convert_to_tensor(grad) for grad in sums])

    optimizer._clip_gradients = clip_sum
    optimizer._all_reduce_sum_gradients = lambda grads_and_variables: grads_and_variables
