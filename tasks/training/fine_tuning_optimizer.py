"""The optimizer of fine-tuning: AdamW, linear warmup and decay, clipped gradients."""

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

# At this step the kernel's own corrections of the first steps are 1: the rate has them.
LATE = 1e9


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TorchAdamW(ScheduledAdamW):
    """AdamW on PyTorch's own kernel, which reads and writes each weight once.

    For the PyTorch backend only. Arguments as for `ScheduledAdamW`, with `weight_decay` and
    `global_clipnorm`, without `amsgrad` and `use_ema`.

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
        """Clip gradients, and update weights."""
        import torch

        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        scale = torch.clamp(norm / self.global_clipnorm, min=1.0)  # gradients are divided by it
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
                # Not a part of a compiled step: PyTorch cannot trace it with a rate as a tensor.
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
    """Return the layer-wise learning-rate decay multiplier of each weight.

    Args:
        backbone: whose last block has one step less than the layers above it, and so on down to
            the embeddings.
        decay: of the learning rate, from each layer to the one below.

    Returns:
        For `fine_tuning_optimizer`; None where all weights have the same learning rate.

    Source: Howard and Ruder 2018, Universal Language Model Fine-tuning, section 3.2; Clark et al.
    2020, ELECTRA, appendix B.

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
    """The lowest layers of a backbone that `compile(frozen_layers=...)` froze.

    All other layers stay as they are: what the user froze, stays frozen.

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
        # {id of a layer: the layer, and its parts and weights with whether they were trained}
        self._before = {}

    def freeze(self, backbone: Backbone, count: int) -> None:
        """Freeze the lowest blocks, and the embeddings below them; thaw what was frozen here above.

        Args:
            backbone: of the layers, always the same.
            count: of blocks; with 0 all that was frozen here is thawed.

        Raises:
            ValueError: If the backbone has fewer blocks, or one of them is used again above.
        """
        _check_count(backbone, count)
        lower = [backbone.embeddings, *backbone.blocks[:count]] if count else []
        for layer, parts in list(self._before.values()):
            if layer not in lower:
                del self._before[id(layer)]
                if backbone.trainable and not layer.trainable:  # else the user has changed it since
                    for part, was_trained in parts:
                        part.trainable = was_trained
        for layer in lower:
            if id(layer) not in self._before or layer.trainable:
                parts = [*layers_in(layer), *layer.weights]  # the outer first, as it sets the inner
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
            "frozen_layers", count, "a number of layers that share no block with the layers above"
        )


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
    undecayed_weights: Sequence[keras.Variable] = (),
) -> keras.optimizers.Optimizer:
    """Return AdamW with linear warmup and decay, and gradients clipped at norm 1.

    Args:
        total_batches: number of batches; after them the learning rate is 0.
        learning_rate: at the peak.
        weight_decay: AdamW's.
        gradient_accumulation_steps: so many batches make one step; None is one.
        learning_rate_multiplier: of a weight, for layer-wise decay, see `layerwise`.
        warmup: share of the steps until the peak.
        undecayed_weights: Weights without weight decay, see `training.undecayed_weights`.

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
