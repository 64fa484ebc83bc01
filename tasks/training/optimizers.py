"""AdamW with linear warmup and decay, and on TensorFlow's own kernel."""

from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from encoder_zoo.common.keras_private import HookedAdamW
from encoder_zoo.common.lazy import tf

# Devlin et al. 2019, appendix A.3, and the code released with it.
WARMUP = 0.1
FREE = -1.0  # instead of a rate that a schedule is held at


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Increases the learning rate linearly to the peak, then decreases it linearly to 0.

    Args:
        peak: the highest learning rate.
        total_steps: step at which the rate is 0 again.
        warmup: share of the steps until the peak.
        batches_per_step: with gradient accumulation, how many batches make a step: Keras counts
            batches here.

    Source: Devlin et al. 2019, appendix A.2.

    Example:
        >>> schedule = LinearWarmupDecay(1.0, total_steps=100, warmup=0.1)
        >>> [round(float(schedule(step)), 2) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        peak: float,
        total_steps: int,
        warmup: float = WARMUP,
        batches_per_step: int = 1,
    ):
        self.warmup = warmup
        self.batches_per_step = batches_per_step
        # Peak, steps up, steps down, and the rate that is held: a variable, so that another run
        # has the same graph.
        self.numbers = keras.Variable([0.0, 1.0, 1.0, FREE], trainable=False, name="schedule")
        self.restart(peak, total_steps)

    def restart(self, peak: float, total_steps: int) -> None:
        """Set the schedule of another run."""
        self.peak = peak
        self.total_steps = total_steps
        up = max(1, int(total_steps * self.warmup)) if self.warmup else 0
        self.numbers.assign([peak, up, max(1, total_steps - up), FREE])

    def hold(self, rate: float) -> None:
        """Hold the learning rate, until `restart`."""
        self.numbers.assign([*ops.convert_to_numpy(self.numbers)[:3], rate])

    def __call__(self, step):
        step = ops.cast(step // self.batches_per_step, "float32")
        peak, up, down, held = ops.unstack(ops.convert_to_tensor(self.numbers))
        rising = ops.where(up > 0, step / ops.maximum(up, 1.0), 1.0)
        share = ops.minimum(rising, (up + down - step) / down)
        return ops.where(held == FREE, peak * ops.maximum(share, 0.0), held)

    def get_config(self) -> dict:
        names = ("peak", "total_steps", "warmup", "batches_per_step")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="encoder_zoo")
class ScheduledAdamW(HookedAdamW):
    """AdamW that keeps its schedule's numbers among its variables; `restart` begins another run.

    Args:
        learning_rate: as for `keras.optimizers.AdamW`.
        learning_rate_multiplier: of a weight, for layer-wise decay; None is 1 for all.
        **kwargs: the other arguments of `keras.optimizers.AdamW`.

    Example:
        >>> optimizer = ScheduledAdamW(LinearWarmupDecay(1.0, total_steps=100))
        >>> optimizer.build([keras.Variable([1.0])])
        >>> optimizer.apply([ops.array([3.0])])
        >>> optimizer.restart(0.5, total_steps=10)
        >>> int(optimizer.iterations), float(optimizer.learning_rate)
        (0, 0.0)
    """

    def __init__(
        self,
        learning_rate,
        learning_rate_multiplier: Callable[[keras.Variable], float] | None = None,
        **kwargs,
    ):
        super().__init__(learning_rate, **kwargs)
        self.learning_rate_multiplier = learning_rate_multiplier
        if isinstance(self.schedule, LinearWarmupDecay):
            self.track(self.schedule.numbers)

    @property
    def learning_rate(self):
        return super().learning_rate

    @learning_rate.setter
    def learning_rate(self, rate) -> None:
        """Hold the schedule at a rate that a callback sets; a rate that it has read and gives back
        lets the schedule go on."""
        if not isinstance(self.schedule, LinearWarmupDecay):
            keras.optimizers.Optimizer.learning_rate.fset(self, rate)
            return
        rate, now = np.float32(rate), np.float32(ops.convert_to_numpy(self.learning_rate))
        if rate != now:
            self.schedule.hold(rate)

    def build(self, variables):
        super().build(variables)
        self._shares = [
            self.learning_rate_multiplier(v) if self.learning_rate_multiplier else 1.0
            for v in variables
        ]

    def update(self, gradients, variables, learning_rate):
        groups = {}  # of weights with the same learning rate
        for gradient, variable in zip(gradients, variables, strict=True):
            share = self._shares[self.index_of(variable)]
            groups.setdefault(share, []).append((gradient, variable))
        for share, pairs in groups.items():
            gradients, variables = map(list, zip(*pairs, strict=True))
            super().update(gradients, variables, learning_rate * share)

    def restart(self, peak: float, total_steps: int) -> None:
        """Reset all steps, and take the schedule of another run; graphs stay valid.

        Args:
            peak: of the learning rate.
            total_steps: until it is 0.
        """
        if int(ops.convert_to_numpy(self.iterations)):
            for variable in self.variables:
                variable.assign(ops.zeros(variable.shape, variable.dtype))
        self.schedule.restart(peak, total_steps)


@keras.saving.register_keras_serializable(package="encoder_zoo")
class FusedAdamW(ScheduledAdamW):
    """AdamW on TensorFlow's own kernel, which reads and writes each weight once.

    For the TensorFlow backend only; elsewhere the compiler does the same. Arguments as for
    `ScheduledAdamW`, with `weight_decay` and `global_clipnorm`, without `amsgrad` and `use_ema`.
    Under `tf.distribute` it clips, and adds up, the gradient of the whole batch.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.

    Example:
        >>> weight = keras.Variable([1.0])
        >>> optimizer = FusedAdamW(0.1, weight_decay=0.0, global_clipnorm=1.0)
        >>> optimizer.apply([ops.array([3.0])], [weight])
        >>> round(float(weight[0]), 4)
        0.9
    """

    def clip_and_update(self, gradients, variables):
        replicas = tf.distribute.get_replica_context()
        if replicas.num_replicas_in_sync > 1:
            # Keras takes the norm before it adds up the rows of a token, and the replicas.
            gradients = replicas.all_reduce("SUM", gradients)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if self.gradient_accumulation_steps:
            sums = [self.sum_of(variable) for variable in variables]
            self.add_gradients(gradients, sums)
            gradients = [total.value / self.gradient_accumulation_steps for total in sums]
        norm = tf.sqrt(2 * tf.add_n([tf.cast(tf.nn.l2_loss(g), tf.float32) for g in gradients]))
        share = self.global_clipnorm / tf.maximum(norm, self.global_clipnorm)
        step = tf.cast(self.iterations + 1, tf.float32)
        constants = tf.constant([self.beta_1, self.beta_2, self.epsilon])
        beta_1, beta_2, epsilon = tf.unstack(constants)
        rate = tf.cast(self.learning_rate, tf.float32)
        # Once for all weights: each operation less in a graph is traced and optimized faster.
        kept = 1 - rate * self.weight_decay
        numbers = (share, kept, rate, beta_1, beta_2, beta_1**step, beta_2**step, epsilon)
        pairs = [(g, v.value) for g, v in zip(gradients, variables, strict=True)]
        self.merge_call(self._update_all, pairs, numbers)

    def _update_all(self, strategy, pairs: list[tuple], numbers: tuple) -> None:
        for gradient, variable in pairs:
            arguments = (gradient, *numbers)
            strategy.extended.update(variable, self._update_one, args=arguments, group=False)

    def _update_one(self, variable, gradient, *numbers):
        """Update one weight on one device, if the batch is the last of an accumulated step."""
        steps = self.gradient_accumulation_steps
        if not steps:
            self._update(variable, gradient, *numbers)
            return

        def update():
            self._update(variable, gradient, *numbers)
            total = self.sum_of(variable)
            total.assign(tf.zeros_like(total))

        # Around each weight. Keras's own branch is around all of them, and in a branch TensorFlow
        # does not sum over replicas.
        tf.cond((self.batches + 1) % steps == 0, update, lambda: None)

    def _update(self, variable, gradient, *numbers):
        if variable.dtype != tf.float32:
            numbers = [tf.cast(number, variable.dtype) for number in numbers]
        share, kept, rate, beta_1, beta_2, beta_1_power, beta_2_power, epsilon = numbers
        learning_rate_multiplier = self._shares[self.index_of(variable)]
        if learning_rate_multiplier != 1:
            rate, kept = rate * learning_rate_multiplier, 1 - (1 - kept) * learning_rate_multiplier
        momentum, velocity = self.moments_of(variable)
        if self.decays(variable):
            variable.assign(variable * kept)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.value.handle,
            v=velocity.value.handle,
            beta1_power=beta_1_power,
            beta2_power=beta_2_power,
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, variable.dtype) * share,
        )
