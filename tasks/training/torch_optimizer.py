"""The optimizer of fine-tuning on PyTorch's fused kernel."""

from __future__ import annotations

import itertools

import keras
from keras import ops

from encoder_zoo.tasks.training.optimizers import ScheduledAdamW

# At this step the kernel's own corrections of the first steps are 1: the rate has them.
LATE = 1e9


@keras.saving.register_keras_serializable(package="encoder_zoo")
class TorchAdamW(ScheduledAdamW):
    """AdamW on PyTorch's own kernel, which reads and writes each weight once.

    For the PyTorch backend only. Arguments as for `ScheduledAdamW`, with `weight_decay` and
    `global_clipnorm`, without `amsgrad` and `use_ema`.

    Source: Loshchilov and Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """

    def clip_and_update(self, gradients, variables):
        import torch

        with torch.no_grad():
            if self.gradient_accumulation_steps:
                means = self.mean_gradients(gradients, variables)
                completed = self.completes_step()
                if completed:
                    self._step(means, variables)
                    torch._foreach_zero_([self.sum_of(variable).value for variable in variables])
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
            variable = pair[1]
            share, value = self._shares[self.index_of(variable)], variable.value
            return share, self.decays(variable), str(value.dtype)

        pairs = sorted(zip(gradients, variables, strict=True), key=kind)
        for (share, decays, _), group in itertools.groupby(pairs, kind):
            gradients, variables = map(list, zip(*group, strict=True))
            weights = [variable.value for variable in variables]
            if decays:
                torch._foreach_mul_(weights, 1 - rate * share * self.weight_decay)
            moments = zip(*map(self.moments_of, variables), strict=True)
            first, second = ([moment.value for moment in each] for each in moments)
            self._update_group(weights, gradients, first, second, rate * share * correction, scale)

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
