"""Compare speed and memory for training and prediction with other libraries on the same machine.

    python benchmarks/speed.py                      # everything
    python benchmarks/speed.py --work train predict --rounds 3
    python benchmarks/speed.py --work fit refit predict --count 64 600 2000 10000
    python benchmarks/speed.py --work train --words 45 90 180 360 --count 96  # 64 to 512 tokens
    python benchmarks/speed.py --work train --sides encoder_zoo "KerasHub at its default" --count 64

All sides start from the same raw sentences and use all-MiniLM-L6-v2 weights in float32, batches of
32 and the same recipe. Each measurement runs in a separate process. Sides run in turns. Ratios are
based on medians, and their ranges on single rounds. The following can be passed to `--work`:

- fit: sentences per second for a complete `fit` with one epoch. This is the first call in its
  process and includes everything after importing and loading. Seconds outside the epoch are also
  shown.
- refit: same as fit, for a second call with the same number of other sentences
- train: sentences per second in the second epoch, when everything has been compiled. Texts have
  already been tokenized by `fit`, which takes 1 % of an epoch.
- predict: sentences per second in the second call
- job: seconds to fine-tune for 3 epochs, from starting Python to the end
- mlm: same as train, for a masked language model
- latency: milliseconds to classify one sentence (median and 99th percentile)
- answer: seconds until a new process has classified its first sentence

By default, KerasHub pads every batch to 512 tokens. This takes ten times as long, so it is only
measured when requested. To use SST-2, set `ENCODER_ZOO_DATA` to a folder with `sst2/train.tsv`.
Otherwise, sentences from the guides are used. This script requires the extra `peers`.
"""

import argparse
import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

from sources import DATA

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = pathlib.Path(__file__).parent
SIDES = {  # name: (module, function, Keras backend)
    "encoder_zoo": ("speed_keras", "ours", "tensorflow"),
    "encoder_zoo on JAX": ("speed_keras", "ours", "jax"),
    "encoder_zoo on torch": ("speed_keras", "ours", "torch"),
    "transformers grouped by length": ("speed_torch", "grouped", "torch"),
    "transformers": ("speed_torch", "as_it_comes", "torch"),
    "KerasHub at length 64": ("speed_keras", "keras_hub", "tensorflow"),
    "KerasHub at its default": ("speed_keras", "keras_hub_default", "tensorflow"),
}
PACKAGES = ("keras", "tensorflow", "jax", "torch", "transformers", "tokenizers", "keras-hub")
WORKS = ("fit", "refit", "train", "predict", "job", "mlm", "latency", "answer")


def sentences(count: int, words: int) -> tuple[list[str], list[int]]:
    """Return texts and labels in random order. If `words` is not 0, it is the text length."""
    import numpy as np

    path = DATA / "sst2" / "train.tsv"
    if not path.exists():
        path = HERE.parent / "guides" / "data" / "sentiment_sentences.tsv"
    lines = path.read_text(encoding="utf-8").split("\n")
    header, *rows = [line.split("\t") for line in lines if line]
    chosen = np.random.default_rng(0).permutation(len(rows))[:count]
    label = header.index("label")
    text = header.index("sentence")
    texts = [rows[i][text] for i in chosen]
    if words:
        every = [word for row in rows for word in row[text].split()]
        texts = [" ".join(every[i * words : (i + 1) * words]) for i in range(count)]
    return texts, [int(rows[i][label]) for i in chosen]


def measure(side: str, work: str, count: int, words: int) -> dict[str, float]:
    """Measure one side in a new process."""
    *function, backend = SIDES[side]
    command = [sys.executable, __file__, "--measure", *function, work, str(count), str(words)]
    start = time.perf_counter()
    output = subprocess.run(
        command,
        env={**os.environ, "KERAS_BACKEND": backend},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    seconds = time.perf_counter() - start
    return {"value": seconds, **json.loads(output.strip().split("\n")[-1])}


def print_table(work: str, sides: list[str], rounds: int, count: int, words: int) -> None:
    """Print medians and ranges for all sides, and ratios to the first side."""
    runs = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            wanted = 2 * count if work in ("fit", "refit") else count  # sentences for both calls
            runs[side].append(measure(side, work, wanted, words))
    unit = {"job": "s", "answer": "s", "latency": "ms"}.get(work, "sentences/s")
    length = f" of {words} words" if words else ""
    ratio_title = f"{sides[0]} is ... times as fast | range"
    print(f"\n| {work}, {count} sentences{length} | {unit} | range | {ratio_title} | peak MB |")
    print("|---" * 6 + "|")
    first = [row["value"] for row in runs[sides[0]]]
    for side, rows in runs.items():
        values = [row["value"] for row in rows]
        ratios = [a / b for a, b in zip(first, values, strict=True)]
        ratio = statistics.median(first) / statistics.median(values)
        if unit in ("s", "ms"):
            ratios, ratio = [1 / r for r in ratios], 1 / ratio
        peak = statistics.median(row["peak_mb"] for row in rows)
        p99 = statistics.median(row.get("p99", 0) for row in rows)
        fixed = statistics.median(row.get("fixed", 0) for row in rows)
        shown = f"{statistics.median(values):.1f}" + (f" (p99 {p99:.1f})" if p99 else "")
        shown += f" (fixed {fixed:.2f} s)" if fixed else ""
        spread = f"{min(values):.1f} to {max(values):.1f}"
        ratio_spread = f"{ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {side} | {shown} | {spread} | {ratio_spread} | {peak:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES)[:-1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, nargs="+", default=[2000], help="number of sentences")
    parser.add_argument(
        "--words", type=int, nargs="+", default=[0], help="words per text (0: whole sentences)"
    )
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        module, function, work, count, words = options.measure
        side = getattr(importlib.import_module(module), function)
        result = side(work, *sentences(int(count), int(words)))
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result))
        return
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{os.cpu_count()} CPU cores, Python {platform.python_version()}, {versions}")
    for work in options.work:
        for count, words in itertools.product(options.count, options.words):
            print_table(work, options.sides, options.rounds, count, words)


if __name__ == "__main__":
    main()
