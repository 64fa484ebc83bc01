"""Optimizer for fine-tuning: AdamW with a linear warmup and decay and with gradient clipping."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import keras
from keras import ops

from encoder_zoo.common.layers import layers_in
from encoder_zoo.common.wording import invalid
from encoder_zoo.encoders.backbone import Backbone
from encoder_zoo.encoders.family import LEARNING_RATE, WEIGHT_DECAY
from encoder_zoo.tasks.training.optimizers import (
    WARMUP,
    FusedAdamW,
    LinearWarmupDecay,
    ScheduledAdamW,
)

# At this step, the kernel's bias corrections are 1. The corrections are part of the learning rate
# instead.
LATE = 1e9


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TorchAdamW(ScheduledAdamW):
    """AdamW with PyTorch's fused kernel, which reads and writes each weight once.

    This class can only be used on the PyTorch backend. It takes the same arguments as
    `ScheduledAdamW`. `amsgrad` and `use_ema` are not supported.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """

    def update_all(self, gradients, variables):
        import torch

        with torch.no_grad():
            if self.gradient_accumulation_steps:
                means = self.mean_gradients(gradients, variables)
                completed = self.completes_step()
                if completed:
                    self._step(means, variables)
                    torch._foreach_zero_([self.states[id(v)].sum.value for v in variables])
                self.end_batch(completed)
            else:
                self._step(gradients, variables)

    def _step(self, gradients: list, variables: list) -> None:
        """Clip gradients and update weights."""
        import torch

        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        scale = torch.clamp(norm / self.global_clipnorm, min=1.0)  # what to divide the gradients by
        step = ops.cast(self.iterations + 1, "float32")
        rate = ops.cast(self.learning_rate, "float32")
        correction = ops.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)

        def kind(pair):
            state = self.states[id(pair[1])]
            return state.share, state.decays, str(pair[1].value.dtype)

        pairs = sorted(zip(gradients, variables, strict=True), key=kind)
        for (share, decays, _), group in itertools.groupby(pairs, kind):
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


def layerwise(backbone: Backbone, decay: float) -> Callable[[keras.Variable], float] | None:
    """Return the learning rate multipliers for layer-wise decay.

    The head has a multiplier of 1. This multiplier is reduced by the factor `decay` for the last
    backbone block, and again for every earlier block and for the embeddings.

    Args:
        backbone: Backbone.
        decay: Float. Ratio between the learning rate for a layer and for the layer above it.

    Returns:
        Function of a weight to pass to `fine_tuning_optimizer`, or None when all multipliers are 1.

    Source: Howard and Ruder 2018, Universal Language Model Fine-tuning, section 3.2, and Clark et
    al. 2020, ELECTRA, appendix B.

    Example:
        >>> from encoder_zoo import ElectraBackbone
        >>> backbone = ElectraBackbone(30, num_layers=2, num_heads=1, hidden_dim=4,
        ...                            intermediate_dim=4)
        >>> share = layerwise(backbone, 0.8)
        >>> [round(share(layer.weights[0]), 3) for layer in (*backbone.blocks, backbone.embeddings)]
        [0.64, 0.8, 0.512]
    """
    if decay == 1:
        return None
    layers = [backbone.embeddings, *backbone.blocks]
    shares = {
        id(weight): decay ** (len(layers) - i)
        for i, layer in enumerate(layers)
        for weight in layer.weights
    }
    return lambda weight: shares.get(id(weight), 1.0)


class FrozenLayers:
    """Backbone layers that were frozen by `compile(frozen_layers=...)`.

    Other layers will not be changed. Layers that were frozen by the user stay frozen.

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
        """Freeze the embeddings and the first blocks. Unfreeze other layers that were frozen here.

        Args:
            backbone: Backbone. The same backbone must be passed in all calls.
            count: Integer. Number of blocks to freeze. Pass 0 to unfreeze all layers that were
                frozen here.

        Raises:
            ValueError: If the backbone has fewer blocks, or if a block shares weights with a later
                block that will not be frozen.
        """
        _check_count(backbone, count)
        lower = [backbone.embeddings, *backbone.blocks[:count]] if count else []
        for layer, parts in list(self._before.values()):
            if layer not in lower:
                del self._before[id(layer)]
                if backbone.trainable and not layer.trainable:  # not changed by the user since then
                    for part, was_trained in parts:
                        part.trainable = was_trained
        for layer in lower:
            if id(layer) not in self._before or layer.trainable:
                parts = [*layers_in(layer), *layer.weights]  # outer layers also set inner layers
                self._before[id(layer)] = layer, [(part, part.trainable) for part in parts]
                for part in parts:
                    part.trainable = False


def _check_count(backbone: Backbone, count: int) -> None:
    blocks = backbone.blocks
    if count > len(blocks):
        raise invalid(
            "frozen_layers", count, f"an integer from 0 to {len(blocks)}, the number of blocks"
        )
    if not {id(block) for block in blocks[:count]}.isdisjoint(map(id, blocks[count:])):
        raise invalid(
            "frozen_layers", count, "a number of layers that share no block with later layers"
        )


# This is the PyTorch default, which is used by most fine-tuning code. Gradients for single weights
# are small, and Keras does not correct epsilon in the first steps as in the paper. With 1e-6, short
# trainings have slightly worse results.
EPSILON = 1e-8


def _fastest_adamw() -> type[ScheduledAdamW]:
    """Return the class to use the backend's fused kernel. JAX fuses the operations itself."""
    kernels = {"tensorflow": FusedAdamW, "torch": TorchAdamW}
    return kernels.get(keras.config.backend(), ScheduledAdamW)


def fine_tuning_optimizer(
    total_batches: int,
    learning_rate: float = LEARNING_RATE,
    weight_decay: float = WEIGHT_DECAY,
    gradient_accumulation_steps: int | None = None,
    learning_rate_multiplier: Callable[[keras.Variable], float] | None = None,
    warmup: float = WARMUP,
    undecayed_weights: Sequence[keras.Variable] = (),
) -> keras.optimizers.Optimizer:
    """Create AdamW with a linear warmup and decay, and with gradients clipped to norm 1.

    Args:
        total_batches: Integer. Number of batches to train on. The learning rate will be 0
            afterwards.
        learning_rate: Float. Peak learning rate.
        weight_decay: Float. Weight decay. Defaults to 0.01.
        gradient_accumulation_steps: Optional integer. Number of batches per step. If None, every
            batch is a step. Defaults to None.
        learning_rate_multiplier: A function of a weight to compute a multiplier for the learning
            rate, see `layerwise`. Defaults to None.
        warmup: Float between 0 and 1. Fraction of all steps to use for the warmup. Defaults to 0.1.
        undecayed_weights: A list of weights to exclude from weight decay, see
            `training.undecayed_weights`.

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
    optimizer.exclude_from_weight_decay(var_list=undecayed_weights)
    return optimizer


def restart_optimizer(
    optimizer: keras.optimizers.Optimizer, learning_rate: float, total_batches: int
) -> None:
    """Reset a fine-tuning optimizer for a new run, without a new graph.

    Args:
        optimizer: An optimizer from `fine_tuning_optimizer`, possibly wrapped in a
            `LossScaleOptimizer`.
        learning_rate: Float. Peak learning rate.
        total_batches: Integer. Number of batches in the run.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and optimizer.built:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.initial_scale)
    optimizer = inner_optimizer(optimizer)
    steps = -(-total_batches // (optimizer.gradient_accumulation_steps or 1))
    optimizer.restart(learning_rate, max(1, steps), total_batches)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer inside a `LossScaleOptimizer`, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
