"""Compare speed and memory for text embeddings between encoder_zoo and sentence-transformers.

    python benchmarks/embedding.py                      # everything
    python benchmarks/embedding.py --work embed --count 64 600 10000 --rounds 5
    python benchmarks/embedding.py --work fit chunks --count 1920

All sides start from the same raw texts and load all-MiniLM-L6-v2 weights in float32, unless another
dtype is shown. `for_cpu` is not included in training, because it only supports inference. Each
measurement runs in a separate process. Sides run in turns on the same machine. Ratios are based on
medians. The following can be passed to `--work`:

- embed: texts per second in the second call, on SST-2 sentences
- latency: milliseconds to embed one sentence (median and 99th percentile)
- answer: seconds until a new process has embedded its first sentence
- fit: pairs per second in the second epoch, training with InfoNCE on batches of 64 SQuAD pairs
- chunks: same as fit, using GradCache with batches of 512 and chunks of 64, and peak memory

To provide the data, set `ENCODER_ZOO_DATA` to a folder with `sst2/train.tsv` and
`qa/squad/train.json`. This script requires the extra `peers`.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from sources import DATA, MINILM, need_data
from speed_measures import latencies, second_call

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH, CHUNKED_BATCH, CHUNK = 64, 512, 64
PACKAGES = ("keras", "tensorflow", "torch", "transformers", "sentence-transformers")
WORKS = ("embed", "latency", "answer", "fit", "chunks")
UNITS = {"embed": "texts/s", "latency": "ms", "answer": "s"}


def sentences(count: int) -> list[str]:
    """Return sentences in random order. The order is the same for all sides."""
    lines = (DATA / "sst2" / "train.tsv").read_text(encoding="utf-8").split("\n")
    rows = [line.split("\t")[1] for line in lines[1:] if line]
    return random.Random(0).sample(rows, count)


def pairs(count: int) -> tuple[list[str], list[str]]:
    """Return questions with their paragraphs."""
    articles = json.loads((DATA / "qa" / "squad" / "train.json").read_text("utf-8"))["data"]
    found = [
        (question["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return tuple(map(list, zip(*random.Random(0).sample(found, count), strict=True)))


class Ours:
    """Measure encoder_zoo on TensorFlow, or `for_cpu` with a dtype and an engine.

    For int8 on OpenVINO, ranges are calibrated on 300 sentences.
    """

    def __init__(self, for_cpu: str | None = None, engine: str = "litert"):
        import encoder_zoo as ez

        self.model = ez.TextEmbedder.from_preset(MINILM)
        if for_cpu:
            calibrates = (for_cpu, engine) == ("int8", "openvino")
            texts = sentences(300) if calibrates else None
            self.model = self.model.for_cpu(for_cpu, engine=engine, texts=texts)

    def embed(self, texts: list[str] | str) -> None:
        self.model.embed(texts)

    def fit(self, columns: tuple, batch_size: int, chunk_size: int | None) -> float:
        """Return how many seconds the second epoch takes."""
        import keras

        began = []

        class Times(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                began.append(time.perf_counter())

        self.model.compile(chunk_size=chunk_size, learning_rate=2e-5)
        options = {"callbacks": [Times()], "epochs": 2, "verbose": 0}
        self.model.fit(columns, batch_size=batch_size, **options)
        return time.perf_counter() - began[1]


class SentenceTransformers:
    """Measure sentence-transformers on PyTorch. Losses are used in a loop with AdamW."""

    def __init__(self):
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(MINILM), device="cpu")

    def embed(self, texts: list[str] | str) -> None:
        self.model.encode(texts)

    def fit(self, columns: tuple, batch_size: int, chunk_size: int | None) -> float:
        """Return how many seconds the second epoch takes."""
        import torch
        from sentence_transformers.sentence_transformer import losses

        if chunk_size is None:
            loss = losses.MultipleNegativesRankingLoss(self.model)
        else:
            loss = losses.CachedMultipleNegativesRankingLoss(self.model, mini_batch_size=chunk_size)
        optimizer = torch.optim.AdamW(self.model.parameters(), 2e-5, fused=True)
        self.model.train()
        order = list(range(len(columns[0])))
        for _ in range(2):
            start = time.perf_counter()
            random.shuffle(order)
            for i in range(0, len(order), batch_size):
                rows = order[i : i + batch_size]
                inputs = [self.model.preprocess([c[j] for j in rows]) for c in columns]
                optimizer.zero_grad()
                loss(inputs, None).backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                optimizer.step()
        return time.perf_counter() - start


SIDES: dict[str, Callable] = {
    "encoder_zoo": Ours,
    "encoder_zoo, for_cpu('float32')": functools.partial(Ours, "float32"),
    "encoder_zoo, for_cpu('int8')": functools.partial(Ours, "int8"),
    **{
        f"encoder_zoo, for_cpu('{dtype}', 'openvino')": functools.partial(Ours, dtype, "openvino")
        for dtype in ("float32", "bfloat16", "int8")
    },
    "sentence-transformers": SentenceTransformers,
}
TRAINED = ("encoder_zoo", "sentence-transformers")


def measured(side: str, work: str, count: int) -> dict[str, float]:
    """Measure one side in this process."""
    if work in ("fit", "chunks"):
        columns = pairs(count)
        chunked = work == "chunks"
        sizes = (CHUNKED_BATCH, CHUNK) if chunked else (BATCH, None)
        return {"value": count / SIDES[side]().fit(columns, *sizes)}
    texts = sentences(count)
    model = SIDES[side]()
    if work == "latency":
        return latencies(model.embed, texts)
    if work == "answer":
        model.embed(texts[0])
        return {}
    return {"value": count / second_call(lambda: model.embed(texts))}


def in_process(side: str, work: str, count: int) -> dict[str, float]:
    """Measure one side in a new process. By default, this returns its time in seconds."""
    command = [sys.executable, __file__, "--measure", side, work, str(count)]
    start = time.perf_counter()
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    seconds = time.perf_counter() - start
    return {"value": seconds, **json.loads(output.strip().split("\n")[-1])}


def print_table(work: str, rounds: int, count: int) -> None:
    """Print medians and ranges for all sides, and ratios to the last side."""
    sides = TRAINED if work in ("fit", "chunks") else list(SIDES)
    runs = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            runs[side].append(in_process(side, work, count))
    unit = UNITS.get(work, "pairs/s")
    print(f"\n| {work}, {count} | {unit} | range | times as fast as {sides[-1]} | MB |")
    print("|---" * 5 + "|")
    peer = statistics.median(row["value"] for row in runs[sides[-1]])
    for side, rows in runs.items():
        values = [row["value"] for row in rows]
        median = statistics.median(values)
        ratio = median / peer if unit.endswith("/s") else peer / median
        p99 = f" (p99 {statistics.median(r['p99'] for r in rows):.1f})" if "p99" in rows[0] else ""
        peak = statistics.median(row["peak_mb"] for row in rows)
        spread = f"{min(values):.1f} to {max(values):.1f}"
        print(f"| {side} | {median:.1f}{p99} | {spread} | {ratio:.2f} | {peak:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, nargs="+", default=[1920], help="texts or pairs")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    need_data("sst2", "qa")
    if options.measure:
        side, work, count = options.measure
        result = measured(side, work, int(count))
        result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result))
        return
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{os.cpu_count()} CPU cores, Python {platform.python_version()}, {versions}")
    for work in options.work:
        for count in options.count:
            print_table(work, options.rounds, count)


if __name__ == "__main__":
    main()
