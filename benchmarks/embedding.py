"""Speed and memory of text embeddings, beside sentence-transformers, in turns on one machine.

    python benchmarks/embedding.py                      # everything
    python benchmarks/embedding.py --work embed --count 64 600 10000 --rounds 5
    python benchmarks/embedding.py --work fit chunks --count 1920

All sides have the all-MiniLM-L6-v2 weights, float32 but where they say otherwise, and the same
texts, text in. `for_cpu` answers only, so it is left out of training. Every measurement is a
process of its own; sides take turns, and the ratio is that of the medians. Works:

- embed: texts a second in the second call, on SST-2's sentences;
- latency: milliseconds of embedding one sentence, median and 99th percentile;
- answer: seconds until a fresh process has embedded its first sentence;
- fit: pairs a second of training with InfoNCE in batches of 64 pairs of SQuAD, the second epoch;
- chunks: the same with GradCache, batches of 512 in parts of 64, and the peak of the memory.

`ENCODER_ZOO_DATA` names a folder that holds `sst2/train.tsv` and `qa/squad/train.json`. Needs the
extra `peers`.
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
    """Return sentences in random order, the same for both sides."""
    lines = (DATA / "sst2" / "train.tsv").read_text(encoding="utf-8").split("\n")
    rows = [line.split("\t")[1] for line in lines[1:] if line]
    return random.Random(0).sample(rows, count)


def pairs(count: int) -> tuple[list[str], list[str]]:
    """Return questions and their paragraphs."""
    articles = json.loads((DATA / "qa" / "squad" / "train.json").read_text("utf-8"))["data"]
    found = [
        (question["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    return tuple(map(list, zip(*random.Random(0).sample(found, count), strict=True)))


class Ours:
    """encoder_zoo on TensorFlow, or `for_cpu` of a dtype and an engine.

    Ranges for OpenVINO's int8 are taken from 300 sentences.
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
        """Return the seconds of the second epoch."""
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
    """sentence-transformers on PyTorch; its losses in a loop with AdamW, without its Trainer."""

    def __init__(self):
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(str(MINILM), device="cpu")

    def embed(self, texts: list[str] | str) -> None:
        self.model.encode(texts)

    def fit(self, columns: tuple, batch_size: int, chunk_size: int | None) -> float:
        """Return the seconds of the second epoch."""
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
    """Return the measurement of one side, in this process."""
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
    """Return one measurement, in a fresh process; its seconds, if it measures no other value."""
    command = [sys.executable, __file__, "--measure", side, work, str(count)]
    start = time.perf_counter()
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    seconds = time.perf_counter() - start
    return {"value": seconds, **json.loads(output.strip().split("\n")[-1])}


def print_table(work: str, rounds: int, count: int) -> None:
    """Print medians and ranges of all sides, and what each is to the last."""
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
    parser.add_argument("--count", type=int, nargs="+", default=[1920], help="texts, or pairs")
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
