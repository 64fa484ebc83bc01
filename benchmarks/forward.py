"""Compare forward passes between encoder_zoo and transformers on torch, in float32 and bfloat16.

    python benchmarks/forward.py
    python benchmarks/forward.py --shapes 32x16 8x256 --rounds 20
    python benchmarks/forward.py --parts

Both sides use all-MiniLM-L6-v2 weights, unpadded ids, and one thread per CPU core. They run in
turns, so that other programs on the machine affect both sides equally. Results are medians in
milliseconds. This package runs a TensorFlow graph for any batch size and length. "mixed_bfloat16"
keeps weights in float32, as in training, and casts them on every pass. "bfloat16" stores weights in
bfloat16, like torch. This script requires the extra `peers`.

The table also shows float32 speed as a fraction of sgemm. This divides matrix products per second
in a forward pass by those in a square matrix product with torch. Use `--parts` to measure all parts
of a block.
"""

import argparse
import collections
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import torch
import transformers
from sources import MINILM

import encoder_zoo as ez

OURS = ("float32", "mixed_bfloat16", "bfloat16")
TORCH = ("float32", "bfloat16")
SHAPES = ("32x16", "32x64", "8x256")
SQUARE = 1536  # number of rows in matrices for sgemm


def ours(dtype: str) -> Callable[[np.ndarray], object]:
    backbone = ez.Backbone.from_preset(MINILM, dtype=dtype)
    signature = [tf.TensorSpec((None, None), tf.int32)]
    forward = tf.function(
        lambda ids: backbone({"token_ids": ids})["sequence_output"], input_signature=signature
    )
    return lambda ids: forward(tf.constant(ids, tf.int32)).numpy()


def theirs(dtype: str) -> Callable[[np.ndarray], object]:
    model = transformers.AutoModel.from_pretrained(MINILM, dtype=getattr(torch, dtype)).eval()

    @torch.inference_mode()
    def forward(ids):
        return model(input_ids=torch.tensor(ids)).last_hidden_state

    return forward


def parts_of_ours() -> dict[str, Callable[[np.ndarray], object]]:
    """Return a dict {part of the first block: graph}. Graph inputs have shape (B, L, D)."""
    backbone = ez.Backbone.from_preset(MINILM)
    block = backbone.blocks[0]
    times = block.intermediate_dim // block.hidden_dim

    def rows(x):
        return tf.reshape(x, [-1, block.hidden_dim])  # (B L, D)

    parts = {
        "query, key, value": block.attention.project,
        "attention": block.attention,
        "residual, LayerNorm": lambda x: block.attention_norm(rows(x) + rows(x)),
        "feed-forward, GELU": lambda x: block.compute_intermediate(rows(x)),
        "feed-forward, out": lambda x: block.output_dense(tf.repeat(rows(x), times, axis=1)),
        "block": block,
    }
    signature = [tf.TensorSpec((None, None, block.hidden_dim))]
    graphs = {name: tf.function(part, input_signature=signature) for name, part in parts.items()}
    return {name: lambda x, graph=graph: graph(tf.constant(x)) for name, graph in graphs.items()}


def parts_of_theirs() -> dict[str, Callable[[np.ndarray], object]]:
    model = transformers.AutoModel.from_pretrained(MINILM).eval()
    block = model.encoder.layer[0]
    attention = block.attention
    times = block.intermediate.dense.out_features // block.intermediate.dense.in_features
    projections = (attention.self.query, attention.self.key, attention.self.value)
    parts = {
        "query, key, value": lambda x: [layer(x) for layer in projections],
        "attention": lambda x: attention.output.dense(attention.self(x)[0]),
        "residual, LayerNorm": lambda x: attention.output.LayerNorm(x + x),
        "feed-forward, GELU": block.intermediate,
        "feed-forward, out": lambda x: block.output.dense(x.repeat_interleave(times, -1)),
        "block": block,
    }
    calls = {name: torch.inference_mode()(part) for name, part in parts.items()}
    return {name: lambda x, call=call: call(torch.tensor(x)) for name, call in calls.items()}


def print_parts(shapes: list[str], rounds: int) -> None:
    """Print milliseconds for all parts of a block on both sides."""
    ours, theirs = parts_of_ours(), parts_of_theirs()
    print("| shape | part of a block | ours | torch | ratio |\n|---|---|---|---|---|")
    for shape in shapes:
        batch, length = (int(number) for number in shape.split("x"))
        hidden = transformers.AutoConfig.from_pretrained(MINILM).hidden_size
        x = np.random.default_rng(0).normal(size=(batch, length, hidden)).astype("float32")
        for part in ours:
            ms = medians({"ours": ours[part], "torch": theirs[part]}, x, rounds)
            cells = f"{ms['ours']:.2f} | {ms['torch']:.2f} | {ms['ours'] / ms['torch']:.2f}"
            print(f"| {shape} | {part} | {cells} |", flush=True)


def products(batch: int, length: int) -> float:
    """Count floating-point operations for all matrix products in a forward pass."""
    config = transformers.AutoConfig.from_pretrained(MINILM)
    hidden, inner = config.hidden_size, config.intermediate_size
    token = 2 * (4 * hidden**2 + 2 * hidden * inner + 2 * length * hidden)
    return config.num_hidden_layers * batch * length * token


def sgemm() -> Callable[[np.ndarray], object]:
    square = torch.rand(SQUARE, SQUARE)
    return lambda ids: square @ square


def medians(sides: dict[str, Callable], ids: np.ndarray, rounds: int) -> dict[str, float]:
    """Return a dict {side: median milliseconds per pass}. The first passes are used to warm up."""
    times = collections.defaultdict(list)
    for _ in range(rounds + 2):
        for name, forward in sides.items():
            start = time.perf_counter()
            forward(ids)
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values[2:]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="batch x length")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", action="store_true", help="measure parts of a block in float32")
    arguments = parser.parse_args()

    torch.set_num_threads(os.cpu_count())
    if arguments.parts:
        print_parts(arguments.shapes, arguments.rounds)
        return
    sides = {f"ours {dtype}": ours(dtype) for dtype in OURS}
    sides |= {f"torch {dtype}": theirs(dtype) for dtype in TORCH}
    shares = ("ours float32", "torch float32")
    named = (f"sgemm, {name} |" for name in shares)
    print("| shape |", *(f"{name} |" for name in sides), "ratio float32 | ratio bfloat16 |", *named)
    print("|---|" + "---|" * (len(sides) + 2 + len(shares)))
    for shape in arguments.shapes:
        size = [int(number) for number in shape.split("x")]
        ids = np.random.default_rng(0).integers(1000, 20000, size)
        ms = medians({**sides, "sgemm": sgemm()}, ids, arguments.rounds)
        rate = 2 * SQUARE**3 / ms.pop("sgemm")  # operations per millisecond
        ratios = [
            ms["ours float32"] / ms["torch float32"],
            ms["ours mixed_bfloat16"] / ms["torch bfloat16"],
        ]
        cells = [f"{value:.1f} |" for value in ms.values()]
        cells += [f"{ratio:.2f} |" for ratio in ratios]
        cells += [f"{100 * products(*size) / ms[name] / rate:.0f} % |" for name in shares]
        print(f"| {shape} |", *cells, flush=True)


if __name__ == "__main__":
    main()
