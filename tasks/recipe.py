"""How BERT-like models are fine-tuned: AdamW, linear warmup and decay, clipped gradients."""

import keras
from keras import ops

# Devlin et al. 2019, appendix A.3, and the code released with it.
LEARNING_RATE = 5e-5
WARMUP = 0.1
WEIGHT_DECAY = 0.01


@keras.saving.register_keras_serializable(package="encoder_zoo")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """From 0 up to the peak, then down to 0, both in a straight line.

    Args:
        peak: the highest learning rate.
        total_steps: step at which the rate is 0 again.
        warmup: share of the steps until the peak.

    Source: Devlin et al. 2019, appendix A.2.

    Example:
        >>> schedule = LinearWarmupDecay(1.0, total_steps=100, warmup=0.1)
        >>> [round(float(schedule(step)), 2) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(self, peak: float, total_steps: int, warmup: float = WARMUP):
        self.peak = peak
        self.total_steps = total_steps
        self.warmup = warmup

    def __call__(self, step):
        step = ops.cast(step, "float32")
        up = max(1, int(self.total_steps * self.warmup))
        down = max(1, self.total_steps - up)
        share = ops.minimum(step / up, (self.total_steps - step) / down)
        return self.peak * ops.maximum(share, 0.0)

    def get_config(self) -> dict:
        return {"peak": self.peak, "total_steps": self.total_steps, "warmup": self.warmup}


def fine_tuning_optimizer(
    total_steps: int, learning_rate: float = LEARNING_RATE, weight_decay: float = WEIGHT_DECAY
) -> keras.optimizers.Optimizer:
    """AdamW with linear warmup and decay, gradients clipped at norm 1, no decay on biases and
    LayerNorm.

    Args:
        total_steps: number of optimizer steps until the learning rate is 0.
        learning_rate: at the peak, after a tenth of the steps.
        weight_decay: AdamW's.

    Source: Devlin et al. 2019, appendix A.2 and A.3.

    Example:
        >>> fine_tuning_optimizer(total_steps=100).weight_decay
        0.01
    """
    optimizer = keras.optimizers.AdamW(
        learning_rate=LinearWarmupDecay(learning_rate, total_steps),
        weight_decay=weight_decay,
        epsilon=1e-6,
        global_clipnorm=1.0,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer
