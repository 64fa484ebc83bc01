"""The settings of `compile`, and the optimizer made from them for every `fit`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
import numpy as np

from encoder_zoo.common.keras_private import compiled_parts, learning_rate_at
from encoder_zoo.common.lazy import array_ops, tf
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.family import WEIGHT_DECAY
from encoder_zoo.encoders.training import undecayed_weights
from encoder_zoo.tasks.training.fine_tuning_optimizer import (
    FrozenLayers,
    fine_tuning_optimizer,
    inner_optimizer,
    layerwise,
    restart_optimizer,
)
from encoder_zoo.tasks.training.logit_metrics import metrics_on_logits
from encoder_zoo.tasks.training.optimizers import WARMUP, AccumulatingLossScaleOptimizer

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.text_model import TextModel

logger = logging.getLogger("encoder_zoo")

# Arguments of `compile` for the "auto" optimizer, in addition to the learning rate.
RECIPE = ("gradient_accumulation_steps", "weight_decay", "warmup", "layer_decay")
FINE_TUNING_RATE = 1e-4  # the highest that is for pretrained weights
# Arguments until a `compile` names them.
DEFAULTS = {"optimizer": "auto", "loss": "auto", "weighted_metrics": "auto", "jit_compile": "auto"}


class Recipe:
    """Holds the arguments of `compile`, and makes the optimizer of the default recipe.

    Args:
        task: to be trained.

    Attributes:
        arguments: of `compile`, each of the last one that named it.
        options: further arguments of `compile`, which are Keras's, likewise.
    """

    def __init__(self, task: TextModel):
        self._task = task
        self.arguments, self.options = {}, {}
        self._frozen = FrozenLayers()
        self._traced_with = None

    @property
    def makes_optimizer(self) -> bool:
        """Return whether the optimizer is that of the recipe."""
        return is_auto(self.arguments.get("optimizer"))

    def compile(self, keras_compile: Callable, arguments: dict, options: dict) -> None:
        """Compile a task.

        Args:
            keras_compile: `keras.Model.compile` of the task.
            arguments: of `TextModel.compile`; None leaves one as it is.
            options: those that are only Keras's, likewise.
        """
        task, before = self._task, (self.arguments, self.options)
        self._check(arguments)
        if arguments["frozen_layers"] is not None:
            self._frozen.freeze(task.backbone, arguments["frozen_layers"])
        task.learning_rate = arguments.pop("learning_rate") or task.learning_rate
        arguments = self._completed(arguments)
        options = {**self.options, **{n: v for n, v in options.items() if v is not None}}
        self.arguments, self.options = arguments, options
        if self.makes_optimizer and (arguments, options) == before and self._is_as_traced():
            return  # another learning rate, at most, which needs no other graph
        self._keras_compile = keras_compile
        try:
            if self.makes_optimizer:
                self._compile_anew()
            else:
                self._compile(arguments["optimizer"])
        except Exception:
            self.arguments, self.options = before  # those that were refused must not stay
            raise
        if not self.makes_optimizer:
            self._warn_default_rate()

    def _check(self, arguments: dict) -> None:
        """Raise a ValueError if a setting of the recipe is given beside another optimizer."""
        optimizer = arguments["optimizer"]
        if optimizer is None:
            optimizer = self.arguments.get("optimizer", "auto")
        for name in ("learning_rate", *RECIPE):
            if arguments[name] is not None and not is_auto(optimizer):
                raise invalid(
                    name,
                    arguments[name],
                    "None with an optimizer: set it there, or pass optimizer='auto'",
                )

    def _completed(self, arguments: dict) -> dict:
        """Return arguments with those that are not given as the last `compile` had them."""
        given = {name: value for name, value in arguments.items() if value is not None}
        if is_auto(given.get("metrics")):  # those of the task
            given["metrics"] = None
        completed = {**dict.fromkeys(arguments), **DEFAULTS, **self.arguments, **given}
        if not is_auto(completed["optimizer"]):
            completed |= dict.fromkeys(RECIPE)
        return completed

    def _warn_default_rate(self) -> None:
        """Log the learning rate of an optimizer that is given by its name."""
        name, optimizer = self.arguments["optimizer"], self._task.optimizer
        optimizer = inner_optimizer(optimizer)
        if not isinstance(name, str) or isinstance(optimizer, keras.optimizers.SGD):
            return
        default_rate = self._task.default_learning_rate
        logger.warning(
            "optimizer=%r trains at Keras's default learning rate of %g; that of this model is %g. "
            "Pass keras.optimizers.%s(%g), or compile(optimizer='auto', learning_rate=...).",
            name,
            float(optimizer.learning_rate),
            default_rate,
            type(optimizer).__name__,
            default_rate,
        )

    def _compile(self, optimizer) -> None:
        task, given = self._task, self.arguments
        jit_compile, loss = given["jit_compile"], given["loss"]
        steps = task.record.goes_step_by_step
        if is_auto(jit_compile) and keras.config.backend() == "tensorflow":
            length = getattr(task.preprocessor, "sequence_length", None)
            can_compile = length is not None and not steps
            jit_compile = has_accelerator() and can_compile and not task.distribution.strategy
        elif jit_compile and steps and keras.config.backend() == "tensorflow":
            raise invalid(
                "jit_compile",
                jit_compile,
                f"False: XLA does not compile the training of {steps} on TensorFlow",
            )
        default = task.default_loss()
        # Keras gets no loss: `TextModel.compute_loss` computes it.
        task.loss = default if is_auto(loss) else task.resolve_loss(loss, default)
        task.batch_loss = task.make_batch_loss(task.loss)
        if task.distribution.strategy:
            task.batch_loss.check_adds_up()
        options = {name: v for name, v in self.options.items() if name != "loss_weights"}
        self.loss_weight = _single_weight(self.options.get("loss_weights"))
        self._keras_compile(
            optimizer=optimizer,
            **self._metrics(given["metrics"], given["weighted_metrics"]),
            jit_compile=jit_compile,
            **options,
        )
        task.distribution.fix_compiled(task)

    def _metrics(self, metrics, weighted) -> dict:
        """Return the metrics for Keras's `compile`."""
        task = self._task
        metrics, weighted = self._named(metrics), self._named(weighted)
        if is_auto(weighted):
            weighted = task.default_metrics() if metrics is None else None
        else:
            weighted = metrics_on_logits(weighted, task.output_activation, task.record.pads_classes)
        metrics = metrics_on_logits(metrics, task.output_activation, task.record.pads_classes)
        if task.record.labels_tokens and metrics:
            metrics, weighted = None, [*metrics, *(weighted or [])]
        return {"metrics": metrics, "weighted_metrics": weighted}

    def _named(self, given):
        """Return metrics with the names that a task knows replaced by its metrics."""
        if given is None or is_auto(given) or self._task.output_activation is None:
            return given
        flat = keras.tree.flatten(given)
        return [self._task.metric_by_name(m) if isinstance(m, str) else m for m in flat]

    # -- the optimizer of the recipe -----------------------------------------------------------

    def _compile_anew(self) -> None:
        """Compile with a new optimizer of the recipe, for the weights that train now."""
        task, family = self._task, self._task.backbone.family
        settings = {"weight_decay": family.weight_decay, "layer_decay": family.layer_decay}
        if task.record.pretrains:  # a family's paper gives those for fine-tuning
            settings = {"weight_decay": WEIGHT_DECAY, "layer_decay": 1.0}
        settings |= {"warmup": task.record.warmup or WARMUP, "gradient_accumulation_steps": None}
        settings |= {n: self.arguments[n] for n in RECIPE if self.arguments[n] is not None}
        if settings["gradient_accumulation_steps"] == 1:
            settings["gradient_accumulation_steps"] = None
        learning_rate_multiplier = layerwise(task.backbone, settings.pop("layer_decay"))
        if shares := task.learning_rate_shares():
            of_others = learning_rate_multiplier

            def learning_rate_multiplier(weight):
                other = 1.0 if of_others is None else of_others(weight)
                return shares.get(id(weight), other)

        settings |= {"undecayed_weights": undecayed_weights(task)}
        optimizer = fine_tuning_optimizer(
            1, task.learning_rate, learning_rate_multiplier=learning_rate_multiplier, **settings
        )
        optimizer.schedule.hold_peak()  # until a `fit`
        scales = task.dtype_policy.name == "mixed_float16" and self.options.get(
            "auto_scale_loss", True
        )
        if scales and optimizer.gradient_accumulation_steps:
            optimizer = AccumulatingLossScaleOptimizer(optimizer)
        self._compile(optimizer)
        self._traced_with = self._traced_state()

    def _traced_state(self) -> tuple:
        """Return the state that training graphs depend on, except the arguments of `compile`."""
        task, backbone = self._task, self._task.backbone
        trained = tuple(id(variable) for variable in task.trainable_variables)
        of_backbone = backbone._checkpoints_gradients, backbone.layers_version
        return trained, *of_backbone, task.traced_settings

    def _is_as_traced(self) -> bool:
        return self._task.compiled and self._traced_with == self._traced_state()

    def restart_schedule(self, total_batches: int) -> None:
        """Begin the schedule of a `fit`, if the optimizer is the recipe's.

        Args:
            total_batches: of all epochs.
        """
        if total_batches:
            self._train_new_pooler()
            self._warn_random_weights()
        task = self._task
        with task.distribution.scope():
            if self.makes_optimizer:
                if not self._is_as_traced():
                    self._compile_anew()
                restart_optimizer(task.optimizer, task.learning_rate, total_batches)
            # Variables that appear in a trace have TensorFlow trace a second time.
            if not task.optimizer.built:
                task.optimizer.build(task.trainable_variables)

    def check_trains(self, total_batches: int, callbacks: list) -> None:
        """Raise a ValueError if a `fit` would change no weight.

        Args:
            total_batches: of all epochs.
            callbacks: of the user; one that sets the learning rate is trusted.

        Raises:
            ValueError: If no weight would change: all are frozen, the learning rate is 0 in all
                steps, or there are fewer batches than `gradient_accumulation_steps`.
        """
        task = self._task
        if not total_batches:
            return
        if not task.trainable_variables:
            raise ValueError(
                f"All weights of this {type(task).__name__} are frozen. Set `trainable = True` of "
                "the model, or of the layers that are to learn."
            )
        optimizer = inner_optimizer(task.optimizer)
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

    def report_still(self, total_batches: int) -> None:
        """Log that a `fit` has trained nothing: in float16 it has made no step, or all gradients
        were 0.

        Args:
            total_batches: of all epochs.
        """
        optimizer = inner_optimizer(self._task.optimizer)
        if not self.makes_optimizer:
            return
        if not int(keras.ops.convert_to_numpy(optimizer.iterations)):
            if optimizer is not self._task.optimizer and total_batches:
                logger.warning(
                    "This `fit` has made no step: in float16 the gradients of all %d batches "
                    "overflowed, and each of them halves the scale of the loss. Train for more "
                    "steps, or in mixed_bfloat16.",
                    total_batches,
                )
            return
        # Of the mean squares of the gradients; the head's, at the end, are other than 0 first.
        squares = (optimizer.moments_of(v)[1] for v in reversed(self._task.trainable_variables))
        if not any(bool(keras.ops.any(square != 0)) for square in squares):
            logger.warning(
                "All gradients of this `fit` were 0: it has learned nothing. Are all sample "
                "weights 0, are no tokens labelled, or is the loss 0 already?"
            )

    def hold_rate(self) -> None:
        """Hold the peak of the learning rate for steps outside of `fit`, unless one is set."""
        if self.makes_optimizer:
            inner_optimizer(self._task.optimizer).schedule.hold_peak()

    def weigh_batch(self, size) -> None:
        """Have an accumulated step weigh the batch as the large batch does.

        Of a sum of several losses one decides, the last of a batch for which this is called: their
        gradients are one.

        Args:
            size: of the loss, see `BatchLoss`; None is a sum, as the loss of the large batch is.
        """
        optimizer = inner_optimizer(self._task.optimizer)
        if self.makes_optimizer and optimizer.gradient_accumulation_steps:
            optimizer.weigh_batch(*((1.0, 0.0) if size is None else (size, size)))

    def _warn_random_weights(self) -> None:
        """Log that random weights learn little at a rate for pretrained ones."""
        rate = self._task.learning_rate
        is_default = self.makes_optimizer and rate == self._task.default_learning_rate
        if is_default and rate <= FINE_TUNING_RATE and self._task.backbone.has_random_weights:
            logger.warning(
                "The encoder has random weights and no pretraining. The default learning rate of "
                "%g is for pretrained ones and may learn nothing: pass "
                "compile(learning_rate=1e-3), or load the encoder with from_preset.",
                rate,
            )

    def _train_new_pooler(self) -> None:
        """Note that a new pooler will be trained, or log that it is frozen."""
        backbone = self._task.backbone
        if not backbone.pooler_is_new:
            return
        backbone.pooler_is_new = not any(v.trainable for v in backbone.pooler_dense.variables)
        if backbone.pooler_is_new:
            logger.warning(
                "The pooler is frozen with random weights, as the checkpoint has none for it. "
                "backbone.pooler_dense.trainable = True trains it."
            )

    def get_config(self, config: dict | None) -> dict | None:
        """Return Keras's compile config with the recipe and the task's loss by name, without the
        schedule's state."""
        if config:
            config["frozen_layers"] = self.arguments["frozen_layers"]
            loss = self.arguments["loss"]  # the task's own may have weights of the task
            if not is_auto(loss):
                loss = keras.saving.serialize_keras_object(self._task.loss)
            config |= {"loss": loss, "loss_weights": self.options.get("loss_weights")}
        if config and self.makes_optimizer:
            config |= {"optimizer": "auto", "learning_rate": self._task.learning_rate}
            config |= {name: self.arguments[name] for name in RECIPE}
        return config


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
    """Return whether a callback may set the learning rate."""
    rates = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    return isinstance(callback, rates) or not type(callback).__module__.startswith(
        ("keras.", "encoder_zoo.")
    )


def build_metrics(task: TextModel, dataset: tf.data.Dataset) -> None:
    """Make the variables of loss and metrics before the first trace.

    Args:
        task: compiled.
        dataset: of prepared batches; nothing is done for arrays.
    """
    if keras.config.backend() != "tensorflow" or task.distribution.strategy:
        return  # Keras does it
    if not isinstance(dataset, tf.data.Dataset) or all(p.built for p in compiled_parts(task)):
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
