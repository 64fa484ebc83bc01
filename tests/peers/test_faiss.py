"""The search beside faiss's exact indices, and faiss as its engine."""

import numpy as np
import pytest

from encoder_zoo.tasks.retrieval import vectors
from encoder_zoo.tasks.retrieval.index_kinds import VectorIndex

pytestmark = pytest.mark.peers
faiss = pytest.importorskip("faiss")

METRICS = {
    "dot": faiss.METRIC_INNER_PRODUCT,
    "euclidean": faiss.METRIC_L2,
    "manhattan": faiss.METRIC_L1,
}
DIM = 48


class Embedder:
    """Reads the vector of "document 3" and "query 3" off two arrays."""

    embedding_dim, dim = DIM, None

    def __init__(self, function):
        self.similarity_function = function
        draw = np.random.default_rng(0)
        self.vectors = {
            "document": draw.standard_normal((3_000, DIM), dtype="float32"),
            "query": draw.standard_normal((70, DIM), dtype="float32"),
        }

    def embed(self, texts, prompt=None, dim=None, batch_size=None):
        if not texts[0].startswith(("document", "query")):  # probes
            return np.ones((len(texts), dim), "float32")
        parts = [text.split() for text in texts]
        return np.stack([self.vectors[kind][int(number)] for kind, number in parts])


def documents(count, start=0):
    return [f"document {i}" for i in range(start, start + count)]


QUERIES = [f"query {i}" for i in range(70)]


@pytest.mark.parametrize("engine", [None, "faiss"])
@pytest.mark.parametrize("function", [*METRICS, "cosine"])
def test_the_same_neighbours_and_scores(function, engine):
    embedder = Embedder(function)
    index = VectorIndex.build(embedder, documents(2_000), engine=engine)
    index.add(documents(1_000, start=2_000))
    theirs = faiss.IndexFlat(DIM, METRICS.get(function, faiss.METRIC_INNER_PRODUCT))
    corpus, queries = embedder.vectors.values()
    if function == "cosine":
        corpus, queries = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (corpus, queries))
    theirs.add(corpus)
    scores, indices = theirs.search(queries, 20)
    if function == "euclidean":
        scores = -np.sqrt(scores)
    elif function == "manhattan":
        scores = -scores
    for i, hits in enumerate(index.search(QUERIES, top_k=20)):
        assert [hit["index"] for hit in hits] == indices[i].tolist()
        np.testing.assert_allclose([hit["score"] for hit in hits], scores[i], rtol=1e-5, atol=1e-5)


def test_hamming_distances():
    corpus, queries = Embedder("dot").vectors.values()
    theirs = faiss.IndexBinaryFlat(DIM)
    theirs.add(np.packbits(corpus > 0, axis=1))
    distances, indices = theirs.search(np.packbits(queries > 0, axis=1), 300)
    signs, words = vectors.pack_signs(corpus), vectors.pack_signs(queries).T
    for query, expected, found in zip(words, distances, indices, strict=True):
        ours = vectors.count_differences(signs, query)
        assert np.sort(ours)[:300].tolist() == expected.tolist()
        assert ours[found].tolist() == expected.tolist()


def test_faiss_as_engine_searches_as_numpy_does(tmp_path):
    embedder = Embedder("cosine")
    index = VectorIndex.build(embedder, documents(500), engine="faiss")
    assert repr(index) == "<VectorIndex: 500 texts; vectors of 48, float32, faiss; cosine>"
    expected = VectorIndex.build(embedder, documents(500)).search(QUERIES)
    assert index.search(QUERIES) == expected
    assert len(index.search("query 1", top_k=10_000)) == 500
    before = index.vectors
    index.save(tmp_path / "index")
    index.add(documents(500, start=500))  # faiss moves its memory
    np.testing.assert_array_equal(before, index.vectors[:500])
    for engine in (None, "faiss"):
        loaded = VectorIndex.load(tmp_path / "index", embedder, engine=engine)
        assert loaded.search(QUERIES) == expected
