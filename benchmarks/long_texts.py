"""Time and memory of ModernBERT by the length of a text, beside transformers on torch.

    python benchmarks/long_texts.py
    python benchmarks/long_texts.py --lengths 512 2048 --layers 3 --training

One row, float32, random weights, as many threads as the machine has cores, a process for each
side. Memory is the most that it held in the passes of a length, beyond what it held before its
first pass. Times are the best of some passes; ours is a TensorFlow graph of any length. With
`--training` a pass also takes gradients, both sides with gradient checkpointing. `--global-every`
as many as there are layers leaves one global layer, so that what is left shows what local attention
costs. Needs the extra `peers`, and Linux for the memory.

Several texts in one row, as `MaskedLMPreprocessor(pack_texts=True)` has them, spare padding, and
`fit` and `predict` leave little to spare, as they put texts of like length together: of SST-2's
67,349 training sentences in batches of 32, 4.6 % of the tokens that `fit` computes are padding and
0.1 % of those of `predict`; in random order 67 % would be. So classifiers do not pack.
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
SIZES = {"hidden": 768, "heads": 12, "intermediate": 1152, "vocabulary": 50368}


def ours(layers: int, global_every: int, training: bool) -> Callable[[np.ndarray], object]:
    import tensorflow as tf

    import encoder_zoo as ez

    backbone = ez.ModernBertBackbone(
        SIZES["vocabulary"],
        num_layers=layers,
        num_heads=SIZES["heads"],
        hidden_dim=SIZES["hidden"],
        intermediate_dim=SIZES["intermediate"],
        global_every=global_every,
    )
    backbone.enable_gradient_checkpointing()

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
    def run(ids):
        if not training:
            return backbone({"token_ids": ids})["sequence_output"]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(backbone({"token_ids": ids}, training=True)["sequence_output"])
        return tape.gradient(loss, [v.value for v in backbone.trainable_variables])

    return run


def theirs(layers: int, global_every: int, training: bool) -> Callable[[np.ndarray], object]:
    import torch
    import transformers

    torch.set_num_threads(os.cpu_count())
    config = transformers.ModernBertConfig(
        vocab_size=SIZES["vocabulary"],
        num_hidden_layers=layers,
        num_attention_heads=SIZES["heads"],
        hidden_size=SIZES["hidden"],
        intermediate_size=SIZES["intermediate"],
        global_attn_every_n_layers=global_every,
        attn_implementation="sdpa",
    )
    model = transformers.ModernBertModel(config).train(training)
    if training:
        model.gradient_checkpointing_enable()

    def run(ids):
        with torch.set_grad_enabled(training):
            output = model(input_ids=torch.tensor(ids)).last_hidden_state
            if training:
                model.zero_grad()
                output.sum().backward()

    return run


def measure(side: str, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Of each length the seconds of the best pass, and MiB that passes needed beyond the model."""
    make = ours if side == "ours" else theirs
    run = make(arguments.layers, arguments.global_every, arguments.training)
    random, found = np.random.default_rng(0), []
    run(np.ones((1, 16), "int32"))  # what is traced and loaded counts as the model
    before = memory("VmRSS")
    for length in arguments.lengths:
        ids = random.integers(1000, 20000, (1, length)).astype("int32")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the most begins anew
        seconds = []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            run(ids)
            seconds.append(time.perf_counter() - start)
        found.append({"seconds": min(seconds), "MiB": memory("VmHWM") - before})
    return found


def memory(name: str) -> float:
    """MiB that the process holds ("VmRSS"), or held at most ("VmHWM")."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    [kibibytes] = [line.split()[1] for line in lines if line.startswith(name)]
    return int(kibibytes) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
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
