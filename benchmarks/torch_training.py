"""Run the same training recipe for transformers on torch, as described in the papers."""

import numpy as np
import torch
import transformers


def torch_steps(model, lengths: list[int], seed: int, options):
    """Yield tuples (example indices in a batch, function to run a step), epoch by epoch."""
    rng = np.random.default_rng(seed)
    size, window = options.batch_size, 50 * options.batch_size
    exempt = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [p for n, p in model.named_parameters() if n.endswith(exempt)]},
        {
            "params": [p for n, p in model.named_parameters() if not n.endswith(exempt)],
            "weight_decay": 0.01,
        },
    ]
    optimizer = torch.optim.AdamW(groups, 5e-5, weight_decay=0.0)
    total = options.epochs * -(-len(lengths) // size)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, total // 10, total)

    def step(loss):
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    model.train()
    for _ in range(options.epochs):
        order = rng.permutation(len(lengths))
        windows = [order[i : i + window] for i in range(0, len(order), window)]
        order = np.concatenate([sorted(w, key=lambda i: lengths[i]) for w in windows])
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        rng.shuffle(batches)
        for batch in batches:
            yield batch, step
