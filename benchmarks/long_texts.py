"""Measure time and memory for long texts by length, compared to transformers on torch.

    python benchmarks/long_texts.py
    python benchmarks/long_texts.py --lengths 512 2048 --layers 3 --training
    python benchmarks/long_texts.py --model longformer --layers 12 --lengths 1024 4096

Models use random weights in float32 and run on one row, with one thread per CPU core. For
Longformer, the first token has global attention. Each side uses a separate process. Memory is the
peak for all passes at this length, minus memory used before the first pass. Times are the fastest
out of several passes. This package runs a TensorFlow graph for any length. With `--training`,
passes include gradients, and both sides use gradient checkpointing. To measure only local attention
in ModernBERT, set `--global-every` to the number of layers, which leaves a single global layer.
This script requires the extra `peers`. Memory is only measured on Linux.

`MaskedLMPreprocessor(pack_texts=True)` packs several texts into one row to avoid padding. In `fit`
and `predict`, packing would not save much, because both functions group texts by length. For the
67,349 training sentences in SST-2 and batches of 32, padding takes 4.6 % of all tokens in `fit` and
0.1 % in `predict`. In random order it would take 67 %. For this reason, classifiers do not pack
texts.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

SIDES = ("ours", "torch")
SIZES = {"hidden": 768, "heads": 12, "vocabulary": 50368}
INTERMEDIATE = {"modernbert": 1152, "longformer": 3072}


def ours(
    model: str, layers: int, global_every: int, training: bool
) -> Callable[[np.ndarray], object]:
    import tensorflow as tf

    import encoder_zoo as ez

    kinds = {
        "modernbert": (ez.ModernBertBackbone, {"global_every": global_every}),
        "longformer": (ez.LongformerBackbone, {"pooler": False}),
    }
    kind, own = kinds[model]
    backbone = kind(
        SIZES["vocabulary"],
        num_layers=layers,
        num_heads=SIZES["heads"],
        hidden_dim=SIZES["hidden"],
        intermediate_dim=INTERMEDIATE[model],
        **own,
    )
    backbone.enable_gradient_checkpointing()

    def encode(ids, training=False):
        inputs = {"token_ids": ids}
        if model == "longformer":
            inputs["global_mask"] = tf.one_hot(
                tf.zeros_like(ids[:, 0]), tf.shape(ids)[1], dtype="int32"
            )
        return backbone(inputs, training=training)["sequence_output"]

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def run(ids):
        if not training:
            return encode(ids)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(encode(ids, training=True))
        return tape.gradient(loss, [v.value for v in backbone.trainable_variables])

    return run


def theirs(
    model: str, layers: int, global_every: int, training: bool
) -> Callable[[np.ndarray], object]:
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count())
    kinds = {
        "modernbert": (
            transformers.ModernBertModel,
            {"global_attn_every_n_layers": global_every, "attn_implementation": "sdpa"},
        ),
        "longformer": (transformers.LongformerModel, {"max_position_embeddings": 4098}),
    }
    kind, own = kinds[model]
    config = kind.config_class(
        vocab_size=SIZES["vocabulary"],
        num_hidden_layers=layers,
        num_attention_heads=SIZES["heads"],
        hidden_size=SIZES["hidden"],
        intermediate_size=INTERMEDIATE[model],
        **own,
    )
    network = kind(config).train(training)
    if training:
        network.gradient_checkpointing_enable()

    def run(ids):
        with torch.set_grad_enabled(training):
            inputs = {"input_ids": torch.tensor(ids)}
            if model == "longformer":
                inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
                inputs["global_attention_mask"][:, 0] = 1
            output = network(**inputs).last_hidden_state
            if training:
                network.zero_grad()
                output.sum().backward()

    return run


def measure(side: str, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """For each length, return the fastest pass in seconds and the additional memory in MiB."""
    make = ours if side == "ours" else theirs
    run = make(arguments.model, arguments.layers, arguments.global_every, arguments.training)
    random, found = np.random.default_rng(0), []
    run(np.ones((1, 16), "int32"))  # traces and loads everything, as part of the model
    before = memory("VmRSS")
    for length in arguments.lengths:
        ids = random.integers(1000, 20000, (1, length)).astype("int32")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        seconds = []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            run(ids)
            seconds.append(time.perf_counter() - start)
        found.append({"seconds": min(seconds), "MiB": memory("VmHWM") - before})
    return found


def memory(name: str) -> float:
    """Return the current memory ("VmRSS") or peak memory ("VmHWM") in MiB."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    [kibibytes] = [line.split()[1] for line in lines if line.startswith(name)]
    return int(kibibytes) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--model", choices=INTERMEDIATE, default="modernbert")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--global-every", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--only", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only, arguments)))
        return
    found = []
    for side in arguments.sides:
        command = [sys.executable, *sys.argv, "--only", side]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    print("| tokens |", *(f"{side} s | ms a token | MiB |" for side in arguments.sides))
    print("|---|" + "---|---|---|" * len(arguments.sides))
    for length, *lines in zip(arguments.lengths, *found, strict=True):
        cells = []
        for line in lines:
            seconds = line["seconds"]
            cells += [f"{seconds:.2f}", f"{1000 * seconds / length:.2f}", f"{line['MiB']:.0f}"]
        print(f"| {length} |", " | ".join(cells), "|")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
