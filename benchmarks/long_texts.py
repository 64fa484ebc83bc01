"""Time and memory of ModernBERT by the length of a text, beside transformers on torch.

    python benchmarks/long_texts.py
    python benchmarks/long_texts.py --lengths 512 2048 --layers 3 --training

One row, float32, random weights, as many threads as the machine has cores. Every line is a process
of its own, so that its peak is that of its length: the most memory that it held beyond what it
held before its first pass. Times are the best of some passes; ours is a TensorFlow graph of any
length. With `--training` a pass also takes gradients, both sides with gradient checkpointing.
`--global-every` as many as there are layers leaves one global layer, so that what is left shows
what local attention costs. Needs the extra `peers`, and Linux for the memory.
"""

import argparse
import json
import os
import resource
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


def measure(side: str, length: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of the best pass, and MiB that the passes needed beyond the model."""
    make = ours if side == "ours" else theirs
    run = make(arguments.layers, arguments.global_every, arguments.training)
    ids = np.random.default_rng(0).integers(1000, 20000, (1, length)).astype("int32")
    run(ids[:, :16])  # what is traced and loaded counts as the model
    before, seconds = _peak(), []
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        run(ids)
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "MiB": _peak() - before}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--global-every", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--only", nargs=2, metavar=("SIDE", "LENGTH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        side, length = arguments.only
        print(json.dumps(measure(side, int(length), arguments)))
        return
    print("| tokens |", *(f"{side} s | {side} ms a token | {side} MiB |" for side in SIDES))
    print("|---|" + "---|" * 6)
    for length in arguments.lengths:
        cells = []
        for side in SIDES:
            command = [sys.executable, *sys.argv, "--only", side, str(length)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            seconds = found["seconds"]
            cells += [f"{seconds:.2f}", f"{1000 * seconds / length:.2f}", f"{found['MiB']:.0f}"]
        print(f"| {length} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
