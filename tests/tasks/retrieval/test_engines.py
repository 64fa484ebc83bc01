"""Vectors in faiss's graph: what is found, filters, changes, files."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import encoder_zoo as ez
from encoder_zoo.tasks.retrieval import engines
from encoder_zoo.tasks.retrieval.engines import GraphVectors, check_graph, take_from_graph
from encoder_zoo.tasks.retrieval.vectors import Float32Vectors, Int8Vectors

faiss = pytest.importorskip("faiss", reason="engines need faiss-cpu")

COUNT, WIDTH = 4_000, 12
FUNCTIONS = ("cosine", "dot", "euclidean", "manhattan")


def drawn(count, seed, function="dot"):
    vectors = np.random.default_rng(seed).standard_normal((count, WIDTH), dtype="float32")
    if function == "cosine":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


@pytest.fixture(autouse=True)
def few_compared(monkeypatch):
    """Make graphs worth it among few vectors."""
    monkeypatch.setattr(engines, "SEARCH_BREADTH", 40)
    monkeypatch.setattr(engines, "SPARE_RESULTS", 4)


def recall(store, exact, queries, k=10, among=None):
    found, expected = (s.find_nearest(queries, k, among)[0] for s in (store, exact))
    return np.mean([len(set(a) & set(b)) for a, b in zip(found, expected, strict=True)]) / k


@pytest.fixture(scope="module")
def built():
    """Graphs of the same vectors, made once: {(precision, function): store}."""
    made = {}

    def store_of(kind, function):
        if (kind, function) not in made:
            made[kind, function] = GraphVectors(kind.create(drawn(COUNT, 0, function), function))
        return made[kind, function]

    return store_of


@pytest.mark.parametrize(
    ("kind", "function"),
    [*((Float32Vectors, f) for f in FUNCTIONS), *((Int8Vectors, f) for f in FUNCTIONS[:3])],
)
def test_nearly_all_that_an_exact_search_finds(built, kind, function):
    exact, store = kind.create(drawn(COUNT, 0, function), function), built(kind, function)
    queries = drawn(50, 1, function)
    assert recall(store, exact, queries) > 0.95
    indices, scores = store.find_nearest(queries, 10)
    for row, (found, score) in enumerate(zip(indices, scores, strict=True)):
        every = exact.find_nearest(queries[row : row + 1], COUNT)
        expected = dict(zip(every[0][0].tolist(), every[1][0].tolist(), strict=True))
        np.testing.assert_allclose(score, [expected[i] for i in found.tolist()], rtol=1e-6)
        assert (np.diff(score) <= 0).all()
    np.testing.assert_array_equal(store.rows(slice(None)), exact.rows(slice(None)))


@pytest.mark.parametrize("kind", [Float32Vectors, Int8Vectors])
def test_finds_what_the_bare_library_finds(built, kind):
    vectors, queries = kind.create(drawn(COUNT, 0)).rows(slice(None)), drawn(50, 1)
    theirs = faiss.IndexHNSWFlat(WIDTH, engines.LINKS, faiss.METRIC_INNER_PRODUCT)
    theirs.hnsw.efConstruction, theirs.hnsw.efSearch = engines.BUILDING_BREADTH, 40
    theirs.add(vectors)
    exact = Float32Vectors.create(vectors)
    found, expected = theirs.search(queries, 10)[1], exact.find_nearest(queries, 10)[0]
    of_theirs = np.mean([len(set(a) & set(b)) for a, b in zip(found, expected, strict=True)]) / 10
    assert recall(built(kind, "dot"), exact, queries) > of_theirs - 0.02


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2, 0.01, 0.001])
def test_a_filter_keeps_what_is_found(built, share):
    among = np.flatnonzero(np.random.default_rng(2).random(COUNT) < share)
    store, queries = built(Float32Vectors, "euclidean"), drawn(50, 1)
    k = min(10, len(among))
    assert recall(store, store.base, queries, k, among) > 0.95
    assert np.isin(store.find_nearest(queries, k, among)[0], among).all()


def test_a_filter_of_vectors_that_are_far_from_the_query(built):
    store, queries = built(Float32Vectors, "dot"), drawn(20, 1)
    for query in queries:
        among = np.sort(np.argsort(store.vectors @ query)[: COUNT // 2])  # the farther half
        assert recall(store, store.base, query[None], 10, among) > 0.6
        assert np.isin(store.find_nearest(query[None], 10, among)[0], among).all()


def test_all_vectors_can_be_asked_for(built):
    store = built(Float32Vectors, "dot")
    for k in (500, COUNT):
        found = store.find_nearest(drawn(3, 1), k)
        expected = store.base.find_nearest(drawn(3, 1), k)
        assert recall(store, store.base, drawn(3, 1), k) > 0.95
        assert found[0].shape == expected[0].shape == (3, k)


def test_what_the_graph_does_not_reach_is_compared(built):
    store = built(Float32Vectors, "dot")
    lonely = GraphVectors(store.base, np.full_like(store.links, -1), store.levels)
    queries = drawn(5, 1)
    for found, expected in zip(
        lonely.find_nearest(queries, 10), store.base.find_nearest(queries, 10), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [Float32Vectors, Int8Vectors])
def test_vectors_that_are_removed_part_by_part(built, kind):
    """Half of them, a tenth of those that are left at a time."""
    draw, queries, store = np.random.default_rng(3), drawn(50, 1), built(kind, "dot")
    exact = store.base
    while len(store) > COUNT / 2:
        kept = np.sort(draw.permutation(len(store))[: int(0.9 * len(store))])
        store, exact = store.take(kept), exact.take(kept)
        np.testing.assert_array_equal(store.rows(slice(None)), exact.rows(slice(None)))
        check_graph("here", store.links, store.levels, len(store))
    assert recall(store, exact, queries) > recall(GraphVectors(exact), exact, queries) - 0.03


def test_many_that_are_removed_at_once(built):
    store = built(Float32Vectors, "dot").take(np.arange(0, COUNT, 2))
    assert recall(store, store.base, drawn(50, 1)) > 0.95
    assert store.find_nearest(drawn(1, 1), 10)[0].max() < COUNT / 2


def test_another_order_finds_the_same(built):
    store, queries = built(Float32Vectors, "dot"), drawn(20, 1)
    order = np.random.default_rng(4).permutation(COUNT)
    links, levels = take_from_graph(store.links, store.levels, order)
    np.testing.assert_array_equal(levels, store.levels[order])
    again = take_from_graph(links, levels, np.argsort(order))
    starts = engines._find_starts(store.levels)
    for level in range(int(store.levels.max())):
        slots = engines._find_link_positions(starts[np.flatnonzero(store.levels > level)], level)
        np.testing.assert_array_equal(
            *(np.sort(one[slots], axis=1) for one in (again[0], store.links))
        )
    moved = store.take(order)
    assert recall(moved, moved.base, queries) > 0.95


@pytest.mark.parametrize("kind", [Float32Vectors, Int8Vectors])
def test_vectors_that_are_added(kind):
    first, more = drawn(3_000, 0), 1.5 * drawn(1_000, 5)  # beyond the ranges of int8
    store = GraphVectors(kind.create(first)).join(more)
    exact = kind.create(first).join(more)
    np.testing.assert_array_equal(store.rows(slice(None)), exact.rows(slice(None)))
    check_graph("here", store.links, store.levels, 4_000)
    assert recall(store, exact, drawn(50, 1)) > 0.95


# -- indexes -----------------------------------------------------------------------------------


class Embedder:
    """Reads the vector of "w7" off an array."""

    embedding_dim, dim, similarity_function = WIDTH, None, "cosine"
    vectors = drawn(COUNT + 1_000, 0)

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        if not texts[0].startswith("w"):  # probes
            return np.ones((len(texts), dim), "float32")
        return self.vectors[[int(text[1:]) for text in texts]]


def rows(start, stop):
    return [{"id": f"i{n}", "text": f"w{n}", "even": n % 2 == 0} for n in range(start, stop)]


def test_an_index_with_all_it_can(tmp_path):
    embedder = Embedder()
    index, exact = (
        ez.VectorIndex.build(embedder, rows(0, COUNT), engine=e) for e in ("hnsw", None)
    )
    assert repr(index) == "<VectorIndex: 4,000 texts; vectors of 12, float32, hnsw; cosine>"
    for one in (index, exact):
        one.add(rows(COUNT, COUNT + 500))
        one.remove([f"i{n}" for n in range(0, 100)])
        one.update([{"id": "i4400", "text": "w50", "even": True}])
    for folder in (None, "index"):
        if folder:
            index.save(tmp_path / folder)
            index = ez.load_index(tmp_path / folder, embedder)
            assert "hnsw" in repr(index)
        [hit] = index.search("w50", top_k=1)
        assert (hit["id"], hit["text"]) == ("i4400", "w50")
        queries = [f"w{n}" for n in range(40)]  # of documents that are gone
        for where in (None, {"even": True}, {"even": lambda value: not value}):
            found, expected = (i.search(queries, 10, where=where) for i in (index, exact))
            same = [
                {hit["id"] for hit in a} & {hit["id"] for hit in b}
                for a, b in zip(found, expected, strict=True)
            ]
            assert np.mean([len(s) for s in same]) > 9.5
            assert not {f"i{n}" for n in range(100)} & {h["id"] for hits in found for h in hits}
    for engine in ("faiss", "hnsw"):
        assert engine in repr(ez.load_index(tmp_path / "index", embedder, engine=engine))
    exact.save(tmp_path / "exact")
    assert "hnsw" in repr(ez.load_index(tmp_path / "exact", embedder, engine="hnsw"))


def changed(**arrays):
    return lambda held: {**held, **{name: change(held[name]) for name, change in arrays.items()}}


def elsewhere(links):
    links = links.copy()
    links[0] = COUNT
    return links


def high(links):
    """The first link of a higher level leads to a vector that is not in it."""
    return np.where(links >= 0, 0, links).astype("int32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(links=elsewhere), "links.*level"),
        (changed(links=lambda links: links - 1), "links.*level"),
        (changed(links=lambda links: links[:-1]), r"links.shape is \(\d+,\)"),
        (changed(links=high, levels=lambda v: np.r_[1, v[1:]].astype("int32")), "links "),
        (changed(levels=lambda levels: levels * 0), "levels.* 1 to 15"),
        (changed(levels=lambda levels: levels[:-1]), r"levels.shape is \(3999,\)"),
        (
            lambda held: {n: a for n, a in held.items() if n != "links"},
            "safetensors holds.*'levels'",
        ),
        (changed(links=lambda links: links.astype("int64")), "holds.*'links': .'int64'"),
    ],
)
def test_a_graph_that_cannot_be(tmp_path, built, change, message):
    embedder = Embedder()
    vectors = embedder.vectors[:COUNT]
    index = ez.VectorIndex.from_vectors(embedder, vectors[:20], engine="hnsw")
    index._store = built(Float32Vectors, "cosine")
    index.save(tmp_path)
    arrays = change(load_file(tmp_path / "vectors.safetensors"))
    save_file(arrays, tmp_path / "vectors.safetensors")
    with pytest.raises(ValueError, match=message):
        ez.load_index(tmp_path, embedder, verify=False)


def test_refusals():
    with pytest.raises(ValueError, match="precision is 'binary'.*engine='hnsw'"):
        ez.VectorIndex.build(Embedder(), ["w1"], precision="binary", engine="hnsw")
    embedder = Embedder()
    embedder.similarity_function = "manhattan"
    with pytest.raises(ValueError, match="engine='hnsw' does not support manhattan"):
        ez.VectorIndex.build(embedder, ["w1"], precision="int8", engine="hnsw")
