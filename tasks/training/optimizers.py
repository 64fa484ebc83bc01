"""AdamW with a linear learning rate schedule, and the fused kernels in TensorFlow and PyTorch."""

from __future__ import annotations

import itertools
import re
import types
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.keras_private import list_optimized_weights
from encoder_zoo.common.lazy import tf
from encoder_zoo.encoders.family import LEARNING_RATE, WEIGHT_DECAY

# From Devlin et al. 2019, appendix A.3, and the code for this paper.
WARMUP = 0.1
NO_HELD_RATE = -1.0  # stored instead of a held learning rate if the rate follows the schedule
# At this step, the bias corrections in the kernel are 1. Instead, they are part of the learning
# rate.
LATE = 1e9
# This value is the default of PyTorch and of most fine-tuning code. Gradients of single weights are
# small, and Keras does not correct epsilon in the first steps as the paper does. With 1e-6, short
# trainings have slightly worse results.
EPSILON = 1e-8


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Increase the learning rate linearly to the peak, then decrease it linearly to 0.

    No step has a learning rate of 0. With W warmup steps, the first step uses 1 / W of the peak.

    Args:
        peak: Float. Peak learning rate.
        total_steps: Integer. Number of steps. The learning rate will be 0 afterwards.
        warmup: Float between 0 and 1. Fraction of all steps to use for the warmup. Defaults to 0.1.
        batches_per_step: Integer. Number of batches per step with gradient accumulation. The
            schedule needs this number, because Keras calls it with the number of batches. Defaults
            to 1.

    Source: Devlin et al. 2019, appendix A.2. The warmup in their code starts with a learning rate
    of 0.

    Example:
        >>> schedule = LinearWarmupDecay(1.0, total_steps=100, warmup=0.1)
        >>> [round(float(schedule(step)), 2) for step in (0, 4, 9, 10, 55, 99, 100)]
        [0.1, 0.5, 1.0, 1.0, 0.5, 0.01, 0.0]
    """

    def __init__(
        self, peak: float, total_steps: int, warmup: float = WARMUP, batches_per_step: int = 1
    ):
        self.warmup = warmup
        self.batches_per_step = batches_per_step
        # Peak, warmup steps, decay steps and the held rate. They are stored in a variable, so that
        # every run can use the same graph.
        self.numbers = keras.Variable(
            [0.0, 1.0, 1.0, NO_HELD_RATE], trainable=False, name="schedule"
        )
        self.restart(peak, total_steps)

    def restart(self, peak: float, total_steps: int) -> None:
        """Reset the schedule for a new training run."""
        self.peak = peak
        self.total_steps = total_steps
        up = max(1, int(total_steps * self.warmup)) if self.warmup else 0
        self.numbers.assign([peak, up, max(1, total_steps - up), NO_HELD_RATE])

    def hold(self, rate: float) -> None:
        """Use a constant learning rate until `restart` is called."""
        self.numbers.assign([*ops.convert_to_numpy(self.numbers)[:3], rate])

    def hold_peak(self) -> None:
        """Use the peak learning rate until `restart` is called, unless another rate is held.

        This method is for training steps outside `fit`, when the number of steps is unknown.
        """
        if ops.convert_to_numpy(self.numbers)[3] == NO_HELD_RATE:
            self.hold(self.peak)

    def __call__(self, step):
        step = ops.cast(step // self.batches_per_step, "float32")
        peak, up, down, held = ops.unstack(ops.convert_to_tensor(self.numbers))
        rising = ops.where(up > 0, (step + 1) / ops.maximum(up, 1.0), 1.0)
        share = ops.minimum(rising, (up + down - step) / down)
        return ops.where(held == NO_HELD_RATE, peak * ops.maximum(share, 0.0), held)

    def get_config(self) -> dict:
        names = ("peak", "total_steps", "warmup", "batches_per_step")
        return {name: getattr(self, name) for name in names}


class WeightState(NamedTuple):
    """Optimizer state of a single weight.

    Attributes:
        share: Float. Learning rate multiplier.
        decays: Boolean. Whether to apply weight decay.
        first: Variable. Running mean of gradients.
        second: Variable. Running mean of squared gradients.
        sum: Optional variable. Sum of the gradients in the current accumulated step.
    """

    share: float
    decays: bool
    first: keras.Variable
    second: keras.Variable
    sum: keras.Variable | None


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ScheduledAdamW(keras.optimizers.AdamW):
    """AdamW with a schedule stored in variables, so that `restart` can begin a new run.

    `apply` replaces the Keras method. It calls `update_all` to clip the gradients, and to decay and
    update the weights.

    With `gradient_accumulation_steps`, a step's gradient equals the gradient of one large
    batch. `weigh_batch` sets the weight of each batch. The last batch in a run always completes a
    step. If the gradients of a batch are not finite (see `set_gradients_finite`), the batch is
    counted but not added to the step. If all batches in a step are excluded, the step is skipped
    and the schedule does not advance.

    Args:
        learning_rate: Float or learning rate schedule, as in `keras.optimizers.AdamW`.
        learning_rate_multiplier: Optional function from a weight to its learning rate multiplier,
            for example for layer-wise decay. If None, all multipliers are 1.
        **kwargs: Keyword arguments for `keras.optimizers.AdamW`: `beta_1`, `beta_2`, `epsilon`,
            `weight_decay`, `global_clipnorm` and `gradient_accumulation_steps`.

    Attributes:
        schedule: Learning rate or schedule that was passed. `learning_rate` is the value for the
            current step.
        batches: Variable. Number of batches. `iterations` is the number of accumulated steps.
        states: Dict mapping weight ids to `WeightState`.

    Example:
        >>> optimizer = ScheduledAdamW(LinearWarmupDecay(1.0, total_steps=100))
        >>> optimizer.build([keras.Variable([1.0])])
        >>> optimizer.apply([ops.array([3.0])])
        >>> optimizer.restart(0.5, total_steps=20)
        >>> int(optimizer.iterations), float(optimizer.learning_rate)
        (0, 0.25)
    """

    def __init__(
        self,
        learning_rate,
        learning_rate_multiplier: Callable[[keras.Variable], float] | None = None,
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        self.schedule = learning_rate
        self.learning_rate_multiplier = learning_rate_multiplier
        self._undecayed = types.SimpleNamespace(ids=set(), names=None)
        self._kept = types.SimpleNamespace(weights=[], states={})  # hidden from Keras tracking
        self._total_batches = 0
        self.weigh_batch()
        self.set_gradients_finite(True)
        if isinstance(self.schedule, LinearWarmupDecay):
            self._numbers = self.schedule.numbers  # adds it to the optimizer variables

    @property
    def batches(self) -> keras.Variable:
        return self.variables[0]

    @property
    def states(self) -> dict[int, WeightState]:
        return self._kept.states

    @property
    def learning_rate(self):
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, rate) -> None:
        """Use a constant learning rate instead of the schedule, until `restart` is called.

        If the value is equal to the current learning rate, the schedule continues.
        """
        if not isinstance(self.schedule, LinearWarmupDecay):
            keras.optimizers.Optimizer.learning_rate.fset(self, rate)
            return
        rate, now = np.float32(rate), np.float32(ops.convert_to_numpy(self.learning_rate))
        if rate != now:
            self.schedule.hold(rate)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """Exclude variables, and weights with matching names, from weight decay.

        Args:
            var_list: Optional list of variables.
            var_names: Optional list of regular expressions. Weights are excluded if a part of their
                name matches.
        """
        super().exclude_from_weight_decay(var_list, var_names)
        names = re.compile("|".join(var_names)) if var_names else None
        self._undecayed = types.SimpleNamespace(ids={*map(id, var_list or ())}, names=names)

    def build(self, variables):
        if self.built:
            return
        known = len(self.variables)
        super().build(variables)
        added = self.variables[known:]
        sums = added[: len(variables)] if self.gradient_accumulation_steps else []
        moments = added[len(sums) :]
        ids, names = self._undecayed.ids, self._undecayed.names
        states = {
            id(weight): WeightState(
                self.learning_rate_multiplier(weight) if self.learning_rate_multiplier else 1.0,
                id(weight) not in ids and not (names and names.search(weight.name)),
                *moments[2 * i : 2 * i + 2],
                sums[i] if sums else None,
            )
            for i, weight in enumerate(variables)
        }
        self._kept.weights, self._kept.states = list(variables), states
        if self.gradient_accumulation_steps:
            first = {"aggregation": "only_first_replica"}
            self._divisor = self.add_variable((), name="divisor", **first)
            self._done = self.add_variable((), dtype="int32", name="done_batches", **first)
            self._last_batch = self.add_variable((), dtype="int32", name="last_batch", **first)
            self._last_batch.assign(self._total_batches)

    def restart(self, peak: float, total_steps: int, total_batches: int = 0) -> None:
        """Reset the state and set the schedule for a new run. Graphs stay valid.

        Args:
            peak: Float. Peak learning rate.
            total_steps: Integer. Number of steps. The learning rate will be 0 afterwards.
            total_batches: Integer. Number of batches to use with gradient accumulation. The last
                batch always completes a step. Pass 0 when the number is unknown. Defaults to 0.
        """
        if self.built and int(ops.convert_to_numpy(self.batches)):
            for variable in self.variables:
                variable.assign(ops.zeros(variable.shape, variable.dtype))
        self.schedule.restart(peak, total_steps)
        self._total_batches = total_batches
        if self.built and self.gradient_accumulation_steps:
            self._done.assign(0)
            self._last_batch.assign(total_batches)

    # -- one step ------------------------------------------------------------------------------

    def weigh_batch(self, factor=1.0, size=1.0) -> None:
        """Set the weight of the next batch in an accumulated step.

        Args:
            factor: Scalar. The gradient is multiplied by this factor before it is added. Defaults
                to 1.0.
            size: Scalar. The sum of the gradients is divided by the sum of the sizes. Defaults to
                1.0.
        """
        self._factor, self._size = factor, size

    def set_gradients_finite(self, finite) -> None:
        """Set whether the next gradients are finite. Only finite gradients are accumulated."""
        self._finite = finite

    def mean_gradients(self, gradients: list, variables: list) -> list:
        """Add gradients to the sums of the current step, and return the mean gradients so far."""
        sums = [self.states[id(variable)].sum for variable in variables]
        factor, size = (ops.cast(number, "float32") for number in (self._factor, self._size))
        gradients = [g * ops.cast(factor, g.dtype) for g in gradients]
        if self._finite is not True:
            gradients = [ops.where(self._finite, g, ops.zeros_like(g)) for g in gradients]
            size = ops.where(self._finite, size, 0.0)
        for total, gradient in zip(sums, gradients, strict=True):
            self.assign(total, total.value + gradient)
        divisor = self._divisor.value + size
        self.assign(self._divisor, divisor)
        self.weigh_batch()
        divisor = ops.where(divisor > 0, divisor, 1.0)
        return [total.value / ops.cast(divisor, total.dtype) for total in sums]

    def is_step_complete(self):
        """Return whether the current batch completes a step to which any gradients were added."""
        added = self.batches.value % self.gradient_accumulation_steps
        added = added + ops.cast(self._finite, added.dtype)
        return ops.logical_and(self._is_step_end(), added > 0)

    def _is_step_end(self):
        """Return whether the current batch is the last batch in a step or in the run."""
        number = self._done.value + 1
        whole = number % self.gradient_accumulation_steps == 0
        return ops.logical_or(whole, number == self._last_batch.value)

    def end_batch(self, completed) -> None:
        """Update the counters after a batch. `apply` adds 1 to `batches` after this call.

        Args:
            completed: Boolean. Whether the batch completed a step.
        """
        self.assign(self._divisor, ops.where(completed, 0.0, self._divisor.value))
        batches, done, ends = self.batches.value, self._done.value, self._is_step_end()
        counted = batches - 1 + ops.cast(self._finite, batches.dtype)
        self.assign(self.batches, ops.where(completed, self._find_step_end(batches), counted))
        self.assign(self._done, ops.where(ends, self._find_step_end(done), done) + 1)

    def _find_step_end(self, count):
        """Return the index of the last batch in the current step."""
        steps = self.gradient_accumulation_steps
        return count - count % steps + (steps - 1)

    def apply(self, grads, trainable_variables=None):
        variables = list(trainable_variables or self._kept.weights)
        if not self.built:
            self.build(variables)
        pairs = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        if not pairs:
            raise ValueError(
                "The loss does not depend on any trainable weight. Check that the loss uses the "
                "outputs of the model."
            )
        if len(pairs) < len(variables):
            missing = [v.path for g, v in zip(grads, variables, strict=True) if g is None]
            warnings.warn(f"The loss does not depend on the weights {missing}.", stacklevel=2)
        self.update_all(*map(list, zip(*pairs, strict=True)))
        for _, variable in pairs:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.assign(self.batches, self.batches.value + 1)

    def update_all(self, gradients: list, variables: list) -> None:
        """Update the weights with clipped gradients and weight decay.

        With gradient accumulation, the gradients are added to the sums of the current step, and the
        weights only change if the batch completes the step.
        """
        if not self.gradient_accumulation_steps:
            self._step(gradients, variables)
            return
        means = self.mean_gradients(gradients, variables)
        completed = self.is_step_complete()
        states = [self.states[id(variable)] for variable in variables]
        changed = [*variables, *(m for state in states for m in (state.first, state.second))]
        before = [variable.value + 0 for variable in changed]
        self._step(means, variables)
        # JAX cannot assign variables in a branch, so the old values are restored instead.
        for variable, value in zip(changed, before, strict=True):
            variable.assign(ops.where(completed, variable.value, value))
        for total in (state.sum for state in states):
            total.assign(ops.where(completed, ops.zeros_like(total.value), total.value))
        self.end_batch(completed)

    def _step(self, gradients: list, variables: list) -> None:
        """Clip the gradients, and then decay and update the weights.

        The gradients have already been accumulated in `update_all`, if necessary.
        """
        if self.global_clipnorm:
            norm = ops.sqrt(ops.sum(ops.stack([ops.sum(ops.square(g)) for g in gradients])))
            share = self.global_clipnorm * ops.minimum(1.0 / norm, 1.0 / self.global_clipnorm)
            share += norm - norm  # NaN for an infinite norm
            gradients = [gradient * share for gradient in gradients]
        rate = self.learning_rate
        for gradient, variable in zip(gradients, variables, strict=True):
            state = self.states[id(variable)]
            if state.decays and self.weight_decay:
                decay = ops.cast(rate * self.weight_decay, variable.dtype)
                variable.assign(variable * (1 - decay * state.share))
            self.update_step(gradient, variable, rate * state.share)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class AccumulatingLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """`LossScaleOptimizer` for gradient accumulation, which also counts overflowing batches.

    By default, Keras does not pass overflowing batches to the inner optimizer. The accumulated
    steps would then be shifted, and the last batches in a run would not complete a step. The loss
    scale is updated as in Keras.

    Args:
        inner_optimizer: `ScheduledAdamW` with `gradient_accumulation_steps`.
        **kwargs: Keyword arguments for `keras.optimizers.LossScaleOptimizer`.

    Example:
        >>> inner = ScheduledAdamW(0.1, gradient_accumulation_steps=2)
        >>> optimizer = AccumulatingLossScaleOptimizer(inner)
        >>> optimizer.build([keras.Variable([1.0])])
        >>> for gradient in (np.inf, 3.0):
        ...     optimizer.apply([ops.array([gradient])])
        >>> int(optimizer.iterations), float(optimizer.dynamic_scale)
        (1, 16384.0)
    """

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        finite = self.check_finite(grads)
        scale, inner = self.dynamic_scale.value, self.inner_optimizer
        inner.set_gradients_finite(finite)
        inner.apply([g if g is None else ops.divide(g, scale) for g in grads], trainable_variables)
        inner.set_gradients_finite(True)
        # TensorFlow cannot sum over replicas in a branch.
        count = ops.where(finite, self.step_counter.value + 1, 0)
        grows = count == self.dynamic_growth_steps
        self.dynamic_scale.assign(scale * ops.where(finite, ops.where(grows, 2.0, 1.0), 0.5))
        self.step_counter.assign(ops.where(grows, 0, count))

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        apply = keras.optimizers.Optimizer.stateless_apply
        return apply(self, optimizer_variables, grads, trainable_variables)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class FusedAdamW(ScheduledAdamW):
    """AdamW with TensorFlow's fused kernel, which reads and writes each weight once.

    This class can only be used on the TensorFlow backend. It takes the same arguments as
    `ScheduledAdamW`, except that `global_clipnorm` is required, and `amsgrad` and `use_ema` are not
    supported. With `tf.distribute`, the gradient of the whole batch is clipped. JAX does not need
    this class, because the compiler fuses the operations.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.

    Example:
        >>> weight = keras.Variable([1.0])
        >>> optimizer = FusedAdamW(0.1, weight_decay=0.0, global_clipnorm=1.0)
        >>> optimizer.apply([ops.array([3.0])], [weight])
        >>> round(float(weight[0]), 4)
        0.9
    """

    sums_over_replicas = True  # clips and accumulates the gradient of the whole batch

    def assign(self, variable, value):
        """Assign a value to the copy of a variable in this replica."""
        value = tf.cast(value, variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)

    def update_all(self, gradients, variables):
        replicas = tf.distribute.get_replica_context()
        if replicas.num_replicas_in_sync > 1:
            own = self._factor, self._size, self._finite
            gradients = replicas.all_reduce("SUM", gradients)
            self._factor, self._size, self._finite = own  # replaced by other replicas meanwhile
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if self.gradient_accumulation_steps:
            gradients = self.mean_gradients(gradients, variables)
        norm = tf.sqrt(2 * tf.add_n([tf.cast(tf.nn.l2_loss(g), tf.float32) for g in gradients]))
        share = self.global_clipnorm / tf.maximum(norm, self.global_clipnorm)
        step = tf.cast(self.iterations + 1, tf.float32)
        constants = tf.constant([self.beta_1, self.beta_2, self.epsilon])
        beta_1, beta_2, epsilon = tf.unstack(constants)
        rate = tf.cast(self.learning_rate, tf.float32)
        # Computed once for all weights, because smaller graphs are traced and optimized faster.
        kept = 1 - rate * self.weight_decay
        numbers = (share, kept, rate, beta_1, beta_2, beta_1**step, beta_2**step, epsilon)
        pairs = list(zip(gradients, variables, strict=True))
        if not self.gradient_accumulation_steps:
            for gradient, variable in pairs:
                self._update(variable, gradient, *numbers)
            return
        completed = self.is_step_complete()

        def update_and_clear():
            for gradient, variable in pairs:
                self._update(variable, gradient, *numbers)
                total = self.states[id(variable)].sum
                self.assign(total, tf.zeros_like(total.value))

        tf.cond(completed, update_and_clear, lambda: None)
        self.end_batch(completed)

    def _update(self, variable, gradient, *numbers):
        if variable.dtype != "float32":
            numbers = [tf.cast(number, variable.dtype) for number in numbers]
        share, kept, rate, beta_1, beta_2, beta_1_power, beta_2_power, epsilon = numbers
        state = self.states[id(variable)]
        if state.share != 1:
            rate, kept = rate * state.share, 1 - (1 - kept) * state.share
        if state.decays:
            self.assign(variable, variable.value * kept)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.value.handle,
            m=state.first.value.handle,
            v=state.second.value.handle,
            beta1_power=beta_1_power,
            beta2_power=beta_2_power,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, variable.dtype) * share,
        )


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TorchAdamW(ScheduledAdamW):
    """AdamW with PyTorch's fused kernel, which reads and writes each weight once.

    This class can only be used on the PyTorch backend. It takes the same arguments as
    `ScheduledAdamW`, except that `global_clipnorm` is required, and `amsgrad` and `use_ema` are not
    supported.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """

    def update_all(self, gradients, variables):
        import torch

        with torch.no_grad():
            if self.gradient_accumulation_steps:
                means = self.mean_gradients(gradients, variables)
                completed = self.is_step_complete()
                if completed:
                    self._step(means, variables)
                    torch._foreach_zero_([self.states[id(v)].sum.value for v in variables])
                self.end_batch(completed)
            else:
                self._step(gradients, variables)

    def _step(self, gradients: list, variables: list) -> None:
        """Clip the gradients. Then decay and update the weights."""
        import torch

        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        scale = torch.clamp(norm / self.global_clipnorm, min=1.0)  # gradients are divided by this
        step = ops.cast(self.iterations + 1, "float32")
        rate = ops.cast(self.learning_rate, "float32")
        correction = ops.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)

        def get_kind(pair):
            state = self.states[id(pair[1])]
            return state.share, state.decays, str(pair[1].value.dtype)

        pairs = sorted(zip(gradients, variables, strict=True), key=get_kind)
        for (share, decays, _), group in itertools.groupby(pairs, get_kind):
            gradients, variables = map(list, zip(*group, strict=True))
            weights = [variable.value for variable in variables]
            if decays:
                torch._foreach_mul_(weights, 1 - rate * share * self.weight_decay)
            states = [self.states[id(variable)] for variable in variables]
            first = [state.first.value for state in states]
            second = [state.second.value for state in states]
            update = self._update_group
            if torch.compiler.is_compiling():
                # PyTorch cannot compile this kernel for a learning rate that is a tensor.
                update = torch.compiler.disable(update)
            update(weights, gradients, first, second, rate * share * correction, scale)

    def _update_group(self, weights, gradients, first, second, rate, scale) -> None:
        import torch

        step = torch.full((), LATE, device=weights[0].device)
        torch._fused_adamw_(
            weights,
            gradients,
            first,
            second,
            [],
            [step] * len(weights),
            amsgrad=False,
            lr=rate.detach(),
            beta1=self.beta_1,
            beta2=self.beta_2,
            weight_decay=0.0,
            eps=self.epsilon,
            maximize=False,
            grad_scale=scale,
            found_inf=None,
        )


def make_fine_tuning_optimizer(
    total_batches: int,
    learning_rate: float = LEARNING_RATE,
    weight_decay: float = WEIGHT_DECAY,
    gradient_accumulation_steps: int | None = None,
    learning_rate_multiplier: Callable[[keras.Variable], float] | None = None,
    warmup: float = WARMUP,
    undecayed_weights: Sequence[keras.Variable] = (),
) -> keras.optimizers.Optimizer:
    """Create an AdamW optimizer with linear warmup and decay, and with gradient clipping to norm 1.

    Args:
        total_batches: Integer. Number of batches to train on. The learning rate will be 0
            afterwards.
        learning_rate: Float. Peak learning rate. Defaults to 5e-5.
        weight_decay: Float. Weight decay. Defaults to 0.01.
        gradient_accumulation_steps: Optional integer. Number of batches per step. If None, every
            batch is a step.
        learning_rate_multiplier: Optional function from a weight to its learning rate multiplier,
            for example for layer-wise decay.
        warmup: Float between 0 and 1. Fraction of all steps to use for the warmup. Defaults to 0.1.
        undecayed_weights: List of weights that are excluded from weight decay. See
            `training.list_undecayed`. By default, no weights are excluded.

    Source: Devlin et al. 2019, appendix A.2 and A.3.

    Example:
        >>> make_fine_tuning_optimizer(total_batches=100).weight_decay
        0.01
    """
    batches = gradient_accumulation_steps or 1
    schedule = LinearWarmupDecay(
        learning_rate, -(-total_batches // batches), warmup, batches_per_step=batches
    )
    kernels = {"tensorflow": FusedAdamW, "torch": TorchAdamW}  # JAX fuses the operations itself
    optimizer = kernels.get(keras.config.backend(), ScheduledAdamW)(
        schedule,
        learning_rate_multiplier,
        weight_decay=weight_decay,
        epsilon=EPSILON,
        global_clipnorm=1.0,
        gradient_accumulation_steps=gradient_accumulation_steps,
    )
    optimizer.exclude_from_weight_decay(var_list=undecayed_weights)
    return optimizer


def restart_optimizer(
    optimizer: keras.optimizers.Optimizer, learning_rate: float, total_batches: int
) -> None:
    """Reset a fine-tuning optimizer for a new run. Traced graphs stay valid.

    Args:
        optimizer: An optimizer from `make_fine_tuning_optimizer`, possibly wrapped in a
            `LossScaleOptimizer`.
        learning_rate: Float. Peak learning rate.
        total_batches: Integer. Number of batches in the run.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and optimizer.built:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.initial_scale)
    optimizer = get_inner_optimizer(optimizer)
    steps = -(-total_batches // (optimizer.gradient_accumulation_steps or 1))
    optimizer.restart(learning_rate, max(1, steps), total_batches)


def check_trainable(
    optimizer: keras.optimizers.Optimizer, weights: Sequence[keras.Variable]
) -> None:
    """Raise a ValueError if an optimizer was not built for the given weights.

    On JAX, a Keras optimizer can only train all weights for which it was built.
    """
    optimized = list_optimized_weights(optimizer)
    if not optimizer.built or optimized is None:
        return
    known, needed = set(map(id, optimized)), set(map(id, weights))
    if needed == known or (needed < known and keras.config.backend() != "jax"):
        return
    raise ValueError(
        "`trainable` has changed since the optimizer was built, and the optimizer cannot train "
        f"the {len(weights)} weights that are trainable now. Call compile(optimizer=...) with a "
        "new optimizer."
    )


def get_inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
