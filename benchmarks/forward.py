"""The forward pass beside transformers on torch, in float32 and in bfloat16.

    python benchmarks/forward.py
    python benchmarks/forward.py --shapes 32x16 8x256 --rounds 20

Both sides have the all-MiniLM-L6-v2 weights and the same ids, no padding, and as many threads as
the machine has cores. They take turns, pass by pass, so that a busy machine slows both; figures
are medians of milliseconds. Ours is a TensorFlow graph of any batch and length. "mixed_bfloat16"
keeps float32 weights, as in training, and casts them in every pass; "bfloat16" has them in
bfloat16, as torch's. Needs the extra `peers`.
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


def medians(sides: dict[str, Callable], ids: np.ndarray, rounds: int) -> dict[str, float]:
    """{side: median milliseconds of a pass}; the first passes, which warm up, do not count."""
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
    arguments = parser.parse_args()

    torch.set_num_threads(os.cpu_count())
    sides = {f"ours {dtype}": ours(dtype) for dtype in OURS}
    sides |= {f"torch {dtype}": theirs(dtype) for dtype in TORCH}
    print("| shape |", *(f"{name} |" for name in sides), "ratio float32 | ratio bfloat16 |")
    print("|---|" + "---|" * (len(sides) + 2))
    for shape in arguments.shapes:
        size = [int(number) for number in shape.split("x")]
        ids = np.random.default_rng(0).integers(1000, 20000, size)
        ms = medians(sides, ids, arguments.rounds)
        ratios = [
            ms["ours float32"] / ms["torch float32"],
            ms["ours mixed_bfloat16"] / ms["torch bfloat16"],
        ]
        cells = [f"{value:.1f} |" for value in ms.values()]
        print(f"| {shape} |", *cells, *(f"{ratio:.2f} |" for ratio in ratios), flush=True)


if __name__ == "__main__":
    main()
