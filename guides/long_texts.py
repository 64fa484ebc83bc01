# %% [markdown]
"""
Title: Long texts
Author: the authors of encoder_zoo
Date created: 2026/11/22
Last modified: 2026/11/22
Description: The cost of a text of 8,192 tokens in time and memory, and how to reduce it.
Accelerator: None

BERT supports up to 512 tokens per text. ModernBERT supports 8,192 tokens, which is enough for a
report, a contract or a chapter. In most ModernBERT blocks, a token only attends to its 128
neighbours. In every third block, it attends to the whole text. This guide measures time and memory
for different text lengths. If `transformers` is installed (`pip install transformers torch`), its
ModernBERT is measured for comparison. The results do not depend on the weights, so a small model
with random weights is used. This takes less than a minute on two CPU cores.
"""

# %%
import importlib.util
import os
import pathlib
import time
from collections.abc import Callable

import matplotlib.pyplot as plt

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's log messages

import numpy as np
import tensorflow as tf

import encoder_zoo as ez

HERE = pathlib.Path(__file__).parent
LENGTHS = (512, 1024, 2048, 4096, 8192)
SIZES = {"num_layers": 4, "num_heads": 4, "hidden_dim": 256, "intermediate_dim": 384}

# %% [markdown]
"""
## Time and memory

The time is the faster of two forward passes. The memory is the peak memory of the process minus its
memory before the first pass. It can only be measured on Linux.
"""

# %%
LINUX = pathlib.Path("/proc/self/clear_refs")


def memory(name: str) -> float:
    """Return the current ("VmRSS") or peak ("VmHWM") memory of the process in MiB."""
    if not LINUX.exists():
        return float("nan")
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    [kibibytes] = [line.split()[1] for line in lines if line.startswith(name)]
    return int(kibibytes) / 1024


def measure(run: Callable[[np.ndarray], object], lengths=LENGTHS) -> list[tuple[float, float]]:
    """Return the seconds and MiB of a pass over one text of each length."""
    run(np.ones((1, 16), "int32"))  # exclude the initialization in the first pass
    before, found = memory("VmRSS"), []
    for length in lengths:
        ids = np.random.default_rng(0).integers(1000, 20000, (1, length)).astype("int32")
        if LINUX.exists():
            LINUX.write_text("5")  # resets the peak
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            run(ids)
            seconds.append(time.perf_counter() - start)
        found.append((min(seconds), memory("VmHWM") - before))
        print(f"{length:>6} tokens: {found[-1][0]:6.2f} s {found[-1][1]:7.0f} MiB")
    return found


# %% [markdown]
"""
The same graph is used for all lengths. Use `global_every` to set the blocks with global attention.
We compare global attention in every third block with global attention in only the first block.
"""


# %%
def forward(global_every: int) -> Callable[[np.ndarray], object]:
    backbone = ez.ModernBertBackbone(20000, **SIZES, global_every=global_every)

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def run(ids):
        return backbone({"token_ids": ids})["sequence_output"]

    return run


results = {}
for name, global_every in (("ours", 3), ("ours, one global block", SIZES["num_layers"])):
    print(name)
    results[name] = measure(forward(global_every))


# %%
def forward_there() -> Callable[[np.ndarray], object]:
    import torch
    import transformers

    config = transformers.ModernBertConfig(
        vocab_size=20000,
        **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
        num_hidden_layers=SIZES["num_layers"],
        num_attention_heads=SIZES["num_heads"],
        hidden_size=SIZES["hidden_dim"],
        intermediate_size=SIZES["intermediate_dim"],
        attn_implementation="sdpa",
    )
    model = transformers.ModernBertModel(config).eval()

    def run(ids):
        with torch.inference_mode():
            return model(input_ids=torch.tensor(ids)).last_hidden_state

    return run


if all(importlib.util.find_spec(name) for name in ("transformers", "torch")):
    print("transformers")
    results["transformers"] = measure(forward_there())

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for name, found in results.items():
    for panel, values in zip(axes, zip(*found, strict=True), strict=True):
        panel.loglog(LENGTHS, values, marker="o", label=name)
for panel, title in zip(axes, ("seconds", "MiB"), strict=True):
    panel.set(title=title, xlabel="tokens")
    panel.set_xticks(LENGTHS, labels=map(str, LENGTHS), minor=False)
    panel.grid(alpha=0.3)
axes[0].legend()
(HERE / "output").mkdir(exist_ok=True)
figure.savefig(HERE / "output" / "long_texts.png", dpi=120)

# %% [markdown]
"""
With local attention, the time per token does not depend on the text length. The text is split into
windows. Each window attends to itself and to half a window on both sides. With global attention,
every token attends to all tokens, so the time is proportional to the square of the length. This
does not apply to the memory, because only some queries are computed at a time. Both methods are
exact.

## Training

For the gradients, all activations from the forward pass are needed. Therefore, training takes
several times the memory. With `enable_gradient_checkpointing`, each block only keeps its input and
computes its activations again. This takes a third more time, but much less memory. For a task, call
`classifier.backbone.enable_gradient_checkpointing()` before `fit`.
"""


# %%
def training(checkpointing: bool) -> Callable[[np.ndarray], object]:
    backbone = ez.ModernBertBackbone(20000, **SIZES)
    if checkpointing:
        backbone.enable_gradient_checkpointing()

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def run(ids):
        with tf.GradientTape() as tape:
            outputs = backbone({"token_ids": ids}, training=True)["sequence_output"]
            loss = tf.reduce_mean(outputs**2)
        return tape.gradient(loss, [weight.value for weight in backbone.trainable_variables])

    return run


for checkpointing in (True, False):
    print("with gradient checkpointing" if checkpointing else "without")
    measure(training(checkpointing), lengths=(4096,))

# %% [markdown]
"""
## With a checkpoint

To classify long texts without truncating them, load a checkpoint from the hub:

```python
classifier = ez.Classifier.from_preset("modernbert_base_en", labels=["contract", "report"])
classifier.backbone.enable_gradient_checkpointing()
classifier.fit(texts, labels, batch_size=1, epochs=3)
```

To reduce the memory, use a smaller `batch_size`, or pass `sequence_length=4096` to `from_preset` to
truncate texts. With `classifier.compile(gradient_accumulation_steps=16)`, 16 batches are used per
training step. For question answering, texts do not have to be truncated, because `SpanQA` reads
long contexts in overlapping windows.
"""
