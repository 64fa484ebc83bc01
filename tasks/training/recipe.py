"""The training recipe from `compile`: optimizer, learning rates, frozen layers and metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.keras_private import weigh_next_value
from encoder_zoo.common.layers import get_frozen_kernel, list_layers
from encoder_zoo.common.lazy import tf, xp
from encoder_zoo.common.wording import invalid, quote
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.training import find_low_rank_updates
from encoder_zoo.tasks.training import optimizers
from encoder_zoo.tasks.training.metrics import ExactMetric

if TYPE_CHECKING:
    from encoder_zoo.tasks.training.data import Source

logger = logging.getLogger("encoder_zoo")

# Arguments of `compile` for the "auto" optimizer, in addition to the learning rate.
RECIPE = ("gradient_accumulation_steps", "weight_decay", "warmup", "layer_decay")
FINE_TUNING_RATE = 1e-4  # highest common learning rate for pretrained weights
# Keras callbacks that do not change the learning rate.
KEEPS_LEARNING_RATE = {
    *(value for value in vars(keras.callbacks).values() if isinstance(value, type))
} - {keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau}
# Default arguments of `compile`.
COMPILE_DEFAULTS = {
    "optimizer": "auto",
    "loss": "auto",
    "weighted_metrics": "auto",
    "jit_compile": "auto",
}


@dataclass(frozen=True)
class Recipe:
    """Stores the `compile` arguments, and creates the "auto" optimizer from them.

    Args:
        arguments: Mapping from names of `compile` arguments to their values, except for the
            learning rate and the arguments in `options`.
        options: Mapping from names to values for the `compile` arguments that work as in Keras,
            such as `run_eagerly`. Arguments that were never passed are missing.

    Example:
        >>> unset = dict.fromkeys(("optimizer", "learning_rate", *RECIPE))
        >>> recipe = Recipe().update({**unset, "warmup": 0.2}, {"run_eagerly": None})
        >>> recipe.makes_optimizer, recipe.arguments["warmup"], recipe.options
        (True, 0.2, {})
    """

    arguments: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def makes_optimizer(self) -> bool:
        """Return whether the optimizer is "auto"."""
        return is_auto(self.arguments.get("optimizer"))

    @property
    def loss_weight(self) -> float:
        """Return the weight of the loss."""
        return _get_single_weight(self.options.get("loss_weights"))

    def update(self, arguments: Mapping, options: Mapping) -> Recipe:
        """Create the recipe for another call to `compile`. Arguments that are None do not change.

        Raises:
            ValueError: If a setting of the "auto" optimizer is passed together with another
                optimizer, or if `loss_weights` has several values.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        if is_auto(given.get("metrics")):  # the metrics of the task
            given["metrics"] = None
        completed = {**dict.fromkeys(arguments), **COMPILE_DEFAULTS, **self.arguments, **given}
        del completed["learning_rate"]  # a task attribute
        if not is_auto(completed["optimizer"]):
            for name in ("learning_rate", *RECIPE):
                if arguments[name] is not None:
                    raise ValueError(
                        f'{name} is {quote(arguments[name])}, but it requires the "auto" '
                        f"optimizer. Set `{name}` in your optimizer, or pass optimizer='auto'."
                    )
            completed |= dict.fromkeys(RECIPE)
        options = {name: value for name, value in options.items() if value is not None}
        recipe = Recipe(completed, {**self.options, **options})
        _get_single_weight(recipe.options.get("loss_weights"))
        return recipe

    def jit_compile(self, recurrent_layer: str | None, has_fixed_shapes: bool):
        """Return the value of `jit_compile` to pass to Keras.

        Args:
            recurrent_layer: Optional string. Name of a recurrent part of the model, such as "a
                CRF". On TensorFlow, XLA cannot compile its training.
            has_fixed_shapes: Boolean. Whether all batches have the same shape. In this case, XLA
                only compiles a single program.

        Raises:
            ValueError: If `jit_compile` is True and XLA cannot compile the model.
        """
        given = self.arguments["jit_compile"]
        if keras.config.backend() != "tensorflow":
            return given
        if is_auto(given):
            accelerators = map(tf.config.list_logical_devices, ("GPU", "TPU"))
            return has_fixed_shapes and not recurrent_layer and any(accelerators)
        if given and recurrent_layer:
            raise ValueError(
                f"jit_compile is {given}, but XLA cannot compile the training of "
                f"{recurrent_layer} on TensorFlow. Pass jit_compile=False."
            )
        return given

    def make_optimizer(
        self,
        backbone: Backbone,
        learning_rate: float,
        defaults: Mapping[str, float],
        learning_rate_shares: Mapping[int, float],
        undecayed_weights: Sequence[keras.Variable],
        scales_loss: bool,
    ) -> keras.optimizers.Optimizer:
        """Create the "auto" optimizer, which uses the peak learning rate until `fit` is called.

        Args:
            backbone: Backbone. `layer_decay` applies to its layers.
            learning_rate: Float. Peak learning rate.
            defaults: Mapping from the names in `RECIPE` to values for arguments that are None.
            learning_rate_shares: Mapping from weight ids to multipliers of the learning rate.
            undecayed_weights: List of weights that are excluded from weight decay.
            scales_loss: Boolean. Whether gradients are computed in float16.
        """
        given = {name: self.arguments[name] for name in RECIPE if self.arguments[name] is not None}
        settings = {**defaults, **given}
        shares = make_layerwise_multipliers(backbone, settings.pop("layer_decay"))
        shares |= learning_rate_shares
        if settings.get("gradient_accumulation_steps") == 1:
            del settings["gradient_accumulation_steps"]
        optimizer = optimizers.make_fine_tuning_optimizer(
            1,
            learning_rate,
            learning_rate_multiplier=(lambda weight: shares.get(id(weight), 1.0))
            if shares
            else None,
            undecayed_weights=undecayed_weights,
            **settings,
        )
        optimizer.schedule.hold_peak()
        scales = scales_loss and self.options.get("auto_scale_loss", True)
        accumulates = scales and optimizer.gradient_accumulation_steps
        return optimizers.AccumulatingLossScaleOptimizer(optimizer) if accumulates else optimizer

    def warn_if_default_rate(self, optimizer, default_rate: float) -> None:
        """Log a warning if the optimizer is a string, because Keras sets its learning rate.

        There is no warning for "sgd".
        """
        name, optimizer = self.arguments["optimizer"], optimizers.get_inner_optimizer(optimizer)
        if self.makes_optimizer or not isinstance(name, str):
            return
        if isinstance(optimizer, keras.optimizers.SGD):
            return
        logger.warning(
            "optimizer=%r uses the default learning rate of Keras, %g. The default of this model "
            "is %g. Pass keras.optimizers.%s(%g), or compile(optimizer='auto', learning_rate=...).",
            name,
            float(optimizer.learning_rate),
            default_rate,
            type(optimizer).__name__,
            default_rate,
        )

    def check_weights_change(self, optimizer, total_batches: int, callbacks: list) -> None:
        """Raise a ValueError if a call to `fit` would not change any weight.

        Args:
            optimizer: The model's optimizer.
            total_batches: Integer. Number of batches in all epochs.
            callbacks: List of callbacks. If a callback may set the learning rate, the learning rate
                is not checked.

        Raises:
            ValueError: If the learning rate is 0 in all steps, or if there are fewer batches than
                `gradient_accumulation_steps`.
        """
        optimizer = optimizers.get_inner_optimizer(optimizer)
        accumulated = optimizer.gradient_accumulation_steps or 1
        if total_batches < accumulated:
            raise invalid(
                "gradient_accumulation_steps",
                accumulated,
                f"at most {total_batches}, the number of batches in this call to `fit`",
            )
        if self.makes_optimizer or any(
            getattr(callback, "sets_learning_rate", type(callback) not in KEEPS_LEARNING_RATE)
            for callback in callbacks
        ):
            return
        first = int(keras.ops.convert_to_numpy(optimizer.iterations))
        steps = range(first, first + total_batches)
        if not any(compute_learning_rate(optimizer, step) for step in steps):
            raise ValueError(
                f"The learning rate is 0 in all {len(steps)} steps of this training, which starts "
                f"at step {first}. Compile with a different learning rate or schedule, or with "
                "optimizer='auto', which uses a new schedule for each call to `fit`."
            )

    def warn_if_weights_unchanged(
        self, optimizer, weights: Sequence[keras.Variable], total_batches: int
    ) -> None:
        """Log a warning if `fit` with the "auto" optimizer did not change the weights.

        The weights do not change if all gradients are 0, or if all gradients overflow in float16.

        Args:
            optimizer: The model's optimizer.
            weights: List of trainable weights.
            total_batches: Integer. Number of batches in all epochs.
        """
        if not self.makes_optimizer:
            return
        inner = optimizers.get_inner_optimizer(optimizer)
        if not int(keras.ops.convert_to_numpy(inner.iterations)):
            if inner is not optimizer and total_batches:
                logger.warning(
                    "The weights have not changed, because the gradients of all %d batches "
                    "overflowed in float16. Each overflow halves the loss scale. Train for more "
                    "steps, or use mixed_bfloat16.",
                    total_batches,
                )
            return
        # The optimizer stores the running means of the squared gradients. The head is checked
        # first, because its gradients are usually not 0.
        states = (inner.states[id(variable)] for variable in reversed(weights))
        if not any(bool(keras.ops.any(state.second != 0)) for state in states):
            logger.warning(
                "The weights have not changed, because all gradients were 0. Check that some "
                "sample weights are not 0, that some tokens have labels, and that the loss is not "
                "0."
            )

    def hold_rate(self, optimizer) -> None:
        """Use the peak learning rate for steps outside `fit`, unless another rate is set."""
        if self.makes_optimizer:
            optimizers.get_inner_optimizer(optimizer).schedule.hold_peak()

    def set_rate(self, optimizer, rate: float) -> None:
        """Set the learning rate of the "auto" optimizer for steps outside `fit`."""
        optimizers.get_inner_optimizer(optimizer).schedule.hold(rate)

    def weigh_batch(self, optimizer, size) -> None:
        """Set the weight of a batch in an accumulated step.

        With this weight, the gradient of the step is equal to the gradient of one large batch. If
        this method is called for each of several losses, the last call sets the weight.

        Args:
            optimizer: The model's optimizer.
            size: Optional scalar tensor. The loss was divided by this value (see `BatchLoss`). None
                if the loss is a sum.
        """
        optimizer = optimizers.get_inner_optimizer(optimizer)
        if self.makes_optimizer and optimizer.gradient_accumulation_steps:
            optimizer.weigh_batch(*((1.0, 0.0) if size is None else (size, size)))

    def to_config(self, config: dict, loss, learning_rate: float) -> dict:
        """Add the recipe to the compile config of Keras, and remove the state of the schedule.

        Args:
            config: Dict. Compile config from Keras.
            loss: The task's loss.
            learning_rate: Float. Peak learning rate.
        """
        given = self.arguments
        # The task loss is stored as "auto" because it may contain task weights.
        kept = "auto" if is_auto(given["loss"]) else keras.saving.serialize_keras_object(loss)
        own = {"loss": kept, "jit_compile": given["jit_compile"]}
        # Keras does not store all arguments.
        own |= {name: self.options.get(name) for name in ("loss_weights", "auto_scale_loss")}
        if is_auto(given["weighted_metrics"]):  # "auto" depends on the task and on `metrics`
            kinds = [] if given["metrics"] is None else ["metrics", "weighted_metrics"]
            metrics = next((config[kind] for kind in kinds if config[kind] is not None), None)
            own |= {"metrics": metrics, "weighted_metrics": "auto"}
        if self.makes_optimizer:
            own |= {"optimizer": "auto", "learning_rate": learning_rate}
            own |= {name: given[name] for name in RECIPE}
        return {**config, **own, "frozen_layers": given["frozen_layers"]}


def make_layerwise_multipliers(backbone: Backbone, decay: float) -> dict[int, float]:
    """Create the learning rate multipliers for layer-wise decay.

    The multiplier of the head is 1. It is multiplied by `decay` for the last block of the backbone,
    and again for each earlier block and for the embeddings.

    Args:
        backbone: The task's backbone.
        decay: Float. Learning rate of a layer, divided by the learning rate of the layer above it.

    Returns:
        Dict mapping the ids of the weights in the backbone layers to multipliers. The dict is empty
        if all multipliers are 1.

    Source: Howard and Ruder 2018, Universal Language Model Fine-tuning, section 3.2, and Clark et
    al. 2020, ELECTRA, appendix B.

    Example:
        >>> from encoder_zoo import ElectraBackbone
        >>> backbone = ElectraBackbone(30, num_layers=2, num_heads=1, hidden_dim=4,
        ...                            intermediate_dim=4)
        >>> shares = make_layerwise_multipliers(backbone, 0.8)
        >>> layers = [*backbone.blocks, backbone.embeddings]
        >>> [round(shares[id(layer.weights[0])], 3) for layer in layers]
        [0.64, 0.8, 0.512]
    """
    if decay == 1:
        return {}
    layers = [backbone.embeddings, *backbone.blocks]
    return {
        id(weight): decay ** (len(layers) - i)
        for i, layer in enumerate(layers)
        for weight in layer.weights
    }


class FrozenLayers:
    """Freezes and unfreezes backbone layers for `compile(frozen_layers=...)`.

    Layers that the user has frozen stay frozen.

    Source: Lee, Tang and Lin 2019, What Would Elsa Do? Freezing Layers During Transformer
    Fine-Tuning.

    Example:
        >>> from encoder_zoo import BertBackbone
        >>> backbone = BertBackbone(30, num_layers=3, num_heads=1, hidden_dim=4,
        ...                         intermediate_dim=4)
        >>> backbone.blocks[2].trainable = False
        >>> frozen = FrozenLayers()
        >>> for count in (2, 1, 0):
        ...     frozen.freeze(backbone, count)
        ...     print([layer.trainable for layer in (backbone.embeddings, *backbone.blocks)])
        [False, False, False, False]
        [False, False, True, False]
        [True, True, True, False]
    """

    def __init__(self):
        # {layer id: (layer, list with its parts and weights with their original `trainable`)}
        self._before = {}

    def freeze(self, backbone: Backbone, count: int) -> None:
        """Freeze the embeddings and the first blocks. Unfreeze the blocks after them.

        Only layers that were frozen by an earlier call are unfrozen.

        Args:
            backbone: Backbone. The same backbone must be passed in all calls.
            count: Integer. Number of blocks to freeze. If 0, the embeddings are also unfrozen.

        Raises:
            ValueError: If the backbone has fewer than `count` blocks, or if a block shares weights
                with a later block that is not frozen.
        """
        blocks = backbone.blocks
        if count > len(blocks):
            raise invalid(
                "frozen_layers", count, f"an integer from 0 to {len(blocks)}, the number of blocks"
            )
        if not {id(block) for block in blocks[:count]}.isdisjoint(map(id, blocks[count:])):
            raise ValueError(
                f"frozen_layers is {count}, but block {count} or a later block shares weights "
                "with a frozen block. Freeze all blocks that share these weights, or none of them."
            )
        lower = [backbone.embeddings, *blocks[:count]] if count else []
        for layer, parts in list(self._before.values()):
            if layer not in lower:
                del self._before[id(layer)]
                if backbone.trainable and not layer.trainable:  # not changed by the user since then
                    for part, was_trained in parts:
                        part.trainable = was_trained
        for layer in lower:
            if id(layer) not in self._before or layer.trainable:
                parts = _list_parts(layer)
                self._before[id(layer)] = layer, [(part, part.trainable) for part in parts]
                for part in parts:
                    part.trainable = False

    def get_state(self, backbone: Backbone) -> list:
        """Return the frozen layers as plain data, which is stored in the compile config.

        Returns:
            List with `[layer index, part indices]` for each layer that was frozen by `freeze`. The
            indexed parts are inner layers and weights that were already frozen before.
        """
        found = []
        if not self._before:  # some models, such as static embeddings, have no blocks
            return found
        for i, layer in enumerate([backbone.embeddings, *backbone.blocks]):
            if id(layer) in self._before:
                before = {id(part): trained for part, trained in self._before[id(layer)][1]}
                trained = [before.get(id(p), p.trainable) for p in _list_parts(layer)]
                found.append([i, [j for j, is_trained in enumerate(trained) if not is_trained]])
        return found

    def restore(self, backbone: Backbone, state: list) -> None:
        """Apply a state from `get_state` to a copy of the backbone."""
        if not state:
            return
        layers = [backbone.embeddings, *backbone.blocks]
        for i, untrained in state:
            parts = [(part, j not in untrained) for j, part in enumerate(_list_parts(layers[i]))]
            self._before[id(layers[i])] = layers[i], parts


def _list_parts(layer: keras.layers.Layer) -> list:
    """List a layer, its inner layers and its weights, in the order in which to set `trainable`."""
    return [*list_layers(layer), *layer.weights]


def warn_if_rate_too_low(learning_rate: float) -> None:
    """Log a warning if the learning rate is too low for randomly initialized weights."""
    if learning_rate <= FINE_TUNING_RATE:
        logger.warning(
            "The encoder has random weights, but the default learning rate of %g is meant for "
            "pretrained weights and may be too low. Pass compile(learning_rate=1e-3), or load a "
            "pretrained encoder with from_preset.",
            learning_rate,
        )


def train_new_pooler(backbone: Backbone) -> None:
    """Mark a new pooler as trained. If the pooler is frozen, log a warning instead."""
    if not backbone.pooler_is_new:
        return
    backbone.pooler_is_new = not any(v.trainable for v in backbone.pooler_dense.variables)
    if backbone.pooler_is_new:
        logger.warning(
            "The pooler is frozen, but has random weights because the checkpoint has no pooler. "
            "Set backbone.pooler_dense.trainable = True to train it."
        )


def warn_if_kernels_trained(backbone: Backbone) -> None:
    """Log a warning if layers with low-rank updates also train their original weights.

    This happens if `trainable` was set to True after `enable_lora`.
    """
    kernels = [get_frozen_kernel(layer) for layer in find_low_rank_updates(backbone)]
    trained = sum(kernel.trainable for kernel in kernels)
    if trained:
        logger.warning(
            "%d of %d layers with low-rank updates also train their original weights, because "
            "`trainable` was set to True. To only train the updates, call enable_lora again with "
            "the same arguments.",
            trained,
            len(kernels),
        )


def check_weights(sample_weight, class_weights: list | None) -> None:
    """Raise a ValueError if all sample weights or all class weights are 0.

    Args:
        sample_weight: Optional array of sample weights.
        class_weights: Optional list with one weight per class.

    Example:
        >>> check_weights([0.0, 0.0], None)
        Traceback (most recent call last):
        ValueError: sample_weight is 0 for all examples. Expected at least one weight above 0.
    """
    for name, weights, of_what in (
        ("sample_weight", sample_weight, "examples"),
        ("class_weight", class_weights, "classes"),
    ):
        if weights is not None and not np.any(np.asarray(weights)):
            raise ValueError(
                f"{name} is 0 for all {of_what}. Expected at least one weight above 0."
            )


def _get_single_weight(loss_weights) -> float:
    """Return the weight of the single loss of a task.

    Example:
        >>> _get_single_weight([0.5])
        0.5
    """
    weights = keras.tree.flatten(loss_weights)
    if loss_weights is None:
        return 1.0
    if len(weights) != 1 or not isinstance(weights[0], int | float):
        raise invalid("loss_weights", loss_weights, "a single number for the task's loss")
    return float(weights[0])


class CompiledMetrics:
    """Holds the metrics of a compiled task, and the containers that Keras creates for them.

    Args:
        metrics: Argument `metrics` of `keras.Model.compile`.
        weighted_metrics: Argument `weighted_metrics` of `keras.Model.compile`.
        of_keras: List of metrics. The attribute `metrics` of the compiled task.

    Attributes:
        given: List of all metrics that were passed, as objects or names.
        exact: List of the metrics that store examples.
    """

    def __init__(self, metrics=None, weighted_metrics=None, of_keras: Sequence = ()):
        unweighted, weighted = (
            [metric for metric in keras.tree.flatten(given) if metric is not None]
            for given in (metrics, weighted_metrics)
        )
        self.given, self._unweighted = [*unweighted, *weighted], len(unweighted)
        self.exact = [metric for metric in self.given if isinstance(metric, ExactMetric)]
        named = {metric.name: metric for metric in reversed(of_keras)}
        self._loss, self._all = named.get("loss"), named.get("compile_metrics")

    def reserve_examples(self, data: Source) -> bool:
        """Reserve memory for all examples in the metrics that store examples.

        Returns:
            Boolean. Whether variables were replaced, so that graphs with these metrics are invalid.
        """
        if not self.exact:
            return False
        count = (data.plan.steps_per_epoch or 0) * data.plan.batch_size
        count = max(count, data.count_examples())
        replaced = [metric.reserve(count) for metric in self.exact]
        return any(replaced)

    def store_transitions(self, task: keras.Model) -> None:
        """Update metrics that depend on the weights or settings of the task, such as `EntityF1`."""
        for metric in self.given:
            if hasattr(metric, "store_transitions"):
                metric.store_transitions(task)

    def store_marks(self, x: Mapping) -> None:
        """Pass the inputs of a batch to metrics that need them, such as `EntityF1`."""
        for metric in self.given:
            if hasattr(metric, "store_marks"):
                metric.store_marks(x)

    def weigh_next_loss(self, size) -> None:
        """Set the weight of the next batch in the mean loss of the epoch.

        Keras would use the number of rows, including rows that only pad the batch. A mean over
        tokens would then depend on how the examples are divided into batches.

        Args:
            size: Optional scalar tensor. The loss of the batch was divided by this value. If None,
                the weight from Keras is used.
        """
        if self._loss is not None:
            weigh_next_value(self._loss, size)

    def update(self, y, y_pred, sample_weight, real) -> None:
        """Update all metrics. Rows that only pad the batch are ignored.

        Args:
            y: Tensor. Labels.
            y_pred: Tensor of shape (B, ...), or (B * M, C) with M tokens in each row. Outputs.
            sample_weight: Optional tensor of shape (B, ...) or (B * M,).
            real: Boolean tensor of shape (B,). False for rows that only pad the batch.
        """
        if self._all is None:
            return
        if not self._all.built:
            self._all.build(y, y_pred)
        weights = [_mask_padding(real, y_pred, given) for given in (None, sample_weight)]
        for i, metric in enumerate(self._all.metrics):
            metric.update_state(y, y_pred, weights[i >= self._unweighted])

    def are_built(self) -> bool:
        """Return whether all metrics have created their variables."""
        return self._all is None or self._all.built


def _mask_padding(real, y_pred, sample_weight):
    """Return sample weights that are 0 for rows that only pad the batch."""
    y_pred = ops.convert_to_tensor(y_pred)
    real = ops.cast(real, "float32")
    rows, count = ops.shape(real)[0], ops.shape(y_pred)[0]
    real = ops.reshape(ops.broadcast_to(real[:, None], (rows, count // rows)), (-1,))
    rank = len(y_pred.shape) - 1 if sample_weight is None else len(sample_weight.shape)
    real = ops.reshape(real, (-1, *[1] * (rank - 1)))
    return real if sample_weight is None else real * ops.cast(sample_weight, "float32")


def compute_learning_rate(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """Compute the learning rate at a given step.

    Example:
        >>> schedule = keras.optimizers.schedules.PolynomialDecay(0.5, 10, 0.0)
        >>> compute_learning_rate(keras.optimizers.SGD(schedule), 5)
        0.25
    """
    count = optimizer.variables[0]  # number of batches
    value = keras.ops.convert_to_tensor(step, count.dtype)
    with keras.StatelessScope(state_mapping=[(count, value)]):
        return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def build_metrics(task, dataset: tf.data.Dataset) -> None:
    """Create the variables of the loss and the metrics before the first trace on TensorFlow.

    Args:
        task: Compiled `TextModel`.
        dataset: Dataset of preprocessed batches. If it is not a `tf.data.Dataset`, nothing is
            created.
    """
    if keras.config.backend() != "tensorflow" or task.distribution.strategy:
        return  # Keras creates these variables
    if not isinstance(dataset, tf.data.Dataset) or task.task_metrics.are_built():
        return
    x, y, weight = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
    symbols = keras.tree.map_structure(lambda s: keras.KerasTensor(s.shape, s.dtype.name), x)
    y_pred = task(symbols)  # forgets the losses that layers added in the graph of `predict`
    if isinstance(y, tf.TensorSpec) and len(y.shape) == len(getattr(y_pred, "shape", ())):
        # The sizes in streams are unknown. If labels and outputs have the same rank, the labels get
        # the sizes of the outputs.
        sizes = [own or size for own, size in zip(y.shape, y_pred.shape, strict=True)]
        y = tf.TensorSpec(sizes, y.dtype)
    x, y, y_pred, weight = xp.nest.map_structure(_make_smallest, (x, y, y_pred, weight))
    task.compute_loss(x, y, y_pred, weight, training=False)
    task.compute_metrics(x, y, y_pred, weight)
    task.reset_metrics()


def _make_smallest(spec) -> xp.Tensor | None:
    """Create a tensor of zeros for a spec.

    Unknown sizes are replaced by 2, because Keras drops axes of size 1. The number of examples is
    also replaced by 2, because it may be fixed for the labels but not for the outputs.
    """
    if spec is None:
        return None
    sizes = [size or 2 for size in spec.shape]
    return xp.zeros([2, *sizes[1:]] if sizes else [], spec.dtype)


def is_auto(argument) -> bool:
    """Return whether an argument of `compile` is "auto"."""
    return isinstance(argument, str) and argument == "auto"
