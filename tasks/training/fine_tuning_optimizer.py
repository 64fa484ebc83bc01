"""The optimizer of fine-tuning: AdamW, linear warmup and decay, clipped gradients."""

from collections.abc import Callable

import keras

from encoder_zoo.encoders.family import LEARNING_RATE, WEIGHT_DECAY
from encoder_zoo.tasks.training.optimizers import (
    WARMUP,
    FusedAdamW,
    LinearWarmupDecay,
    ScheduledAdamW,
)
from encoder_zoo.tasks.training.torch_optimizer import TorchAdamW

# PyTorch's, and so that of the field's fine-tuning code. Gradients of single weights are small, and
# Keras does not correct epsilon for the first steps as the paper has it: with 1e-6 a short training
# learns a little less.
EPSILON = 1e-8


def _fastest_adamw() -> type[ScheduledAdamW]:
    """Return the class on the backend's own kernel; JAX compiles the formulas."""
    kernels = {"tensorflow": FusedAdamW, "torch": TorchAdamW}
    return kernels.get(keras.config.backend(), ScheduledAdamW)


def fine_tuning_optimizer(
    total_batches: int,
    learning_rate: float = LEARNING_RATE,
    weight_decay: float = WEIGHT_DECAY,
    gradient_accumulation_steps: int | None = None,
    learning_rate_multiplier: Callable[[keras.Variable], float] | None = None,
    warmup: float = WARMUP,
) -> keras.optimizers.Optimizer:
    """Return AdamW with linear warmup and decay, gradients clipped at norm 1, and no weight decay
    on biases and LayerNorm.

    Args:
        total_batches: number of batches; after them the learning rate is 0.
        learning_rate: at the peak.
        weight_decay: AdamW's.
        gradient_accumulation_steps: so many batches make one step; None is one.
        learning_rate_multiplier: of a weight, for layer-wise decay, see `layerwise`.
        warmup: share of the steps until the peak.

    Source: Devlin et al. 2019, appendix A.2 and A.3.

    Example:
        >>> fine_tuning_optimizer(total_batches=100).weight_decay
        0.01
    """
    batches = gradient_accumulation_steps or 1
    schedule = LinearWarmupDecay(
        learning_rate, -(-total_batches // batches), warmup, batches_per_step=batches
    )
    optimizer = _fastest_adamw()(
        schedule,
        learning_rate_multiplier,
        weight_decay=weight_decay,
        epsilon=EPSILON,
        global_clipnorm=1.0,
        gradient_accumulation_steps=gradient_accumulation_steps,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def restart_optimizer(
    optimizer: keras.optimizers.Optimizer, learning_rate: float, total_batches: int
) -> None:
    """Reset an optimizer of the recipe for another run, without a new graph.

    Args:
        optimizer: from `fine_tuning_optimizer`, perhaps inside Keras's `LossScaleOptimizer`.
        learning_rate: at the peak.
        total_batches: of the run.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and optimizer.built:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.initial_scale)
    optimizer = inner_optimizer(optimizer)
    steps = -(-total_batches // (optimizer.gradient_accumulation_steps or 1))
    optimizer.restart(learning_rate, max(1, steps), total_batches)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer inside Keras's `LossScaleOptimizer`, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
