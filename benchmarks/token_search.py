"""Measure MaxSim search among 10,000 documents with 180 tokens: time, memory and recall.

    python benchmarks/token_search.py

To measure time, random token vectors are created by adding noise to one of 30,000 word vectors.
Sides run in turns, so that other programs on the machine affect all sides equally. "CPU" counts all
threads in the process. faiss does not support documents with several vectors. For this reason, its
exact index is used to find the 1,000 nearest tokens for each query token, and only their products
are summed.

To measure recall, SQuAD questions (`qa/squad/dev.json`) and paragraphs are embedded together with
Wikipedia paragraphs (`text/wikipedia_train.txt.gz`), using all-MiniLM-L6-v2 from a Python package
and a projection to 128 dimensions. Recall is the fraction of the 10 best float32 results that are
found. It is higher for trained models, which can be passed to `--model`. This script requires
faiss-cpu.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import faiss
import keras
import numpy as np
from search import real_texts
from sources import MINILM, need_data

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval.token_vectors import TOKEN_STORES, TokenVectors, pool_tokens

TOKENS, WIDTH, QUERY, TOP_K, WORDS = 180, 128, 32, 10, 30_000
TARGET = 300  # milliseconds per query for 10,000 documents
NEAREST = 1_000  # number of tokens that faiss finds for each query token


def drawn(counts: list[int], seed: int) -> list[np.ndarray]:
    """Create one text per token count, (tokens, WIDTH). Tokens are unit vectors with noise."""
    words = np.random.default_rng(0).standard_normal((WORDS, WIDTH), dtype="float32")
    draw = np.random.default_rng(seed)
    return [_unit(words[draw.integers(WORDS, size=n)] + _noise(draw, n)) for n in counts]


def _noise(draw: np.random.Generator, count: int) -> np.ndarray:
    return 0.5 * draw.standard_normal((count, WIDTH), dtype="float32")


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ours(documents: list[np.ndarray]) -> dict[str, Callable]:
    """Return functions that map a query (tokens, WIDTH) to the indices of the best documents."""
    searches = {}
    start = time.process_time()
    halved = [pool_tokens(tokens, 2) for tokens in documents]
    print(f"pool_factor=2: {time.process_time() - start:.0f} CPU s", flush=True)
    given_of = {**dict.fromkeys(TOKEN_STORES, documents), "float32, pool_factor=2": halved}
    for name, given in given_of.items():
        start = time.process_time()
        tokens = TokenVectors.create(given, name.split(",")[0])
        spent, size = time.process_time() - start, tokens.store.nbytes / 1e6
        print(f"{name}: {size:.0f} MB, built in {spent:.0f} CPU s", flush=True)
        searches[name] = lambda query, tokens=tokens: tokens.find_nearest([query], TOP_K)[0][0]
    return searches


def faiss_search(documents: list[np.ndarray]) -> Callable:
    """Return a function that searches tokens with an exact faiss index."""
    index = faiss.IndexFlatIP(WIDTH)
    index.add(np.concatenate(documents))
    owners = np.repeat(np.arange(len(documents)), [len(tokens) for tokens in documents])

    def search(query: np.ndarray) -> np.ndarray:
        products, found = index.search(query, NEAREST)
        scores = np.zeros(len(documents))
        for row, of_row in zip(products, owners[found], strict=True):
            best = np.zeros(len(documents))
            np.maximum.at(best, of_row, row)
            scores += best
        return np.argsort(-scores, kind="stable")[:TOP_K]

    return search


def measure_speed(count: int, rounds: int) -> None:
    """Print median wall time and CPU time in milliseconds per query."""
    searches = ours(documents := drawn([TOKENS] * count, 1))
    searches["faiss IndexFlatIP of tokens"] = faiss_search(documents)
    queries = drawn([QUERY] * (rounds + 1), 2)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in searches}
    for query in queries:  # the first one is used to warm up
        for name, search in searches.items():
            start = time.perf_counter(), time.process_time()
            search(query)
            ends = time.perf_counter(), time.process_time()
            times[name].append(tuple(1000 * (b - a) for a, b in zip(start, ends, strict=True)))
    print(f"\n| search among {count:,} documents of {TOKENS} tokens | ms | CPU ms |\n|---|---|---|")
    for name, (_, *rows) in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {name} | {wall:.0f} | {cpu:.0f} |", flush=True)
    print(f"target: at most {TARGET} ms for a query among 10,000 documents")


def measure_recall(count: int, preset: str) -> None:
    """Print recall@10 on real tokens, relative to float32."""
    texts, questions = real_texts(count)
    keras.utils.set_random_seed(0)
    model = ez.LateInteraction.from_preset(preset, dim=WIDTH)
    searches = ours(documents := model.embed(texts))
    searches["faiss IndexFlatIP of tokens"] = faiss_search(documents)
    found = {name: [] for name in searches}
    for query in model.embed(questions[:: max(1, len(questions) // 200)], prompt="query"):
        for name, search in searches.items():
            found[name].append(set(search(query).tolist()))
    print(f"\nrecall@{TOP_K}, {len(found['float32'])} questions, {len(texts):,} paragraphs:")
    for name, sets in found.items():
        same = [len(a & b) for a, b in zip(sets, found["float32"], strict=True)]
        print(f"{name:30} {np.mean(same) / TOP_K:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--texts", type=int, default=2_000, help="texts for recall (0: skip)")
    parser.add_argument("--model", default=str(MINILM), help="model for recall")
    options = parser.parse_args()
    if options.texts:
        need_data("qa", "text")
    if options.documents:
        measure_speed(options.documents, options.rounds)
    if options.texts:
        measure_recall(options.texts, options.model)


if __name__ == "__main__":
    main()
