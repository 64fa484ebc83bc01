"""Compare search among 100,000 vectors with an exact faiss index: time, memory and recall.

    python benchmarks/search.py

Random vectors are used to measure time, because time does not depend on vector values. Sides run in
turns, so that other programs on the machine affect all sides equally. To measure recall, SQuAD
questions (`qa/squad/dev.json`) are used to search SQuAD and Wikipedia paragraphs
(`text/wikipedia_train.txt.gz`), with embeddings from all-MiniLM-L6-v2 in a Python package. Recall
is the fraction of the 10 nearest float32 vectors that are found. This script requires the extra
`peers` and faiss-cpu.
"""

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import faiss
import numpy as np
from sources import DATA, MINILM, need_data

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval.vectors import VECTOR_STORES

WIDTH, TOP_K, TARGET = 384, 10, 1.2
FAISS = "faiss IndexFlatIP"


def random_vectors(count: int, seed: int) -> np.ndarray:
    """Create (count, WIDTH) vectors of unit length."""
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH), dtype="float32")
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def contestants(vectors: np.ndarray) -> dict[str, Callable]:
    """Return functions that map queries (Q, WIDTH) to nearest vector indices (Q, TOP_K)."""
    theirs = faiss.IndexFlatIP(WIDTH)
    theirs.add(vectors)
    searches = {FAISS: lambda queries: theirs.search(queries, TOP_K)[1]}
    for name, kind in VECTOR_STORES.items():
        store = kind.create(vectors)
        print(
            f"{name:8} {store.nbytes / 1e6:6.1f} MB, {store.nbytes / vectors.nbytes:.3f} of float32"
        )
        searches[name] = lambda queries, store=store: store.find_nearest(queries, TOP_K)[0]
    return searches


def measure_speed(count: int, batches: list[int], rounds: int) -> None:
    """Print median times in milliseconds, and median ratios to faiss in the same round."""
    searches = contestants(random_vectors(count, 0))
    print(f"\n| queries | search among {count:,} | ms | of faiss |\n" + 4 * "|---" + "|")
    for batch in batches:
        queries = random_vectors(batch, 1)
        times: dict[str, list[float]] = {name: [] for name in searches}
        for name in list(searches) * (rounds + 1):  # the first round is used for warming up
            start = time.perf_counter()
            searches[name](queries)
            times[name].append(1000 * (time.perf_counter() - start))
        theirs = times[FAISS][1:]
        for name, (_, *ours) in times.items():
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            print(f"| {batch} | {name} | {statistics.median(ours):.2f} | {ratio:.2f} |", flush=True)
    print(f"target for float32: at most {TARGET} of faiss")


def real_texts(count: int) -> tuple[list[str], list[str]]:
    """Read `count` paragraphs and 500 questions."""
    articles = json.loads((DATA / "qa" / "squad" / "dev.json").read_text("utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    texts = [paragraph["context"] for paragraph in paragraphs]
    questions = [qa["question"] for paragraph in paragraphs for qa in paragraph["qas"]]
    with gzip.open(DATA / "text" / "wikipedia_train.txt.gz", "rt", encoding="utf-8") as file:
        texts += [line.strip() for line in file if len(line) > 100]
    return texts[:count], questions[:: max(1, len(questions) // 500)]


def real_vectors(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Embed `count` paragraphs and 500 questions."""
    texts, questions = real_texts(count)
    embed = ez.TextEmbedder.from_preset(MINILM).embed
    return embed([text[:300] for text in texts]), embed(questions)


def measure_recall(count: int) -> None:
    """Print recall@10 for lower precisions, and for faiss and this package in float32."""
    vectors, queries = real_vectors(count)
    searches = contestants(vectors)
    exact = searches["float32"](queries)
    print(f"\nrecall@{TOP_K}, {len(queries)} questions, {len(vectors):,} paragraphs:")
    for name, search in searches.items():
        found = [len(set(a) & set(b)) for a, b in zip(search(queries), exact, strict=True)]
        print(f"{name:20} {np.mean(found) / TOP_K:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 1_000], help="queries")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--texts", type=int, default=10_000, help="texts for recall (0: skip)")
    options = parser.parse_args()
    if options.texts:
        need_data("qa", "text")
    measure_speed(options.vectors, options.batches, options.rounds)
    if options.texts:
        measure_recall(options.texts)


if __name__ == "__main__":
    main()
