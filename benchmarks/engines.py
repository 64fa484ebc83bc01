"""Search among many vectors: exact, by our graph, and by the bare libraries that make graphs.

    python benchmarks/engines.py --vectors 1000000

Milliseconds are of one query and of 100 at once; recall is the part of the 10 nearest that is
found, also behind filters that half and a tenth of the vectors meet, and after a tenth were
removed. The vectors are drawn: 48 dimensions in 1,000 groups, and noise in all 384, as random ones
have no near neighbours. Needs faiss-cpu; usearch, if it is installed, is measured too.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable

import faiss
import numpy as np

from encoder_zoo.tasks.retrieval import engines
from encoder_zoo.tasks.retrieval.engines import GraphVectors
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors, Int8Vectors

WIDTH, TOP_K, QUERIES = 384, 10, 100


def drawn(count: int, seed: int) -> np.ndarray:
    """(count, WIDTH) of unit length."""
    shared, draw = np.random.default_rng(0), np.random.default_rng(seed)
    directions = shared.standard_normal((48, WIDTH), dtype="float32")
    groups = shared.standard_normal((1_000, 48), dtype="float32")
    vectors = np.empty((count, WIDTH), "float32")
    for first in range(0, count, 50_000):
        part = vectors[first : first + 50_000]
        inner = groups[draw.integers(0, 1_000, len(part))]
        inner += 0.7 * draw.standard_normal((len(part), 48), dtype="float32")
        part[:] = inner @ directions + 1.5 * draw.standard_normal(part.shape, dtype="float32")
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def milliseconds(search: Callable, queries: np.ndarray) -> tuple[float, float]:
    """Of one query, the median of all, and of all at once, for each."""
    search(queries[:1])
    times = []
    for i in range(len(queries)):
        start = time.perf_counter()
        search(queries[i : i + 1])
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    search(queries)
    return 1000 * np.median(times), 1000 * (time.perf_counter() - start) / len(queries)


def recall(found: np.ndarray, expected: np.ndarray) -> float:
    same = [len(set(a) & set(b)) for a, b in zip(found, expected, strict=True)]
    return np.mean(same) / expected.shape[1]


def report(name: str, search: Callable, queries: np.ndarray, expected: np.ndarray, built: float):
    one, many = milliseconds(search, queries)
    found = recall(search(queries), expected)
    print(f"| {name} | {built:.0f} | {one:.2f} | {many:.2f} | {found:.3f} |", flush=True)


def timed(make: Callable):
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def bare_faiss(vectors: np.ndarray):
    index = faiss.IndexHNSWFlat(WIDTH, engines.LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = engines.BUILDING_BREADTH, engines.BREADTH
    index.add(vectors)
    return index


def bare_usearch(vectors: np.ndarray):
    from usearch.index import Index

    index = Index(
        ndim=WIDTH, metric="ip", dtype="f32", connectivity=16, expansion_search=engines.BREADTH
    )
    index.add(np.arange(len(vectors)), vectors)
    return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vectors", type=int, default=1_000_000)
    count = parser.parse_args().vectors
    vectors, queries = drawn(count, 1), drawn(QUERIES, 2)
    exact = Float32Vectors.of(vectors)
    expected = exact.nearest(queries, TOP_K)[0]
    print(f"\n| {count:,} vectors | built, s | one query, ms | each of 100, ms | recall@10 |")
    print("|---" * 5 + "|")
    report("exact, NumPy", lambda q: exact.nearest(q, TOP_K)[0], queries, expected, 0)
    measure_ours(exact, queries, expected)
    measure_bare(vectors, queries, expected)


def measure_ours(exact: Float32Vectors, queries: np.ndarray, expected: np.ndarray) -> None:
    """Print the lines of our graph, also behind filters and after a removal."""
    count = len(exact)
    store, built = timed(lambda: GraphVectors(exact))
    report('engine="hnsw"', lambda q: store.nearest(q, TOP_K)[0], queries, expected, built)
    for share in (0.5, 0.1):
        among = np.flatnonzero(np.random.default_rng(3).random(count) < share)
        right = exact.nearest(queries, TOP_K, among)[0]

        def search(some: np.ndarray, among: np.ndarray = among) -> np.ndarray:
            return store.nearest(some, TOP_K, among)[0]

        report(f"the same, {share:.0%} meet the filter", search, queries, right, 0)
    kept = np.sort(np.random.default_rng(4).permutation(count)[: int(0.9 * count)])
    left, taken = timed(lambda: store.taken(kept))
    right = exact.taken(kept).nearest(queries, TOP_K)[0]
    name = "the same, a tenth removed"
    report(name, lambda q: left.nearest(q, TOP_K)[0], queries, right, taken)
    coarse, built = timed(lambda: GraphVectors(Int8Vectors.of(exact.vectors)))
    name = 'engine="hnsw", int8'
    report(name, lambda q: coarse.nearest(q, TOP_K)[0], queries, expected, built)


def measure_bare(vectors: np.ndarray, queries: np.ndarray, expected: np.ndarray) -> None:
    """Print the lines of the libraries by themselves."""
    theirs, built = timed(lambda: bare_faiss(vectors))
    report("bare faiss", lambda q: theirs.search(q, TOP_K)[1], queries, expected, built)
    if importlib.util.find_spec("usearch"):
        index, built = timed(lambda: bare_usearch(vectors))

        def search(some: np.ndarray) -> np.ndarray:
            return np.reshape(index.search(some, TOP_K).keys, (len(some), -1))

        report("bare usearch", search, queries, expected, built)


if __name__ == "__main__":
    main()
