"""Base class of the encoder and of all tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import keras

from encoder_zoo.common import keras_private
from encoder_zoo.common.configuration import ConfigFromSignature
from encoder_zoo.common.lazy import tf
from encoder_zoo.common.model_configuration import LAYER_STATES, check_file_size, serialize_value
from encoder_zoo.common.weights_lock import get_weights_lock, hold_lock, lock_weights


class BaseModel(ConfigFromSignature, keras.Model):
    """Keras model that several threads can use, and whose configuration describes all layers.

    The configuration includes quantization, low-rank updates, frozen layers, frozen weights and
    gradient checkpointing. If arguments are models or layers, they are also serialized, so
    `from_config(get_config())` will create a copy.

    Threads can use a model during training, saving and updates, because each method below holds
    the weights lock. A method of a subclass needs a decorator of `common.weights_lock` if it uses
    weights in several steps, or before it calls the method below. A second `fit` at the same time
    raises an error, so a decorated `fit` calls `super(BaseModel, self).fit`. The methods below call
    `keras.Model`, so they skip other classes between this class and `keras.Model`.

    On JAX, Keras removes all weights from the model during training, evaluation and prediction,
    because each step reuses the memory. This class stores the weights in the model after each
    step. Predictions do not reuse the memory. If the private names are not available in the
    installed Keras version, the Keras functions will be used. In this case, predictions need to
    wait for the end of `fit`.

    Example:
        >>> class Twice(BaseModel):
        ...     def __init__(self, units, **kwargs):
        ...         super().__init__(**kwargs)
        ...         self.units, self.dense = units, keras.layers.Dense(units)
        ...         self.dense.build((None, 2))
        ...         self.built = True
        >>> model = Twice(3)
        >>> model.quantize("int8")
        >>> Twice.from_config(model.get_config()).dense.quantization_mode
        'int8'
    """

    train_function: Any
    test_function: Any
    predict_function: Any

    if keras_private.BUILDS_FROM_ONE_REPLICA:
        _maybe_symbolic_build = keras_private.build_from_one_replica
    if keras_private.RUNS_JAX_STEPS:
        _jax_state_synced = keras_private.jax_state_synced
        _purge_model_variables = keras_private.keep_model_variables

    # Pickling and copying call `__reduce__`.
    __reduce__ = lock_weights(keras.Model.__reduce__)
    get_weights = lock_weights(keras.Model.get_weights)
    get_state_tree = lock_weights(keras.Model.get_state_tree)
    save = lock_weights(keras.Model.save)
    save_weights = lock_weights(keras.Model.save_weights)
    predict = lock_weights(keras.Model.predict)
    predict_on_batch = lock_weights(keras.Model.predict_on_batch)
    set_weights = hold_lock("exclusive")(keras.Model.set_weights)
    set_state_tree = hold_lock("exclusive")(keras.Model.set_state_tree)
    load_weights = hold_lock("exclusive")(keras.Model.load_weights)
    quantize = hold_lock("exclusive")(keras.Model.quantize)
    compile = hold_lock("compiling")(keras.Model.compile)
    # During `export`, Keras sets the functions of the model to None.
    export = hold_lock("compiling")(keras.Model.export)
    evaluate = hold_lock("evaluating")(keras.Model.evaluate)
    test_on_batch = hold_lock("evaluating")(keras.Model.test_on_batch)
    fit = hold_lock("fitting")(keras.Model.fit)
    train_on_batch = hold_lock("fitting")(keras.Model.train_on_batch)

    @property
    def weights_version(self) -> int:
        """The version of the weights, which increases whenever weights could have changed."""
        return get_weights_lock(self).version

    def __call__(self, *args, **kwargs):
        if keras.config.backend() == "tensorflow" and tf.distribute.has_strategy():
            # The lock is held by the thread of the step. Replicas run in other threads.
            return super().__call__(*args, **kwargs)
        with get_weights_lock(self).shared():
            return super().__call__(*args, **kwargs)

    # -- configuration ---------------------------------------------------------------------------

    def get_config(self) -> dict:
        """Return a dict with all arguments and the state of all layers."""
        config = {name: serialize_value(value) for name, value in super().get_config().items()}
        state = {name: read(self) for name, (read, _) in LAYER_STATES.items()}
        return {**config, **{name: value for name, value in state.items() if value}}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> Self:
        """Create a model from the result of `get_config`.

        Raises:
            ValueError: If the `.keras` file is too small to contain all weights of the model.
        """
        check_file_size(cls, config)
        arguments = {name: value for name, value in config.items() if name not in LAYER_STATES}
        model = super().from_config(arguments, custom_objects)
        for name, (_, restore) in LAYER_STATES.items():
            if config.get(name):
                restore(model, config[name])
        return model

    # -- functions of the Keras loops ------------------------------------------------------------

    def make_step_function(self, step: Callable) -> Callable | None:
        """Create a function to run a step of `fit` or `evaluate` on an iterator.

        The function must hold the weights lock during the step. To use the Keras function, return
        None.

        Args:
            step: `train_step` or `test_step`.
        """
        return None

    def _make_forward_function(self) -> Callable | None:
        """Create a function to run `predict` on a list with one batch, or None (default)."""
        return None

    def _get_next_execution(self) -> int:
        """Return the number of batches for the next call, at least 1.

        For an infinite dataset, Keras would run too many steps if the number of steps per epoch is
        not a multiple of `steps_per_execution`.
        """
        return self.steps_per_execution

    def forget_stale_functions(self) -> None:
        """Set functions to None if they were created for layers that have been removed."""

    def make_train_function(self, force: bool = False) -> None:
        """Create the training function. Other threads wait until the end of each step."""
        self.forget_stale_functions()
        if force or self.train_function is None:
            self.train_function = self._make_loop_function("train", super().make_train_function)

    def make_test_function(self, force: bool = False) -> None:
        """Create the function for `evaluate`. Other threads cannot change weights during a step."""
        self.forget_stale_functions()
        if force or self.test_function is None:
            self.test_function = self._make_loop_function("test", super().make_test_function)

    def make_predict_function(self, force: bool = False) -> None:
        """Create the function for `predict`. Other threads cannot change weights during a step."""
        self.forget_stale_functions()
        if force or self.predict_function is None:
            self.predict_function = self._make_loop_function(
                "predict", super().make_predict_function
            )

    def _make_loop_function(self, kind: str, make_keras: Callable) -> Callable:
        """Create a function for "train", "test" or "predict" that uses the weights lock."""
        attribute, step = f"{kind}_function", getattr(self, f"{kind}_step")

        def make() -> Callable:
            before = getattr(self, attribute)
            make_keras(True)
            of_keras = getattr(self, attribute)
            setattr(self, attribute, before)  # undo the assignment by Keras
            return of_keras

        if keras_private.RUNS_JAX_STEPS:
            return keras_private.make_jax_function(self, kind)
        if kind == "predict" and keras_private.has_ddp_model(self):
            function = keras_private.make_torch_predict_function(self)
        elif kind == "predict":
            function = self._make_forward_function() or make()
        elif self.steps_per_execution > 1:
            function = keras_private.make_execution(self, make)
        elif own := self.make_step_function(step):
            return own
        else:
            function = make()
        return keras_private.wrap_in_lock(self, kind == "train", function)
