"""AdamW on PyTorch's kernel takes the steps of Keras's formulas, in a process of that backend."""

import pytest
from processes import run

SCRIPT = """
import keras
import numpy as np
import torch
from encoder_zoo.tasks.training.optimizers import LinearWarmupDecay, ScheduledAdamW
from encoder_zoo.tasks.training.optimizers import make_fine_tuning_optimizer
from encoder_zoo.tasks.training.optimizers import TorchAdamW

assert type(make_fine_tuning_optimizer(10)) is TorchAdamW
SHAPES = {"kernel": (4, 3), "bias": (3,), "gamma": (5,), "table": (7, 2)}
for batches in (None, 2):
    found = []
    for kind in (ScheduledAdamW, TorchAdamW):
        rng = np.random.default_rng(0)
        values = {n: np.float32(rng.normal(size=s)) for n, s in SHAPES.items()}
        weights = [keras.Variable(value, name=n) for n, value in values.items()]
        schedule = LinearWarmupDecay(0.1, 20)
        options = {"weight_decay": 0.3, "epsilon": 1e-8, "global_clipnorm": 1.0}
        optimizer = kind(schedule, gradient_accumulation_steps=batches, **options)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma"])
        optimizer.build(weights)
        for step in range(10):  # clipped, and not
            scale = 3 if step % 2 else 0.01
            gradients = [rng.normal(size=w.shape) * scale for w in weights]
            optimizer.apply([torch.tensor(g, dtype=torch.float32) for g in gradients])
        found.append([keras.ops.convert_to_numpy(w) for w in (*weights, optimizer.iterations)])
    for expected, mine in zip(*found):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-6)
"""


@pytest.mark.matrix
@pytest.mark.slow
def test_torch_adamw_takes_the_steps_of_keras():
    run(SCRIPT, KERAS_BACKEND="torch")
