"""The settings of `compile`, and the optimizer made from them for every `fit`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import keras
import numpy as np

from encoder_zoo.common.lazy import array_ops, tf
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.tasks.training.fine_tuning_optimizer import (
    fine_tuning_optimizer,
    inner_optimizer,
    layerwise,
)
from encoder_zoo.tasks.training.optimizers import AccumulatingLossScaleOptimizer

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.text_model import TextModel

logger = logging.getLogger("encoder_zoo")

# Arguments of `compile` for the "auto" optimizer, in addition to the learning rate.
RECIPE = ("gradient_accumulation_steps", "weight_decay", "warmup", "layer_decay")
FINE_TUNING_RATE = 1e-4  # the highest that is for pretrained weights
# Callbacks of Keras's that leave the learning rate as it is.
KEEPING_THE_RATE = {
    *(value for value in vars(keras.callbacks).values() if isinstance(value, type))
} - {keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau}
# Arguments until a `compile` names them.
DEFAULTS = {"optimizer": "auto", "loss": "auto", "weighted_metrics": "auto", "jit_compile": "auto"}


class TaskSettings(NamedTuple):
    """Properties of a task that the optimizer depends on, besides the arguments of `compile`.

    Attributes:
        learning_rate: at the peak.
        weight_decay, layer_decay, warmup: until `compile` names others.
        learning_rate_shares: {id of a weight: its learning rate, as a share of that of the others}.
        undecayed_weights: Weights without weight decay.
        scales_loss: Whether gradients are computed in float16, of a loss that is scaled.
    """

    learning_rate: float
    weight_decay: float
    layer_decay: float
    warmup: float
    learning_rate_shares: Mapping[int, float]
    undecayed_weights: Sequence[keras.Variable]
    scales_loss: bool


@dataclass(frozen=True)
class Recipe:
    """The arguments of `compile`, and the optimizer of the default recipe.

    Args:
        arguments: Mapping of `TextModel.compile`'s own arguments, each of the last call that named
            it, without the learning rate.
        options: Mapping of those that are Keras's, likewise.

    Example:
        >>> unset = dict.fromkeys(("optimizer", "learning_rate", *RECIPE))
        >>> recipe = Recipe().updated({**unset, "warmup": 0.2}, {"run_eagerly": None})
        >>> recipe.makes_optimizer, recipe.arguments["warmup"], recipe.options
        (True, 0.2, {})
    """

    arguments: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def makes_optimizer(self) -> bool:
        """Return whether the optimizer is that of the recipe."""
        return is_auto(self.arguments.get("optimizer"))

    @property
    def loss_weight(self) -> float:
        """Return the weight of a task's one loss."""
        return _single_weight(self.options.get("loss_weights"))

    def updated(self, arguments: Mapping, options: Mapping) -> Recipe:
        """Return the recipe after another `compile`, in which None leaves an argument as it is.

        Raises:
            ValueError: If a setting of the recipe is given beside another optimizer, or there are
                several weights of losses.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        if is_auto(given.get("metrics")):  # those of the task
            given["metrics"] = None
        completed = {**dict.fromkeys(arguments), **DEFAULTS, **self.arguments, **given}
        del completed["learning_rate"]  # which is the task's
        if not is_auto(completed["optimizer"]):
            for name in ("learning_rate", *RECIPE):
                if arguments[name] is not None:
                    raise invalid(
                        name,
                        arguments[name],
                        "None with an optimizer: set it there, or pass optimizer='auto'",
                    )
            completed |= dict.fromkeys(RECIPE)
        options = {name: value for name, value in options.items() if value is not None}
        recipe = Recipe(completed, {**self.options, **options})
        _single_weight(recipe.options.get("loss_weights"))
        return recipe

    def jit_compile(self, goes_step_by_step: str | None, has_fixed_shapes: bool):
        """Return the argument of this name for Keras.

        Args:
            goes_step_by_step: What of the model XLA does not train on TensorFlow, or None.
            has_fixed_shapes: Whether XLA would compile a single program.

        Raises:
            ValueError: If XLA is asked for and does not compile the model.
        """
        given = self.arguments["jit_compile"]
        if keras.config.backend() != "tensorflow":
            return given
        if is_auto(given):
            return has_fixed_shapes and not goes_step_by_step and has_accelerator()
        if given and goes_step_by_step:
            raise invalid(
                "jit_compile",
                given,
                f"False: XLA does not compile the training of {goes_step_by_step} on TensorFlow",
            )
        return given

    def make_optimizer(
        self, backbone: Backbone, settings: TaskSettings
    ) -> keras.optimizers.Optimizer:
        """Return a new optimizer, which holds the peak of its learning rate until a `fit`.

        Args:
            backbone: of the layers that `layer_decay` is of.
            settings: of the task.
        """
        weight_decay, layer_decay, warmup, steps = (
            getattr(settings, name, None) if self.arguments[name] is None else self.arguments[name]
            for name in ("weight_decay", "layer_decay", "warmup", "gradient_accumulation_steps")
        )
        multiplier = layerwise(backbone, layer_decay)
        if shares := settings.learning_rate_shares:
            of_others = multiplier

            def multiplier(weight):
                other = 1.0 if of_others is None else of_others(weight)
                return shares.get(id(weight), other)

        optimizer = fine_tuning_optimizer(
            1,
            settings.learning_rate,
            weight_decay,
            None if steps == 1 else steps,
            multiplier,
            warmup,
            settings.undecayed_weights,
        )
        optimizer.schedule.hold_peak()
        scales = settings.scales_loss and self.options.get("auto_scale_loss", True)
        accumulates = scales and optimizer.gradient_accumulation_steps
        return AccumulatingLossScaleOptimizer(optimizer) if accumulates else optimizer

    def warn_default_rate(self, optimizer, default_rate: float) -> None:
        """Log the learning rate of an optimizer that is given by its name."""
        name, optimizer = self.arguments["optimizer"], inner_optimizer(optimizer)
        if self.makes_optimizer or not isinstance(name, str):
            return
        if isinstance(optimizer, keras.optimizers.SGD):
            return
        logger.warning(
            "optimizer=%r trains at Keras's default learning rate of %g; that of this model is %g. "
            "Pass keras.optimizers.%s(%g), or compile(optimizer='auto', learning_rate=...).",
            name,
            float(optimizer.learning_rate),
            default_rate,
            type(optimizer).__name__,
            default_rate,
        )

    def check_trains(self, optimizer, total_batches: int, callbacks: list) -> None:
        """Raise a ValueError if the steps of a `fit` would change no weight.

        Args:
            optimizer: of the model.
            total_batches: of all epochs.
            callbacks: of the user; one that sets the learning rate is trusted.

        Raises:
            ValueError: If the learning rate is 0 in all steps, or there are fewer batches than
                `gradient_accumulation_steps`.
        """
        optimizer = inner_optimizer(optimizer)
        accumulated = optimizer.gradient_accumulation_steps or 1
        if total_batches < accumulated:
            raise invalid(
                "gradient_accumulation_steps",
                accumulated,
                f"at most {total_batches}, the batches of this `fit`",
            )
        if self.makes_optimizer or any(map(_sets_rate, callbacks)):
            return
        first = int(keras.ops.convert_to_numpy(optimizer.iterations))
        steps = range(first, first + total_batches)
        if not any(learning_rate_at(optimizer, step) for step in steps):
            raise ValueError(
                f"The learning rate is 0 in all {len(steps)} steps of this `fit`, counted from "
                f"{first}. Pass compile() another rate or schedule, or optimizer='auto', whose "
                "schedule fits the steps of each `fit`."
            )

    def report_still(
        self, optimizer, weights: Sequence[keras.Variable], total_batches: int
    ) -> None:
        """Log that a `fit` has trained nothing: in float16 it has made no step, or all gradients
        were 0.

        Args:
            optimizer: of the model.
            weights: that it trains.
            total_batches: of all epochs.
        """
        if not self.makes_optimizer:
            return
        inner = inner_optimizer(optimizer)
        if not int(keras.ops.convert_to_numpy(inner.iterations)):
            if inner is not optimizer and total_batches:
                logger.warning(
                    "This `fit` has made no step: in float16 the gradients of all %d batches "
                    "overflowed, and each of them halves the scale of the loss. Train for more "
                    "steps, or in mixed_bfloat16.",
                    total_batches,
                )
            return
        # Of the mean squares of the gradients; the head's, at the end, are other than 0 first.
        states = (inner.states[id(variable)] for variable in reversed(weights))
        if not any(bool(keras.ops.any(state.second != 0)) for state in states):
            logger.warning(
                "All gradients of this `fit` were 0: it has learned nothing. Are all sample "
                "weights 0, are no tokens labelled, or is the loss 0 already?"
            )

    def hold_rate(self, optimizer) -> None:
        """Hold the peak of the learning rate for steps outside of `fit`, unless one is set."""
        if self.makes_optimizer:
            inner_optimizer(optimizer).schedule.hold_peak()

    def weigh_batch(self, optimizer, size) -> None:
        """Have an accumulated step weigh the batch as the large batch does.

        Of a sum of several losses one decides, the last of a batch for which this is called: their
        gradients are one.

        Args:
            optimizer: of the model.
            size: of the loss, see `BatchLoss`; None is a sum, as the loss of the large batch is.
        """
        optimizer = inner_optimizer(optimizer)
        if self.makes_optimizer and optimizer.gradient_accumulation_steps:
            optimizer.weigh_batch(*((1.0, 0.0) if size is None else (size, size)))

    def to_config(self, config: dict, loss, learning_rate: float) -> dict:
        """Return Keras's compile config with the recipe and the task's loss by name, without the
        schedule's state.

        Args:
            config: Keras's.
            loss: that the task computes.
            learning_rate: at the peak.
        """
        given = self.arguments
        # The task's own may have weights of the task.
        kept = "auto" if is_auto(given["loss"]) else keras.saving.serialize_keras_object(loss)
        own = {"loss": kept, "loss_weights": self.options.get("loss_weights")}
        if self.makes_optimizer:
            own |= {"optimizer": "auto", "learning_rate": learning_rate}
            own |= {name: given[name] for name in RECIPE}
        return {**config, **own, "frozen_layers": given["frozen_layers"]}


def warn_random_weights(learning_rate: float) -> None:
    """Log that random weights learn little at a rate for pretrained ones."""
    if learning_rate <= FINE_TUNING_RATE:
        logger.warning(
            "The encoder has random weights and no pretraining. The default learning rate of "
            "%g is for pretrained ones and may learn nothing: pass "
            "compile(learning_rate=1e-3), or load the encoder with from_preset.",
            learning_rate,
        )


def train_new_pooler(backbone: Backbone) -> None:
    """Note that a new pooler will be trained, or log that it is frozen."""
    if not backbone.pooler_is_new:
        return
    backbone.pooler_is_new = not any(v.trainable for v in backbone.pooler_dense.variables)
    if backbone.pooler_is_new:
        logger.warning(
            "The pooler is frozen with random weights, as the checkpoint has none for it. "
            "backbone.pooler_dense.trainable = True trains it."
        )


def check_weights(sample_weight, class_weights: list | None) -> None:
    """Raise a ValueError for weights with which a `fit` would train nothing.

    Args:
        sample_weight: given to `fit`.
        class_weights: of all classes, or None.

    Example:
        >>> check_weights([0.0, 0.0], None)
        Traceback (most recent call last):
        ValueError: sample_weight is 0 for all examples. Give some a weight above 0, ...
    """
    for name, weights, of_what in (
        ("sample_weight", sample_weight, "examples"),
        ("class_weight", class_weights, "classes"),
    ):
        if weights is not None and not np.any(np.asarray(weights)):
            raise ValueError(
                f"{name} is 0 for all {of_what}. Give some a weight above 0, or leave the argument "
                "out."
            )


def _single_weight(loss_weights) -> float:
    """Return the weight of a task's one loss.

    Example:
        >>> _single_weight([0.5])
        0.5
    """
    weights = keras.tree.flatten(loss_weights)
    if loss_weights is None:
        return 1.0
    if len(weights) != 1 or not isinstance(weights[0], int | float):
        raise invalid("loss_weights", loss_weights, "a single number, as a task has one loss")
    return float(weights[0])


def _sets_rate(callback) -> bool:
    """Return whether a callback may set the learning rate, as far as it is known."""
    return getattr(callback, "sets_learning_rate", type(callback) not in KEEPING_THE_RATE)


class CompiledMetrics:
    """The metrics of a compiled task, and the containers that Keras has made for them.

    Args:
        metrics: Metrics given to Keras's `compile`, without sample weights.
        weighted_metrics: Those with sample weights.
        of_keras: `keras.Model.metrics` of the compiled task.

    Attributes:
        given: List of all of them, objects or names.
    """

    def __init__(self, metrics=None, weighted_metrics=None, of_keras: Sequence = ()):
        unweighted, weighted = (
            [metric for metric in keras.tree.flatten(given) if metric is not None]
            for given in (metrics, weighted_metrics)
        )
        self.given, self._unweighted = [*unweighted, *weighted], len(unweighted)
        named = {metric.name: metric for metric in reversed(of_keras)}
        self._loss, self._all = named.get("loss"), named.get("compile_metrics")

    def weigh_next_loss(self, size) -> None:
        """Have the mean loss of an epoch weigh the next batch by the size of its loss.

        Keras weighs it by the rows of the inputs, also those that only fill the batch. The mean
        over tokens would then depend on how the examples are divided into batches.

        Args:
            size: what the loss of the batch was divided by; None: Keras's weight.
        """
        mean = self._loss
        if mean is None:
            return
        vars(mean).pop("update_state", None)
        if size is None:
            return

        def update_state(loss, sample_weight=None):
            del vars(mean)["update_state"]
            return mean.update_state(loss, sample_weight=size)

        vars(mean)["update_state"] = update_state

    def update(self, y, y_pred, weights, weights_of_all) -> None:
        """Update the metrics, those that take no sample weights with weights as well.

        Args:
            y: labels.
            y_pred: outputs.
            weights: of the metrics that take sample weights.
            weights_of_all: of the others.
        """
        if self._all is None:
            return
        if not self._all.built:
            self._all.build(y, y_pred)
        for i, metric in enumerate(self._all.metrics):
            metric.update_state(y, y_pred, weights_of_all if i < self._unweighted else weights)

    def are_built(self) -> bool:
        """Return whether the metrics have all their variables."""
        return self._all is None or self._all.built


def learning_rate_at(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """Return the learning rate of a step; the public `learning_rate` is that of the present step.

    Example:
        >>> schedule = keras.optimizers.schedules.PolynomialDecay(0.5, 10, 0.0)
        >>> learning_rate_at(keras.optimizers.SGD(schedule), 5)
        0.25
    """
    count = optimizer.variables[0]  # of the batches
    value = keras.ops.convert_to_tensor(step, count.dtype)
    with keras.StatelessScope(state_mapping=[(count, value)]):
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def build_metrics(task: TextModel, dataset: tf.data.Dataset) -> None:
    """Make the variables of loss and metrics before the first trace.

    Args:
        task: compiled.
        dataset: of prepared batches; nothing is done for arrays.
    """
    if keras.config.backend() != "tensorflow" or task.distribution.strategy:
        return  # Keras does it
    if not isinstance(dataset, tf.data.Dataset) or task.compiled_with.are_built():
        return
    x, y, weight = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    y_pred = task.compute_output_spec(keras.tree.map_structure(_symbol, x))
    if isinstance(y, tf.TensorSpec) and len(y.shape) == len(getattr(y_pred, "shape", ())):
        # Of a stream all sizes are unknown, but labels like the outputs have theirs.
        sizes = [own or size for own, size in zip(y.shape, y_pred.shape, strict=True)]
        y = tf.TensorSpec(sizes, y.dtype)
    x, y, y_pred, weight = array_ops.nest.map_structure(_smallest, (x, y, y_pred, weight))
    task.compute_loss(x, y, y_pred, weight, training=False)
    task.compute_metrics(x, y, y_pred, weight)
    task.reset_metrics()


def _symbol(spec: tf.TensorSpec) -> keras.KerasTensor:
    return keras.KerasTensor(spec.shape, spec.dtype.name)


def _smallest(spec) -> array_ops.Tensor | None:
    """Return zeros of a shape; two where any size may be, as Keras drops axes of one.

    The number of examples is two, too: labels may have one that is fixed where outputs have none.
    """
    if spec is None:
        return None
    sizes = [size or 2 for size in spec.shape]
    return array_ops.zeros([2, *sizes[1:]] if sizes else [], spec.dtype)


def has_accelerator() -> bool:
    """Return whether TensorFlow has a GPU or TPU."""
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def is_auto(argument) -> bool:
    """Return whether an argument of `compile` is "auto"."""
    return isinstance(argument, str) and argument == "auto"
