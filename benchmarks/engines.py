"""Search large sets of vectors, using exact search, HNSW graphs, and other graph libraries.

    python benchmarks/engines.py --vectors 1000000 --folder graphs

Times are given in milliseconds for one query and for 100 queries per call. Recall is the fraction
of the 10 nearest vectors that are found. This is also measured with filters that match 50 % and 10
% of all vectors, and after removing 10 % of all vectors.

Vectors are random points in 1,000 groups with 48 dimensions, with noise in all 384 dimensions,
because purely random vectors do not have near neighbors. faiss searches the same graph that it has
built for this package. Graphs are built in parts and saved to the folder. If this script is killed,
the next run will continue, and later runs only measure search. This script requires faiss-cpu. If
usearch is installed, it will also be measured.
"""

import argparse
import functools
import importlib.util
import pathlib
import time
from collections.abc import Callable

import faiss
import numpy as np

from encoder_zoo.tasks.retrieval import engines
from encoder_zoo.tasks.retrieval.engines import GraphVectors
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors, Int8Vectors

WIDTH, TOP_K, QUERIES = 384, 10, 100
PART = 20_000  # number of vectors to add at once to a saved graph


def drawn(count: int, seed: int) -> np.ndarray:
    """Create (count, WIDTH) vectors of unit length."""
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
    """Return the median time for one query, and the time per query for all queries at once."""
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


def report(
    name: str,
    search: Callable,
    queries: np.ndarray,
    expected: np.ndarray,
    size: int | None = None,
    built: float | None = None,
) -> None:
    one, many = milliseconds(search, queries)
    found = recall(search(queries), expected)
    made = "" if built is None else f"{built:.0f}"
    memory = "" if size is None else f"{size / 1e6:,.0f}"
    print(f"| {name} | {made} | {memory} | {one:.2f} | {many:.2f} | {found:.3f} |", flush=True)


def timed(make: Callable):
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def graph_of(
    base: Float32Vectors, folder: pathlib.Path | None, name: str
) -> tuple[GraphVectors, float]:
    """Build or load a graph. Return the vector store and the seconds to build the graph."""
    if folder is None:
        return timed(lambda: GraphVectors(base))
    path = folder / f"{name}_{len(base)}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    links, levels, seconds = None, np.zeros(0, "int32"), 0.0
    if path.exists():
        with np.load(path) as kept:
            links, levels, seconds = kept["links"], kept["levels"], float(kept["seconds"])
    while len(levels) < len(base):
        part = base.take(slice(len(levels) + PART))
        store, took = timed(functools.partial(GraphVectors, part, links, levels))
        links, levels, seconds = store.links.copy(), store.levels, seconds + took
        # If this process is killed while writing, the previous file remains.
        np.savez(path.with_suffix(".part.npz"), links=links, levels=levels, seconds=seconds)
        path.with_suffix(".part.npz").replace(path)
    return GraphVectors(base, links, levels), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--folder", type=pathlib.Path, help="folder for the graphs")
    options = parser.parse_args()
    vectors, queries = drawn(options.vectors, 1), drawn(QUERIES, 2)
    exact = Float32Vectors(vectors)
    expected = exact.find_nearest(queries, TOP_K)[0]
    columns = ("built, s", "MB", "one query, ms", "each of 100, ms", "recall@10")
    print(f"\n| {len(exact):,} vectors | {' | '.join(columns)} |\n" + "|---" * 6 + "|")
    report("exact, NumPy", searching(exact), queries, expected, exact.nbytes)
    store = measure_graph(exact, queries, expected, options.folder)
    measure_removal(store, exact, queries)
    measure_int8(exact, queries, expected, options.folder)
    if importlib.util.find_spec("usearch"):
        measure_usearch(vectors, queries, expected)


def searching(store: Float32Vectors, among: np.ndarray | None = None) -> Callable:
    return lambda queries: store.find_nearest(queries, TOP_K, among)[0]


def measure_graph(
    exact: Float32Vectors, queries: np.ndarray, expected: np.ndarray, folder: pathlib.Path | None
) -> GraphVectors:
    """Measure a graph with and without filters, and the same graph in faiss. Return the graph."""
    store, built = graph_of(exact, folder, "float32")
    report('engine="hnsw"', searching(store), queries, expected, store.nbytes, built)
    bare = store._graph
    bare.hnsw.efSearch = engines.SEARCH_BREADTH
    report("bare faiss", lambda some: bare.search(some, TOP_K)[1], queries, expected)
    for share in (0.5, 0.1):
        among = np.flatnonzero(np.random.default_rng(3).random(len(exact)) < share)
        right = exact.find_nearest(queries, TOP_K, among)[0]
        name = f'engine="hnsw", {share:.0%} meet the filter'
        report(name, searching(store, among), queries, right)
        chosen = np.isin(np.arange(len(exact)), among)
        selector = faiss.IDSelectorBitmap(np.packbits(chosen, bitorder="little"))
        # Visit as many matching vectors as a search without filter visits in total.
        breadth = int(engines.SEARCH_BREADTH / share)
        params = faiss.SearchParametersHNSW(efSearch=breadth, sel=selector)

        def search(some: np.ndarray, params: faiss.SearchParametersHNSW = params) -> np.ndarray:
            return bare.search(some, TOP_K, params=params)[1]

        report(f"bare faiss, {share:.0%} meet the filter", search, queries, right)
    return store


def measure_removal(store: GraphVectors, exact: Float32Vectors, queries: np.ndarray) -> None:
    """Measure a graph after removing 10 % of its vectors."""
    count = len(exact)
    indices = np.sort(np.random.default_rng(4).permutation(count)[: int(0.9 * count)])
    expected = exact.take(indices).find_nearest(queries, TOP_K)[0]
    left, took = timed(lambda: store.take(indices))
    name = 'engine="hnsw", a tenth removed'
    report(name, searching(left), queries, expected, left.nbytes, took)


def measure_int8(
    exact: Float32Vectors, queries: np.ndarray, expected: np.ndarray, folder: pathlib.Path | None
) -> None:
    """Measure an int8 graph. Recall is computed from the nearest float32 vectors."""
    coarse = Int8Vectors.create(exact.vectors)
    store, built = graph_of(coarse, folder, "int8")
    name = 'engine="hnsw", int8'
    report(name, searching(store), queries, expected, store.nbytes, built)


def measure_usearch(vectors: np.ndarray, queries: np.ndarray, expected: np.ndarray) -> None:
    from usearch.index import Index

    options = {"connectivity": engines.LINKS, "expansion_add": engines.BUILDING_BREADTH}
    index = Index(
        ndim=WIDTH, metric="ip", dtype="f32", expansion_search=engines.SEARCH_BREADTH, **options
    )
    _, built = timed(lambda: index.add(np.arange(len(vectors)), vectors))

    def search(some: np.ndarray) -> np.ndarray:
        return np.reshape(index.search(some, TOP_K).keys, (len(some), -1))

    report("bare usearch", search, queries, expected, built=built)


if __name__ == "__main__":
    main()
